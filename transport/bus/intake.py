"""What comes in by the inboxes of a port: batches are read, and handed on message by message.

Whoever can reach a socket can send anything, under any sender's name: the run folder's rights are
the border. What is said wrongly costs itself alone, a counter, and a line in the log now and then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from transport.bus.flow import Mark, Marked
from transport.errors import RemoteProtocolError
from transport.wire.message import BatchReader, Message

log = logging.getLogger("callhome.bus")

Deliver = Callable[[int, Message], None]

#: Seconds between two lines about one kind of fault of one sender, and how many are told apart.
_QUIET: Final = 60.0
_KINDS: Final = 256
#: Senders whose batches are counted; more are there only when somebody makes them up.
_SENDERS: Final = 65_536


class Complaints:
    """Warnings about what others send: one a kind and sender in a minute, with how many there
    were.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], tuple[float, int]] = {}

    def due(self, sender: int, kind: str) -> int:
        """Faults of this kind since the last line, this one among them; 0: say nothing now."""
        now = time.monotonic()
        key = (sender, kind)
        if key not in self._told and len(self._told) >= _KINDS:
            self._told = {each: was for each, was in self._told.items() if now - was[0] < _QUIET}
            if len(self._told) >= _KINDS:
                key = (0, "")  # names are cheap: all further ones are one
        when, count = self._told.get(key, (-math.inf, 0))
        if now - when < _QUIET:
            self._told[key] = (when, count + 1)
            return 0
        self._told[key] = (now, 0)
        return count + 1


class Intake:
    """Reads the batches of one port and counts them.

    ``own`` gets what ports tell each other, ``deliver`` everything else.
    """

    def __init__(self, name: str, deliver: Deliver, own: Deliver) -> None:
        self._name = name
        self._deliver = deliver
        self._own = own
        self._complaints = Complaints()
        #: Batches that came, by sender.
        self.came: dict[int, int] = {}
        self.batches = self.messages = self.unreadable = 0

    def data(self, batch: bytes, reader: BatchReader) -> None:
        """A batch of the data lane; a Mark is the last of its batch."""
        sender, messages = self._read(batch, reader)
        if not messages or type(messages[-1]) is not Mark:
            self.hand_over(sender, messages)
            return
        mark = messages.pop()
        self.hand_over(sender, messages)
        self._take_own(sender, mark)

    def control(self, batch: bytes, reader: BatchReader) -> None:
        """A batch of the control lane."""
        sender, messages = self._read(batch, reader)
        if Marked in map(type, messages):
            for each in messages:
                if type(each) is Marked:
                    self._take_own(sender, each)
            messages = [each for each in messages if type(each) is not Marked]
        self.hand_over(sender, messages)

    def _read(self, batch: bytes, reader: BatchReader) -> tuple[int, list[Message]]:
        self.batches += 1
        sender, messages, faults = reader.read(batch)
        if faults:
            self.unreadable += len(faults)
            for fault in faults:
                self.complain(sender, "unreadable", f"dropped what it cannot read: {fault}")
        came = self.came
        if sender not in came and len(came) >= _SENDERS:
            came.clear()  # who compares two counts only sees that something has changed
        came[sender] = came.get(sender, 0) + 1
        return sender, messages

    def _take_own(self, sender: int, message: Message) -> None:
        try:
            self._own(sender, message)
        except RemoteProtocolError as error:
            self._refused(sender, message, error)

    def hand_over(self, sender: int, messages: list[Message]) -> None:
        """Deliver messages one by one; what goes wrong with one is not the others' business."""
        self.messages += len(messages)
        deliver = self._deliver
        for each in messages:
            try:
                deliver(sender, each)
            except RemoteProtocolError as error:
                # One bad message must not take the rest of the batch, or the loop, with it.
                self._refused(sender, each, error)
            except Exception:
                log.exception("%s failed on a %s", self._name, type(each).__name__)

    def _refused(self, sender: int, message: Message, error: RemoteProtocolError) -> None:
        kind = type(message).__name__
        self.complain(sender, kind, f"refused a {kind}: {error}")

    def complain(self, sender: int, kind: str, text: str) -> None:
        """Log what is wrong, unless the same was logged a moment ago."""
        count = self._complaints.due(sender, kind)
        if count:
            more = f" ({count} of this kind since the last line)" if count > 1 else ""
            log.warning("%s %s%s", self._name, text, more)
