"""Engines that the tests of shared memory call, and the frames that they make: numbered, with a
checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np

from actors import Context, EngineSpec, Frame, RequestStream, bidirectional

Request = dict[str, Any]
#: Bytes at the front of a frame: its number and the CRC of what is behind them.
_HEAD = 16
#: How long an engine waits for room in its arena, in seconds.
_PATIENCE = 60.0


def write(frame: Frame, number: int) -> Frame:
    """Fill a frame so that ``check`` knows it."""
    array = frame.array
    array[_HEAD:] = number % 251
    head = np.array([number, zlib.crc32(array[_HEAD:].data)], "<u8")
    array[:_HEAD] = head.view("u1")
    return frame


def check(array: np.ndarray[Any, Any], number: int) -> None:
    """Raise ValueError unless the array is frame ``number``, whole."""
    found, crc = (int(each) for each in array[:_HEAD].view("<u8"))
    if (found, crc) != (number, zlib.crc32(array[_HEAD:].data)):
        raise ValueError(f"frame {found} in place of {number}, or torn")
    if int(array[-1]) != number % 251:
        raise ValueError(f"frame {number} holds the bytes of another")


async def waits(request: Request, ctx: Context) -> AsyncIterator[Any]:
    """``n`` frames of ``size`` bytes, each as soon as there is room for it."""
    patience = request.get("patience", _PATIENCE)
    for number in range(request["n"]):
        yield write(await ctx.frames.wait_new(request["size"], "u1", timeout=patience), number)


def waits_in_a_thread(request: Request, ctx: Context) -> Iterator[Any]:
    """As ``waits``, in a generator that is not async."""
    for number in range(request["n"]):
        yield write(ctx.frames.new(request["size"], "u1", wait=_PATIENCE), number)


async def doubling(request: Request, ctx: Context) -> AsyncIterator[Any]:
    """Arrays of 64 bytes, twice that and so on, ``n`` of them, then a small one; no await."""
    for number in range(request["n"]):
        yield np.full(64 << number, number, "u1")
    yield np.full(64, 99, "u1")


async def holds(request: Request, ctx: Context) -> AsyncIterator[Any]:
    """``n`` frames that are made and kept; then nothing, until it is cancelled."""
    held = [write(ctx.frames.new(request["size"], "u1"), number) for number in range(request["n"])]
    yield len(held)
    await ctx.wait_killed()


async def echo(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """What came, as it came."""
    yield request


async def spoils(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """Try to write into what came; what comes of it, and of a copy."""
    try:
        request[0] = 9
        said = "written"
    except ValueError as error:
        said = str(error)
    copy = request.copy()
    copy[0] = 9
    yield {"said": said, "copy": int(copy[0]), "seen": int(request[0])}


async def booms(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """Fail with views in its hands: of the request's frame, and of one of its own."""
    own = write(ctx.frames.new(100_000, "u1"), 1)
    views = [request.array[5:], own.array[5:]]
    if len(views) == 2:
        raise ValueError("boom")
    yield None


@bidirectional
async def checks(requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
    """Answer each numbered frame with its number once it was checked, in order."""
    number = 0
    async for frame in requests:
        check(frame.array, number)
        del frame
        yield number
        number += 1


HERE = "tests.e2e.frame_engines:"
WAITS = EngineSpec(endpoint="m.waits.go", engine=HERE + "waits", name="waits")
THREAD = EngineSpec(endpoint="m.thread.go", engine=HERE + "waits_in_a_thread", name="thread")
DOUBLING = EngineSpec(endpoint="m.doubling.go", engine=HERE + "doubling", name="doubling")
HOLDS = EngineSpec(endpoint="m.holds.go", engine=HERE + "holds", name="holds", restart="never")
ECHO = EngineSpec(endpoint="m.echo.go", engine=HERE + "echo", name="echo")
SPOILS = EngineSpec(endpoint="m.spoils.go", engine=HERE + "spoils", name="spoils")
BOOMS = EngineSpec(endpoint="m.booms.go", engine=HERE + "booms", name="booms")
