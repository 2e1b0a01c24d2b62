"""Frames: numpy views of shared memory whose lease lasts until the last slice is gone.

This is the only module that makes numpy views of shared memory, and it makes them with
``np.frombuffer`` alone: an array from ``np.ndarray(buffer=…)`` does not keep its mapping alive and
crashes the interpreter when read later. ``frombuffer`` hangs a memoryview of its own under the
array, below every slice, reshape and transpose that numpy derives from it; a weak reference to that
memoryview is the lease.

numpy is imported when the first frame is made, so that a process without frames stays small.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from transport.errors import FrameReleased, RemoteProtocolError
from transport.shm.arena import NOBODY, Arena
from transport.shm.kinds import dtype_of, planned
from transport.shm.turns import block_for_slot, wait_slot
from transport.wire.handle import Handle

if TYPE_CHECKING:
    import mmap

    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from transport.shm.slots import Slot

_LIVE, _HANDED_ON, _RELEASED = 0, 1, 2


class Tie(weakref.ref[memoryview]):
    """A weak reference to the memoryview under an array.

    Carries what is to be returned when it goes.
    """

    __slots__ = ("flat", "handle", "key", "queue", "since")

    queue: deque[tuple[int, int, int, int]]
    key: tuple[int, int, int, int]
    since: float
    #: What was received, if it was, and the id of the array right above the memoryview.
    handle: Handle | None
    flat: int


class Ties:
    """The leases of all arrays that live in this process.

    When the last view of one goes, in whatever thread, its key is put on its queue and ``wake`` is
    called: at most once until ``rearm``. ``wake`` must be quick and safe in any thread, as
    ``loop.call_soon_threadsafe`` is.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._woken = False
        # By id: hashing a weak reference would hash the bytes of the frame.
        self._alive: dict[int, Tie] = {}

    def tie(
        self,
        array: NDArray[Any],
        queue: deque[tuple[int, int, int, int]],
        key: tuple[int, int, int, int],
        handle: Handle | None = None,
    ) -> Tie:
        """Put ``key`` on ``queue`` once nothing refers to the memory of ``array`` any more.

        ``array`` comes straight from ``frombuffer``: its base is the memoryview. ``handle``: what
        it was received as (see ``transport.shm.passing``).
        """
        base = array.base
        assert isinstance(base, memoryview)
        tie = Tie(base, self._gone)
        tie.queue = queue
        tie.key = key
        tie.handle = handle
        tie.flat = id(array)
        tie.since = time.monotonic()
        self._alive[id(tie)] = tie
        return tie

    def cut(self, tie: Tie) -> None:
        """Forget a tie: its key will not be returned."""
        self._alive.pop(id(tie), None)

    def alive(
        self, queue: deque[tuple[int, int, int, int]]
    ) -> Iterator[tuple[tuple[int, int, int, int], int, float]]:
        """Key, bytes and beginning (monotonic) of each lease that will come back on ``queue``."""
        for tie in list(self._alive.values()):
            base = tie() if tie.queue is queue else None
            if base is not None:
                # The base is a view of the whole mapping.
                size = base.nbytes if tie.handle is None else tie.handle.size
                yield tie.key, size, tie.since

    def last(self, queue: deque[tuple[int, int, int, int]], then: Callable[[], object]) -> None:
        """Nobody drains the queues any more: call ``then``, in any thread, once no lease is left
        that would come back on ``queue``. It may be called more than once.
        """
        for tie in list(self._alive.values()):
            if tie.queue is not queue:
                self.cut(tie)

        def look() -> None:
            self._woken = False  # first: who goes meanwhile either calls this or is seen
            if not self._alive:
                then()

        self._wake = look
        look()

    def wake(self) -> None:
        """Tell the loop that something is on a queue."""
        if not self._woken:
            self._woken = True
            try:
                self._wake()
            except RuntimeError:
                self._woken = False  # the loop is closed: nobody is left to tell

    def rearm(self) -> None:
        """To be called before the queues are emptied."""
        self._woken = False

    def _gone(self, tie: weakref.ref[memoryview]) -> None:
        # Runs in any thread and in the middle of anything: no locks, no more than this.
        if isinstance(tie, Tie) and self._alive.pop(id(tie), None) is not None:
            tie.queue.append(tie.key)
            self.wake()


class Frame:
    """A numpy array in shared memory that can be handed on without a copy.

    Made by ``Frames.new`` and ``Frames.copy``, or received. ``array`` can be written by its maker
    until the frame is handed on (yielded or sent), and never by a reader. Handing on happens once:
    after it the frame is the reader's, ``array`` is read-only, and views of it that were taken
    before must not be written. It stays so when the request then fails: its memory comes back, the
    frame does not, so trying again takes a new one. A frame that is dropped without being handed on
    gives its memory back; memory stays put for as long as any view of it lives.

    ``with frame:`` releases it at the end of the block, unless it was handed on, and never raises.
    """

    __slots__ = ("__weakref__", "_array", "_handle", "_state", "_tie", "_ties")

    def __init__(
        self,
        array: NDArray[Any],
        handle: Handle | None = None,
        ties: Ties | None = None,
        tie: Tie | None = None,
    ) -> None:
        self._array: NDArray[Any] | None = array
        self._handle = handle
        self._ties = ties
        self._tie = tie
        self._state = _LIVE

    @property
    def array(self) -> NDArray[Any]:
        """The frame as an array; raises FrameReleased after ``release``."""
        if self._array is None:
            raise FrameReleased(
                "the frame was released; keep what you need of frame.array before its release"
            )
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of ``array``."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of ``array``."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Size of ``array`` in bytes."""
        return self.array.nbytes

    @property
    def handle(self) -> Handle | None:
        """Where the frame is in this process's arena.

        None for one that was received, or is empty or private.

        Called by the payload encoder, which copies ``array`` where there is no handle. Raises
        FrameReleased when the frame cannot be handed on any more.
        """
        self._must_be_live()
        return self._handle

    def hand_on(self) -> Handle | None:
        """Mark the frame as passed to a reader, once.

        What ``handle`` was. Called by the payload encoder.

        From then on the slot is held by the handle: it has to be lent or unexported. Raises
        FrameReleased the second time, and after ``release``.
        """
        self._must_be_live()
        self._state = _HANDED_ON
        self.array.setflags(write=False)
        if self._handle is not None and self._ties is not None and self._tie is not None:
            self._ties.cut(self._tie)
        return self._handle

    def release(self) -> None:
        """Let go of the memory, which is free when no other view of it lives.

        Raises FrameReleased when the frame was released or handed on before.
        """
        self._must_be_live()
        self._state = _RELEASED
        self._array = None

    def __enter__(self) -> Frame:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state == _LIVE:
            self.release()

    def __repr__(self) -> str:
        if self._array is None:
            return "<Frame released>"
        state = " handed on" if self._state == _HANDED_ON else ""
        return f"<Frame {self._array.dtype} {self._array.shape}{state}>"

    def _must_be_live(self) -> None:
        if self._state == _HANDED_ON:
            raise FrameReleased(
                "the frame was handed on already; make a new one with frames.new() for every item"
            )
        if self._state == _RELEASED:
            raise FrameReleased("the frame was released already")


class Frames:
    """Makes frames in this process's arena.

    Users know it as ``client.frames`` and ``ctx.frames``.
    """

    def __init__(self, arena: Arena, ties: Ties) -> None:
        self._arena = arena
        self._ties = ties

    def new(self, shape: int | Sequence[int], dtype: DTypeLike, *, wait: float = 0.0) -> Frame:
        """A frame to write in place: it reaches a reader on this node without any copy.

        Its first contents are arbitrary. ``wait``: seconds that the calling thread may wait for
        room, as ``wait_new`` does in a coroutine; for engines that are no coroutines.

        Raises MemoryExhausted when the arena is full (still, after ``wait``), EncodeError for a
        dtype that cannot be shared, LocalProtocolError for a shape or dtype that is none, and for
        ``wait`` in the thread of an event loop; Cancelled when the stream is killed while it waits.
        """
        kind, text, lengths, size = planned(shape, dtype)
        if not size:
            return _empty(kind, lengths)
        slot = block_for_slot(self._arena, size, wait) if wait else self._arena.allocate(size)
        return self._frame(slot, kind, text, lengths, size)

    async def wait_new(
        self, shape: int | Sequence[int], dtype: DTypeLike, *, timeout: float | None = 30.0
    ) -> Frame:
        """As ``new``, but waits for room for up to ``timeout`` seconds (None: for as long as the
        stream lives), in the order in which callers came.

        Raises MemoryExhausted, which names those who hold the memory, and at once for a frame that
        can never fit; all others as ``new`` does. A stream that is killed ends the wait.
        """
        kind, text, lengths, size = planned(shape, dtype)
        if not size:
            return _empty(kind, lengths)
        slot = await wait_slot(self._arena, size, timeout)
        return self._frame(slot, kind, text, lengths, size)

    def _frame(
        self, slot: Slot, kind: np.dtype[Any], text: str, lengths: tuple[int, ...], size: int
    ) -> Frame:
        import numpy as np

        flat = np.frombuffer(
            self._arena.segment(slot.segment).map, kind, size // kind.itemsize, slot.offset
        )
        tie = self._ties.tie(
            flat, self._arena.returned, (slot.segment, slot.offset, slot.generation, NOBODY)
        )
        handle = Handle(
            self._arena.owner, slot.segment, slot.offset, size, slot.generation, text, lengths
        )
        return Frame(flat.reshape(lengths), handle, self._ties, tie)

    def copy(self, array: NDArray[Any]) -> Frame:
        """A frame with the contents, shape and dtype of ``array``, in C order.

        Raises as ``new`` does.
        """
        import numpy as np

        frame = self.new(array.shape, array.dtype)
        np.copyto(frame.array, array, casting="no")
        return frame


def _empty(kind: np.dtype[Any], lengths: tuple[int, ...]) -> Frame:
    import numpy as np

    return Frame(np.empty(lengths, kind))


def private_frame(array: NDArray[Any]) -> Frame:
    """A read-only frame over memory of this process alone, for what came as inline bytes."""
    array.setflags(write=False)
    return Frame(array)


def view(buffer: mmap.mmap | memoryview, handle: Handle) -> tuple[NDArray[Any], NDArray[Any]]:
    """The array of a handle over the mapping it is in, and the flat array to tie its lease to.

    ``buffer`` is read-only. The caller has checked offset and size against the mapping. Raises
    RemoteProtocolError when shape and dtype do not fill ``size``.
    """
    import numpy as np

    kind = dtype_of(handle.dtype)
    if math.prod(handle.shape) * kind.itemsize != handle.size:
        raise RemoteProtocolError(
            f"handle of {handle.size} bytes cannot be an array of {handle.dtype[:100]!r} "
            f"and shape {handle.shape}"
        )
    if not handle.size:
        empty = np.empty(handle.shape, kind)
        empty.setflags(write=False)
        return empty, empty
    flat = np.frombuffer(buffer, kind, handle.size // kind.itemsize, handle.offset)
    return flat.reshape(handle.shape), flat


def fill(mapping: mmap.mmap, offset: int, array: NDArray[Any]) -> None:
    """Copy an array of any strides to ``offset`` of the owner's mapping, in C order."""
    import numpy as np

    flat = np.frombuffer(mapping, array.dtype, array.size, offset)
    np.copyto(flat.reshape(array.shape), array, casting="no")
