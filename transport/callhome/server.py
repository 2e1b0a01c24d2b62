"""Requests from other nodes: read from pipelined connections, acknowledged in their order.

What cannot be read ends its own connection, after a word that says why; it is counted and logged
and nobody else notices.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from transport.callhome.link import Link
from transport.callhome.listener import Listener
from transport.callhome.net import Net
from transport.errors import CallHomeError, LocalProtocolError, RemoteProtocolError
from transport.wire.framing import LIMIT
from transport.wire.request import UNAVAILABLE, RequestFrame, RequestReader, pack_reply

Handle = Callable[[RequestFrame, "Reply"], None]

#: Bytes of replies that a caller may leave unread before nothing more is read from it.
_BACKLOG: Final = 1 << 20
#: Seconds that replies may still take on a connection that is to be closed behind them.
_LAST_REPLIES: Final = 5.0
_FAILED: Final = f"{UNAVAILABLE} the request failed where it was to be queued".encode()


class Reply:
    """The place of one request in the order of replies; call it once, with the reply's bytes.

    Empty bytes acknowledge the request. It leaves when all before it have left; if the connection
    is gone by then, it goes nowhere. Raises LocalProtocolError at a second call.
    """

    __slots__ = ("_caller", "data")

    def __init__(self, caller: _Caller) -> None:
        self._caller = caller
        self.data: bytes | None = None

    def __call__(self, data: bytes) -> None:
        if self.data is not None:
            raise LocalProtocolError("a request is answered once, and this one was")
        self.data = data
        self._caller.send_replies()


class _Caller:
    """One connection of somebody who sends requests."""

    __slots__ = (
        "_last", "_paused", "_planned", "_reader", "_seen", "_server", "_timer", "link", "slots",
    )  # fmt: skip

    def __init__(self, server: RequestServer, link: Link) -> None:
        self._server = server
        self._reader = RequestReader(server.max_message)
        self._last = self._paused = self._planned = False
        self._seen = -1
        self._timer: asyncio.TimerHandle | None = None
        self.link = link
        self.slots: deque[Reply] = deque()
        link.start(self._feed, self._ended)

    @property
    def quiet(self) -> bool:
        """Nothing was asked that is not answered, and nothing has come of another request."""
        if self.slots or self.link.backlog or self._paused:
            return False
        try:
            self._reader.eof()
        except RemoteProtocolError:
            return False
        return True

    def send_replies(self) -> None:
        """Send the replies whose turn it is, and what follows from there being fewer."""
        slots, link = self.slots, self.link
        while slots and (data := slots[0].data) is not None:
            slots.popleft()
            link.write(pack_reply(data))
        if self._last:
            if not slots:
                self.close()
        elif self._paused and not self._planned and len(slots) <= self._server.unanswered // 2:
            # Not from in here: that would call the handler out of one of its own replies.
            self._planned = True
            link.when_drained(self._go_on)

    def silent(self) -> None:
        """End a connection that stopped inside a request since this was asked the last time, or
        has never said a word.
        """
        seen, self._seen = self._seen, self.link.received
        if seen == self._seen and not self._paused and not self._last:
            if not seen:
                text = f"{self.link.peer} has connected and asked for nothing"
                self._server.net.complain("request.silent", text)
                self.close()
                return
            try:
                self._reader.eof()
            except RemoteProtocolError:
                text = f"nothing came for {self._server.patience:g} s in the middle of a request"
                self._refuse(RemoteProtocolError(text))

    def close(self, abort: bool = False) -> None:
        """Close the connection, behind the replies that were given."""
        self.link.close(abort=abort)
        self._gone()

    def _feed(self, data: memoryview | bytes) -> None:
        reader, slots, server = self._reader, self.slots, self._server
        while not self._last:
            reader.most = most = server.unanswered - len(slots)
            try:
                frames = reader.feed(data)
            except RemoteProtocolError as error:
                self._refuse(error)
                return
            data = b""
            for frame in frames:
                reply = Reply(self)
                slots.append(reply)
                server.take(frame, reply)
            if reader.fault is not None:
                self._refuse(reader.fault)
                return
            if len(slots) >= server.unanswered or self.link.backlog >= _BACKLOG:
                self._pause()
                return
            if len(frames) < most:
                return

    def _pause(self) -> None:
        """Read nothing until replies have been given, and taken."""
        self._paused = True
        self.link.pause()
        self.send_replies()

    def _go_on(self) -> None:
        self._planned = False
        if not self._last:
            self._paused = False
            self.link.resume()
            self._feed(b"")

    def _refuse(self, error: RemoteProtocolError) -> None:
        """What comes has no meaning: say so behind the replies that are due, and close."""
        peer = self.link.peer
        self._server.net.complain("request.garbage", f"requests from {peer} are cut: {error}")
        reply = Reply(self)
        # Dynamo's client takes every reply but two for "accepted", and would wait for ever. Its own
        # workers have it wait; who has merely sent too much is told in words that it knows.
        words = UNAVAILABLE if "limit" in error.details else "Read error:"
        reply.data = f"{words} {error}".encode()[:1000]
        self.slots.append(reply)
        self._close_behind()

    def _close_behind(self) -> None:
        """Read nothing more; close when all replies have been given, or in a while."""
        self._last = True
        self.link.pause()
        self.send_replies()
        if self.slots:
            loop = self._server.net.loop
            self._timer = loop.call_later(_LAST_REPLIES, self.close, True)

    def _ended(self, error: CallHomeError | None) -> None:
        if error is not None:
            self._gone()
            return
        if self._last:
            return
        try:
            self._reader.eof()
        except RemoteProtocolError as fault:
            self._refuse(fault)
        else:
            self._close_behind()

    def _gone(self) -> None:
        self._last = True
        self.slots.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._server.forget(self)


class RequestServer:
    """Takes requests on ``host:port``; made by an ingress, used on its loop only.

    ``handle`` is called with each request and the Reply that it must call once, at once or later.
    ``max_message`` is the largest request in bytes, ``unanswered`` how many requests of one
    connection may be without a reply before nothing more is read from it, and ``patience`` the
    seconds after which one that has stopped inside a request, or never began one, is closed (twice
    as many at most). ``name`` is the setting that errors about ``host`` and ``port`` name, ``sock``
    a socket that is bound there already.
    """

    def __init__(
        self,
        net: Net,
        host: str,
        port: int,
        handle: Handle,
        max_message: int = LIMIT,
        *,
        unanswered: int = 1024,
        patience: float = 30.0,
        name: str = "listen",
        sock: socket.socket | None = None,
    ) -> None:
        self.net: Final = net
        self.max_message: Final = max_message
        self.unanswered: Final = unanswered
        self.patience: Final = patience
        self._handle = handle
        self._listener = Listener(net, host, port, self._accepted, name, sock)
        self._callers: set[_Caller] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """``host:port`` that is listened on, with the port that the system gave for 0."""
        return self._listener.address

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._callers)

    def open(self) -> None:
        """Begin to listen. Raises SpecError naming the setting when that is not possible."""
        self._listener.open()

    def leave(self) -> None:
        """Accept nobody any more, for somebody else does at the same socket; who is connected is
        served. ``part`` is to be called again and again from some time later on.
        """
        self._listener.close()

    def part(self) -> None:
        """After ``leave``: close those connections on which nothing is under way."""
        for caller in list(self._callers):
            if caller.quiet:
                caller.close()

    def close(self) -> None:
        """Listen no more, and close all connections behind the replies that were given."""
        self._closed = True
        self._listener.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for caller in list(self._callers):
            caller.close()

    def take(self, frame: RequestFrame, reply: Reply) -> None:
        """Hand a request over; for connections. A handler that raises costs its request only."""
        try:
            self._handle(frame, reply)
        except Exception as error:
            self.net.complain("request.failed", "failed on a request from another node", error)
            if reply.data is None:
                reply(_FAILED)

    def forget(self, caller: _Caller) -> None:
        """A connection is gone; for connections."""
        self._callers.discard(caller)

    def _accepted(self, link: Link) -> None:
        if self._closed:
            link.close(abort=True)
            return
        self._callers.add(_Caller(self, link))
        if self._sweeping is None:
            self._sweeping = self.net.loop.call_later(self.patience, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        for caller in list(self._callers):
            caller.silent()
        if self._callers and not self._closed:
            self._sweeping = self.net.loop.call_later(self.patience, self._sweep)
