"""Dispatches of your own: one writes down what goes where, one serves inside the router.

Run it from anywhere: ``python examples/recording.py``. ``RouterSpec(dispatch=record)`` alone puts
the recorder before any router; it writes to stderr, or to the file that RECORD_TO names.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from actors import (
    Cluster,
    DispatchSeat,
    EngineSpec,
    NodeSpec,
    RequestStream,
    RouterSpec,
    StreamingDispatch,
)
from actors.messages import Open, Record  # what a dispatch handles
from actors.router.dispatch import Handler
from transport.bus.address import Address
from transport.context import Context


class Recording:
    """Writes a line of JSON for everything that comes by, and hands it on to ``inner``."""

    def __init__(self, seat: DispatchSeat, inner: StreamingDispatch) -> None:
        self.inner = inner
        self.router = seat.router.name
        path = os.environ.get("RECORD_TO")
        # Small lines to a local file: a dispatch must not block, so nothing slower than that.
        self.file = open(path, "a", buffering=1) if path else sys.stderr  # noqa: SIM115
        if path:
            seat.when_stopped(self.file.close)

    def write(self, what: str, record: Record, **more: object) -> None:
        line = {"at": round(time.time(), 6), "router": self.router, "what": what}
        worker = {"endpoint": record.endpoint, "worker": f"{record.instance:x}"}
        self.file.write(json.dumps(line | worker | more) + "\n")

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        self.dispatch("unary", self.inner.generate, open, worker, home)

    def generate_bidirectional(self, open: Open, worker: Record, home: Address) -> None:
        self.dispatch("bidirectional", self.inner.generate_bidirectional, open, worker, home)

    def dispatch(
        self,
        what: str,
        way: Callable[[Open, Record, Address], None],
        open: Open,
        worker: Record,
        home: Address,
    ) -> None:
        began, error = time.perf_counter(), ""
        try:
            way(open, worker, home)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            took = round((time.perf_counter() - began) * 1e6, 1)
            told = {"request": open.request_id, "bytes": len(open.payload), "took_us": took}
            self.write(what, worker, home=home.name, **told, **({"error": error} if error else {}))

    def on_instance_added(self, record: Record) -> None:
        self.write("added", record)
        self.inner.on_instance_added(record)

    def on_instance_removed(self, record: Record, reason: str) -> None:
        self.write("removed", record, reason=reason)
        self.inner.on_instance_removed(record, reason)


class Inside:
    """Serves endpoints in the router's own process, without an engine; the rest as usual.

    ``handlers``: by endpoint, whether it takes a stream of requests, and what answers it.
    """

    def __init__(self, seat: DispatchSeat, handlers: Mapping[str, tuple[bool, Handler]]) -> None:
        self.seat = seat
        self.served: dict[int, Handler] = {}
        for endpoint, (many, handler) in handlers.items():
            record = seat.record(endpoint, many=many, device="cpu")
            self.served[record.instance] = handler
            seat.publish(record)

    def generate(self, open: Open, worker: Record, home: Address) -> None:
        handler = self.served.get(worker.instance)
        if handler is None:
            self.seat.standard.generate(open, worker, home)
        else:
            self.seat.serve(open, worker, handler)

    def generate_bidirectional(self, open: Open, worker: Record, home: Address) -> None:
        handler = self.served.get(worker.instance)
        if handler is None:
            self.seat.standard.generate_bidirectional(open, worker, home)
        else:
            self.seat.serve(open, worker, handler)

    def on_instance_added(self, record: Record) -> None:
        """``seat.standard`` hears for itself."""

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """``seat.standard`` hears for itself."""


async def count(request: int, ctx: Context) -> AsyncIterator[int]:
    """Counts up to the request."""
    for number in range(1, request + 1):
        yield number


async def answer(lines: RequestStream[str], ctx: Context) -> AsyncIterator[str]:
    """Says every line back."""
    async for line in lines:
        yield f"you said {line}"


async def shout(request: str, ctx: Context) -> AsyncIterator[str]:
    """An engine as usual, in a process of its own."""
    for word in request.split():
        yield word.upper()


def record(seat: DispatchSeat) -> Recording:
    """A dispatch as it was, with a record of it."""
    return Recording(seat, seat.standard)


def record_inside(seat: DispatchSeat) -> Recording:
    """As ``record``, and two endpoints more."""
    handlers: dict[str, tuple[bool, Handler]] = {
        "demo.inside.count": (False, count),
        "demo.inside.answer": (True, answer),
    }
    return Recording(seat, Inside(seat, handlers))


NODE = NodeSpec(
    routers=[RouterSpec(dispatch=record_inside)],
    engines=[EngineSpec(endpoint="demo.shout.words", engine=shout)],
)


async def use() -> None:
    async with Cluster(NODE) as cluster, cluster.client() as client:
        async with client.stream("demo.shout.words", "one two") as words:
            print("engine:", [word async for word in words])
        async with client.stream("demo.inside.count", 5) as numbers:
            print("inside:", [number async for number in numbers])
        async with client.open("demo.inside.answer") as chat:
            await chat.send("hello")
            print("chat:", await chat.recv())
            await chat.end()


def main() -> None:
    with tempfile.NamedTemporaryFile("r") as file:
        os.environ["RECORD_TO"] = file.name  # the router's process inherits it
        asyncio.run(use())
        lines: list[dict[str, Any]] = [json.loads(line) for line in file]
    for line in lines:
        took = f"dispatched in {line['took_us']} us" if "took_us" in line else ""
        print(f"recorded: {line['what']:<14}{line['endpoint']:<20}{took}".rstrip())


if __name__ == "__main__":
    main()
