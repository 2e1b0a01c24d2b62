"""An engine that is busy, that blocks its loop, or that holds the interpreter, until there is a
file.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from operator import getitem
from typing import Any, cast

from actors import Context, Engine
from tests.e2e.process_engines import wait_for_file

Request = dict[str, Any]


class Counter(Engine[Request, Any]):
    """``n`` items, ``pause`` seconds apart; what else it is to do before stands in the request.
    The last one is not given before there is a file ``until``.
    """

    async def generate(self, request: Request, ctx: Context) -> AsyncIterator[Any]:
        if path := request.get("sleep"):
            while not os.path.exists(path):  # noqa: ASYNC240
                time.sleep(0.01)  # noqa: ASYNC251 - the fault that is tried
        if path := request.get("hold"):
            await asyncio.to_thread(hold, path)
        until = time.monotonic() + request.get("burn", 0.0)
        while time.monotonic() < until:
            sum(range(2_000_000))  # 20 to 80 ms in which the loop does not turn, where it is quiet
            await asyncio.sleep(0)
        count = request.get("n", 1)
        for number in range(count):
            if number == count - 1:
                await wait_for_file(request.get("until", ""))
            yield number
            if pause := request.get("pause"):
                await asyncio.sleep(pause)


def hold(path: str) -> None:
    """Compute until the first byte of a file is 1, and keep the interpreter: in a loop in C nobody
    else has a turn.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ) as told:
        sum(iter(cast("Callable[[], int]", partial(getitem, told, 0)), 1))
