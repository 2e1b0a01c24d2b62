"""A client of Dynamo's wheel: runs the streams it is told to, and says what came of each."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
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

    async def stream(order: dict[str, Any]) -> None:
        run = Run(order)
        try:
            await run.read(client)
        except Exception as error:
            run.answer(error)
        else:
            run.answer(None)

    await obey(stream)
    os._exit(0)


asyncio.run(main(sys.argv[1]))
