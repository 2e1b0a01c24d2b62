"""Engines that are busy, that block their loop, or that hold the interpreter."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import AsyncIterator
from typing import Any

from actors import Context, Engine

Request = dict[str, Any]


class Counter(Engine[Request, Any]):
    """``n`` items, ``pause`` seconds apart; what else it is to do stands in the request."""

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        if seconds := request.get("sleep"):
            time.sleep(seconds)  # noqa: ASYNC251 - the fault that is tried
        if seconds := request.get("hold"):
            await asyncio.to_thread(hold, seconds)
        until = time.monotonic() + request.get("burn", 0.0)
        while time.monotonic() < until:
            sum(range(2_000))
            await asyncio.sleep(0)
        for number in range(request.get("n", 1)):
            yield number
            if pause := request.get("pause"):
                await asyncio.sleep(pause)


def hold(seconds: float) -> None:
    """Compute in C and keep the interpreter for so long: nothing else of the process runs."""
    library = ctypes.PyDLL(None)
    values = (ctypes.c_int * 400_000)()
    order = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    strtod = library.strcoll
    strtod.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    text = b"a" * 1_000_000
    del values, order
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        strtod(text, text)
