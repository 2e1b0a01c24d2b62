"""Engines that do not come up, or answer what they should not; used by the tests of bad input."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from actors import Actor, Context, Engine, handles
from tests.e2e.cancel_engines import Work


class Unlucky(Engine[Any, Any]):
    """Raises before it is anything."""

    def __init__(self) -> None:
        raise ValueError("the model file is missing")

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield request


class Late(Engine[Any, Any]):
    """Raises when it starts."""

    async def on_start(self) -> None:
        raise RuntimeError("the device is busy")

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield request


class Strict(Engine[Any, Any]):
    """Takes an argument that it must get."""

    def __init__(self, model: str) -> None:
        self.model = model

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield request


def plain(request: Any) -> Any:
    """Would block its worker."""
    return request


class NoEngine:
    """Is something else."""


async def big(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """Yields one small item, then one of so many bytes."""
    yield "small"
    yield "x" * request["size"]


async def length(request: Any, ctx: Context) -> int:
    """The length of the request's text."""
    return len(request["text"])


class Unprintable(Exception):
    """Cannot be put into words."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Unplain(Exception):
    """Wants two arguments, and holds what no wire carries."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.lock = threading.Lock()


class Beyond(BaseException):
    """Is not even an Exception."""


async def raises(request: Any, ctx: Context) -> AsyncIterator[Any]:
    """Raises what is asked for, after one item."""
    yield "one"
    kind = request["kind"]
    if kind == "surrogate":
        raise ValueError("broken \ud800 words")
    if kind == "unprintable":
        raise Unprintable
    if kind == "unplain":
        raise Unplain(5, "five")
    if kind == "beyond":
        raise Beyond("far")
    raise asyncio.CancelledError


class Steady(Actor):
    """Answers what it is asked."""

    @handles(Work)
    async def work(self, message: Work) -> int:
        return message.tag
