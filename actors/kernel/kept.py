"""Items of a stream that are kept so that it can be continued elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from actors.kernel.opened import Opened, Queued
from transport.payload import NO_HANDLES, Encoded
from transport.wire.codec import Annotated
from transport.wire.handle import handle_from_wire

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime


class Kept:
    """Items as they were on the wire, up to a number of bytes; over it they are all dropped."""

    __slots__ = ("_left", "_runtime", "full", "items")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._left = runtime.settings.migration_bytes
        self.items: list[tuple[str, bytes, list[Any]]] = []
        #: They were too many to be kept.
        self.full = False

    def note(self, codec: str, queued: Queued | Encoded) -> None:
        """Keep an item before somebody reads it; its frames are copied."""
        if type(queued) is bytes:  # most are, and this is done for each of them
            self._left -= len(queued)
            if self._left >= 0:
                self.items.append((codec, queued, NO_HANDLES))
                return
        if self.full:
            return
        data, table = (queued, []) if isinstance(queued, bytes) else (queued[0], queued[1])
        if table:
            table = [self._copied(each) for each in table]
        self._left -= len(data) + sum(len(each[2]) for each in table)
        if self._left < 0:
            self.full = True
            self.items.clear()
        else:
            self.items.append((codec, data, table))

    def forget_last(self) -> None:
        """The last item was none."""
        if self.items:
            _, data, table = self.items.pop()
            self._left += len(data) + sum(len(each[2]) for each in table)

    def _copied(self, value: Any) -> list[Any]:
        if type(value) is list and len(value) == 3:
            return value  # in line already
        handle = handle_from_wire(value)
        return [handle.dtype, list(handle.shape), self._runtime.memory.copy_out(handle)]

    def values(self, *, item: bool) -> list[Any]:
        """The values anew: what anybody has made of those that he got is not in them."""
        decode = self._runtime.decode
        found = [decode(data, table, codec, item) for codec, data, table in self.items]
        return [each.data if type(each) is Annotated else each for each in found]

    def beside(self, behind: Iterable[Opened]) -> Kept:
        """These, and behind them what waits in the queues of ``behind``."""
        both = Kept(self._runtime)
        both.items, both._left, both.full = self.items.copy(), self._left, self.full
        for stream in behind:
            for queued in stream.queue:
                both.note(stream.codec, queued)
        return both
