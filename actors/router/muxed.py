"""One stream to an engine on another node of ours, on the connection that all of them share.

Messages go through as they are, with the other side's stream number. What is large goes as a body:
out of the home's shared memory there, into this router's own arena here, from where it is lent on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from actors.errors import CallBackFailed, ConnectionLost, DeadlineExceeded
from actors.kernel.bodies import LARGE, Outgoing, in_line, outgoing
from actors.kernel.lanes import Lane
from actors.messages import (
    Accept,
    Credit,
    End,
    Faulted,
    Feed,
    FeedCredit,
    FeedEnd,
    FeedItem,
    Item,
    ItemBody,
    Items,
    Open,
    Record,
    Stop,
)
from actors.notices import Warned
from actors.router.relay import Relay, refusal, undelivered
from transport.callhome.mux import MuxConnection
from transport.errors import CallHomeError, read_error, to_wire
from transport.payload import Encoded
from transport.wire.message import Message

if TYPE_CHECKING:
    from actors.router.gateway import Gateway

#: Seconds for a node to say what has become of the streams of a worker that was removed: it waits
#: for all that a dead one has sent, and for how it has ended.
_LAST_WORD: Final = 1.0


class MuxRelay(Relay):
    """One stream on the connection between two nodes, ``number`` there."""

    __slots__ = (
        "accepted",
        "acknowledged",
        "bodies",
        "gateway",
        "lane",
        "number",
        "pending_stop",
        "removed",
        "request",
        "seen",
        "window",
    )

    def __init__(self, gateway: Gateway, message: Open, worker: Record, number: int) -> None:
        super().__init__(gateway.plane, message, worker)
        self.gateway = gateway
        self.number = number
        #: Items and bytes that the home takes at once.
        self.window = message.window_items, message.window_bytes
        self.acknowledged = False
        #: The worker has called home.
        self.seen = False
        #: The home has its Accept.
        self.accepted = False
        self.pending_stop: str | None = None
        #: Why the worker's record has gone meanwhile; "" while it stands.
        self.removed = ""
        #: The request's bytes, until they leave, where its envelope does not carry them.
        self.request: Outgoing | None = None
        #: Numbers of bodies of this stream that are leaving.
        self.bodies: set[int] | None = None
        #: Made for the first item that comes as a body.
        self.lane: Lane | None = None

    @property
    def runs(self) -> bool:
        return self.seen

    def answered(self, reply: bytes | CallHomeError) -> None:
        """The request was acknowledged, refused, or nobody knows; items may have come before."""
        if self.over:
            return
        if isinstance(reply, CallHomeError):
            if not self.seen:  # what has called home has the request, whatever became of the reply
                reply = undelivered(self.target, self.worker.via, reply)
                if reply.details.get("sent") == "no":
                    self.gateway.leave(self)
                    self.finish(reply)
                else:
                    self.fail(reply)
        elif reply:
            self.gateway.leave(self)
            self.finish(refusal(self.target, self.worker.via, reply))
        else:
            self.acknowledged = True
            self.proceed()

    def asked(self, connection: MuxConnection) -> None:
        """The stream was asked for over the connection that is up: nothing has to be waited for
        before its next step.
        """
        if self.gateway.connection is not connection:
            return  # it was lost over that, and with it the stream
        self.acknowledged = True
        if self.request is not None:
            request, self.request = self.request, None
            self._send(connection, request, -1)
        self.await_until(self.plane.runtime.settings.prologue_timeout)

    def proceed(self) -> None:
        """The next step, now that the acknowledgement or the connection has come."""
        settings, connection = self.plane.runtime.settings, self.gateway.connection
        if connection is None:
            self.await_until(settings.dial_in_timeout)
            return
        if self.pending_stop is not None:
            reason, self.pending_stop = self.pending_stop, None
            self.stop(reason)
        if not self.acknowledged:
            return
        request, self.request = self.request, None
        if request is not None:
            self._send(connection, request, -1)
        if not self.seen and not self.removed:
            self.await_until(settings.prologue_timeout)

    def gone(self, reason: str) -> None:
        """The worker was removed. Of a stream that it has not taken its node may still say what has
        become of it, which is the better word and comes behind all that the worker has sent.
        """
        if self.seen or self.removed:
            return
        self.removed = reason or "nobody has said why"
        if self.gateway.connection is None:
            self.fail(self.expired())
        else:
            self.await_until(_LAST_WORD)

    def expired(self) -> CallHomeError:
        settings, via = self.plane.runtime.settings, self.worker.via
        if self.removed:
            return ConnectionLost(
                f"{self.target}: {via} was removed before it took the stream: {self.removed}",
                sent="maybe",
            )
        if self.gateway.connection is None:
            return CallBackFailed(
                f"{self.target}: {via} took the request and did not call back to "
                f"{self.gateway.reached} within {settings.dial_in_timeout:g} s; see that this "
                "address can be reached from there (call_home_host, call_home_advertise)"
            )
        return DeadlineExceeded(
            f"{self.target}: {via} took the request and did not accept the stream within "
            f"{settings.prologue_timeout:g} s (prologue_timeout)",
            sent="maybe",
        )

    def _send(self, connection: MuxConnection, value: Outgoing, seq: int) -> None:
        if not value.parts:
            connection.send(value.message(self.number, seq), value.size)
            return
        number = connection.new_body()
        message = value._replace(body=number).message(self.number, seq)
        if self.bodies is None:
            self.bodies = set()
        self.bodies.add(number)
        connection.send_body(message, number, value.parts, partial(self.bodies.discard, number))

    def abort_bodies(self) -> None:
        """Nobody takes the rest of what is leaving."""
        bodies, connection = self.bodies, self.gateway.connection
        self.bodies = None
        if bodies and connection is not None:
            for number in bodies:
                connection.abort_body(number)

    # From the home.

    def _tell(self, message: Message, size: int = 64) -> None:
        if self.gateway.connection is not None:
            self.gateway.connection.send(message, size)

    def cancel(self, reason: str) -> None:
        self.request = None
        if self.lane is not None:
            self.lane.close()
        self.gateway.kill(self, reason)

    def stop(self, reason: str) -> None:
        if self.gateway.connection is None:
            self.pending_stop = reason
        else:
            message = Stop(self.plane.runtime.address.incarnation, self.number, reason)
            # Until the node is heard of the Open may be still here, and must not be overtaken.
            self.gateway.connection.send(message, behind=not self.seen)

    def credit(self, m: Credit) -> None:
        self._tell(Credit(self.number, m.items, m.bytes))

    def feed(self, m: Feed) -> None:
        size = sum(map(len, m.payloads))
        if size <= LARGE:
            self._tell(Feed(self.number, m.first, m.payloads), size)
            return
        for seq, payload in enumerate(m.payloads, m.first):
            if len(payload) <= LARGE:
                self._tell(Feed(self.number, seq, [payload]), len(payload))
            else:
                self._feed_value(FeedItem(self.stream, seq, payload, [], len(payload)))

    def feed_item(self, m: FeedItem) -> None:
        self.plane.runtime.expect(m.handles)
        self._feed_value(m)

    def _feed_value(self, m: FeedItem) -> None:
        try:
            value = outgoing(self.plane.runtime, m.payload, m.handles, 0)
        except CallHomeError as error:
            self.fail(error)  # a request that is not whole must not look complete
            return
        connection = self.gateway.connection
        if connection is None:
            return
        if value is None:
            connection.send(m._replace(stream=self.number), m.size)
        else:
            self._send(connection, value, m.seq)

    def feed_end(self, m: FeedEnd) -> None:
        self._tell(FeedEnd(self.number, m.total))

    # From the worker.

    def _called(self) -> None:
        self.seen = True
        self.await_until(math.inf)

    def _pass_on(self, message: Message, size: int) -> None:
        if self.lane is None:
            self.plane.runtime.port.send(self.home, message, size=size)
        else:
            self.lane.send(message, size)

    def accept(self, m: Accept) -> None:
        """The engine has the stream; towards the home it is this router that serves it."""
        if not self.seen:
            self._called()
        if not self.accepted:
            self.accepted = True
            peer = self.plane.runtime.address
            self.to_home(Accept(self.stream, peer, m.feed_items, m.feed_bytes, m.codec))
        elif m.feed_items or m.feed_bytes:
            self.to_home(FeedCredit(self.stream, m.feed_items, m.feed_bytes), control=True)

    def hold_request(self, value: Outgoing, frames: bool) -> None:
        """The request goes as a body; the home must know who holds its ``frames`` until then."""
        self.request = value
        if frames:
            self.accepted = True
            self.to_home(Accept(self.stream, self.plane.runtime.address, 0, 0))

    def take_items(self, m: Items) -> None:
        """Items without frames, on their way home."""
        if not self.seen:
            self._called()
        payloads = m.payloads
        self.items = m.first + len(payloads)
        self._pass_on(Items(self.stream, m.first, payloads), sum(map(len, payloads)))

    def take_item(self, m: Item) -> None:
        """An item whose arrays are in line; it counts as what it is, whatever it says."""
        size = len(m.payload) + in_line(m.handles)
        if not self.seen:
            self._called()
        self.items = m.seq + 1
        self._pass_on(Item(self.stream, m.seq, m.payload, m.handles, size), size)

    def take_body(self, m: ItemBody) -> None:
        """A large item: its bytes go into memory of ours, which is lent to the home."""
        connection = self.gateway.connection
        if connection is None:
            return
        if not self.seen:
            self._called()
        self.items = m.seq + 1
        if self.lane is None:
            self.lane = Lane(self.plane.runtime, self.home, self.stream, *self.window)
        self.lane.body(connection, m, partial(self._whole, m.seq), self.broken)

    def _whole(self, seq: int, value: Encoded) -> Message:
        if value.handles:
            return Item(self.stream, seq, value.data, value.handles, value.size)
        return Items(self.stream, seq, [value.data])

    def broken(self, error: CallHomeError) -> None:
        """What the worker has sent cannot go on to the home."""
        text = f"{self.target}: {self.worker.via}: {error}"
        failure = type(error)(text, **error.details)
        if self.over:  # its End came before the body was whole, and waited behind it
            self.blame(failure)
            if self.lane is not None:
                self.lane.close()
            self.to_home(End(self.stream, self.items, [failure.code, text, failure.details]))
        else:
            self.fail(failure)

    def end(self, m: End) -> None:
        """The stream has ended there."""
        if self.bodies:
            self.abort_bodies()
        self.gateway.leave(self)
        error = None if m.error is None else read_error(m.error)
        if not self.plane.forget(self, error):
            return
        told = None
        if error is not None:
            self.blame(error)
            told = to_wire(error)
        size = (64 if told is None else 2048) + sum(map(len, m.last))
        message, port = End(self.stream, m.total, told, None, m.last), self.plane.runtime.port
        if self.lane is None:
            port.queue(self.home, message, size=size)
        else:
            self.lane.send(message, size)
        port.hurry()

    def faulted(self, m: Faulted) -> None:
        """An error item follows: the permit comes back before it goes home."""
        self.plane.faulted(self)

    def warned(self, m: Warned) -> None:
        """Something is wrong with the engine, and the stream goes on."""
        self.to_home(m._replace(stream=self.stream))

    def feed_credit(self, m: FeedCredit) -> None:
        """The engine has room for more of the request."""
        self.to_home(FeedCredit(self.stream, m.items, m.bytes), control=True)


#: What a node may send on its connection, and who takes it.
TAKES: Final[dict[type, Callable[[MuxRelay, Any], None]]] = {
    Items: MuxRelay.take_items,
    Item: MuxRelay.take_item,
    ItemBody: MuxRelay.take_body,
    Accept: MuxRelay.accept,
    End: MuxRelay.end,
    FeedCredit: MuxRelay.feed_credit,
    Faulted: MuxRelay.faulted,
    Warned: MuxRelay.warned,
}
