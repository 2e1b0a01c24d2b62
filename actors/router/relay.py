"""Streams that pass through a router: their home is on this node, their worker on another.

``Relay`` is one such stream, as both roads to other nodes have it in common (``MuxRelay`` for nodes
of ours, ``SocketRelay`` for Dynamo's workers). ``Plane`` keeps them, gives every permit back
exactly once, and holds what the roads share: the listener to which workers call home, the
connections that carry requests, and the coarse timer. All of it is made at the first stream to
another node.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from functools import cached_property

from actors.errors import ActorDead, Overloaded, WorkerUnavailable
from actors.kernel.peers import GONE
from actors.kernel.runtime import Runtime
from actors.messages import Credit, End, Feed, FeedEnd, FeedItem, Open, Record
from actors.router.occupancy import Key
from transport.bus.address import Address
from transport.callhome.flushes import Flushes
from transport.callhome.link import Net
from transport.callhome.reception import Reception
from transport.callhome.requests import RequestClient
from transport.errors import (
    CallHomeError,
    Cancelled,
    ConnectionLost,
    EngineError,
    LocalProtocolError,
    RemoteProtocolError,
    TooLarge,
    shown,
    text_of,
    to_wire,
)
from transport.wire.framing import LIMIT, load_checksum
from transport.wire.message import Message
from transport.wire.request import OVERLOADED, UNAVAILABLE

#: How a worker's node begins the reply to a request that it does not take.
_REFUSALS: tuple[tuple[str, type[CallHomeError]], ...] = (
    (OVERLOADED, Overloaded),
    (UNAVAILABLE, WorkerUnavailable),
)
#: How a node of ours, whose reply says no more, means a request over its limit.
_TOO_LARGE = re.compile(UNAVAILABLE + r" a request of (\d+) bytes is over the limit of (\d+) bytes")
_MAX_REPLY = 500
#: Seconds that stand for no limit.
_NO_LIMIT = 31_536_000.0
#: Where a worker was when it was removed; kept this long, in seconds, for streams that were on
#: their way to it.
TOMBSTONE = 5.0


def refusal(target: str, via: str, reply: bytes) -> CallHomeError:
    """What a reply that is no acknowledgement means. Unknown words are a refusal too: read as an
    acknowledgement they would be an endless wait.
    """
    text = reply[:_MAX_REPLY].decode(errors="replace")
    size = _TOO_LARGE.match(text)
    if size is not None:
        return TooLarge(
            f"{target}: a request of {size[1]} bytes; {via} takes {size[2]} in one: raise "
            "max_message (DYN_TCP_MAX_MESSAGE_SIZE) there, or send less",
            size=size[1],
            limit=size[2],
        )
    for beginning, kind in _REFUSALS:
        if text.startswith(beginning):
            return kind(f"{target}: {via} said {text!r}; try later or elsewhere")
    return RemoteProtocolError(f"{target}: {via} answered a request with {text!r}")


def undelivered(target: str, via: str, error: CallHomeError) -> CallHomeError:
    """The error of a request that has not come to its worker, as its sender can use it."""
    return type(error)(f"{target}: {via}: {error}", **error.details)


class Relay:
    """One stream between a home here and a worker elsewhere; ``Plane`` holds it until its end."""

    __slots__ = ("deadline", "home", "items", "key", "plane", "stream", "target", "worker")

    def __init__(self, plane: Plane, message: Open, worker: Record) -> None:
        self.plane = plane
        self.home = message.home
        self.stream = message.stream
        self.key: Key = (message.home.incarnation, message.stream)
        self.target = message.target
        self.worker = worker
        #: Items that have gone home.
        self.items = 0
        #: When the worker must have taken its next step; infinite once the stream runs.
        self.deadline = math.inf

    @property
    def over(self) -> bool:
        """Whether the stream has ended; what still comes of it means nothing."""
        return self.plane.relays.get(self.key) is not self

    @property
    def runs(self) -> bool:
        """Whether its worker has been heard of."""
        return self.items > 0

    @property
    def follows(self) -> bool:
        """Whether the router itself reads here what the ingress of another node tells: it asks
        again and again, and nobody misses the stream when it ends.
        """
        return not self.worker.instance

    def await_until(self, limit: float) -> None:
        """The worker's next step is due within ``limit`` seconds; infinite means none is."""
        self.deadline = time.monotonic() + limit
        if limit < math.inf:
            self.plane.waiting[self.key] = self
            self.plane.runtime.plan_tick()
        else:
            self.plane.waiting.pop(self.key, None)

    def to_home(self, message: Message, size: int = 64, control: bool = False) -> None:
        """Send a message to the home; what it may hold is bounded by its own credit."""
        self.plane.runtime.port.send(self.home, message, control, size)

    def finish(self, error: CallHomeError | None = None, total: int | None = None) -> None:
        """The stream ends: the permit comes back, then the home is told."""
        if self.plane.forget(self, error):
            told = None
            if error is not None:
                self.blame(error)
                told = to_wire(error)
            count = self.items if total is None else total
            self.to_home(End(self.stream, count, told), size=64 if told is None else 2048)
            self.plane.runtime.port.hurry()

    def blame(self, error: CallHomeError) -> None:
        """Count an error, and name the worker in it, so that whoever tries again can avoid it."""
        if not self.follows:
            error.details["instance"] = str(self.worker.instance)
            self.plane.failed(error)

    # What the worker is told. Each road has its own way.

    def cancel(self, reason: str) -> None:
        """Nobody wants the stream any more: the worker is told, the home is not."""
        raise NotImplementedError

    def fail(self, error: CallHomeError) -> None:
        """The stream fails from our side: worker and home are told."""
        if not self.over:
            self.cancel(str(error)[:200])
            self.finish(error)

    def overdue(self) -> None:
        """The worker has not taken its next step."""
        self.fail(self.expired())

    def collect(self) -> None:
        """Send home what has come in this tick; called before the bus is flushed, after
        ``Plane.mark``.
        """

    def expired(self) -> CallHomeError:
        """What has not come before the deadline."""
        raise NotImplementedError

    def stop(self, reason: str) -> None:
        """The home asks the handler to finish."""
        raise NotImplementedError

    def credit(self, m: Credit) -> None:
        """The home has room for more."""
        raise NotImplementedError

    def feed(self, m: Feed) -> None:
        """Request items."""
        raise NotImplementedError

    def feed_item(self, m: FeedItem) -> None:
        """A request item with frames."""
        raise NotImplementedError

    def feed_end(self, m: FeedEnd) -> None:
        """The home has said its last."""
        raise NotImplementedError


class Plane:
    """What the streams of one router to other nodes have in common."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
        settled: Callable[[Key, CallHomeError | None], object],
        failed: Callable[[CallHomeError], None],
    ) -> None:
        """``settled`` takes the key of each stream that has ended and what it failed with, before
        its home is told; a stream that the home has dropped was ``Cancelled``. It is called for an
        error item, too, and once more when that stream ends. ``failed`` takes what is to be
        counted.
        """
        self.runtime = runtime
        self.failed = failed
        self.relays: dict[Key, Relay] = {}
        #: Those of them whose worker owes a step.
        self.waiting: dict[Key, Relay] = {}
        #: Called at each tick of the coarse timer, as ``Runtime.timers``.
        self.checks: list[Callable[[float], bool]] = []
        #: Called when the router stops, to close what it has open.
        self.closers: list[Callable[[str], None]] = []
        self._tasks = tasks
        self._settled = settled
        self._dirty: list[Relay] = []
        #: Connections that leave with this tick's batch.
        self.flushes = Flushes(runtime.port.plan_flush, runtime.complain)
        runtime.timers.append(self._check)
        runtime.port.before_flush.append(self._collect)

    @cached_property
    def net(self) -> Net:
        """The sockets of this event loop."""
        return Net()

    @cached_property
    def reception(self) -> Reception:
        """Where workers call home. Raises SpecError for settings that cannot be."""
        settings = self.runtime.settings
        if settings.check_frames:
            load_checksum()
        found = Reception(
            self.net,
            settings.call_home_host,
            settings.call_home_port,
            settings.call_home_advertise,
            limit=max(LIMIT, settings.max_message),
            check=settings.check_frames,
            woken=self.runtime.plan_tick,
        )
        self.checks.append(found.check)
        return found

    @cached_property
    def requests(self) -> RequestClient:
        """The connections that carry requests to other nodes."""
        settings = self.runtime.settings
        found = RequestClient(
            self.net,
            self._tasks,
            connect_timeout=settings.connect_timeout or _NO_LIMIT,
            ack_timeout=settings.ack_timeout,
            pool=settings.request_pool,
            depth=settings.request_depth,
            connects=settings.request_connects,
            idle=settings.host_idle,
            max_message=settings.max_message,
        )
        self.checks.append(found.check)
        return found

    def listen(self, peers: Sequence[str], directory: bool) -> None:
        """Listen for calls home now where the settings say where: a router that nobody could call
        does not start. Raises SpecError.
        """
        settings = self.runtime.settings
        fixed = settings.call_home_host or settings.call_home_port or settings.call_home_advertise
        if fixed and (peers or directory):
            self.reception.open(peers, directory)

    def find(self, home: int, stream: int) -> Relay | None:
        """The relay of a stream of ``home``; None for one that does not leave the node, or has
        ended.
        """
        return self.relays.get((home, stream))

    def begin(self, relay: Relay) -> None:
        """Keep a relay until its end. Raises ActorDead when its home is dead already."""
        peers = self.runtime.peers
        peers.note(relay.home)
        if not peers.watch(relay.home):
            raise ActorDead(f"the caller {relay.home} died: {peers.death(relay.home) or GONE}")
        self.relays[relay.key] = relay
        self.runtime.plan_tick()

    def forget(self, relay: Relay, error: CallHomeError | None) -> bool:
        """A stream has ended, with an error or without; False when it had before."""
        if self.relays.get(relay.key) is not relay:
            return False
        del self.relays[relay.key]
        self.waiting.pop(relay.key, None)
        self._settled(relay.key, error)
        return True

    def faulted(self, relay: Relay) -> None:
        """A worker sends an error item: its permit comes back now, though the stream may go on."""
        self._settled(relay.key, EngineError("the worker sends an error item", type="error item"))

    def undo(self, relay: Relay) -> None:
        """Nothing of the stream has been sent, and whoever booked it takes the booking back."""
        self.relays.pop(relay.key, None)
        self.waiting.pop(relay.key, None)

    def kill(self, relay: Relay, reason: str) -> None:
        """The home wants no more of the stream, or is gone: it hears nothing more either."""
        relay.cancel(reason)
        self.forget(relay, Cancelled(reason))

    def mark(self, relay: Relay) -> None:
        """The relay has something for this tick's batch."""
        self._dirty.append(relay)
        self.runtime.port.plan_flush()

    def _collect(self) -> None:
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for relay in dirty:
                try:
                    relay.collect()
                except Exception as error:
                    self._broke(relay, error)
        if self.flushes.waiting:
            self.flushes.flush()

    def home_down(self, address: Address, reason: str) -> None:
        """A home is gone, and with it who wanted its streams."""
        for relay in [each for each in self.relays.values() if each.home == address]:
            self.kill(relay, f"the caller {address} died: {reason}")

    def _check(self, now: float) -> bool:
        for relay in list(self.waiting.values()):
            if now >= relay.deadline:
                self.waiting.pop(relay.key, None)  # once, whatever comes of it
                try:
                    relay.overdue()
                except Exception as error:
                    self._broke(relay, error)
        busy = bool(self.waiting)
        for check in self.checks:
            busy = check(now) or busy
        return busy

    def _broke(self, relay: Relay, error: Exception) -> None:
        """A fault of ours costs that stream and no other."""
        self.runtime.complain(f"a stream of {relay.target} to {shown(relay.worker.via)}", error)
        text = f"{relay.target}: {self.runtime.address.name} failed: {text_of(error)}"
        relay.finish(LocalProtocolError(text))

    def statistics(self) -> dict[str, int]:
        """The counters of this router's sockets; empty while it has none."""
        return self.net.statistics() if "net" in self.__dict__ else {}

    async def close(self, reason: str, patience: float = 2.0) -> None:
        """The router stops: homes and workers are told, within ``patience`` seconds."""
        for relay in list(self.relays.values()):
            relay.fail(ConnectionLost(f"{relay.target}: {reason}"))
        self.runtime.timers.remove(self._check)
        self.runtime.port.before_flush.remove(self._collect)
        for close in self.closers:
            close(reason)
        made = self.__dict__
        if "requests" in made:
            self.requests.close()
        if "reception" in made:
            self.reception.close()
        if "net" in made:
            await self.net.wait_closed(patience)
