"""What those had borrowed who are gone: taken back when nobody can be looking at it any more.

Three may be: whoever has got a frame from the one that is gone and asks for a lease of his own just
now; a program that keeps arrays beyond the end of its client (``transport.shm.outliving``); and a
process that lives, but that nothing reaches any more. Part of ``Links``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors.kernel.reach import left_file
from transport.bus.address import Address
from transport.shm.memory import Memory
from transport.shm.outliving import lives_on

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: What somebody has borrowed who is gone is left alone for so many seconds in any case,
_GRACE: Final = 0.25
#: and up to so many where the memory is not needed: a reader whose loop stands asks later.
_LATE: Final = 1.5
#: Pauses between two looks whether arrays live on, in seconds: the first, and the longest.
_FIRST: Final = 0.25
_LONGEST: Final = 2.0


class Parted:
    """Borrowers that are gone, and what of ours they still hold."""

    def __init__(self, runtime: Runtime, memory: Memory) -> None:
        self._runtime = runtime
        self._memory = memory
        self._gone: dict[int, Address] = {}
        #: Those of them who go on looking at it.
        self._kept: set[int] = set()

    def down(self, address: Address) -> None:
        """A peer is gone, by whatever cause."""
        borrower = address.incarnation
        closed = self._runtime.peers.closed(address)
        if self._memory.lends_to(borrower):
            self._gone[borrower] = address
        self._runtime.peers.later(_GRACE, self._look, address, closed, _FIRST)

    def find(self, incarnation: int) -> Address | None:
        """One who is gone, and has something of ours yet."""
        return self._gone.get(incarnation)

    def name(self, incarnation: int) -> str:
        """What such a one is called in errors; "" for all others."""
        address = self._gone.get(incarnation)
        if address is None:
            return ""
        kept = incarnation in self._kept
        return f"{address}, which {'has closed, in arrays that it keeps' if kept else 'is gone'}"

    def _look(self, address: Address, closed: bool, pause: float) -> None:
        memory, borrower = self._memory, address.incarnation
        memory.passing.take_back(borrower)
        if not memory.lends_to(borrower):
            self._take_back(borrower)
        elif self._holds_on(address, closed):
            self._gone[borrower] = address
            self._kept.add(borrower)
            later = min(2 * pause, _LONGEST)
            self._runtime.peers.later(pause, self._look, address, closed, later)
        elif borrower in self._kept:
            self._take_back(borrower)
        else:
            memory.doom(borrower)
            self._runtime.peers.later(_LATE - _GRACE, self._take_back, borrower)

    def _take_back(self, borrower: int) -> None:
        self._gone.pop(borrower, None)
        self._kept.discard(borrower)
        self._memory.take_back(borrower)

    def _holds_on(self, address: Address, closed: bool) -> bool:
        if lives_on(left_file(self._runtime.run, address)):
            return True
        return not closed and self._runtime.peers.alive(address)
