"""IngressActor: the door into its node. Takes requests of other nodes, admits, opens engines."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from actors.config import host_port
from actors.discovery.base import Discovery, Subscription
from actors.discovery.loads import OCCUPANCY
from actors.discovery.record import RESERVED
from actors.discovery.sources import Sources
from actors.errors import Overloaded, Unsupported, WorkerUnavailable
from actors.ingress.admission import Admission
from actors.ingress.advertised import DOOR, Check, chosen, members, told
from actors.ingress.arrival import Arrival, Letter, read_letter, read_open, transit
from actors.ingress.connections import Connections, HomeConnection
from actors.ingress.foreign import ForeignStream
from actors.ingress.health import Health
from actors.ingress.occupancy import Loads, LoadsStream
from actors.ingress.own import OwnStream
from actors.ingress.parting import Parting
from actors.ingress.publishing import Publishing
from actors.ingress.records import MOST, Records, RecordsStream
from actors.ingress.relay import RelayedStream
from actors.ingress.stream import Stream
from actors.ingress.streams import Streams
from actors.kernel.actor import Actor, handles
from actors.kernel.draining import Drainer
from actors.messages import Open, Record
from actors.notices import Grace
from transport.callhome.address import check_hostport
from transport.callhome.link import Net
from transport.callhome.server import Reply, RequestServer
from transport.errors import (
    CallHomeError,
    ConnectionLost,
    DecodeError,
    RemoteProtocolError,
    shown,
)
from transport.wire.framing import load_checksum
from transport.wire.request import OVERLOADED, UNAVAILABLE, RequestFrame

_STOPS: Final = "this node takes no more requests, it stops"


class Transit:
    """How long requests were on their way, by two clocks, for whoever looks at the counters."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.most = 0

    def observe(self, nanoseconds: int | None) -> None:
        """One request; None when its sender did not say."""
        if nanoseconds is not None:
            self.count += 1
            self.total += nanoseconds
            self.most = max(self.most, nanoseconds)

    def seen(self) -> dict[str, float]:
        """Requests counted, and seconds: mean and most."""
        mean = self.total / self.count if self.count else 0.0
        return {"count": self.count, "mean": mean / 1e9, "most": self.most / 1e9}


class IngressActor(Actor):
    """The ingress of a node; ``listen`` is ``host:port``, port 0 means any.

    ``advertise`` is the ``host`` or ``host:port`` that other nodes are told, where they do not
    reach it by the address that it is bound to. Raises SpecError.
    """

    def __init__(self, listen: str = "127.0.0.1:0", advertise: str = "", socket: int = -1) -> None:
        """``socket``: the descriptor of a socket that is bound at ``listen`` already and that
        outlives this ingress: so another can take its place.
        """
        self._socket = socket
        host, _, port = host_port(listen, "listen").rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._advertise = advertise
        self.discovery: Discovery | None = None
        #: Where the records of this node are published.
        self.sources = Sources()
        self.publishing = Publishing()
        #: ``host:port`` that other nodes are told; known once the actor has started.
        self.reached = ""
        self.transit = Transit()
        self.health: Health | None = None
        self._subscriptions: list[Subscription] = []
        self._check: Check | None = None
        self._checking: asyncio.Task[None] | None = None
        self._server: RequestServer | None = None
        self._stopping = False

    def facts(self) -> dict[str, Any]:
        """What the node publishes about this ingress."""
        return {"via": self.reached}

    async def on_start(self) -> None:
        runtime, settings = self.runtime, self.settings
        if settings.check_frames:
            load_checksum()  # told now, not to the first request
        self.net = Net()
        self.streams = Streams(runtime, self.counters, self.tasks, self.net)
        self.admission = Admission(settings.ingress_pool, settings.ingress_queue)
        self.streams.when_left = self.admission.left
        self.connections = Connections(self.streams, self._opened)
        self.records = Records(runtime)
        self.loads = Loads(runtime, self.records, self.streams, self.connections)
        self.health = Health(runtime, self.records, self.streams, self.loads, self.publishing)
        runtime.timers.append(self._tick)
        self._drainer = Drainer(self, runtime, self.tasks)
        sock = socket.socket(fileno=self._socket) if self._socket >= 0 else None
        server = RequestServer(
            self.net, self._host, self._port, self._request, settings.max_message, sock=sock
        )
        self._parting = Parting(
            runtime, server, self.streams, self.connections, self.records, self.loads,
            self.publishing,
        )  # fmt: skip
        server.open()
        self._server = server
        await self._settle_address(server.address)
        self.health.start()
        if self.discovery is not None:
            self._subscriptions.append(await self.discovery.subscribe(self.records.changed))
            await self.publishing.start(
                self.sources, self.discovery, self.reached, self.address.incarnation
            )
            self.records.published = self.publishing.active

    async def _settle_address(self, bound: str) -> None:
        """What other nodes are told, and whether they can reach it."""
        etcd = self.sources.etcd
        if not self._advertise:
            bound = await chosen(self.net, self._host, bound, members(etcd))
        self.reached = self.records.reached = told(bound, self._advertise)
        self._check = Check(self.net, self.reached, self._door(), etcd)
        self._checking = self.tasks.create_task(self._check.run(), name=f"{self.name} asks itself")

    def _door(self) -> str:
        """What is said at ``DOOR``: which node's ingress this is, an older one's of it as well."""
        return f"callhome {self.runtime.node or self.address.incarnation:x}"

    def refuse(self, reason: str, succeeded: bool = False) -> None:
        """See ``actors.kernel.draining``: the node has withdrawn the records."""
        self._parting.refuse(reason, succeeded)

    def under_way(self) -> int:
        """See ``actors.kernel.draining``."""
        return self._parting.under_way()

    def cut(self, reason: str) -> None:
        """See ``actors.kernel.draining``."""
        self._parting.cut(reason)

    @handles(Grace)
    async def grace(self, message: Grace) -> AsyncIterator[bool]:
        """The node asks; a stream, so that it holds nobody up."""
        await self._parting.wait_forgotten(message.instances)
        yield True

    def shut(self) -> None:
        """The records go first, so that nobody new comes; then this actor stops like any other."""
        self._stopping = True
        if self.health is not None:
            self.health.stop()
        for subscription in self._subscriptions:
            subscription.cancel()
        self.publishing.withdraw()
        if self._checking is not None:
            self._checking.cancel()
        if self._server is not None:
            self.records.withdraw(_STOPS)
        super().shut()

    async def on_stop(self) -> None:
        await self.publishing.close()
        if self._server is None:
            return
        self._server.close()
        self.streams.stop_dialling()
        for stream in list(self.streams.table.values()):
            error = ConnectionLost(f"{stream.record.endpoint}: the ingress of its node stops")
            self.streams.fail(stream, error)
        for reader in [*self.records.streams, *self.loads.streams]:
            reader.fail(ConnectionLost("the ingress stops"))
        for last in list(self.streams.lingering.values()):
            last.settle()
        self.connections.close("its node stops")
        await self.net.wait_closed()
        self.net.close()

    def carries(self) -> dict[str, Any]:
        if self._server is None:
            return super().carries()
        return {
            "in_flight": self.admission.placed,
            "queued": self.admission.waiting,
            "capacity": self.admission.pool,
            "via": self.reached,
            "connections": len(self.connections),
            "endpoints": len(self.records),
            "transit": self.transit.seen(),
            "net": self.net.statistics(),
            "discovery": self.publishing.states(),
            "advertised": "" if self._check is None else self._check.warning,
        }

    def _tick(self, now: float) -> bool:
        """The coarse timer."""
        waits = self.streams.check(now)
        return self.connections.check(now) or waits

    def _request(self, frame: RequestFrame, reply: Reply) -> None:
        """One request: refuse it, or count it, acknowledge it and let it begin."""
        if frame.path == DOOR:
            reply(self._door().encode())
            return
        self.counters.requests += 1
        self.transit.observe(transit(frame, time.time_ns()))
        letter: Letter | None = None
        try:
            record = self._find(frame.path)
            letter = read_letter(frame, self.settings)
            if record is None:
                reader = self._reader(letter, frame.path)
                reply(b"")
                reader.ready()
                return
            self._check_room(letter)
            stream = self._stream(letter, record)
        except (WorkerUnavailable, Overloaded) as error:
            self._refuse(reply, error)
            return
        except (DecodeError, RemoteProtocolError) as error:
            self._invalid(error)
            if "native" in error.details or (letter is not None and letter.native):
                self._refuse(reply, error)
            else:
                # The acknowledgement is all that a requester of Dynamo's understands.
                reply(b"")
            return
        self.admission.take(stream)
        reply(b"")
        self._begin(stream)

    def _refuse(self, reply: Reply, error: CallHomeError) -> None:
        """The request does not come to be, and its requester is told why."""
        self.counters.refused += 1
        words = OVERLOADED if isinstance(error, Overloaded) else UNAVAILABLE
        reply(f"{words} {error}".encode(errors="replace"))

    def _opened(self, connection: HomeConnection, m: Open) -> None:
        """A node that is connected opens a stream: it needs no envelope, and its reply is the
        stream. Raises RemoteProtocolError for a number that is in use.
        """
        self.counters.requests += 1
        try:
            record = self._find(m.target)
            arrival = read_open(m, self.runtime.settings)
            if record is None:
                self._follow(m.target, arrival, connection, m.stream).ready()
                return
            if not self.admission.free:  # its requester need not be dialled first
                self._check_room(arrival)
        except (WorkerUnavailable, Overloaded) as error:
            self.counters.refused += 1
            connection.refuse(m.stream, error)
            return
        except RemoteProtocolError as error:
            self._invalid(error)
            connection.refuse(m.stream, error)
            return
        failure = None if arrival.many == record.many else self._mismatch(record)
        stream = RelayedStream(self.streams, arrival, record, connection, m.stream, failure)
        self.admission.take(stream)
        self._begin(stream)

    def _begin(self, stream: Stream) -> None:
        if stream.placed:
            self.streams.begin(stream)
        else:
            stream.waits()

    def _find(self, path: str) -> Record | None:
        """The engine that a path names; None for what this ingress tells itself. Raises
        WorkerUnavailable.
        """
        if self._stopping:
            raise WorkerUnavailable(_STOPS)
        record = self.records.find(path)
        if record is None and path != RESERVED and path != OCCUPANCY:
            if (draining := self._parting.refusal(path)) is not None:
                raise draining
            raise WorkerUnavailable(f"nothing is served at path {shown(path)}")
        return record

    def _check_room(self, arrival: Arrival) -> None:
        """Raise Overloaded when there is no place, nor one to wait for it in."""
        if self.admission.full or (arrival.later and not self.admission.free):
            raise Overloaded(
                f"all {self.admission.pool} streams and {self.admission.queue} queue places of "
                "this node are taken"
            )
        held, most = self.streams.unopened_bytes, self.settings.ingress_queue_bytes
        if held and held + arrival.size > most:
            raise Overloaded(
                f"{held} bytes of requests wait at this node, {most} are allowed; raise its "
                "ingress_queue_bytes if it has the memory"
            )

    def _invalid(self, error: CallHomeError) -> None:
        """Count and log a request that makes no sense."""
        kind = "deserialization" if isinstance(error, DecodeError) else "invalid_message"
        self.streams.count(kind)
        self.net.complain(f"ingress.{kind}", f"{self.name} drops a request: {error}")

    def _stream(self, letter: Letter, record: Record) -> Stream:
        """The stream of a request that came in an envelope. Raises RemoteProtocolError."""
        failure = None if letter.many == record.many else self._mismatch(record)
        if letter.native:
            connection = self.connections.find(letter.home)
            number = letter.home.number("stream")
            return RelayedStream(self.streams, letter, record, connection, number, failure)
        for half in (letter.home, letter.feed):
            if half is not None:
                check_hostport(half.text("address"))
        return ForeignStream(self.streams, letter, record, failure)

    def _mismatch(self, record: Record) -> Unsupported:
        """What is told to whoever asks for another shape of stream than is served."""
        self.streams.count("invalid_message")
        wanted = "a stream of requests" if record.many else "one request"
        verb = "open()" if record.many else "call() or stream()"
        return Unsupported(f"{record.endpoint} takes {wanted}: use {verb}")

    def _reader(self, letter: Letter, path: str) -> OwnStream:
        """A router that is not connected yet wants to know what this node serves, or carries."""
        if not letter.native or letter.many:
            raise WorkerUnavailable(f"{path} is for nodes of callhome")
        connection = self.connections.find(letter.home)
        return self._follow(path, letter, connection, letter.home.number("stream"))

    def _follow(
        self, path: str, arrival: Arrival, connection: HomeConnection, remote: int
    ) -> OwnStream:
        """Raises Overloaded, RemoteProtocolError."""
        readers = self.records.streams if path == RESERVED else self.loads.streams
        if len(readers) >= MOST:
            raise Overloaded(f"{MOST} readers follow {path} of this node")
        if path == RESERVED:
            return RecordsStream(self.records, arrival, connection, remote)
        return LoadsStream(self.loads, arrival, connection, remote)
