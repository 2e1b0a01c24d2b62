"""Names of hosts and the addresses behind them, looked up in a thread and never on the loop.

A lookup may take seconds, in which a router or an ingress would see to nobody. Who needs an address
at once takes what is known, and else waits for it with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from transport.callhome.address import numeric
from transport.errors import (
    CallHomeError,
    ConnectionLost,
    OutboxFull,
    RemoteProtocolError,
    shown,
    text_of,
)

log = logging.getLogger("callhome.net")

Then = Callable[[CallHomeError | None], None]

#: Seconds after which a name that is used is looked up anew, and for which what was found is used.
_FRESH: Final = 5.0
_STALE: Final = 60.0
#: Names that are remembered, and that may be looked up at once.
_KEPT: Final = 4096
_MOST: Final = 256


class _Asker:
    """Somebody who waits for a name."""

    __slots__ = ("then", "timer")

    def __init__(self, then: Then) -> None:
        self.then = then
        self.timer: asyncio.TimerHandle | None = None


class Names:
    """Made and closed by ``Net``, for all that dial or are dialled on its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: Address and time of each name that was found.
        self._known: dict[str, tuple[str, float]] = {}
        #: Who waits for each name that is being looked up.
        self._asked: dict[str, list[_Asker]] = {}
        self._closed = False

    def address(self, host: str) -> str:
        """The numeric address of ``host`` if it is one or is known; "" when it has to be looked up.

        What is known for a while already is looked up anew meanwhile.
        """
        known = self._known.get(host)
        if known is None:
            return host if numeric(host) else ""
        found, since = known
        age = time.monotonic() - since
        if age >= _STALE:
            del self._known[host]
            return ""
        if age >= _FRESH and host not in self._asked and len(self._asked) < _MOST:
            self._ask(host)
        return found

    def look_up(self, host: str, then: Then, timeout: float) -> None:
        """Call ``then``, once and later: with None when ``address`` knows the host, or with
        ConnectionLost, RemoteProtocolError for what is no name, OutboxFull, latest after
        ``timeout`` seconds. ``sent`` in their details is "no". After ``close`` nobody is called.
        """
        if self.address(host):
            self._loop.call_soon(self._tell, then, None)
            return
        asker = _Asker(then)
        self._join(host, asker)
        if asker.timer is None:
            asker.timer = self._loop.call_later(timeout, self._late, host, asker, timeout)

    async def find(self, host: str) -> str:
        """The numeric address of ``host``; the caller gives the deadline. Raises what ``look_up``
        tells.
        """
        found = self.address(host)
        if found:
            return found
        future: asyncio.Future[CallHomeError | None] = self._loop.create_future()
        asker = _Asker(partial(_settle, future))
        self._join(host, asker)
        try:
            error = await future
        finally:
            self._leave(host, asker)
        if error is not None:
            raise error
        found = self.address(host)
        if not found:  # forgotten again, in a crowd of names
            raise _error(host, None)
        return found

    def close(self) -> None:
        """Wait for nothing any more; what a thread still finds is dropped."""
        self._closed = True
        asked, self._asked = self._asked, {}
        for askers in asked.values():
            for asker in askers:
                if asker.timer is not None:
                    asker.timer.cancel()

    def _join(self, host: str, asker: _Asker) -> None:
        askers = self._asked.get(host)
        if askers is None:
            if len(self._asked) >= _MOST or self._closed:
                text = f"{len(self._asked)} names are being looked up, {shown(host)} has to wait"
                asker.timer = self._loop.call_later(
                    0, self._tell, asker.then, OutboxFull(text, sent="no")
                )
                return
            askers = self._ask(host)
        askers.append(asker)

    def _leave(self, host: str, asker: _Asker) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._asked[host].remove(asker)

    def _ask(self, host: str) -> list[_Asker]:
        look = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        looking = self._loop.run_in_executor(None, look)
        askers = self._asked[host] = []
        looking.add_done_callback(partial(self._looked, host))
        return askers

    def _looked(self, host: str, looked: asyncio.Future[list[Any]]) -> None:
        if looked.cancelled():
            return
        trouble = looked.exception()
        found = [] if trouble is not None else looked.result()
        if found:
            # IPv4 first: a peer may have no IPv6.
            found.sort(key=lambda each: each[0] != socket.AF_INET)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[host] = str(found[0][4][0]), time.monotonic()
        for asker in self._asked.pop(host, ()):
            if asker.timer is not None:
                asker.timer.cancel()
            self._tell(asker.then, None if found else _error(host, trouble))

    def _late(self, host: str, asker: _Asker, timeout: float) -> None:
        self._leave(host, asker)
        text = f"host {shown(host)} was not looked up within {timeout:g} s"
        self._tell(asker.then, ConnectionLost(text, peer=host, errno="ETIMEDOUT", sent="no"))

    def _tell(self, then: Then, error: CallHomeError | None) -> None:
        try:
            then(error)
        except Exception:  # costs who has asked, and nobody else who waits
            log.exception("failed on a name that was looked up")


def _settle(future: asyncio.Future[CallHomeError | None], error: CallHomeError | None) -> None:
    if not future.done():
        future.set_result(error)


def _error(host: str, trouble: BaseException | None) -> CallHomeError:
    """An error of its own for each who has asked."""
    words = "it has no address" if trouble is None else text_of(trouble)
    text = f"host {shown(host)} cannot be looked up: {words}"
    if isinstance(trouble, ValueError):  # UnicodeError is one
        return RemoteProtocolError(text, sent="no")
    return ConnectionLost(text, peer=host, errno="", sent="no")
