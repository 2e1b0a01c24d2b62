"""A client of Dynamo's wheel: runs the streams it is told to, and says what came of each.

``{"load": 4, "request": …}`` calls until ``{"halt": ORDER}``; ``{"instances": true}`` asks whom it
knows.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections import Counter
from typing import Any

from dynamo.runtime import Context, DistributedRuntime

from tests.interop.programs.lines import backend, obey, say


def shown(value: Any) -> Any:
    """A value as a JSON line can carry it: bytes and long text by length and digest."""
    if isinstance(value, str) and len(value) > 1000:
        value = value.encode()
    if isinstance(value, bytes):
        return {"length": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    return value


class Run:
    """One ``stream`` order: its request, and when to stop or let go of it."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.items: list[Any] = []
        self.context = Context(id=order.get("context"), metadata=order.get("metadata"))
        self.began = time.monotonic()

    def request(self) -> Any:
        """The request; ``fill`` adds a text or bytes of that many bytes to it."""
        request = self.order["request"]
        if fill := self.order.get("fill"):
            value: Any = "x" * fill if self.order.get("text") else os.urandom(fill)
            return {**request, "value": value}
        return request

    async def read(self, client: Any) -> None:
        """Read to the end, or as far as the order says."""
        annotated = self.order.get("annotated", False)
        call = client.round_robin(self.request(), annotated=annotated, context=self.context)
        stream = await call
        async for item in stream:
            self.items.append(parts(item) if annotated else shown(item))
            if len(self.items) == self.order.get("tell"):
                say(event="reached", order=self.order["order"])
            if len(self.items) == self.order.get("stop"):
                self.context.stop_generating()
            if len(self.items) == self.order.get("drop"):
                break

    def answer(self, error: BaseException | None) -> None:
        """Say what came of it."""
        say(
            event="done",
            order=self.order["order"],
            items=self.items,
            kind=type(error).__name__ if error else "",
            error=str(error) if error else "",
            seconds=time.monotonic() - self.began,
        )


class Load:
    """A ``load`` order: so many callers, each one request behind the other, until ``halt``."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.halted = asyncio.Event()
        self.whole = 0
        self.failures: list[str] = []
        self.values: Counter[str] = Counter()

    async def run(self, client: Any) -> None:
        """Call until it is over; say what came of it."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.order["load"]):
                group.create_task(self._caller(client))
        say(
            event="done",
            order=self.order["order"],
            whole=self.whole,
            failures=self.failures[:5],
            failed=len(self.failures),
            values=self.values,
        )

    async def _caller(self, client: Any) -> None:
        """Once at least, however soon it is over: so something comes of each load."""
        while True:
            try:
                stream = await client.round_robin(self.order["request"], annotated=False)
                items = [item async for item in stream]
                self.values[str(items)] += 1
                self.whole += 1
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}"[:300])
            await asyncio.sleep(0.01)
            if self.halted.is_set():
                return


def parts(item: Any) -> dict[str, Any]:
    """An ``Annotated`` of the wheel by its accessors."""
    return {name: getattr(item, name)() for name in ("data", "event", "id", "comments")}


async def main(endpoint: str) -> None:
    """Serve orders until stdin ends."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), backend(), "tcp")
    client = await runtime.endpoint(endpoint).client()
    async with asyncio.timeout(20):
        await client.wait_for_instances()
    say(event="ready", instances=[f"{one:x}" for one in client.instance_ids()])

    loads: dict[int, Load] = {}

    async def handle(order: dict[str, Any]) -> None:
        if "halt" in order:
            loads[order["halt"]].halted.set()
        elif "load" in order:
            loads[order["order"]] = Load(order)
            await loads[order["order"]].run(client)
        elif "instances" in order:
            say(event="done", order=order["order"], instances=sorted(client.instance_ids()))
        else:
            await stream(order)

    async def stream(order: dict[str, Any]) -> None:
        run = Run(order)
        try:
            await run.read(client)
        except Exception as error:
            run.answer(error)
        else:
            run.answer(None)

    await obey(handle)
    os._exit(0)


asyncio.run(main(sys.argv[1]))
