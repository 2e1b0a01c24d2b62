"""What goes out over the connection that two nodes share: messages first, then bodies in chunks.

Messages of one loop tick leave as one batch. Bodies follow chunk by chunk, and only while little
waits to be sent, so that what is said later passes between the chunks of a large body instead of
behind it. Streams take turns, the bodies of one stream leave one after the other: its reader can
use the first while the second is on its way.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from transport.callhome.link import Link
from transport.callhome.mux_in import Pieces
from transport.errors import LocalProtocolError
from transport.wire.message import BatchWriter, Message, tag_of
from transport.wire.mux import ABORT, BATCH, BODY, CHUNK, MAX_BATCH, MAX_NUMBER, pack_mux

log = logging.getLogger("callhome.net")

#: Bodies that may be announced and not complete; what comes behind them waits, but for control.
MOST_BODIES = 1024
#: Bytes that may wait in the link before batches and chunks wait here instead.
_ENOUGH = 1 << 20
#: Up to this size a batch is copied behind its head: that costs less than two parts.
_JOINED = 4096
#: A batch is closed at so many bytes, or bodies announced in it.
_GROUP_BYTES = 256 << 10
_GROUP_BODIES = 32
_GROUP_CONTROL = 4096
#: What may wait for a peer that does not read: messages and their bytes, all but bodies, and bytes
#: of control, which waits for no turn. Credit keeps what streams send far below it (256 windows as
#: large as they come, or every item of 4,096 streams); beyond it the peer makes us say things, such
#: as ends and cancels, and never listens.
MOST_MESSAGES = 1 << 20
MOST_BYTES = 4 << 30
MOST_CONTROL = 64 << 20
#: Messages whose tag is lower travel in order, those from here on are control.
_CONTROL = 16


class _Group:
    """Messages of one batch, and the bodies that they announce."""

    __slots__ = ("bodies", "messages", "size")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.size = 0
        self.bodies: list[_Body] = []


class _Body:
    """A body on its way out. ``done`` None: aborted, which the peer still has to hear."""

    __slots__ = ("done", "number", "pieces", "stream")

    def __init__(self, number: int, stream: int, pieces: Pieces, done: Callable[[], None]) -> None:
        self.number = number
        self.stream = stream
        self.pieces = pieces
        self.done: Callable[[], None] | None = done


class Outflow:
    """Queues of one connection, used by it only.

    ``tell`` calls a function of somebody else, whose faults are not the connection's. ``overfull``
    is told, in words, that more waits than any peer which reads would let wait.
    """

    def __init__(
        self,
        link: Link,
        incarnation: int,
        tell: Callable[[Callable[[], None]], None],
        overfull: Callable[[str], None],
    ) -> None:
        self._link = link
        self._writer = BatchWriter(incarnation)
        self._control_types: dict[type, bool] = {}
        self._tell = tell
        self._overfull = overfull
        self._control: list[Message] = []
        self._groups: deque[_Group] = deque()
        #: Bodies whose announcement has left, by stream, and the streams in turn.
        self._due: dict[int, deque[_Body]] = {}
        self._turn: deque[deque[_Body]] = deque()
        self._announced = 0
        #: All that are not complete, by number.
        self._bodies: dict[int, _Body] = {}
        #: Bodies whose last chunk the link has, and how much will have been sent when it is gone.
        self._leaving: deque[tuple[int, _Body]] = deque()
        self._written = 0
        self._last = 0
        self._waiting_bytes = 0
        #: Those of them that belong to bodies, and the messages in all groups but the last.
        self._body_bytes = self._waiting_messages = 0
        self._awaits_drain = False
        self.batches = self.messages = 0

    @property
    def backlog(self) -> int:
        """Bytes that wait here or in the link, bodies included."""
        return self._waiting_bytes + self._link.backlog

    @property
    def open(self) -> int:
        """Bodies that have been announced or will be, and are not complete."""
        return len(self._bodies)

    def queue(self, message: Message, size: int, behind: bool = False) -> bool:
        """Put a message into its batch, control too if it is to stay ``behind`` what was queued;
        True when there is enough for one.
        """
        # For each message: no call that can be spared.
        control = self._control_types.get(type(message))
        if control is None:
            control = self._is_control(type(message))
        if control and not behind:
            self._control.append(message)
            return len(self._control) >= _GROUP_CONTROL
        groups = self._groups
        group = groups[-1] if groups else None
        if group is None or group.size >= _GROUP_BYTES or group.bodies:
            group = self._group()
        group.messages.append(message)
        group.size += size
        self._waiting_bytes += size
        return group.size >= _GROUP_BYTES

    def queue_body(
        self, message: Message, number: int, pieces: Pieces, done: Callable[[], None]
    ) -> None:
        """Put the announcement of a body into its batch; the body follows it.

        Raises LocalProtocolError when the number is none or in use.
        """
        if number in self._bodies or not 0 < number <= MAX_NUMBER:
            raise LocalProtocolError(f"body {number} is on its way already, or its number is none")
        stream = getattr(message, "stream", -number)
        body = self._bodies[number] = _Body(number, stream, pieces, done)
        group = self._group()
        group.messages.append(message)
        group.bodies.append(body)
        self._waiting_bytes += pieces.left
        self._body_bytes += pieces.left

    def new_body(self) -> int:
        """A number for a body, which is not in use."""
        number = self._last
        while (number := number % MAX_NUMBER + 1) in self._bodies:
            pass
        self._last = number
        return number

    def abort(self, number: int) -> None:
        """The body will not be completed; its memory is let go and the peer is told in turn."""
        body = self._bodies.get(number)
        if body is not None and body.done is not None:
            body.done = None
            self._waiting_bytes -= body.pieces.left
            self._body_bytes -= body.pieces.left
            body.pieces.drop()

    def flush(self) -> None:
        """Give the link what it should have now, and see to it that the rest follows."""
        link = self._link
        if self._control:
            messages, self._control = self._control, []
            self._batch(messages)
        if link.backlog < _ENOUGH:
            self._send_groups()
            if self._turn:
                self._send_chunks(max(_ENOUGH - link.backlog, 1))
        else:
            self._see_bounds()
        link.flush()
        if self._leaving:
            self._see_leaving()
        if not self._awaits_drain and (self._groups or self._turn or self._leaving):
            self._awaits_drain = True
            link.when_drained(self._drained)

    def finish(self) -> None:
        """Give the link all messages that wait, since nothing is sent afterwards; it has to be
        flushed or closed then.
        """
        self._batch(self._control)
        for group in self._groups:
            self._batch(group.messages)
        self._control = []
        self._groups.clear()
        self._waiting_messages = 0

    def close(self) -> None:
        """Nothing leaves any more; who waits for a body to leave is told that it is over."""
        self._control.clear()
        self._groups.clear()
        self._turn.clear()
        self._due.clear()
        over = [*self._bodies.values(), *(body for _, body in self._leaving)]
        self._bodies.clear()
        self._leaving.clear()
        self._waiting_bytes = self._body_bytes = self._waiting_messages = 0
        for body in over:
            body.pieces.drop()
            self._over(body)

    def write(self, *parts: bytes | memoryview) -> None:
        """Write to the link, in its order with everything else."""
        self._written += sum(map(len, parts))
        self._link.write(*parts)

    def _drained(self) -> None:
        self._awaits_drain = False
        self.flush()

    def _is_control(self, kind: type) -> bool:
        found = self._control_types[kind] = tag_of(kind) >= _CONTROL
        return found

    def _group(self) -> _Group:
        groups = self._groups
        if groups:
            last = groups[-1]
            if last.size < _GROUP_BYTES and len(last.bodies) < _GROUP_BODIES:
                return last
            self._waiting_messages += len(last.messages)
        groups.append(_Group())
        return groups[-1]

    def _see_bounds(self) -> None:
        """The link is full. What waits for it costs no look at a message that leaves in time."""
        messages, size = self._waiting_messages, self._waiting_bytes - self._body_bytes
        if self._groups:
            messages += len(self._groups[-1].messages)
        control = self._link.backlog
        if messages > MOST_MESSAGES or size > MOST_BYTES or control > MOST_CONTROL:
            self._overfull(
                f"it does not read: {messages} messages of {size} bytes and {control} bytes of "
                "control wait for it"
            )

    def _send_groups(self) -> None:
        groups, link = self._groups, self._link
        while groups:
            group = groups[0]
            if group.bodies:
                if self._announced + len(group.bodies) > MOST_BODIES:
                    return
                for body in group.bodies:
                    self._announce(body)
            groups.popleft()
            if groups:  # it was not the last
                self._waiting_messages -= len(group.messages)
            self._waiting_bytes -= group.size
            self._batch(group.messages)
            if groups and link.backlog >= _ENOUGH:
                return

    def _batch(self, messages: list[Message]) -> None:
        if not messages:
            return
        try:
            batch = self._writer.pack(messages)
        except LocalProtocolError:
            log.exception("a message for another node cannot be packed")
            batch = self._writer.salvage(messages)
        if len(batch) > MAX_BATCH:
            self._halves(messages, len(batch))
            return
        self.batches += 1
        self.messages += len(messages)
        head = pack_mux(BATCH, len(batch))
        self._written += len(head) + len(batch)
        if len(batch) < _JOINED:  # one part, which is sent as it is
            self._link.write(head + batch, soon=False)
        else:
            self._link.write(head, batch, soon=False)

    def _halves(self, messages: list[Message], size: int) -> None:
        """A batch that is too large, though its messages said that they were small."""
        if len(messages) > 1:
            middle = len(messages) // 2
            self._batch(messages[:middle])
            self._batch(messages[middle:])
        else:
            # What is missing is found by its receiver, who counts the items.
            name = type(messages[0]).__name__
            log.error("a %s of %d bytes fits into no batch and is dropped", name, size)

    def _announce(self, body: _Body) -> None:
        """The body's announcement leaves: its bytes may follow, behind those of its stream."""
        self._announced += 1
        due = self._due.get(body.stream)
        if due is None:
            due = self._due[body.stream] = deque()
            self._turn.append(due)
        due.append(body)

    def _send_chunks(self, room: int) -> None:
        """A chunk of each stream in its turn, until the link has enough."""
        turn = self._turn
        parts: list[bytes | memoryview] = []
        while turn and room > 0:
            due = turn.popleft()
            body = due[0]
            pieces = body.pieces
            if body.done is None:
                parts.append(pack_mux(ABORT, 0, body.number))
            else:
                size = min(CHUNK, pieces.left)
                parts.append(pack_mux(BODY, size, body.number))
                parts += pieces.take(size)
                room -= size
                self._waiting_bytes -= size
                self._body_bytes -= size
                if pieces.left:
                    turn.append(due)
                    continue
                self._leaving.append((self._written + sum(map(len, parts)), body))
            del self._bodies[body.number]
            self._announced -= 1
            due.popleft()
            if due:
                turn.append(due)
            else:
                del self._due[body.stream]
        self._written += sum(map(len, parts))
        self._link.write(*parts, soon=False)

    def _see_leaving(self) -> None:
        sent = self._written - self._link.backlog
        while self._leaving and self._leaving[0][0] <= sent:
            self._over(self._leaving.popleft()[1])

    def _over(self, body: _Body) -> None:
        done, body.done = body.done, None
        if done is not None:
            self._tell(done)
