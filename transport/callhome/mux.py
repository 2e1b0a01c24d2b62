"""The one connection that two nodes share for all streams between them.

Between two nodes that know each other a stream costs no socket. Messages of all streams that became
ready in a tick leave in one batch; what is large follows as a body, in chunks with other messages
between them. The connection knows nothing of streams: it carries messages in order, and bodies by
their number. Credit between the ends of the streams bounds what may wait here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from transport.callhome.link import Link
from transport.callhome.mux_in import Inflow, Pieces
from transport.callhome.mux_out import Outflow
from transport.errors import CallHomeError, ConnectionLost, RemoteProtocolError
from transport.wire.message import BatchReader, Message, Portions
from transport.wire.mux import BATCH, PING, PONG, PROBE, pack_mux

#: Seconds between two pings, and without a byte after which the peer counts as dead.
PING_EVERY: Final = 1.0
DEAD_AFTER: Final = 4.0
#: Pings are not answered while so many bytes wait: the peer sees those.
_BUSY: Final = 64 << 10
#: A batch from so many bytes on is handled in turns of so many messages, between which the loop
#: sees to others: a peer may put a million messages into one.
_LONG: Final = 16 << 10
_TURN: Final = 1024
#: What the error of a connection says that the peer has ended in order.
CLOSED: Final = "it has closed it"

_PROBE: Final = Struct(">Q")


class MuxConnection:
    """One end, made by a router or an ingress after the handshake, used on its loop only.

    ``link`` is a connected link on which nothing else reads any more, ``rest`` what it has read
    beyond the handshake. ``incarnation`` is ours and stands in every batch. ``deliver`` gets each
    message, in order; it may raise RemoteProtocolError, which costs that message only; ``burst`` is
    called with True before the messages of one turn and with False behind them. ``lost`` is called
    once, when the connection ends and ``close`` was not called; nothing comes after it. ``plan`` is
    called when something waits for ``flush``, once until then, by an owner who calls that at the
    end of what it handles; else it leaves at the end of the tick. The owner calls ``check`` at
    least once a second.
    """

    def __init__(
        self,
        link: Link,
        rest: bytes,
        *,
        incarnation: int,
        deliver: Callable[[Message], None],
        lost: Callable[[CallHomeError], None],
        burst: Callable[[bool], None] = lambda begins: None,
        plan: Callable[[MuxConnection], None] | None = None,
    ) -> None:
        self.link: Final = link
        #: The peer's incarnation; 0 until its first batch has come.
        self.peer_incarnation = 0
        #: Batches and messages that came, and messages among them that meant nothing.
        self.batches_in = self.messages_in = self.unreadable = 0
        self._deliver = deliver
        self._burst = burst
        self._lost = lost
        self._plan = plan or MuxConnection._soon
        self._reader = BatchReader()
        self._in = Inflow(link, self._frame, self._tell_whole)
        self._out = Outflow(link, incarnation, self._tell, self._overfull)
        self._loop = asyncio.get_running_loop()
        self._planned = self._gone = self._full = False
        self._pings = 0
        #: What ``check`` has seen: when, how much had come by then, when that grew, when it pinged.
        self._checked = self._heard = self._pinged = self._loop.time()
        self._came = link.received
        if rest:
            link.call_soon(self._begin, rest)
        else:
            link.start(self._in.received, self._ended)

    @property
    def gone(self) -> bool:
        """The connection is lost or was closed; what is sent now is dropped."""
        return self._gone

    @property
    def backlog(self) -> int:
        """Bytes that were sent here and the system has not taken yet, bodies included."""
        return self._out.backlog

    def statistics(self) -> dict[str, int]:
        """The counters, as they stand."""
        return {
            "batches_in": self.batches_in,
            "messages_in": self.messages_in,
            "batches_out": self._out.batches,
            "messages_out": self._out.messages,
            "unreadable": self.unreadable,
            "bodies_in": self._in.open,
            "bodies_out": self._out.open,
            "dropped_bytes": self._in.dropped,
            "backlog": self.backlog,
        }

    # Sending

    def send(self, message: Message, size: int = 64, behind: bool = False) -> None:
        """Put a message that carries ``size`` bytes into this tick's batch. ``behind``: it stays
        behind what was said before, though it is of a kind that goes ahead of items.

        Once the connection is gone it is dropped: ``lost`` has told. A message that cannot be
        packed, or is far larger than it said, is logged and dropped.
        """
        if self._gone:
            return
        if self._out.queue(message, size, behind):
            self._out.flush()
        elif not self._planned:
            self._planned = True
            self._plan(self)

    def send_body(
        self,
        message: Message,
        number: int,
        parts: Sequence[memoryview],
        done: Callable[[], None],
    ) -> None:
        """Send ``message``, which announces body ``number``, and after it the bytes of ``parts``.

        They are not copied, and must not change until ``done`` is called: when the last of them has
        left, or the connection is gone. Raises LocalProtocolError when the number is in use.
        """
        if self._gone:
            self._loop.call_soon(self._tell, done)
            return
        pieces = Pieces(parts)
        if not pieces.left:
            self.send(message)
            self._loop.call_soon(self._tell, done)
            return
        self._out.queue_body(message, number, pieces, done)
        if not self._planned:
            self._planned = True
            self._plan(self)

    def new_body(self) -> int:
        """A number for a body of ours that no other on its way out has."""
        return self._out.new_body()

    def abort_body(self, number: int) -> None:
        """Do not send the rest of a body of ours; its ``done`` is not called.

        The parts are let go at once, but for what the link has already; the peer hears of it. A
        body that is unknown, or has left as far as we are concerned, is no matter.
        """
        self._out.abort(number)

    def flush(self) -> None:
        """Send now what waits: for whoever has come to the end of a burst."""
        self._planned = False
        if not self._gone:
            self._out.flush()

    def _soon(self) -> None:
        self._loop.call_soon(self.flush)

    # Receiving

    def expect(
        self, number: int, targets: Sequence[memoryview], done: Callable[[bool], None]
    ) -> None:
        """Put the bytes of the peer's body ``number`` into ``targets``, in order.

        To be called inside ``deliver`` of the message that announces it: bytes of a body that
        nobody expects are thrown away. ``done(True)``: it is whole, ``done(False)``: the peer gave
        up or the connection is gone; called once, never inside this call. No view of the targets
        is kept then. Raises RemoteProtocolError when the number is in use or too many are open.
        """
        pieces = Pieces(targets)
        if self._gone or not pieces.left:
            self._loop.call_soon(self._tell_whole, done, not self._gone)
        else:
            self._in.expect(number, pieces, done)

    def drop_body(self, number: int) -> None:
        """Throw away what still comes of a body of the peer's; its ``done`` is not called.

        A piece that is being read this moment still goes to its target.
        """
        self._in.drop(number)

    # Life and death

    def check(self, now: float) -> bool:
        """Send pings and what an owner has not come to flush, and see whether the peer is silent;
        False when the connection is gone.

        ``now`` is the monotonic clock. Time in which this process itself did not come to check is
        no silence of the peer's.
        """
        if self._planned:
            self.flush()  # it was said when the owner's flush had passed this connection
        if self._gone:
            return False
        asleep = now - self._checked - PING_EVERY
        self._checked = now
        if self.link.received != self._came or self._in.held:
            self._came = self.link.received
            self._heard = now
        elif asleep > 0:
            self._heard += asleep
        if now - self._heard >= DEAD_AFTER:
            self._fail(
                ConnectionLost(
                    f"connection with {self.link.peer} is lost: not a byte for "
                    f"{now - self._heard:.1f} s, {DEAD_AFTER:g} are allowed",
                    peer=self.link.peer,
                )
            )
            return False
        if now - self._pinged >= PING_EVERY:
            self._pinged = now
            self._pings += 1
            self._out.write(pack_mux(PING, PROBE), _PROBE.pack(self._pings))
        return True

    def close(self, reason: str = "") -> None:
        """End the connection: messages queued before still leave, bodies break off.

        ``lost`` is not called. Who waits for a body is told that it will not come.
        """
        if not self._gone:
            self._out.finish()
            self._over(reason or "closed here", abort=False)

    def _begin(self, rest: bytes) -> None:
        self.link.start(self._in.received, self._ended)
        self._in.received(memoryview(rest))

    def _frame(self, kind: int, frame: bytes) -> None:
        if kind == BATCH:
            self._batch(frame)
        elif kind == PING and self.link.backlog < _BUSY:
            self._out.write(pack_mux(PONG, PROBE), frame)
        # Of a pong nothing matters but that it came.

    def _batch(self, batch: bytes) -> None:
        if len(batch) >= _LONG:
            portions = self._reader.portions(batch)
            if portions.sender != self.peer_incarnation:
                self._comes_from(portions.sender)
            self.batches_in += 1
            self._portion(portions)
            return
        sender, messages, faults = self._reader.read(batch)
        if faults and not sender and not messages:
            raise faults[0]
        if sender != self.peer_incarnation:
            self._comes_from(sender)
        self.batches_in += 1
        self._hand_on(messages, faults)

    def _comes_from(self, sender: int) -> None:
        """The first batch tells who the peer is, and nobody else sends any."""
        if self.peer_incarnation:
            raise RemoteProtocolError(
                f"a batch comes from incarnation {sender:x}, those before it from "
                f"{self.peer_incarnation:x}"
            )
        self.peer_incarnation = sender

    def _portion(self, portions: Portions) -> None:
        """The next messages of a long batch; others have their turn before those behind them."""
        self._hand_on(*portions.take(_TURN))
        if portions.more and not self._gone:
            self._in.hold()
            self.link.call_soon(self._portion, portions)
        else:
            self._in.go_on()

    def _hand_on(self, messages: list[Message], faults: list[RemoteProtocolError]) -> None:
        self.messages_in += len(messages)
        for fault in faults:
            self._refused("dropped what it cannot read", fault)
        self._burst(True)
        deliver = self._deliver
        for each in messages:
            if self._gone:
                break
            try:
                deliver(each)
            except RemoteProtocolError as error:
                self._refused(f"refused a {type(each).__name__}", error)
            except Exception as error:
                text = f"failed on a {type(each).__name__} from {self.link.peer}"
                self.link.net.complain("mux.failed", text, error)
        self._burst(False)

    def _refused(self, what: str, error: RemoteProtocolError) -> None:
        self.unreadable += 1
        peer = self.link.peer
        self.link.net.complain("mux.unreadable", f"connection with {peer}: {what}: {error}")

    def _overfull(self, how: str) -> None:
        """More waits than a peer that reads lets wait. Its end comes later, not in a ``send``."""
        if not self._full:
            self._full = True
            peer = self.link.peer
            text = f"connection with {peer} is cut: {how}"
            self.link.net.complain("mux.overfull", text)
            self._loop.call_soon(self._fail, ConnectionLost(text, peer=peer, errno="ENOBUFS"))

    def _ended(self, error: CallHomeError | None) -> None:
        """The link's callback. Half a connection is of no use to streams that go both ways."""
        if error is None:
            peer = self.link.peer
            error = ConnectionLost(f"connection with {peer} is lost: {CLOSED}", peer=peer)
        self._fail(error)

    def _fail(self, error: CallHomeError) -> None:
        if not self._gone:
            self._over(str(error), abort=True)
            self._lost(error)

    def _over(self, reason: str, abort: bool) -> None:
        self._gone = True
        self.link.close(abort=abort)
        self._in.close()
        self._out.close()

    def _tell(self, done: Callable[[], None]) -> None:
        """Call what somebody else gave us; what it raises is not the connection's fault."""
        try:
            done()
        except Exception as error:
            self.link.net.complain("mux.failed", "failed at the end of a body", error)

    def _tell_whole(self, done: Callable[[bool], None], whole: bool) -> None:
        self._tell(lambda: done(whole))
