"""A home made by hand: sends any message to any actor of a node, keeps what comes back."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import Any, TypeVar

from actors.kernel.peers import start_time
from actors.kernel.runtime import Runtime
from actors.messages import Accept, Bye, End, Hello, Open, Report, Subscribe
from tests.waiting import wait_until
from transport.bus.address import Address
from transport.bus.port import Bus, Port
from transport.wire.codec import encode
from transport.wire.message import Message

_M = TypeVar("_M", bound=Message)


class RawHome:
    """A port in a node's folder; ``came`` holds (sender, message) in order of arrival."""

    def __init__(self, run: str) -> None:
        self.bus = Bus()
        pid = os.getpid()
        self.address = Address("raw", secrets.randbits(62) + 1, pid, start_time(pid))
        self.came: list[tuple[int, Message]] = []
        self.port = Port(
            self.bus, run, self.address, lambda *each: self.came.append(each),
            hello=Hello(self.address),
        )  # fmt: skip

    def open(self, to: Address, stream: int, target: str, request: Any, **fields: Any) -> None:
        """Send an Open with a MessagePack request and wide credit."""
        message = Open(
            stream, self.address, target, False, "msgpack", False, encode(request, codec="msgpack"),
            [], [], 256, 1 << 20, None, {}, f"raw-{stream}",
        )._replace(**fields)  # fmt: skip
        self.send(to, message)

    def send(self, to: Address, message: Message, *, control: bool = False) -> None:
        """Send a message at once."""
        self.port.send(to, message, control)
        self.port.flush()

    def got(self, kind: type[_M], stream: int | None = None) -> list[_M]:
        """What has come of one type, of one stream if given."""
        found = [each for _, each in self.came if isinstance(each, kind)]
        return [each for each in found if stream is None or getattr(each, "stream", 0) == stream]

    def of(self, stream: int) -> list[Message]:
        """All that has come of one stream but its Accept."""
        return [
            each
            for _, each in self.came
            if getattr(each, "stream", None) == stream and not isinstance(each, Accept)
        ]

    async def ended(self, stream: int) -> End:
        """Wait for a stream's End."""
        await wait_until(lambda: self.got(End, stream), what=f"the End of stream {stream}")
        return self.got(End, stream)[0]

    async def settled(self, engine: Address) -> None:
        """Wait until an engine has read all that was sent to it on the control lane."""
        before = len(self.got(Report))
        self.send(engine, Subscribe(self.address), control=True)
        await wait_until(lambda: len(self.got(Report)) > before, what="a report")

    async def leave(self, peer: Runtime) -> None:
        """Say goodbye to an actor on this loop, which would linger for us when it ends."""
        self.send(peer.address, Bye(), control=True)
        await wait_until(lambda: self.address not in peer.port.peers(), what="a goodbye is read")


@contextlib.contextmanager
def raw_home(run: str) -> Iterator[RawHome]:
    """A hand-made home that closes with its block."""
    home = RawHome(run)
    try:
        yield home
    finally:
        home.port.close(0)
        home.bus.close()
