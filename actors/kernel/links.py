"""Shared memory between this process and its peers: announcing, attaching, lending, giving back.

A segment is announced to a peer before the first handle into it, and the peer's answer is waited
for; a peer that cannot map it gets bytes instead, from then on. The frames of a request belong to
its stream until a peer has accepted it, for until then nobody knows who will hold them. Used by a
runtime, on its loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.kernel.parted import Parted
from actors.kernel.reach import both_ways, left_file
from actors.kernel.unclaimed import Unclaimed
from actors.kernel.unclaimed import held as held
from actors.messages import Announce, Attached, Release
from transport.bus.address import Address
from transport.errors import AttachFailed, CallHomeError, RemoteProtocolError
from transport.payload import Encoded, inline
from transport.shm.memory import Memory
from transport.shm.passing import Key
from transport.shm.reading import Release as Lease
from transport.wire.handle import (
    Announcement,
    Handle,
    announcement_from_wire,
    handle_from_wire,
)

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

log = logging.getLogger("callhome")

#: How long a peer may take to answer an announcement, in seconds; after that it gets bytes.
_ANSWER = 1.0
#: Frames of a request whose router died are kept this long, in seconds, for an engine that has
#: them.
_LATE_ACCEPT = 10.0
#: The memory of a dead actor, whose frames others handed on to us, is mapped so long.
_LATE_FRAMES = 3.0
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


class Links:
    """What this process lends and borrows."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        offers, roads = both_ways(runtime.run, runtime.address, runtime.settings.frame_road)
        self.memory = Memory(
            runtime.address.incarnation,
            wake=self._wake,
            step=runtime.settings.arena_step,
            limit=runtime.settings.arena_limit,
            threshold=runtime.settings.inline_below,
            offers=offers,
            roads=roads,
        )
        self._answers: dict[int, list[Callable[[], object]]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        #: Whether it stands in the log that somebody cannot read our memory.
        self._told = False
        self.unclaimed = unclaimed = Unclaimed(self.memory)
        self.requested = unclaimed.requested
        self.accepted = unclaimed.accepted
        self.refused = unclaimed.refused
        self.came_back = unclaimed.came_back
        self.settled = unclaimed.settled
        self.take_requests = unclaimed.take
        self.parted = Parted(runtime, self.memory)
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
        known = memory.attached(peer.incarnation, handles)
        return not known and memory.usable(peer.incarnation, handles)

    def _lent(
        self, encoded: Encoded, handles: Sequence[Handle], peer: Address, number: int
    ) -> Encoded:
        memory = self.memory
        lent: list[Handle] = []
        try:
            if memory.usable(peer.incarnation, handles) and memory.attached(
                peer.incarnation, handles
            ):
                for handle in handles:
                    memory.lend(handle, peer.incarnation, number)
                    lent.append(handle)
                return encoded
            if memory.again(peer.incarnation, handles):
                self._tell(peer, handles)  # this one goes as bytes, and perhaps none after it
            encoded = inline(encoded, memory)
        except BaseException:
            for handle in lent:
                memory.unlend(handle, peer.incarnation)
            self._unexport(handles[len(lent) :])
            raise
        self._unexport(handles)
        return encoded

    def _unexport(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            self.memory.unexport(handle)

    def take_back(self, encoded: Encoded, peer: Address) -> None:
        """End the leases of an item that was lent to ``peer`` and then not sent."""
        for each in held(encoded.handles):
            self.memory.unlend(each, peer.incarnation)

    def _tell(self, peer: Address, handles: Sequence[Handle]) -> None:
        """Announce what ``peer`` has not been told of."""
        self._runtime.adopting.begins()  # it may send them back to us
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
            owner = handle.owner
            self.memory.mark(peer.incarnation, handle.segment, ok=False, owner=owner)
        if self._runtime.peers.death(peer) is None:
            self._refused(str(peer), f"it has not answered an announcement within {_ANSWER:g} s")

    def _refused(self, peer: str, reason: str) -> None:
        """An operator may want to know: frames are slow there, and it can be helped."""
        log.warning(
            "%s: %s gets frames as bytes, it cannot read our shared memory: %s",
            self._runtime.address.name,
            peer,
            reason,
        )

    def _attached(self, sender: int, m: Attached) -> None:
        memory = self.memory
        usable = memory.usable(sender)
        memory.mark(sender, m.segment, m.ok, m.road, m.owner)
        if not m.ok and (usable or not self._told):
            self._told = True
            self._refused(str(self._runtime.peers.find(sender) or "a peer"), m.reason)
        self._answer(sender)

    def _answer(self, peer: int) -> None:
        for answer in self._answers.pop(peer, ()):
            answer()

    def segments(self, values: Sequence[Any]) -> list[Any]:
        """Announcements to travel inside an Open: who will serve it is not known yet."""
        if not values:
            return []
        self._runtime.adopting.begins()
        # Nobody is peer 0: forgetting it afterwards makes every Open carry what it needs.
        found = [list(each) for each in self.memory.needs(0, held(values))]
        self.memory.forget(0)
        return found

    def _announce(self, sender: int, m: Announce) -> None:
        peer = self._runtime.peers.find(sender)
        announcement = announcement_from_wire(m.segment)
        if peer is not None:
            # Perhaps its stream was given up here before it was accepted, and nothing else of it
            # will come; what is mapped goes with its owner all the same.
            self._runtime.peers.watch(peer)
        ok, reason = True, ""
        self.memory.reading.roads.wanted = ""
        try:
            self._runtime.adopting.meet(announcement, sender)
            self.memory.attach(announcement)
        except CallHomeError as error:
            ok, reason = False, str(error)[:500]
        if peer is not None:
            self._answer_to(peer, announcement, ok, reason)

    def attach(self, segments: list[Any], home: int) -> None:
        """Attach what an Open of ``home`` announces. Raises AttachFailed, RemoteProtocolError."""
        for each in segments:
            announcement = announcement_from_wire(each)
            self._runtime.adopting.meet(announcement, home)
            try:
                self.memory.attach(announcement)
            except AttachFailed as error:
                owner = self._runtime.peers.find(announcement.owner)
                if owner is not None:  # it sends the request again with bytes, and can say why
                    self._answer_to(owner, announcement, False, str(error)[:500])
                raise

    def _answer_to(self, peer: Address, told: Announcement, ok: bool, reason: str) -> None:
        roads = self.memory.reading.roads
        road = roads.taken(told.owner) if ok else roads.wanted
        owner = 0 if told.owner == peer.incarnation else told.owner
        message = Attached(told.segment, ok, reason, road, owner)
        self._runtime.port.send(peer, message, control=True)

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
        mine = self.memory.owner
        ours: list[Lease] = []
        others: list[Key] = []
        for each in m.leases:
            if (
                type(each) is not list
                or len(each) not in (3, 4)
                or any(type(part) is not int for part in each)
            ):
                raise RemoteProtocolError("a lease is three whole numbers, or four with its owner")
            segment, offset, generation, *owner = each
            if owner and owner[0] != mine:
                others.append((owner[0], segment, offset, generation))
            else:
                ours.append((segment, offset, generation))
        early = [(mine, *lease) for lease in self.memory.release(sender, ours)]
        if others:
            release = self.memory.passing.release
            early += [key for key in others if not release(sender, key)]
        if early:
            self.unclaimed.came(sender, early)

    def down(self, address: Address) -> None:
        """A peer is gone: what it borrowed is ours again, what it owned lives as long as its
        views.
        """
        self.parted.down(address)
        self.memory.forget(address.incarnation)
        if self._runtime.adopting.has_met(address.incarnation):
            # Others may have sent us frames of it before they heard of its death.
            self.memory.reading.mourn(address.incarnation)
            self._runtime.peers.later(_LATE_FRAMES, self.memory.detach, address.incarnation)
        else:
            self.memory.detach(address.incarnation)
        self._answer(address.incarnation)
        for number in self.unclaimed.via(address.incarnation):
            # An engine that got the Open just before may still accept it and read the frames.
            self._runtime.peers.later(_LATE_ACCEPT, self.refused, number)

    def part(self) -> None:
        """Before this side says goodbye: return what has ended, say what lives on."""
        self.send_releases()
        # Not our views. Their leases go back with all others, later: they may be asked for now.
        self.memory.passing.clear()
        runtime = self._runtime
        try:
            self.memory.reading.outlive(left_file(runtime.run, runtime.address))
        except OSError as error:
            if os.path.isdir(runtime.run):  # else its owners are gone, too
                log.warning(
                    "%s: arrays that outlive this client may change, for their owners cannot be "
                    "told of them: %s; copy what you keep before the client closes",
                    runtime.address.name,
                    error,
                )

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self.memory.close()


def _wake(answer: asyncio.Future[None]) -> None:
    if not answer.done():
        answer.set_result(None)
