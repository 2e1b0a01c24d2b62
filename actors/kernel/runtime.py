"""What one actor, or one client, consists of below its own code: port, peers, memory, streams,
timer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from actors.config import Settings
from actors.errors import ActorDead
from actors.kernel.adopting import Adopting
from actors.kernel.beats import Vigil
from actors.kernel.belonging import Belonging
from actors.kernel.home import Home
from actors.kernel.keeping import Keeping
from actors.kernel.links import Links
from actors.kernel.mailbox import GO, HOLD, HOLD_ALL
from actors.kernel.parking import Parking
from actors.kernel.peers import GONE, Peers, start_time
from actors.kernel.space import space_beside
from actors.kernel.watchful import Watchful
from actors.messages import Bye, Down, Hello
from transport.bus.address import Address
from transport.bus.guard import Guard
from transport.bus.port import Bus, Port
from transport.errors import CallHomeError, EncodeError, PeerLost, RemoteProtocolError
from transport.payload import Encoded, decode_payload, encode_payload, inline_kept
from transport.shm.beside import with_references
from transport.shm.memory import Memory
from transport.wire.message import Message

if TYPE_CHECKING:
    from actors.kernel.ref import Lookup
    from actors.kernel.serving import Serving
    from actors.kernel.starting import Starting

log = logging.getLogger("callhome")

#: Period of the coarse timer in seconds: one for all streams of a process, since one an item would
#: cost more than the item.
TICK = 0.050
#: Where asyncio's loops keep the thread in which they run now: one look, where asking for the
#: running loop is a system call. Of a loop without it (uvloop's) that is asked instead.
_THREAD = "_thread_id"
#: Containers up to this size are looked into for what is too large to be packed.
_FEW = 64
_TEXT: frozenset[type] = frozenset({str})
_TEXT_OR_BYTES: frozenset[type] = frozenset({str, bytes})

_M = TypeVar("_M", bound=Message)


class Runtime:
    """One incarnation: made by ``run_actor`` for an actor, by ``Client`` for a program that only
    calls.

    Everything here belongs to the loop on which it was made.
    """

    def __init__(
        self,
        *,
        run: str,
        name: str,
        settings: Settings | None = None,
        incarnation: int | None = None,
        bus: Bus | None = None,
    ) -> None:
        """Bind the inboxes in folder ``run``. Raises LocalProtocolError when a path is too long or
        taken.
        """
        self.settings = settings or Settings()
        self.run = run
        self.bus = bus or Bus()
        self._owns_bus = bus is None
        #: The loop that made it, on which alone it may be used.
        self.loop = asyncio.get_running_loop()
        self._table: dict[type, Callable[[int, Any], None]] = {}
        pid = os.getpid()
        incarnation = incarnation or secrets.randbits(62) + 1
        self.address = Address(name, incarnation, pid, start_time(pid), space_beside(run))
        try:
            self.port = Port(
                self.bus,
                run,
                self.address,
                self._deliver,
                hello=Hello(self.address),
                outbox_messages=self.settings.outbox_messages,
                outbox_bytes=self.settings.outbox_bytes,
            )
        except BaseException:
            if self._owns_bus:
                self.bus.close()
            raise
        self.peers = Peers(self.port, self._down)
        self.port.unreachable = self.peers.lost
        self.port.may_be = self.peers.may_be
        self._hear_of_peers()
        self.links = Links(self)
        self.adopting = Adopting(self)
        self._parking = Parking(self, self._down)
        self.keeping = Keeping(self, self.links.memory)
        self.home = Home(self)
        #: Which actors of this node, that we have to do with, are well.
        self.vigil = Vigil(run, self.settings.frozen_after, self.address)
        self._watchful = Watchful(self)
        self.serving: Serving | None = None
        #: Called with (address, reason) after streams, leases and permits have been settled.
        self.when_down: list[Callable[[Address, str], None]] = []
        self._guard = Guard(name)
        #: Called with the monotonic clock at each tick of the coarse timer, which goes on while one
        #: of them returns True; ``plan_tick`` starts it.
        self.timers: list[Callable[[float], bool]] = [self.adopting.check]
        self._payload_limit = self.settings.payload_limit
        #: The incarnation of the node, and who knows its actors; 0 and None outside any node.
        self.node = 0
        self.lookup: Lookup | None = None
        #: What it knows of the others of its plan while its actor starts.
        self.starting: Starting | None = None
        self._near = with_references(self._reference)
        self._serial, self._closed = 0, False
        #: Closed, in a forked child, or cut off: ``check_open`` says which.
        self.shut = False
        #: Called with the reason when others reach our inboxes no longer.
        self.when_broken: Callable[[CallHomeError], None] = lambda error: None
        self.belonging = Belonging(self, self.loop)
        self._want_hold, self._holds = GO, False
        self._ticking: asyncio.TimerHandle | None = None

    def _hear_of_peers(self) -> None:
        self.on(Hello, self._hello)
        self.on(Bye, lambda sender, m: self.peers.left(sender))
        self.on(Down, self._down_word)

    def _hello(self, sender: int, m: Hello) -> None:
        if m.address.incarnation != sender or not self.peers.may_be(m.address):
            raise RemoteProtocolError(f"{m.address} claims to be somebody else")
        self.peers.note(m.address)
        self.belonging.greeted()

    def _down_word(self, sender: int, m: Down) -> None:
        if self.node and sender != self.node:
            raise RemoteProtocolError("only the node says how others have ended")
        self.peers.reason(m.address, m.reason)

    @property
    def memory(self) -> Memory:
        """Shared memory of this process, both ways."""
        return self.links.memory

    def on(self, kind: type[_M], handler: Callable[[int, _M], None]) -> None:
        """Call ``handler(sender's incarnation, message)`` for each message of this type, in the
        loop.
        """
        self._table[kind] = handler

    def handles(self, kind: type[Message]) -> bool:
        """Whether somebody here takes this type of message."""
        return kind in self._table

    def handler(self, kind: type[_M]) -> Callable[[int, _M], None]:
        """What is called for this type of message now, for whoever puts himself before it."""
        return self._table[kind]

    def _deliver(self, sender: int, message: Message) -> None:
        handler = self._table.get(type(message))
        if handler is None:
            raise RemoteProtocolError("this actor has no use for it")
        handler(sender, message)

    def send(self, to: Address, message: Message, control: bool = False, size: int = 64) -> None:
        """Send a message, which carries ``size`` bytes, to an actor.

        Raises ActorDead when it is known to be dead, OutboxFull, LocalProtocolError when this
        runtime has closed.
        """
        self.check_open()
        if not self.peers.watch(to):
            raise ActorDead(
                f"{to} is dead: {self.peers.death(to) or GONE}; look it up again after its restart"
            )
        try:
            self.port.send(to, message, control, size, bounded=True)
        except PeerLost as error:
            raise ActorDead(error.message) from None

    def new_id(self) -> str:
        """A request id for a caller that brings none; no other request of this node has it."""
        self._serial += 1
        return f"{self.address.incarnation & 0xFFFFFFFF:x}-{self._serial}"

    def check_open(self) -> None:
        """Raise LocalProtocolError once this runtime has closed, on another event loop than its own
        and in a forked child: nothing would ever answer. ConnectionLost when its inboxes are gone.
        """
        if self.shut or getattr(self.loop, _THREAD, None) != get_ident():
            self._check_place(self.shut)

    def _check_place(self, barred: bool) -> None:
        if barred or asyncio._get_running_loop() is not self.loop:
            raise self.belonging.misuse()

    def check_loop(self) -> None:
        """As ``check_open``, for what may be done behind the end."""
        if self.belonging.inherited or getattr(self.loop, _THREAD, None) != get_ident():
            self._check_place(self.belonging.inherited)

    def check_close(self) -> None:
        """As ``check_loop``, where a loop that does not run any more is no obstacle."""
        if asyncio._get_running_loop() is not self.loop and self.loop.is_running():
            raise self.belonging.misuse()

    def hold_data(self, level: int) -> None:
        """Hold back the data inbox, or go on, for a full mailbox; see ``actors.kernel.mailbox``."""
        self._want_hold = level
        self.apply_hold()

    def apply_hold(self) -> None:
        """Streams came or went: hold the data inbox just when that is wanted and harmless."""
        level = self._want_hold
        held = level == HOLD_ALL or (level == HOLD and not self.home.handler_streams)
        if held != self._holds:
            self._holds = held
            self.port.hold_data(held)

    def encode(
        self, value: object, codec: str, native: bool, root: str, packed: bytes | None = None
    ) -> Encoded:
        """Bytes and handles of a value; ``root`` and ``packed`` as for ``encode_payload``. Safe in
        any thread where the codec is a plain one, which takes no shared memory.

        Raises EncodeError with the path inside ``root``, FrameReleased.
        """
        least = least_size(value, native)
        if least > self._payload_limit:  # told before a copy of it is made
            raise self._too_large(root, f"at least {least}")
        memory = self.links.memory
        encoded = encode_payload(
            value, codec=codec, memory=memory, native=native, root=root, packed=packed
        )
        if len(encoded.data) > self._payload_limit:
            for handle in encoded.handles:
                memory.unexport(handle)
            raise self._too_large(root, str(len(encoded.data)))
        if encoded.handles and memory.offers.inline:
            encoded = inline_kept(encoded, memory)
        return encoded

    def _too_large(self, root: str, size: str) -> EncodeError:
        return EncodeError(
            f"{root}: {size} bytes when encoded, {self._payload_limit} are allowed; send large "
            "arrays and buffers as such (they go through shared memory), split the rest into "
            "several items, or raise payload_limit"
        )

    def decode(self, payload: bytes, handles: list[Any], codec: str, item: bool = False) -> Any:
        """The value of bytes and handles; ``item``: it is none of a request. Raises DecodeError,
        RemoteProtocolError, StaleHandle.
        """
        memory, near = self.links.memory, self._near
        return decode_payload(payload, handles, codec=codec, memory=memory, item=item, near=near)

    def _reference(self, data: bytes) -> object:
        """A reference that came in a value. Raises DecodeError, Unsupported for another node's."""
        from actors.kernel.ref import read_reference

        return read_reference(data, self)

    async def lend(self, encoded: Encoded, peer: Address, number: int) -> Encoded:
        """Lease an item's handles to the peer that it goes to."""
        return await self.links.lend(encoded, peer, number)

    def attach(self, segments: list[Any], home: int) -> None:
        """Attach what an Open of ``home`` announces. Raises AttachFailed."""
        if segments:
            self.links.attach(segments, home)

    def expect(self, handles: list[Any]) -> None:
        """Handles have arrived that somebody will look at later, perhaps after their owner died."""
        if handles:
            self.links.expect(handles)

    def drop(self, handles: list[Any]) -> None:
        """Return the leases of handles that nobody will look at."""
        if handles:
            self.links.drop(handles)

    def drop_items(self, queue: deque[bytes | tuple[bytes, list[Any], int]]) -> None:
        """Empty a queue of items that nobody will take; the leases in them go back."""
        for each in queue:
            if not isinstance(each, bytes):
                self.drop(each[1])
        queue.clear()

    def plan_tick(self) -> None:
        """Run the coarse timer as long as streams have limits to watch."""
        if self._ticking is None and not self._closed:
            self._ticking = self.loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now, busy = time.monotonic(), False
        for timer in (self._watchful.check, self._check_home, self._check_serving, *self.timers):
            try:
                busy = timer(now) or busy
            except Exception as error:
                busy = True  # what it watches has not been seen to
                self._guard.failed(timer, error)
        if busy:
            self.plan_tick()

    def _check_home(self, now: float) -> bool:
        self.home.check(now)
        return self.home.busy()

    def _check_serving(self, now: float) -> bool:
        if self.serving is None:
            return False
        self.serving.check(now)
        return self.serving.busy()

    def _down(self, address: Address, reason: str) -> None:
        """Behind the barrier: everything that the dead peer had sent has been handled, or waits for
        a lease, and this comes again.
        """
        if self._parking.holds_back(address, reason):
            return
        for settle in (self.home.down, self._serving_down, self._links_down, *self.when_down):
            try:
                settle(address, reason)
            except Exception as error:
                self._guard.failed(settle, error)

    def _serving_down(self, address: Address, reason: str) -> None:
        if self.serving is not None:
            self.serving.down(address, reason)

    def _links_down(self, address: Address, reason: str) -> None:
        self.links.down(address)

    def note(self, text: str) -> None:
        """Log something that an operator may want to know."""
        log.info("%s: %s", self.address.name, text)

    def complain(self, what: str, error: BaseException) -> None:
        """Log a failure that no caller is there to hear."""
        log.error("%s: %s failed", self.address.name, what, exc_info=error)

    def close(self, reason: str = "this side closes") -> None:
        """End everything: streams opened here are killed, sockets and memory go. Raises
        LocalProtocolError while its loop runs and this is another thread.
        """
        if self._closed or self.belonging.inherited:
            return
        self.check_close()
        self.belonging.close()
        self.home.close(reason)
        self.links.part()
        # Also to those who only sent to us: an engine's sockets must not outlive its callers.
        for address in {*self.port.peers(), *self.peers.known()}:
            self.port.send(address, Bye())
        self._closed = self.shut = True
        if self._ticking is not None:
            self._ticking.cancel()
        self.peers.close()
        self.vigil.close()
        self.port.close()
        self.keeping.close()
        self.links.close()
        if self._owns_bus:
            self.bus.close()


def least_size(value: object, native: bool) -> int:
    """Bytes that a value takes at least when encoded: its text and bytes, at the top and one level
    below; with ``native`` without bytes, which may go through shared memory.
    """
    kinds = _TEXT if native else _TEXT_OR_BYTES
    if isinstance(value, str | bytes):
        return len(value) if type(value) in kinds else 0
    if not isinstance(value, dict | list | tuple) or len(value) > _FEW:
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return sum([len(each) for each in inner if type(each) in kinds])
