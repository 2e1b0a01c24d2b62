"""Which handlers are accepted, and that a wrong one is refused where it is loaded, by its name."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from actors import BidirectionalEngine, Context, Engine, RequestStream, bidirectional
from actors.engine.adapt import Handler
from actors.errors import SpecError


class Single(Engine[Any, Any]):
    def __init__(self, width: int = 1) -> None:
        if width < 0:
            raise ValueError("width below zero")
        self.width = width
        self.life: list[str] = []

    async def on_start(self) -> None:
        self.life.append("started")

    async def on_stop(self) -> None:
        self.life.append("stopped")

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield request


class Blocking(Engine[Any, Any]):
    def generate(self, request: Any, ctx: Context) -> Iterator[Any]:  # type: ignore[override]
        yield request


class Many(BidirectionalEngine[Any, Any]):
    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        async for item in requests:
            yield item


class ManyBlocking(BidirectionalEngine[Any, Any]):
    def generate(self, requests: Any, ctx: Context) -> Iterator[Any]:  # type: ignore[override]
        yield 1


class Returning(Engine[Any, Any]):
    def generate(self, request: Any, ctx: Context) -> Any:
        return [1, 2]


class NoGenerate(Engine[Any, Any]):
    pass


class NoEngine:
    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[Any]:
        yield request


async def coroutine(request: Any, ctx: Context) -> int:
    return 1


async def generator(request: Any) -> AsyncIterator[int]:
    yield 1


def blocking(request: Any, ctx: Context) -> Iterator[int]:
    yield 1


def plain(request: Any, ctx: Context) -> list[int]:
    return [1]


@bidirectional
async def many(requests: RequestStream[Any], ctx: Context) -> AsyncIterator[int]:
    yield 1


@bidirectional
def many_blocking(requests: Any, ctx: Context) -> Iterator[int]:
    yield 1


async def no_request() -> int:
    return 1


async def three(request: Any, ctx: Context, more: Any) -> int:
    return 1


async def any_number(*args: Any) -> int:
    return len(args)


async def optional(request: Any, ctx: Context | None = None, more: int = 1) -> int:
    return more


@pytest.mark.parametrize(
    ("target", "many_in", "takes_context", "kind"),
    [
        (Single, False, True, "async generator"),
        (Blocking, False, True, "generator"),
        (Many, True, True, "async generator"),
        (coroutine, False, True, "coroutine"),
        (generator, False, False, "async generator"),
        (blocking, False, True, "generator"),
        (many, True, True, "async generator"),
        (any_number, False, True, "coroutine"),
        (optional, False, True, "coroutine"),
    ],
)
def test_b83_shapes_that_are_accepted(
    target: Any, many_in: bool, takes_context: bool, kind: str
) -> None:
    handler = Handler(target, {})
    assert handler.many is many_in
    assert handler.takes_context is takes_context
    found = {
        "async generator": handler.is_async_generator,
        "coroutine": handler.is_coroutine,
        "generator": handler.is_generator,
    }
    assert found == {name: name == kind for name in found}


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (plain, r"engine plain is a plain function.*make it 'async def', or let it yield"),
        (Returning, r"engine Returning is a plain function"),
        (NoEngine, r"engine NoEngine is a class but no Engine"),
        (NoGenerate, r"engine NoGenerate does not define generate\(\)"),
        (many_blocking, r"engine many_blocking reads a stream of requests and must be 'async def'"),
        (ManyBlocking, r"engine ManyBlocking reads a stream of requests"),
        (no_request, r"engine no_request\(\).* must take \(request\) or \(request, ctx\)"),
        (three, r"engine three\(.*must take \(request\) or \(request, ctx\)"),
        (42, r"engine 42 is of type int"),
        (functools.partial(plain, 1), r"plain function"),
    ],
)
def test_b83_shapes_that_are_refused_by_name(target: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        Handler(target, {})


def test_arguments_go_to_the_constructor() -> None:
    handler = Handler(Single, {"width": 5})
    assert isinstance(handler.engine, Single)
    assert handler.engine.width == 5
    with pytest.raises(SpecError, match=r"coroutine is a function and takes no args.*width"):
        Handler(coroutine, {"width": 5})
    with pytest.raises(ValueError, match="below zero"):
        Handler(Single, {"width": -1})
    with pytest.raises(TypeError, match="height"):
        Handler(Single, {"height": 1})


async def test_an_engine_starts_and_stops_once() -> None:
    handler = Handler(Single, {})
    await handler.start()
    await handler.stop()
    assert isinstance(handler.engine, Single)
    assert handler.engine.life == ["started", "stopped"]
    bare = Handler(coroutine, {})
    await bare.start()
    await bare.stop()
