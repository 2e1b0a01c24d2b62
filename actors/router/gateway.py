"""The way to one node of ours: its one connection and the streams on it.

The node's ingress dials that connection home when the first of the streams asks for it, by a
subject that is good for this router and this node. Until it is up the streams wait; when it is lost
they end, and the next stream gets a new subject.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from actors.messages import End, Faulted, FeedCredit, Kill
from actors.notices import Leaving, Warned
from actors.router.muxed import TAKES, MuxRelay
from actors.router.relay import Plane
from transport.callhome.link import Link
from transport.callhome.mux import CLOSED, MuxConnection
from transport.callhome.reception import Expected
from transport.errors import CallHomeError, ConnectionLost, RemoteProtocolError
from transport.wire.control import Handshake
from transport.wire.message import Message

#: Kills that wait: for a connection that is not up yet, or of forgotten streams on one. Who is told
#: nothing now is told when its stream is heard of again.
_KILLS: Final = 1024
_FORGOTTEN: Final = "its home has forgotten the stream"
#: What is said of a stream though it ends, or may have: nothing that a Kill would stop.
_LAST: Final = frozenset({End, FeedCredit, Faulted, Warned})


class Gateway:
    """One ingress of another node, from the first stream to it until nothing connects it."""

    def __init__(
        self, plane: Plane, address: str, left: Callable[[Gateway], None] = lambda gateway: None
    ) -> None:
        """``left`` is called when the ingress behind it has made room for another."""
        self.plane = plane
        self._left = left
        #: No stream is opened here any more; what is open goes on.
        self.leaving = False
        self.address = address
        self.connection: MuxConnection | None = None
        self.expected: Expected | None = None
        self.relays: dict[int, MuxRelay] = {}
        self._late: OrderedDict[int, str] = OrderedDict()
        #: Forgotten streams whose Kill may not have left yet: a node that does not read, and speaks
        #: of them again and again, is told once.
        self._told: set[int] = set()

    @property
    def idle(self) -> bool:
        """There is no connection, and nobody waits for one."""
        return not self.relays and self.connection is None and self.expected is None

    @property
    def reached(self) -> str:
        """Where the node is told to call home; "" before it was."""
        return "" if self.expected is None else str(self.expected.info.get("address", ""))

    def enter(self, relay: MuxRelay) -> dict[str, Any]:
        """Keep a stream; the connection info for its envelope, without what is its own.

        Raises CallHomeError when nobody can listen where the node would call.
        """
        if self.expected is None:
            self.expected = self.plane.reception.expect_mux(
                self.address, self._arrived, self._lost, math.inf
            )
        self.relays[relay.number] = relay
        return self.expected.info

    def leave(self, relay: MuxRelay) -> None:
        """A stream has ended; a connection that nobody waits for any more is not expected."""
        self.relays.pop(relay.number, None)
        if not self.relays and self.connection is None and self.expected is not None:
            self.plane.reception.cancel(self.expected.subject)
            self.expected = None
            self._late.clear()
        elif self.leaving and not self.relays and self.connection is not None:
            # Not from in here: whoever ends a stream may still have to tell something by it.
            self.plane.runtime.plan_tick()

    def kill(self, relay: MuxRelay, reason: str) -> None:
        """Tell the node that a stream is not wanted, now or when it has called home."""
        if self.connection is not None:
            own = self.plane.runtime.address.incarnation
            # As a Stop: behind the Open, if that is still here.
            self.connection.send(Kill(own, relay.number, reason), behind=not relay.seen)
            relay.abort_bodies()
            self.connection.flush()
        elif len(self._late) < _KILLS:
            self._late[relay.number] = reason
        self.leave(relay)

    def _arrived(self, link: Link, rest: bytes, handshake: Handshake) -> None:
        runtime = self.plane.runtime
        own = runtime.address.incarnation
        self.connection = connection = MuxConnection(
            link,
            rest,
            incarnation=own,
            deliver=self._deliver,
            lost=self._lost,
            burst=runtime.port.burst,
            plan=self.plane.flushes.add,
        )
        late, self._late = self._late, OrderedDict()
        for number, reason in late.items():
            connection.send(Kill(own, number, reason))
        for relay in list(self.relays.values()):
            relay.proceed()
        runtime.plan_tick()

    def _deliver(self, m: Message) -> None:
        take = TAKES.get(type(m))
        if take is None:
            if type(m) is Leaving:
                self._leave()
                return
            raise RemoteProtocolError(f"a {type(m).__name__} has no use on this side")
        relay = self.relays.get(m.stream)  # type: ignore[attr-defined]
        if relay is not None:
            try:
                take(relay, m)
            except CallHomeError as error:  # the fault of one stream, not of the connection
                relay.broken(error)
        elif type(m) not in _LAST:
            self._kill_forgotten(m.stream)  # type: ignore[attr-defined]

    def _leave(self) -> None:
        if not self.leaving:
            self.leaving = True
            self._left(self)
            self.plane.runtime.plan_tick()

    def _kill_forgotten(self, number: int) -> None:
        told = self._told
        if self.connection is not None and number not in told and len(told) < _KILLS:
            told.add(number)
            own = self.plane.runtime.address.incarnation
            self.connection.send(Kill(own, number, _FORGOTTEN))

    def _lost(self, error: CallHomeError) -> None:
        """The connection is gone, or will never come: so are its streams, and nothing else."""
        self.connection = self.expected = None
        self._late.clear()
        self._told.clear()
        relays, self.relays = self.relays, {}
        _, _, why = str(error).rpartition(" is lost: ")
        if why == CLOSED:
            why = "the other side closed it (has its ingress ended?)"
        for relay in relays.values():
            if relay.lane is not None:
                relay.lane.close()
            relay.request = None
            relay.finish(
                ConnectionLost(
                    f"{relay.target}: the connection with {self.address} was lost after "
                    f"{relay.items} items: {why}",
                    sent="maybe",  # so nobody sends it anew unless a second time does no harm
                )
            )

    def check(self, now: float) -> None:
        """The coarse timer: pings, and whether they are answered."""
        mux = self.connection
        if self.leaving and not self.relays:
            self.close("its ingress has made room for another")
            return
        if mux is not None and mux.check(now) and self._told and not mux.backlog:
            self._told.clear()

    def close(self, reason: str) -> None:
        """The router stops, or its ingress has; its streams have been ended before."""
        self.expected = None
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close(reason)
