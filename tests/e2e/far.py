"""A client of a node, to be run where its PID, mount or user namespace is another one:
``python -m tests.e2e.far FOLDER ENDPOINT COUNT [hold]``.

It takes COUNT frames from the engine and gives it as many, checks them and prints as JSON how both
sides have reached the other's memory. With ``hold`` it keeps a stream open that has brought two
frames, prints ``open``, and then the error that ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import numpy as np

from actors.client import Client
from actors.errors import CallHomeError

_SIZE = 200_000


def say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


async def exchange(client: Client, endpoint: str, count: int) -> None:
    """Frames both ways."""
    request = {"do": "frames", "n": count, "size": _SIZE}
    number = -1
    async with client.stream(endpoint, request, timeout=60.0) as items:
        async for number, frame in _numbered(items):
            if not (frame.array == number % 256).all():
                raise ValueError(f"frame {number} is torn")
            del frame
    for value in range(count):
        array = np.full(_SIZE, value % 256, "u1")
        found = await client.call(endpoint, {"do": "echo", "value": array}, timeout=60.0)
        if not np.array_equal(found, array):
            raise ValueError(f"array {value} came back another")
    roads = client.runtime.memory.reading.roads
    address = client.runtime.address
    asked = {"do": "road", "owner": address.incarnation}
    say(
        pid=os.getpid(),
        space=address.space,
        frames=number + 1,
        reads=sorted({roads.taken(owner) for owner in roads.owners}),
        read=await client.call(endpoint, asked, timeout=60.0),
    )


async def _numbered(items: Any) -> Any:
    number = 0
    async for frame in items:
        yield number, frame
        del frame
        number += 1


async def hold(client: Client, endpoint: str) -> None:
    """A stream that goes on until somebody dies."""
    request = {"do": "frames_and_hang", "n": 2, "size": _SIZE, "id": "far"}
    async with client.stream(endpoint, request) as items:
        held = [await anext(items), await anext(items)]
        say(open=len(held))
        try:
            await anext(items)
        except CallHomeError as error:
            say(error=type(error).__name__, words=str(error))


async def main() -> None:
    folder, endpoint, count = sys.argv[1:4]
    async with Client(run=folder) as client:
        if sys.argv[4:] == ["hold"]:
            await hold(client, endpoint)
        else:
            await exchange(client, endpoint, int(count))


if __name__ == "__main__":
    asyncio.run(main())
