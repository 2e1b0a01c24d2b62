"""A router of another node made by hand: takes one multiplexed connection, sends any message."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from actors.messages import Accept, End, Item, ItemBody, Items, Kill, Open
from tests.ingress.standin import Requester, two_part
from tests.waiting import wait_until
from transport.bus.address import Address
from transport.callhome.framed import FramedLink
from transport.callhome.link import Link, Net
from transport.callhome.listener import Listener
from transport.callhome.mux import MuxConnection
from transport.errors import CallHomeError
from transport.wire.codec import decode, encode
from transport.wire.message import Message

_M = TypeVar("_M", bound=Message)
_ids = itertools.count(1)


class MuxHome:
    """One requester of ours: a listener, a subject, and the connection that an ingress dials."""

    def __init__(self, requests: Requester) -> None:
        self.requests = requests
        self.incarnation = secrets.randbits(62) + 1
        self.subject = secrets.token_hex(16)
        self.net = Net()
        self.listener = Listener(self.net, "127.0.0.1", 0, self._accepted, "listen")
        self.mux: MuxConnection | None = None
        #: Handshakes that came: a second one is refused.
        self.hellos: list[dict[str, Any]] = []
        self.came: list[Message] = []
        #: Bytes of the bodies that came, by number, once they are whole.
        self.bodies: dict[int, bytes] = {}
        self.lost: list[CallHomeError] = []
        #: Replies to requests.
        self.replies: list[str] = []
        self._numbers = itertools.count(1)

    def _accepted(self, link: Link) -> None:
        framed = FramedLink(link, single=True)

        def hello(header: bytes, body: bytes) -> None:
            self.hellos.append(json.loads(header))
            if self.mux is not None:
                framed.close(abort=True)
                return
            found, rest = framed.detach()
            self.mux = MuxConnection(
                found, rest, incarnation=self.incarnation, deliver=self._deliver,
                lost=self.lost.append,
            )  # fmt: skip

        framed.start(hello, lambda error: None)

    def _deliver(self, message: Message) -> None:
        self.came.append(message)
        if isinstance(message, ItemBody):
            sizes = [message.payload, *(each[2] for each in message.table)]
            targets = [bytearray(each) for each in sizes if isinstance(each, int)]
            if targets:
                assert self.mux is not None
                number = message.body

                def done(whole: bool) -> None:
                    if whole:
                        self.bodies[number] = b"".join(targets)

                self.mux.expect(number, [memoryview(each) for each in targets], done)

    def info(self, stream: int, context: str, /, **changed: Any) -> dict[str, Any]:
        """Connection info of a stream."""
        inner = {
            "address": self.listener.address,
            "subject": self.subject,
            "context": context,
            "stream_type": "response",
            "incarnation": f"{self.incarnation:x}",
            "stream": stream,
        } | changed
        return {"transport": "callhome_mux_v1", "info": json.dumps(inner)}

    async def ask(self, path: str, request: Any = None, **fields: Any) -> int:
        """Send a request and wait for its acknowledgement; the number of the stream.

        ``reply`` is how the reply is to begin if the request is to be refused, None: because the
        ingress is full.
        """
        number = fields.pop("number", 0) or next(self._numbers)
        reply = fields.pop("reply", b"")
        many = fields.pop("many", False)
        context = f"m-{next(_ids)}"
        body = fields.pop("body", b"" if many else encode(request, codec="msgpack"))
        message: dict[str, Any] = {
            "id": context,
            "request_type": "many_in" if many else "single_in",
            "response_type": "many_out",
            "payload_codec": "msgpack",
            "connection_info": self.info(number, context, **fields.pop("info", {})),
        }
        if many:
            message["request_stream_connection_info"] = self.info(
                number, context, stream_type="request"
            )
        message |= fields
        self.requests.write(path, two_part(json.dumps(message).encode(), body))
        found = await self.requests.reply()
        self.replies.append(found.decode())
        wanted = b"Server overloaded: " if reply is None else reply
        assert found.startswith(wanted) if wanted else not found
        return number

    def open(self, path: str, request: Any = None, **fields: Any) -> int:
        """Open a stream over the connection that is up; its number."""
        many = bool(fields.get("many", False))
        own = Address("router", self.incarnation, 0, 0)
        number = next(self._numbers)
        message = Open(
            number, own, path, many, "msgpack", True, b"" if many else encode(request), [], [],
            256, 1 << 20, None, {}, f"m-{next(_ids)}",
        )._replace(**fields)  # fmt: skip
        self.send(message)
        return message.stream

    def send(self, message: Message) -> None:
        """Send a message on the connection."""
        assert self.mux is not None
        self.mux.send(message, 4096)

    async def connected_by(self, path: str) -> None:
        """Have the ingress dial, by a stream that is killed at once."""
        stream = await self.ask(path, {"before": 0})
        await self.connected()
        self.send(Kill(self.incarnation, stream, "only for its dial"))

    async def connected(self) -> MuxConnection:
        await wait_until(lambda: self.mux is not None, what="the ingress has dialled")
        assert self.mux is not None
        return self.mux

    def of(self, stream: int) -> list[Message]:
        """All that came of one stream but its Accept."""
        return [
            each
            for each in self.came
            if each.stream == stream and not isinstance(each, Accept)  # type: ignore[attr-defined]
        ]

    def got(self, kind: type[_M], stream: int) -> list[_M]:
        """What came of one type for one stream."""
        return [each for each in self.came if isinstance(each, kind) and each.stream == stream]  # type: ignore[attr-defined]

    async def until(self, kind: type[_M], stream: int, count: int = 1) -> list[_M]:
        await wait_until(
            lambda: len(self.got(kind, stream)) >= count, what=f"{count} {kind.__name__}"
        )
        return self.got(kind, stream)

    async def ended(self, stream: int) -> End:
        return (await self.until(End, stream))[0]

    def items(self, stream: int) -> list[Any]:
        """The values of all small items that came."""
        found: list[Any] = []
        for each in self.came:
            if isinstance(each, Items) and each.stream == stream:
                assert each.first == len(found)
                found += [decode(payload, codec="msgpack") for payload in each.payloads]
            elif isinstance(each, Item) and each.stream == stream:
                found.append(decode(each.payload, codec="msgpack"))
            elif isinstance(each, End) and each.stream == stream:
                found += [decode(payload, codec="msgpack") for payload in each.last]
        return found

    def cut(self) -> None:
        """Break the connection without a word."""
        assert self.mux is not None
        self.mux.link.socket.shutdown(socket.SHUT_RDWR)


@contextlib.asynccontextmanager
async def mux_home(requests: Requester) -> AsyncIterator[MuxHome]:
    """A requester of ours that sends its requests over the connection of ``requests``."""
    home = MuxHome(requests)
    home.listener.open()
    try:
        yield home
    finally:
        home.listener.close()
        if home.mux is not None:
            home.mux.close()
        await home.net.wait_closed()
        home.net.close()
