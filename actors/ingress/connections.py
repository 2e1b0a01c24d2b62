"""Connections to nodes of ours: one for each requester, dialled once, shared by all its streams.

A *subject* names the connection: the requester makes a new one when the connection is lost. The
first request that names it makes us dial; the streams behind it wait for that dial. Once it is up
the requester opens streams over it. A lost connection ends its own streams and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from actors.errors import Overloaded
from actors.ingress.stream import Stream
from actors.ingress.streams import DIAL, Streams
from actors.kernel.tombstones import Tombstone, Tombstones
from actors.messages import Credit, End, Feed, FeedEnd, FeedItem, ItemBody, Kill, Open, Stop
from actors.notices import Leaving
from transport.callhome.address import check_hostport
from transport.callhome.dialer import dial
from transport.callhome.mux import MuxConnection
from transport.errors import CallHomeError, RemoteProtocolError, shown, to_wire
from transport.wire.control import pack_handshake
from transport.wire.envelope import Info
from transport.wire.message import Message

#: Connections to requesters at the same time: further ones would cost descriptors without end.
MOST: Final = 1024
#: What a requester may say on its connection about a stream that it has opened.
_SPOKEN: Final = frozenset({Credit, Stop, Kill, Feed, FeedItem, FeedEnd, ItemBody})


class Relay(Protocol):
    """One stream on a connection, as the connection sees it."""

    def ready(self) -> None:
        """The connection is up."""

    def heard(self, message: Message) -> None:
        """The requester says something about the stream."""

    def cut(self, error: CallHomeError) -> None:
        """The connection is lost, or never came to be."""


class HomeConnection:
    """The way to one requester; ``mux`` is None until its dial has come through."""

    def __init__(self, connections: Connections, subject: str, address: str, home: int) -> None:
        self._connections = connections
        self.subject = subject
        self.address = address
        #: Incarnation of the requester.
        self.home = home
        self.mux: MuxConnection | None = None
        #: By the requester's number.
        self.relays: dict[int, Relay] = {}
        #: How many of the requester's streams each engine has, by its incarnation.
        self.carried: dict[int, int] = {}
        #: The requester follows the loads of this node, and so is new enough for ``Faulted``.
        self.knows_faults = False
        #: It has said that it takes warnings of its streams (``Warned``).
        self.knows_warnings = False
        #: It has been told to open nothing more here.
        self.told = False
        #: Cancels that came before the requests they mean; whether there may be any.
        self.tombstones = Tombstones()
        self.buried = False

    def cancelled(self, number: int) -> Tombstone | None:
        """The cancel that came before a stream which begins now, if there is one."""
        if not self.buried:
            return None
        return self.tombstones.take(self.home, number, time.monotonic())

    def is_cancelled(self, number: int, relay: Relay) -> bool:
        """Whether the cancel of a stream came before it: it is told that now, and never starts."""
        tomb = self.cancelled(number)
        if tomb is not None:
            relay.heard((Kill if tomb.kill else Stop)(self.home, number, tomb.reason))
        return tomb is not None

    def leave_it(self) -> None:
        """Tell the requester to open nothing more on this connection."""
        if self.mux is not None and not self.told:
            self.told = True
            self.mux.send(Leaving())

    def enter(self, number: int, relay: Relay) -> None:
        """A stream by the requester's number. Raises RemoteProtocolError when it is there."""
        if number in self.relays:
            raise RemoteProtocolError(f"stream {number} of {self.address} was opened twice")
        self.relays[number] = relay

    def refuse(self, number: int, error: CallHomeError) -> None:
        """A stream that was asked for over this connection does not come to be."""
        if self.mux is not None:
            self.mux.send(End(number, 0, to_wire(error)))

    def leave(self, number: int, relay: Relay) -> None:
        """A stream is over."""
        if self.relays.get(number) is relay:
            del self.relays[number]

    async def dial(self) -> None:
        """Reach the requester, once; then all streams that wait go on, or end."""
        connections = self._connections
        streams = connections.streams
        incarnation = streams.runtime.address.incarnation
        hello = pack_handshake(self.subject, "mux", incarnation=f"{incarnation:x}")
        limit = streams.runtime.settings.connect_timeout or DIAL
        try:
            framed = await dial(streams.net, self.address, hello, limit)
            link, rest = framed.detach()
        except CallHomeError as error:
            self.lost(error)
            return
        if connections.find_subject(self.subject) is not self:
            link.close(abort=True)  # closed meanwhile
            return
        self.mux = MuxConnection(
            link,
            rest,
            incarnation=incarnation,
            deliver=self._deliver,
            lost=self.lost,
            burst=streams.runtime.port.burst,
            plan=streams.flushes.add,
        )
        if connections.leaving:
            self.leave_it()
        for number, relay in list(self.relays.items()):
            try:
                relay.ready()
            except Exception as error:
                told = streams.broken(self.address, error)
                self.refuse(number, told)
                self._cut(relay, told)

    def _deliver(self, message: Message) -> None:
        if type(message) is Open:
            if message.home.incarnation != self.home:
                raise RemoteProtocolError("an Open whose home is not the requester")
            self._connections.opened(self, message)
            return
        if type(message) not in _SPOKEN:
            raise RemoteProtocolError(f"a requester has no {type(message).__name__} to send")
        number = message.stream  # type: ignore[attr-defined]
        relay = self.relays.get(number)
        if relay is not None:
            relay.heard(message)
        elif type(message) is Stop or type(message) is Kill:
            kill = type(message) is Kill
            self.tombstones.put(self.home, number, time.monotonic(), kill, message.reason)
            self.buried = True
            self._connections.streams.runtime.plan_tick()
        # All else is for a stream that has ended; a body that nobody expects is thrown away.

    def lost(self, error: CallHomeError) -> None:
        """The connection has ended, or does not come to be: so do all streams on it."""
        self._connections.forget(self)
        mux, self.mux = self.mux, None
        if mux is not None:
            mux.close(str(error))
        relays, self.relays = list(self.relays.values()), {}
        count = sum(isinstance(relay, Stream) for relay in relays)
        told = f"{self.address}, {count} streams end: {error}"
        if mux is None:  # whoever asked for it: somebody has told an address that is none
            self._connections.streams.complain("ingress.unreached", f"cannot call home at {told}")
        elif count:  # who leaves without a stream is nobody's trouble
            self._connections.streams.complain("ingress.lost", f"lost the connection to {told}")
        for relay in relays:
            if mux is None:
                self._connections.streams.count("response_stream")
            self._cut(relay, error)

    def _cut(self, relay: Relay, error: CallHomeError) -> None:
        try:
            relay.cut(error)
        except Exception as worse:
            self._connections.streams.broken(self.address, worse)

    def check(self, now: float) -> None:
        """The coarse timer: pings, and tombstones crumble."""
        if self.buried:
            self.tombstones.crumble(now)
            self.buried = bool(self.tombstones)
        if self.mux is not None:
            self.mux.check(now)

    def close(self, reason: str) -> None:
        """This side closes."""
        self._connections.forget(self)
        if self.mux is not None:
            self.mux.close(reason)


class Connections:
    """All connections of one ingress, by subject."""

    def __init__(self, streams: Streams, opened: Callable[[HomeConnection, Open], None]) -> None:
        """``opened`` takes each Open that comes over a connection; it may raise
        RemoteProtocolError.
        """
        self.streams = streams
        self.opened = opened
        self._by_subject: dict[str, HomeConnection] = {}
        #: Another ingress has our place.
        self.leaving = False

    def leave(self) -> None:
        """Another ingress has our place: whoever is connected, or will be, is sent there."""
        self.leaving = True
        for connection in list(self._by_subject.values()):
            connection.leave_it()

    def find_subject(self, subject: str) -> HomeConnection | None:
        """The connection of a subject, dialled or not."""
        return self._by_subject.get(subject)

    def __len__(self) -> int:
        return len(self._by_subject)

    def find(self, info: Info) -> HomeConnection:
        """The connection that a request names, dialled if it is the first to name it.

        Raises RemoteProtocolError for a subject that belongs to somebody else, or an address that
        nobody can dial; Overloaded for one too many.
        """
        subject, address = info.text("subject"), info.text("address")
        home = _incarnation(info.text("incarnation"))
        found = self._by_subject.get(subject)
        if found is not None:
            if (found.address, found.home) != (address, home):
                raise RemoteProtocolError(
                    f"the subject of {found.address} is named by {shown(address)}"
                )
            return found
        check_hostport(address)
        if len(self._by_subject) >= MOST:
            raise Overloaded(f"{MOST} nodes are connected already, {address} is one more")
        found = self._by_subject[subject] = HomeConnection(self, subject, address, home)
        self.streams.start(found.dial(), f"dial {address}", found.lost)
        self.streams.runtime.plan_tick()
        return found

    def carried(self) -> Iterator[dict[int, int]]:
        """How many streams each engine has, for each requester that is connected."""
        return (each.carried for each in self._by_subject.values())

    def forget(self, connection: HomeConnection) -> None:
        """A connection is gone; its subject is never used again by an honest requester."""
        if self._by_subject.get(connection.subject) is connection:
            del self._by_subject[connection.subject]

    def check(self, now: float) -> bool:
        """The coarse timer; whether it has to go on."""
        for connection in list(self._by_subject.values()):
            connection.check(now)
        return bool(self._by_subject)

    def close(self, reason: str) -> None:
        """This ingress stops; its streams have been told."""
        for connection in list(self._by_subject.values()):
            connection.close(reason)


def _incarnation(text: str) -> int:
    try:
        value = int(text, 16)
    except ValueError:
        value = -1
    if not 0 < value < 1 << 64:
        raise RemoteProtocolError(f"{text[:40]!r} is no incarnation")
    return value
