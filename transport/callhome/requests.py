"""Requests to other nodes, acknowledged in order over pooled connections.

Nothing is sent twice: whether a request that failed may have arrived is told, and what to do then
is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from transport.callhome.net import Net
from transport.callhome.pool import Answered, Host, Limits, Waiting, pack
from transport.errors import ConnectionLost, TooLarge, shown
from transport.wire.framing import LIMIT, Buffer
from transport.wire.request import request_size


class RequestClient:
    """Sends requests to the ingresses of other nodes; made by a router, used on its loop only.

    ``tasks`` is the actor's task group: a task runs while a connection is made. Times are seconds:
    ``connect_timeout`` bounds the wait for a connection, ``ack_timeout`` that for the reply;
    connections of a host that was not used for ``idle`` are closed. ``pool`` is the most
    connections of a host, ``depth`` the requests under way on one, ``connects`` the connections
    being made at once, ``max_message`` the largest request in bytes.
    """

    def __init__(
        self,
        net: Net,
        tasks: asyncio.TaskGroup,
        *,
        connect_timeout: float = 5.0,
        ack_timeout: float = 5.0,
        pool: int = 100,
        depth: int = 1024,
        connects: int = 64,
        idle: float = 300.0,
        max_message: int = LIMIT,
    ) -> None:
        self._net: Final = net
        self._tasks: Final = tasks
        self._limits: Final = Limits(connect_timeout, ack_timeout, pool, depth)
        self._gate: Final = asyncio.Semaphore(connects)
        self._closed = False
        self._idle: Final = idle
        self._max_message: Final = max_message
        self._hosts: dict[str, Host] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def send(
        self,
        address: str,
        path: str,
        headers: Mapping[str, str],
        parts: Sequence[Buffer],
        answered: Answered,
    ) -> None:
        """Send the payload in ``parts`` to ``path`` at ``address`` ("host:port").

        ``answered`` is called once, later: with the reply's bytes, or with ConnectionLost,
        DeadlineExceeded, OutboxFull or RemoteProtocolError, whose details say under ``sent``
        whether the request may have arrived ("maybe") or never left ("no"). The caller sees to it
        that ``check`` is called until then. Parts are not copied and must not change before.

        Raises TooLarge when the frame is over the limit and LocalProtocolError when path or headers
        do not fit into one; then nothing was sent, and nothing else is disturbed.
        """
        frame = pack(path, headers, parts)
        size = request_size(frame)
        if size > self._max_message:
            raise TooLarge(
                f"a request of {size} bytes for {shown(path)}; {self._max_message} may be sent to "
                "another node in one",
                size=str(size),
                limit=str(self._max_message),
            )
        if self._closed:
            error = ConnectionLost("this actor is ending", sent="no")
            self._net.loop.call_soon(answered, error)
            return
        host = self._hosts.get(address)
        if host is None:
            host = self._hosts[address] = Host(
                self._net, self._tasks, self._gate, self._limits, address
            )
            if self._sweeping is None:
                self._sweeping = self._net.loop.call_later(self._idle / 2, self._sweep)
        deadline = self._net.loop.time() + self._limits.connect_timeout
        host.send(Waiting(path, headers, parts, size, answered, deadline), frame)

    def retire(self, address: str) -> None:
        """Send nothing more over the connections that there are with ``address``: another process
        listens there now. What waits for its reply gets it.
        """
        host = self._hosts.get(address)
        if host is not None:
            host.retire()

    def check(self, now: float) -> bool:
        """See to deadlines, ``now`` being the monotonic clock; whether anybody waits for a reply.

        To be called every 50 ms or so while it returns True.
        """
        busy = False
        for host in list(self._hosts.values()):
            busy |= host.check(now)
        return busy

    def statistics(self) -> dict[str, int]:
        """What is open, as it stands."""
        hosts = self._hosts.values()
        return {
            "hosts": len(hosts),
            "connections": sum(len(host.lines) for host in hosts),
            "waiting": sum(len(host.waiting) for host in hosts),
            "unanswered": sum(len(line.slots) for host in hosts for line in host.lines),
        }

    def close(self) -> None:
        """Close all connections; who waits is told so with ConnectionLost."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        hosts, self._hosts = self._hosts, {}
        for host in hosts.values():
            host.close(ConnectionLost("this actor is ending"))

    def _sweep(self) -> None:
        """Let go of hosts that were not used for a while."""
        self._sweeping = None
        old = self._net.loop.time() - self._idle
        for address, host in list(self._hosts.items()):
            if host.used <= old and not host.busy and host.connecting is None:
                del self._hosts[address]
                host.close(ConnectionLost("not used"))
        if self._hosts:
            self._sweeping = self._net.loop.call_later(self._idle / 2, self._sweep)
