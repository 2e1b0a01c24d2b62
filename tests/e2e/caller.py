"""A client in a process of its own, to be killed: ``python -m tests.e2e.caller FOLDER ENDPOINT
COUNT REQUEST [call|all]``.

It opens COUNT streams with the JSON REQUEST (and a tag each), prints ``open`` when each has brought
its first item, and keeps what it got. With ``call`` it makes unary calls and prints at once; with
``all`` it reads every stream to its end and prints how much there was.
"""

from __future__ import annotations

import asyncio
import json
import sys

from actors.client import Client
from actors.kernel.responses import ResponseStream


def say(text: str) -> None:
    """Tell the test that the next step is done."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def main() -> None:
    folder, endpoint, count, text = sys.argv[1:5]
    request = json.loads(text)
    async with Client(run=folder) as client:
        if sys.argv[5:] == ["call"]:
            calls = [client.call(endpoint, {**request, "tag": n}) for n in range(int(count))]
            say("open")
            await asyncio.gather(*calls)
            return
        streams: list[ResponseStream] = []
        kept: list[object] = []
        for number in range(int(count)):
            stream = client.stream(endpoint, {**request, "tag": number})
            streams.append(await stream.__aenter__())
        for stream in streams:
            kept.append(await anext(stream))
        say("open")
        if sys.argv[5:] == ["all"]:
            counts = [1 + len([item async for item in stream]) for stream in streams]
            say(f"all {len(counts)} x {max(counts)}")
            return
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
