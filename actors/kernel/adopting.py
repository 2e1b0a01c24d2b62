"""Frames that were handed on: a lease of one's own, asked of their owner before anybody sees them.

An actor may send on what it has received (``transport.shm.passing``): the handle then names memory
of a third process, which knows nothing of the new reader yet. So the reader asks the owner (Adopt),
names who has lent him the frame, and is answered (Adopted); until then the message and what follows
it on its stream wait (``actors.kernel.parking``), and nothing else does. Then the reader gives the
lender's lease back, for it has its own. Used by a runtime, on its loop.

No answer is an answer, too: when the owner is dead, its memory does not change any more, and the
generation in the segment says whether the frame is still the one that was meant; when it is frozen,
the lender still holds the frame, and its bytes are copied.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from actors.kernel.links import read_handles
from actors.messages import Release
from actors.notices import Adopt, Adopted
from transport.bus.address import Address
from transport.errors import AttachFailed, CallHomeError, StaleHandle
from transport.shm.passing import Key, key_of
from transport.wire.handle import NO_SEGMENT, Announcement, Handle

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime
    from actors.kernel.served import Served

_FIELDS: Final = len(Handle._fields)
#: How long an owner may take to answer, in seconds; then the bytes are copied.
_ANSWER: Final = 1.0
_MOST: Final = 4096
_MET: Final = 4096


class Adoption:
    """The frames of one message, until there is a lease on each; ``then`` is called with its table
    as it can be read from then on.
    """

    __slots__ = ("asks", "left", "lender", "over", "then", "values")

    def __init__(
        self, lender: int, values: list[Any], then: Callable[[list[Any]], None] | None
    ) -> None:
        self.lender = lender
        self.values = values
        self.then = then
        self.asks: dict[int, _Ask] = {}
        self.left = 1
        #: Settled, or given up.
        self.over = False


class _Ask:
    """One question to an owner."""

    __slots__ = ("adoption", "done", "due", "handle", "index")

    def __init__(self, adoption: Adoption, index: int, handle: Handle) -> None:
        self.adoption = adoption
        self.index = index
        self.handle = handle
        self.due = 0.0
        #: Nobody waits for the answer any more.
        self.done = False


class Adopting:
    """Leases on frames that others have handed on to us, and on ours that were handed on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._memory = runtime.memory
        self._own = runtime.address.incarnation
        #: Called when frames of ours, or of somebody else, are about.
        self.begins: Callable[[], None] = _nothing
        self._asked: dict[Key, deque[_Ask]] = {}
        self._open = 0
        #: Questions that may be open at a time; beyond them bytes are copied.
        self.most = _MOST
        self._due: deque[_Ask] = deque()
        #: Owners whose memory others have announced, the latest last.
        self._met: dict[int, None] = {}
        runtime.on(Adopt, self._adopt)
        runtime.on(Adopted, self._adopted)

    # The owner's side.

    def _adopt(self, sender: int, m: Adopt) -> None:
        runtime, memory = self._runtime, self._memory
        peer = runtime.peers.find(sender)
        if peer is None or not runtime.peers.watch(peer):
            return  # it borrows nothing any more
        frame = (m.segment, m.offset, m.generation)
        key = (self._own, *frame)
        asked = runtime.links.unclaimed.has(key)
        if asked:
            runtime.port.poll_data()  # the lender's Accept may stand in our inbox
        ok, reason = True, ""
        try:
            memory.adopt(frame, m.lender, sender, m.stream, asked=asked)
        except StaleHandle as error:
            ok, reason = False, str(error)[:500]
        runtime.port.send(peer, Adopted(*frame, ok, reason), control=True)

    # The reader's side.

    def meet(self, announcement: Announcement, by: int) -> None:
        """``by`` announces memory that may be another's: get to know that one.

        Raises AttachFailed when it is dead: nobody can map its memory any more.
        """
        if announcement.owner in (self._own, by):
            return
        peers = self._runtime.peers
        address = peers.find(announcement.owner)
        if address is None:
            address = Address(
                announcement.name,
                announcement.owner,
                announcement.pid,
                announcement.started,
                announcement.space,
            )
            peers.note(address)
        self._met[address.incarnation] = None
        if len(self._met) > _MET:
            del self._met[next(iter(self._met))]
        if not peers.watch(address):
            raise AttachFailed(f"the owner of the frames, {address}, is dead; send bytes")
        self.begins()

    def has_met(self, owner: int) -> bool:
        """Whether somebody has announced memory of ``owner`` that is not he."""
        return owner in self._met

    def lent_on(self, lender: int, values: list[Any]) -> bool:
        """Whether among the handles of a message there are others than of ``lender``'s memory.

        Raises RemoteProtocolError for what are none, but only when there seem to be such.
        """
        for each in values:  # asked of every item with handles: no look further than needed
            if isinstance(each, list | tuple) and len(each) == _FIELDS and each[0] != lender:
                return any(
                    handle.owner != lender and handle.segment != NO_SEGMENT
                    for handle in read_handles(values)
                )
        return False

    def adopt(
        self, lender: int, values: list[Any], stream: int, then: Callable[[list[Any]], None]
    ) -> Adoption:
        """Get leases on what ``lender`` has handed on in a message; ``then`` is called with the
        message's table, perhaps at once, when that is done.

        All its handles are expected then (``Memory.expect``), and each can be shown or dropped as
        any other. Raises RemoteProtocolError for what are none, before anything else.
        """
        adoption = Adoption(lender, list(values), then)
        self._start(adoption, stream)
        return adoption

    def _start(self, adoption: Adoption, stream: int) -> None:
        handles = read_handles(adoption.values)
        self._memory.expect(handles)
        every = iter(handles)
        for index, value in enumerate(adoption.values):
            if type(value) is list and len(value) == 3:
                continue
            handle = next(every)
            if handle.owner != adoption.lender and handle.segment != NO_SEGMENT:
                adoption.left += 1
                adoption.asks[index] = _Ask(adoption, index, handle)
        for ask in list(adoption.asks.values()):
            self._ask(ask, stream)
        self._one_less(adoption)

    def _ask(self, ask: _Ask, stream: int) -> None:
        handle, lender = ask.handle, ask.adoption.lender
        frame = frame_of(handle)
        if handle.owner == self._own:  # it has come back to where it was made
            try:
                self._memory.adopt(frame, lender, self._own, stream)
            except StaleHandle as error:
                self._settle(ask, str(error))
            else:
                self._settle(ask)
            return
        peers = self._runtime.peers
        owner = peers.find(handle.owner)
        if owner is None or not peers.watch(owner):
            self._settle(ask, self._gone(handle))
        elif self._open >= self.most:
            self._copy(ask)
        else:
            self._open += 1
            ask.due = time.monotonic() + _ANSWER
            self._asked.setdefault(key_of(handle), deque()).append(ask)
            self._due.append(ask)
            self._runtime.port.send(owner, Adopt(lender, *frame, stream), control=True)
            self._runtime.plan_tick()

    def _gone(self, handle: Handle) -> str:
        """Of a dead owner: what is in its memory stays as it is. Why it cannot be read, or ""."""
        if self._memory.reading.is_mapped(handle):
            return ""
        return "its owner has died, and its memory is not mapped here"

    def _adopted(self, sender: int, m: Adopted) -> None:
        key = (sender, m.segment, m.offset, m.generation)
        asks = self._asked.get(key)
        if asks is None:
            return
        ask = asks.popleft()
        self._open -= 1
        if not asks:
            del self._asked[key]
        if not ask.done:
            self._settle(ask, "" if m.ok else m.reason or "its owner has it no more")
        elif m.ok:  # too late: nobody here looks at it
            self._release(sender, list(key[1:]))

    def check(self, now: float) -> bool:
        """The coarse timer: owners that do not answer are not waited for."""
        due = self._due
        while due and (due[0].done or due[0].due <= now):
            ask = due.popleft()
            if not ask.done:
                self._copy(ask)
        return bool(due)

    def _copy(self, ask: _Ask) -> None:
        """The lender holds the frame for us: take its bytes."""
        handle = ask.handle
        try:
            data = self._memory.reading.snapshot(handle)
        except CallHomeError as error:
            self._settle(ask, str(error))
            return
        ask.adoption.values[ask.index] = [handle.dtype, list(handle.shape), data]
        del ask.adoption.asks[ask.index]
        self._memory.forgo([handle])
        self._settle(ask)

    def _settle(self, ask: _Ask, stale: str = "") -> None:
        """There is a lease, or there never will be: ``stale`` says why."""
        ask.done = True
        adoption, handle = ask.adoption, ask.handle
        self._give_back(adoption.lender, handle)
        if stale:
            self._memory.reading.spoil(
                handle, f"a frame that was handed on is not there any more: {stale}"
            )
        self._one_less(adoption)

    def _one_less(self, adoption: Adoption) -> None:
        adoption.left -= 1
        if not adoption.left and not adoption.over:
            adoption.over = True
            then, adoption.then = adoption.then, None
            if then is not None:
                then(adoption.values)

    def _give_back(self, lender: int, handle: Handle) -> None:
        owner, *frame = key_of(handle)
        self._release(lender, [*frame, owner])

    def _release(self, to: int, lease: list[Any]) -> None:
        peer = self._runtime.peers.find(to)
        if peer is not None:
            self._runtime.port.send(peer, Release([lease]), control=True)

    def at_once(self, lender: int, values: list[Any], stream: int) -> list[Any]:
        """The table of a message whose handles are expected, for a relay that reads them now and
        goes on without them: what is in others' memory is copied, under the lease of ``lender``.
        """
        found = []
        for value in values:
            if type(value) is list and len(value) == 3:
                found.append(value)
                continue
            (handle,) = read_handles([value])
            if handle.owner != lender and handle.segment != NO_SEGMENT:
                value = self._now(lender, handle, stream)
                self._give_back(lender, handle)
            found.append(value)
        return found

    def _now(self, lender: int, handle: Handle, stream: int) -> Any:
        try:
            if handle.owner == self._own:
                self._memory.adopt(frame_of(handle), lender, self._own, stream)
                return handle
            data = self._memory.reading.snapshot(handle)
        except CallHomeError as error:
            self._memory.reading.spoil(handle, str(error))
            return handle
        self._memory.forgo([handle])
        return [handle.dtype, list(handle.shape), data]

    # Requests, which wait at who serves them.

    def waits(self, stream: Served, begin: Callable[[], None]) -> bool:
        """Whether the request of an accepted stream has frames that were handed on: ``begin`` is
        then called, perhaps at once, when they can be read.
        """
        lender, values = stream.key[0], stream.open.handles
        if not self.lent_on(lender, values):
            return False

        def adopted(values: list[Any]) -> None:
            stream.open = stream.open._replace(handles=values)
            begin()

        stream.adoption = Adoption(lender, list(values), adopted)
        self._start(stream.adoption, stream.key[1])
        self._memory.forgo(read_handles(values))  # they were noted twice
        return True

    def drop(self, stream: Served) -> None:
        """Nobody will look at the request of a stream: give back all that it holds."""
        adoption, lender, values = stream.adoption, stream.key[0], stream.open.handles
        if adoption is not None and not adoption.over:
            self._abandon(adoption)
        elif adoption is not None:
            self._runtime.drop(values)
        else:
            self.decline(lender, values)

    def decline(self, lender: int, values: list[Any]) -> None:
        """Return what came in a message that nobody will look at, before a lease was asked for."""
        for handle in read_handles(values):
            if handle.owner == lender or handle.segment == NO_SEGMENT:
                self._memory.drop(handle)
            else:
                self._memory.forgo([handle])
                self._give_back(lender, handle)

    def _abandon(self, adoption: Adoption) -> None:
        adoption.over, adoption.then = True, None
        for index, value in enumerate(adoption.values):
            ask = adoption.asks.get(index)
            if ask is not None and not ask.done:
                ask.done = True
                self._memory.forgo([ask.handle])
                self._give_back(adoption.lender, ask.handle)
            else:
                self._runtime.drop([value])

    def owner_gone(self, gone: int) -> None:
        """An owner has died: what is in its memory stays as it is."""
        for key in [key for key in self._asked if key[0] == gone]:
            for ask in self._asked.pop(key):
                self._open -= 1
                if not ask.done:
                    self._settle(ask)


def frame_of(handle: Handle) -> tuple[int, int, int]:
    """What its owner knows a frame by."""
    return (handle.segment, handle.offset, handle.generation)


def _nothing() -> None:
    """Nobody looks at what arrives."""
