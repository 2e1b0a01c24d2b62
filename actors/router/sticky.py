"""Rendezvous hashing: which of the workers a text belongs to, without anybody keeping a table.

Each worker has a score for each text and the highest one has it, so that all routers agree without
a word. A worker's going moves its own texts alone; a new one takes those that it wins.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from actors.router.loads import Worker

#: Texts whose worker is remembered: one that is not costs a look at every worker.
_REMEMBERED: Final = 65_536
#: Workers that are away and may be back soon, and texts that found another meanwhile.
_AWAY: Final = 64
_MASK: Final = (1 << 64) - 1


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def _score(text: int, worker: int) -> int:
    """Two numbers that were hashed, mixed into one: cheap, for it is done for every worker."""
    mixed = ((text ^ worker) * 0x9E3779B97F4A7C15) & _MASK
    return ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & _MASK


class Rendezvous:
    """The workers of an endpoint, and the texts that were asked for last."""

    def __init__(self) -> None:
        self._seeds: dict[Worker, int] = {}
        #: By the hash of the text: its worker, that one's score, and the number of workers that had
        #: ever come by then; it need only be compared with those that came later.
        self._known: OrderedDict[int, tuple[Worker, int, int]] = OrderedDict()
        self._newest: list[Worker] = []
        #: How many came before those in ``_newest``.
        self._before = 0
        #: Who has gone not long ago, with its seed, and the texts that were looked up since. One
        #: that is back before there are many of these may have won them, and no others.
        self._away: dict[Worker, int] = {}
        self._doubtful: list[int] = []

    def add(self, worker: Worker) -> None:
        """Take one in; in it already: nothing changes."""
        if worker in self._seeds:
            return
        seed = self._away.pop(worker, None)
        if seed is not None:
            self._seeds[worker] = seed
            for hashed in self._doubtful:
                self._known.pop(hashed, None)
            self._doubtful.clear()
            return
        self._seeds[worker] = _hash(worker.instance.to_bytes(8, "big"))
        if len(self._newest) > len(self._seeds) + 64:
            self._before += len(self._newest)
            self._newest.clear()
        self._newest.append(worker)

    def remove(self, worker: Worker) -> None:
        """Let one go, if it is in; its texts go elsewhere when they are asked for."""
        seed = self._seeds.pop(worker, None)
        if seed is not None:
            self._away[worker] = seed
            if len(self._away) > _AWAY:
                self._forget_away()

    def _forget_away(self) -> None:
        self._away.clear()
        self._doubtful.clear()

    def find(self, text: str) -> Worker | None:
        """The worker that a text belongs to; None when there is none."""
        hashed = _hash(text.encode("utf-8", "surrogatepass"))
        known = self._known.get(hashed)
        came = self._before + len(self._newest)
        if known is not None and known[2] == came and known[0] in self._seeds:
            self._known.move_to_end(hashed)
            return known[0]
        if not self._seeds:
            return None
        if known is None or known[2] < self._before or known[0] not in self._seeds:
            best, most = self._best(hashed)
        else:
            best, most, seen = known
            best, most = self._better(hashed, best, most, self._newest[seen - self._before :])
        if self._away:
            self._doubtful.append(hashed)
            if len(self._doubtful) > _AWAY:
                self._forget_away()
        self._known[hashed] = best, most, came
        self._known.move_to_end(hashed)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return best

    def _best(self, hashed: int) -> tuple[Worker, int]:
        first = next(iter(self._seeds))
        return self._better(hashed, first, -1, list(self._seeds))

    def _better(
        self, hashed: int, best: Worker, most: int, among: list[Worker]
    ) -> tuple[Worker, int]:
        seeds = self._seeds
        for worker in among:
            seed = seeds.get(worker)
            if seed is not None:
                score = _score(hashed, seed)
                if score > most:
                    best, most = worker, score
        return best, most
