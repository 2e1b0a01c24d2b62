"""Shared memory between this process and its peers: announcing, attaching, lending, giving back.

A segment is announced to a peer before the first handle into it, and the peer's answer is waited
for; a peer that cannot map it gets bytes instead, from then on. The frames of a request belong to
its stream until a peer has accepted it, for until then nobody knows who will hold them. Used by a
runtime, on its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.messages import Announce, Attached, Release
from transport.bus.address import Address
from transport.errors import CallHomeError, RemoteProtocolError
from transport.payload import Encoded, inline
from transport.shm.memory import Memory
from transport.wire.handle import Handle, announcement_from_wire, handle_from_wire

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: How long a peer may take to answer an announcement, in seconds; after that it gets bytes.
_ANSWER = 1.0
#: Frames of a request whose router died are kept this long, in seconds, for an engine that has
#: them.
_LATE_ACCEPT = 10.0
#: In one message.
MAX_HANDLES = 65_536
#: ``[dtype, shape, bytes]`` stands in the table where the peer cannot read our memory.
_INLINE_FIELDS = 3


def read_handles(values: list[Any]) -> list[Handle]:
    """The handles of a message, checked; inline entries (bytes) pass. Raises
    RemoteProtocolError.
    """
    if len(values) > MAX_HANDLES:
        raise RemoteProtocolError(
            f"{len(values)} handles in one message, {MAX_HANDLES} are allowed"
        )
    return [
        handle_from_wire(each)
        for each in values
        if type(each) is not list or len(each) != _INLINE_FIELDS
    ]


def held(values: Sequence[Any]) -> list[Handle]:
    """Our own handles among what an encoded value refers to; bytes in line are nobody's."""
    return [each for each in values if type(each) is Handle]


class Links:
    """What this process lends and borrows."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self.memory = Memory(
            runtime.address.incarnation,
            wake=self._wake,
            step=runtime.settings.arena_step,
            limit=runtime.settings.arena_limit,
            threshold=runtime.settings.inline_below,
        )
        self._answers: dict[int, list[Callable[[], object]]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        #: Handles of requests that nobody has accepted yet, by stream; and those given back early.
        self._requests: dict[int, tuple[Address, list[Handle]]] = {}
        self._early: set[tuple[int, int, int]] = set()
        #: Handles that are still ours for another attempt, by stream: somebody has accepted it and
        #: holds them too, or it came back.
        self._kept: dict[int, list[Handle]] = {}
        runtime.on(Announce, self._announce)
        runtime.on(Attached, self._attached)
        runtime.on(Release, self._release)

    async def lend(self, encoded: Encoded, peer: Address, number: int) -> Encoded:
        """Lease an item's handles to ``peer``, or put their bytes in line where it cannot read
        them.
        """
        handles = held(encoded.handles)
        if self._undecided(peer, handles):
            try:
                await self._announced(peer, handles)
            except BaseException:
                self._unexport(handles)
                raise
        return self._lent(encoded, handles, peer, number)

    def lend_soon(
        self,
        encoded: Encoded,
        peer: Address,
        number: int,
        then: Callable[[Encoded | CallHomeError], None],
    ) -> None:
        """As ``lend``, without a task: ``then`` is called at once but for the first handles into a
        segment, which wait for the peer's answer.
        """
        handles = held(encoded.handles)

        def settle() -> None:
            try:
                found: Encoded | CallHomeError = self._lent(encoded, handles, peer, number)
            except CallHomeError as error:
                found = error
            then(found)

        if not self._undecided(peer, handles):
            settle()
            return

        def answered(final: bool = False) -> None:
            if not final and self._undecided(peer, handles):
                self._answers.setdefault(peer.incarnation, []).append(answered)
                return
            timer.cancel()
            self._timers.discard(timer)
            settle()

        def late() -> None:
            self._refuse(peer, handles)
            waiting = self._answers[peer.incarnation]
            waiting.remove(answered)
            if not waiting:
                del self._answers[peer.incarnation]
            answered(final=True)

        try:
            self._tell(peer, handles)
        except CallHomeError as error:
            self._unexport(handles)
            then(error)
            return
        timer = self._loop.call_later(_ANSWER, late)
        self._timers.add(timer)
        self._answers.setdefault(peer.incarnation, []).append(answered)

    def _undecided(self, peer: Address, handles: Sequence[Handle]) -> bool:
        """Whether it is not known yet if ``peer`` can read these."""
        memory = self.memory
        return not memory.attached(peer.incarnation, handles) and memory.usable(peer.incarnation)

    def _lent(
        self, encoded: Encoded, handles: Sequence[Handle], peer: Address, number: int
    ) -> Encoded:
        memory = self.memory
        lent: list[tuple[int, int, int]] = []
        try:
            if memory.usable(peer.incarnation) and memory.attached(peer.incarnation, handles):
                for handle in handles:
                    memory.lend(handle, peer.incarnation, number)
                    lent.append((handle.segment, handle.offset, handle.generation))
                return encoded
            encoded = inline(encoded, memory)
        except BaseException:
            memory.release(peer.incarnation, lent)
            self._unexport(handles)
            raise
        self._unexport(handles)
        return encoded

    def _unexport(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            self.memory.unexport(handle)

    def take_back(self, encoded: Encoded, peer: Address) -> None:
        """End the leases of an item that was lent to ``peer`` and then not sent."""
        leases = [(each.segment, each.offset, each.generation) for each in held(encoded.handles)]
        self.memory.release(peer.incarnation, leases)

    def _tell(self, peer: Address, handles: Sequence[Handle]) -> None:
        """Announce what ``peer`` has not been told of."""
        for announcement in self.memory.needs(peer.incarnation, handles):
            message = Announce(list(announcement))
            self._runtime.port.send(peer, message, control=True)

    async def _announced(self, peer: Address, handles: Sequence[Handle]) -> None:
        """Announce what ``peer`` has not been told of, and wait for its answers."""
        self._tell(peer, handles)
        try:
            async with asyncio.timeout(_ANSWER):
                while self._undecided(peer, handles):
                    answer = self._loop.create_future()
                    self._answers.setdefault(peer.incarnation, []).append(partial(_wake, answer))
                    await answer
        except TimeoutError:
            self._refuse(peer, handles)

    def _refuse(self, peer: Address, handles: Sequence[Handle]) -> None:
        """Not again for each item: a peer that does not answer gets bytes from now on."""
        for handle in handles:
            self.memory.mark(peer.incarnation, handle.segment, ok=False)

    def _attached(self, sender: int, m: Attached) -> None:
        self.memory.mark(sender, m.segment, m.ok)
        if not m.ok:
            self._runtime.note(f"a peer reads no shared memory of ours, it gets bytes: {m.reason}")
        self._answer(sender)

    def _answer(self, peer: int) -> None:
        for answer in self._answers.pop(peer, ()):
            answer()

    def segments(self, values: Sequence[Any]) -> list[Any]:
        """Announcements to travel inside an Open: who will serve it is not known yet."""
        if not values:
            return []
        # Nobody is peer 0: forgetting it afterwards makes every Open carry what it needs.
        found = [list(each) for each in self.memory.needs(0, held(values))]
        self.memory.forget(0)
        return found

    def requested(self, number: int, values: Sequence[Any], via: Address) -> None:
        """The frames of a request are on their way with stream ``number``, by way of ``via``."""
        if values:
            self._requests[number] = (via, held(values))

    def accepted(self, number: int, peer: int, keep: bool = False) -> None:
        """``peer`` serves the stream and holds its frames from now on; with ``keep`` we do too,
        until ``settled``.
        """
        handles = self.take_requests(number)
        for handle in handles:
            key = (handle.segment, handle.offset, handle.generation)
            if key in self._early:
                self._early.discard(key)
                if not keep:
                    self.memory.unexport(handle)
            else:
                self.memory.lend(handle, peer, number, keep=keep)
        if keep and handles:
            self._kept[number] = handles

    def refused(self, number: int) -> None:
        """Nobody took the stream: its frames come back."""
        for handle in self.take_requests(number):
            self._early.discard((handle.segment, handle.offset, handle.generation))
            self.memory.unexport(handle)

    def came_back(self, number: int) -> None:
        """Nobody took the stream: its frames are ours, until ``settled``, for another attempt."""
        handles = self.take_requests(number)
        if handles:
            self._early.difference_update(
                [(each.segment, each.offset, each.generation) for each in handles]
            )
            self._kept[number] = handles

    def settled(self, number: int) -> None:
        """There will be no other attempt: what was kept for it goes back."""
        for handle in self._kept.pop(number, ()):
            self.memory.unexport(handle)

    def take_requests(self, number: int) -> list[Handle]:
        """The frames of a request that we still hold, for another attempt."""
        kept = self._kept.pop(number, None)
        return self._requests.pop(number, (None, []))[1] if kept is None else kept

    def _announce(self, sender: int, m: Announce) -> None:
        peer = self._runtime.peers.find(sender)
        announcement = announcement_from_wire(m.segment)
        if peer is not None:
            # Perhaps its stream was given up here before it was accepted, and nothing else of it
            # will come; what is mapped goes with its owner all the same.
            self._runtime.peers.watch(peer)
        ok, reason = True, ""
        try:
            self.memory.attach(announcement)
        except CallHomeError as error:
            ok, reason = False, str(error)[:500]
        if peer is not None:
            self._runtime.port.send(peer, Attached(announcement.segment, ok, reason), control=True)

    def attach(self, segments: list[Any]) -> None:
        """Attach what an Open announces. Raises AttachFailed, RemoteProtocolError."""
        for each in segments:
            self.memory.attach(announcement_from_wire(each))

    def expect(self, values: list[Any]) -> None:
        """Keep the memory of a message's handles mapped until they are looked at or dropped."""
        self.memory.expect(read_handles(values))

    def drop(self, values: list[Any]) -> None:
        """Return the leases of a message that nobody will look at."""
        for handle in read_handles(values):
            self.memory.drop(handle)

    def _wake(self) -> None:
        """A view is gone, in whatever thread: send the releases from the loop."""
        if asyncio._get_running_loop() is self._loop:
            self._loop.call_soon(self.send_releases)  # spares the loop a wake-up by itself
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.send_releases)

    def send_releases(self) -> None:
        """Return ended leases to their owners, batched."""
        for owner, leases in self.memory.drain_releases().items():
            peer = self._runtime.peers.find(owner)
            if peer is not None:
                message = Release([list(each) for each in leases])
                self._runtime.port.send(peer, message, control=True)

    def _release(self, sender: int, m: Release) -> None:
        leases: list[tuple[int, int, int]] = []
        for each in m.leases:
            if (
                type(each) is not list
                or len(each) != 3
                or any(type(part) is not int for part in each)
            ):
                raise RemoteProtocolError("a lease is three whole numbers")
            leases.append((each[0], each[1], each[2]))
        if self._requests:
            # A quick handler's release may overtake the Accept of the stream that lent the frame.
            waiting = {
                (handle.segment, handle.offset, handle.generation)
                for _, handles in self._requests.values()
                for handle in handles
            }
            self._early.update(waiting.intersection(leases))
        self.memory.release(sender, leases)

    def down(self, address: Address) -> None:
        """A peer is gone: what it borrowed is ours again, what it owned lives as long as its
        views.
        """
        self.memory.take_back(address.incarnation)
        self.memory.forget(address.incarnation)
        self.memory.detach(address.incarnation)
        self._answer(address.incarnation)
        for number, (via, _) in self._requests.items():
            if via.incarnation == address.incarnation:
                # An engine that got the Open just before may still accept it and read the frames.
                self._runtime.peers.later(_LATE_ACCEPT, self.refused, number)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self.memory.close()


def _wake(answer: asyncio.Future[None]) -> None:
    if not answer.done():
        answer.set_result(None)
