"""Dispatch to workers that speak Dynamo 1.6: an envelope there, and sockets home for each stream.

Such a worker takes JSON or MessagePack without anything of ours in it, by what its record says. A
request is written anew for it, bytes in shared memory in line; what it cannot take is refused
before anything is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from actors.kernel.links import read_handles
from actors.messages import Open, Record
from actors.router.occupancy import place_of
from actors.router.relay import Plane
from actors.router.sockets import SocketRelay
from transport.bus.address import Address
from transport.callhome.framed import FramedLink
from transport.errors import RemoteProtocolError, TooLarge
from transport.payload import transcode_request
from transport.wire.envelope import TCP, Envelope, Info, maps_text, pack_envelope
from transport.wire.framing import pack_head
from transport.wire.plain import base_of, plain_of


class ForeignDispatch:
    """Streams to Dynamo workers."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        """See ``StreamingDispatch``. Raises EncodeError with the path of what such a worker cannot
        take.
        """
        codec = plain_of(worker.codec)
        if open.handles:
            payload = self._gathered(open, codec)
        else:
            payload = transcode_request(open.payload, (), open.codec, codec, None)
        self._send(open, worker, payload)

    def _gathered(self, open: Open, codec: str) -> bytes:
        """The request with the bytes that its home has put into shared memory."""
        runtime = self._plane.runtime
        most = runtime.settings.max_message
        try:
            size = len(open.payload) + sum(each.size for each in read_handles(open.handles))
            if size > most:  # seen before all of it is copied
                raise TooLarge(f"a request of {size} bytes", size=str(size), limit=str(most))
            runtime.attach(open.segments, open.home.incarnation)
            runtime.expect(open.handles)
            handles = runtime.adopting.at_once(open.home.incarnation, open.handles, open.stream)
        except BaseException:
            runtime.drop(open.handles)
            raise
        return transcode_request(open.payload, handles, open.codec, codec, runtime.memory)

    def generate_bidirectional(self, open: Open, worker: Record, home: Address) -> None:
        """See ``StreamingDispatch``: all request items travel on a socket of their own."""
        self._plane.runtime.drop(open.handles)
        self._send(open, worker, b"")

    def _send(self, open: Open, worker: Record, payload: bytes) -> None:
        if not maps_text(open.metadata):
            raise RemoteProtocolError(f"{open.target}: metadata maps text to text")
        address, _, path = worker.via.partition("/")
        relay = SocketRelay(self._plane, open, worker)
        self._plane.begin(relay)
        try:
            request = None
            if open.many:
                request = self._expect(relay, "request", relay.request_came, address, open)
            response = self._expect(relay, "response", relay.response_came, address, open)
            header = pack_envelope(
                Envelope(
                    open.request_id,
                    "many_in" if open.many else "single_in",
                    "many_out",
                    base_of(worker.codec),
                    response,
                    request,
                    open.metadata,
                )
            )
            parts = [pack_head(len(header), len(payload)) + header, payload]
            self._plane.requests.send(
                address, path, {"request-id": open.request_id}, parts, relay.answered
            )
            if open.handles and not open.many:
                relay.accept()  # the home must know who held them, whatever comes of the stream
        except BaseException:
            relay.forget_halves()
            self._plane.undo(relay)
            raise

    def _expect(
        self,
        relay: SocketRelay,
        stream_type: str,
        arrived: Callable[[FramedLink], None],
        address: str,
        open: Open,
    ) -> Info:
        """Register one half, whose deadline is the relay's own."""
        half = self._plane.reception.expect(
            stream_type,
            open.request_id,
            place_of(relay.worker),
            arrived,
            relay.lost,
            math.inf,
            address,
        )
        relay.halves.append(half)
        return Info(TCP, half.info)

    def on_instance_added(self, record: Record) -> None:
        """See ``StreamingDispatch``."""
        self._plane.reception.added(place_of(record))

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """See ``StreamingDispatch``; a stream that the worker has not called home for fails now,
        and none is sent to it for 5 s.
        """
        self._plane.reception.removed(place_of(record), reason)
