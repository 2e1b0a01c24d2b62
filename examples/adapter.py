"""A payload adapter: an engine that reads and writes bytes of a form of your own.

Here each payload is one line of JSON, for callers who send and read plain JSON. Run it from
anywhere: ``python examples/adapter.py``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the source tree, if not installed

from actors import CallHomeError, Cluster, Context, EngineSpec, NodeSpec


class Lines:
    """Stands between the payloads of a stream and its engine, in the engine's process."""

    def decode(self, data: bytes) -> Any:
        """The request that a payload holds; what it raises ends the stream."""
        return json.loads(data)

    def encode(self, item: Any) -> tuple[bytes, bool, bool]:
        """The bytes of an item, whether it is an error, and whether the stream ends with it."""
        return json.dumps(item).encode(), False, item == "STOP"


async def shout(request: dict[str, str], ctx: Context) -> AsyncIterator[str]:
    """An engine like any other: it sees requests and items, and no payload."""
    for word in request["text"].split():
        yield word.upper()


NODE = NodeSpec(engines=[EngineSpec("demo.lines.shout", shout, adapter=Lines)])


async def main() -> None:
    async with Cluster(NODE) as cluster, cluster.client() as client:
        # codec="json" makes plain JSON of this request, and reads the answers as JSON.
        request = {"text": "one two stop three"}
        async with client.stream("demo.lines.shout", request, codec="json") as words:
            print("words:", [word async for word in words])
        try:
            # An adapter gets the payload's bytes. What goes through shared memory is not in them.
            await client.call("demo.lines.shout", client.frames.new(3, "uint8"))
        except CallHomeError as error:
            print(f"frame: {type(error).__name__}: {error}")


if __name__ == "__main__":
    asyncio.run(main())
