"""Dispatch to engines on other nodes of ours: an envelope there, and home over one connection.

The envelope makes the other node call home. Once it has, streams are opened over that connection,
which costs less than half of an envelope with its acknowledgement (docs/design/008). A stream is
registered before it is asked for, since its items may come before the acknowledgement. The router
relays, it decodes nothing: large payloads go through its own arena, all others straight on. Credit,
stop and kill are end to end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from actors.kernel.bodies import LARGE, Outgoing, outgoing
from actors.messages import Open, Record
from actors.router.gateway import Gateway
from actors.router.muxed import MuxRelay
from actors.router.occupancy import Place, place_of
from actors.router.relay import TOMBSTONE, Plane
from transport.bus.address import Address
from transport.callhome.mux import MuxConnection
from transport.errors import ConnectionLost, RemoteProtocolError
from transport.wire.envelope import MUX, Envelope, Info, maps_text, pack_envelope
from transport.wire.framing import pack_head

#: A request of up to this many bytes travels in its envelope; a larger one, and one with arrays,
#: over the connection on which its answers come.
_IN_ENVELOPE: Final = 1 << 20
#: Stands in the envelope for a request that comes over the connection.
_NIL: Final = b"\xc0"
#: Said of it in the metadata; what it is says the message before it.
_FOLLOWS: Final = "follows"


@lru_cache(maxsize=4096)
def _way(via: str) -> tuple[str, str]:
    """Address of an ingress, and the path there: asked for each stream, of few workers."""
    address, _, path = via.partition("/")
    return address, path


class Tombs:
    """Instances that were removed a moment ago: no stream is sent to them any more."""

    def __init__(self) -> None:
        self._tombs: dict[Place, tuple[float, str]] = {}

    def put(self, record: Record, reason: str) -> None:
        """The instance was removed."""
        now = time.monotonic()
        self.crumble(now)
        self._tombs[place_of(record)] = (now + TOMBSTONE, reason)

    def crumble(self, now: float) -> None:
        """Drop what is too old."""
        for place in [each for each, (until, _) in self._tombs.items() if until <= now]:
            del self._tombs[place]

    def clear(self, record: Record) -> None:
        """The instance can serve again."""
        self._tombs.pop(place_of(record), None)

    def check(self, worker: Record) -> None:
        """Raise ConnectionLost for an instance that was removed less than 5 s ago."""
        if not self._tombs:
            return
        tomb = self._tombs.get(place_of(worker))
        if tomb is not None and time.monotonic() < tomb[0]:
            raise ConnectionLost(f"{worker.endpoint}: {worker.via} was removed: {tomb[1]}")


class RemoteDispatch:
    """Streams to engines of other nodes of ours."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._gateways: dict[str, Gateway] = {}
        #: Those whose ingress has made room for another, until their last stream has ended.
        self._leaving: list[Gateway] = []
        self._tombs = Tombs()
        plane.checks.append(self._check)
        plane.closers.append(self._close)
        self._incarnation = f"{plane.runtime.address.incarnation:x}"
        self._in_envelope = min(_IN_ENVELOPE, plane.runtime.settings.max_message // 2)
        self._next = 1

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        """See ``StreamingDispatch``; what it raises leaves no frame behind."""
        self._tombs.check(worker)
        gateway = self._gateway(worker)
        most = self._in_envelope if gateway.connection is None else LARGE
        runtime = self._plane.runtime
        request: Outgoing | None = None
        if open.handles:
            runtime.attach(open.segments, home.incarnation)
            runtime.expect(open.handles)
            handles = runtime.adopting.at_once(home.incarnation, open.handles, open.stream)
            request = outgoing(runtime, open.payload, handles, 0)
            if request is None:  # all in line already
                size = len(open.payload) + sum(len(each[2]) for each in handles)
                request = Outgoing(open.payload, handles, [], size, 0)
        elif len(open.payload) > most:
            request = outgoing(runtime, open.payload, [], 0)
        elif not open.payload:
            request = Outgoing(b"", [], [], 0, 0)
        self._send(open, worker, gateway, request)

    def generate_bidirectional(self, open: Open, worker: Record, home: Address) -> None:
        """See ``StreamingDispatch``: all request items come later, over the connection."""
        self._tombs.check(worker)
        self._plane.runtime.drop(open.handles)
        self._send(open, worker, self._gateway(worker), None)

    def _gateway(self, worker: Record) -> Gateway:
        address = _way(worker.via)[0]
        gateway = self._gateways.get(address)
        if gateway is None:
            gateway = self._gateways[address] = Gateway(self._plane, address, self._left)
        return gateway

    def _left(self, gateway: Gateway) -> None:
        """Another ingress is at this address now: what comes next goes there."""
        if self._gateways.get(gateway.address) is gateway:
            del self._gateways[gateway.address]
        self._leaving.append(gateway)
        self._plane.requests.retire(gateway.address)

    def _check(self, now: float) -> bool:
        self._tombs.crumble(now)
        for gateway in list(self._gateways.values()):
            gateway.check(now)
            if gateway.idle:
                del self._gateways[gateway.address]
        for gateway in list(self._leaving):
            gateway.check(now)
            if gateway.idle:
                self._leaving.remove(gateway)
        return bool(self._gateways or self._leaving)

    def _close(self, reason: str) -> None:
        for gateway in [*self._gateways.values(), *self._leaving]:
            gateway.close(reason)

    def _send(self, open: Open, worker: Record, gateway: Gateway, request: Outgoing | None) -> None:
        number, self._next = self._next, self._next + 1
        relay = MuxRelay(gateway, open, worker, number)
        self._plane.begin(relay)
        connection = gateway.connection
        try:
            info = gateway.enter(relay)
            if connection is None:
                self._send_envelope(open, relay, info, request)
            if request is not None:
                relay.hold_request(request, frames=bool(open.handles))
            if connection is not None:
                self._open_over(connection, open, relay, request)
        except BaseException:
            gateway.leave(relay)
            self._plane.undo(relay)
            raise

    def _open_over(
        self, connection: MuxConnection, open: Open, relay: MuxRelay, request: Outgoing | None
    ) -> None:
        """Ask for a stream on the connection that is up; a body follows, if it is large."""
        payload = b"" if request is not None else open.payload
        message = Open(
            relay.number,
            self._plane.runtime.address,
            _way(relay.worker.via)[1],
            open.many,
            open.codec,
            True,
            payload,
            [],
            [],
            *open[9:14],
        )
        connection.send(message, len(payload) + 128)
        relay.asked(connection)

    def _send_envelope(
        self, open: Open, relay: MuxRelay, info: Mapping[str, Any], request: Outgoing | None
    ) -> None:
        """Ask for a stream, and by it to be called home."""
        header = self._envelope(open, relay.number, info, request)
        body = b"" if open.many else _NIL if request is not None else open.payload
        address, path = _way(relay.worker.via)
        parts = [pack_head(len(header), len(body)) + header, body]
        self._plane.requests.send(
            address, path, {"request-id": open.request_id}, parts, relay.answered
        )

    def _envelope(
        self, open: Open, number: int, info: Mapping[str, Any], request: Outgoing | None
    ) -> bytes:
        mine = {
            **info,
            "context": open.request_id,
            "stream_type": "response",
            "incarnation": self._incarnation,
            "stream": number,
        }
        metadata = dict(open.metadata)
        if not maps_text(metadata):
            raise RemoteProtocolError(f"{open.target}: metadata maps text to text")
        if open.remaining is not None:
            metadata["x-callhome-remaining"] = f"{open.remaining:.3f}"
        metadata["x-callhome-window"] = f"{open.window_items},{open.window_bytes}"
        if request is not None:
            metadata["x-callhome-body"] = _FOLLOWS
        return pack_envelope(
            Envelope(
                open.request_id,
                "many_in" if open.many else "single_in",
                "many_out",
                open.codec,
                Info(MUX, mine),
                Info(MUX, {**mine, "stream_type": "request"}) if open.many else None,
                metadata,
            )
        )

    def on_instance_added(self, record: Record) -> None:
        """See ``StreamingDispatch``."""
        self._tombs.clear(record)

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """See ``StreamingDispatch``; a stream that the instance has not taken yet fails, now or
        with what its node says of it.
        """
        self._tombs.put(record, reason)
        place = place_of(record)
        for relay in list(self._plane.relays.values()):
            if isinstance(relay, MuxRelay) and place_of(relay.worker) == place:
                relay.gone(reason)

    def awaits(self, address: str) -> str:
        """Where the node at ``address`` was told to call home, if it has taken a request and has
        not called; else "".
        """
        gateway = self._gateways.get(address)
        if gateway is None or gateway.connection is not None:
            return ""
        taken = any(relay.acknowledged for relay in gateway.relays.values())
        return gateway.reached if taken else ""

    def ways(self) -> list[dict[str, Any]]:
        """The connections to other nodes, for ``callhome ps``."""
        return [
            {
                "ingress": gateway.address,
                "connected": gateway.connection is not None,
                "streams": len(gateway.relays),
            }
            for gateway in [*self._gateways.values(), *self._leaving]
        ]
