"""Frames of requests until somebody has accepted them, and while they are kept for another attempt.

Until then nobody knows who will hold them: they belong to their stream. Part of ``Links``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from transport.bus.address import Address
from transport.errors import CallHomeError
from transport.shm.memory import Memory
from transport.shm.passing import Key, key_of
from transport.wire.handle import Handle


def held(values: Sequence[Any]) -> list[Handle]:
    """The handles that we hold among what an encoded value refers to; bytes in line are
    nobody's.
    """
    return [each for each in values if type(each) is Handle]


class Unclaimed:
    """The frames of this home's requests, by the numbers of their streams."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        #: Handles of requests that nobody has accepted yet, and by way of whom they went; and how
        #: often, and by whom, each was given back before that.
        self._requests: dict[int, tuple[Address, list[Handle]]] = {}
        self._early: dict[Key, Counter[int]] = {}
        #: How many of them wait with a frame.
        self._waiting: Counter[Key] = Counter()
        #: Handles that are still ours for another attempt: somebody has accepted it and holds them
        #: too, or it came back.
        self._kept: dict[int, list[Handle]] = {}

    def requested(self, number: int, values: Sequence[Any], via: Address) -> None:
        """The frames of a request are on their way with stream ``number``, by way of ``via``."""
        if values:
            handles = held(values)
            self._requests[number] = (via, handles)
            for each in handles:
                self._waiting[key_of(each)] += 1

    def accepted(self, number: int, peer: int, keep: bool = False) -> None:
        """``peer`` serves the stream and holds its frames from now on; with ``keep`` we do too,
        until ``settled``.
        """
        if not self._requests and not self._kept:
            return  # nearly always: this is asked for each stream
        handles = self._take(number)
        if handles:
            self._memory.opened(peer, handles)
        failure: CallHomeError | None = None
        for handle in handles:
            if self._early and self._was_early(handle, peer):
                if not keep:
                    self._memory.unexport(handle)
                continue
            try:
                self._memory.claim(handle, peer, number, keep=keep)
            except CallHomeError as error:  # the others are his all the same
                failure = error
        self._forget(handles)
        if keep and handles:
            self._kept[number] = handles
        if failure is not None:
            raise failure

    def refused(self, number: int) -> None:
        """Nobody took the stream: its frames come back."""
        if not self._requests and not self._kept:
            return
        for handle in self.take(number):
            self._memory.unexport(handle)

    def came_back(self, number: int) -> None:
        """Nobody took the stream: its frames are ours, until ``settled``, for another attempt."""
        handles = self.take(number)
        if handles:
            self._kept[number] = handles

    def settled(self, number: int) -> None:
        """There will be no other attempt: what was kept for it goes back."""
        for handle in self._kept.pop(number, ()):
            self._memory.unexport(handle)

    def take(self, number: int) -> list[Handle]:
        """The frames of a request that we still hold, for another attempt."""
        if not self._requests and not self._kept:
            return []
        handles = self._take(number)
        self._forget(handles)
        return handles

    def came(self, sender: int, leases: Iterable[Key]) -> None:
        """``sender`` has given back leases that he has not: a quick handler's release may overtake
        the Accept of the stream that lent the frame.

        What somebody else gives back is not his: who has accepted may go on looking at the frame.
        """
        for each in leases:
            if each in self._waiting:
                self._early.setdefault(each, Counter())[sender] += 1

    def has(self, key: Key) -> bool:
        """Whether the frame is that of a request that nobody has accepted yet."""
        return key in self._waiting

    def via(self, gone: int) -> list[int]:
        """The streams that went by way of ``gone``."""
        return [number for number, (via, _) in self._requests.items() if via.incarnation == gone]

    def _take(self, number: int) -> list[Handle]:
        kept = self._kept.pop(number, None)
        if kept is not None:
            return kept
        handles = self._requests.pop(number, (None, []))[1]
        for key in map(key_of, handles):
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        return handles

    def _was_early(self, handle: Handle, peer: int) -> bool:
        early = self._early.get(key_of(handle))
        if early is None or not early[peer]:
            return False
        early[peer] -= 1
        return True

    def _forget(self, handles: Sequence[Handle]) -> None:
        """What was given back early of frames that no request waits with any more."""
        if self._early:
            for key in map(key_of, handles):
                if key not in self._waiting:
                    self._early.pop(key, None)
