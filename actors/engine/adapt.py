"""Any accepted engine, class or function, as one thing: streams in, an async iterator of items out.

What is accepted is checked when the engine is loaded, so that a wrong shape is an error at start-up
with its name and not deep inside the first request.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from actors.engine.api import (
    BIDIRECTIONAL,
    BidirectionalEngine,
    Engine,
    EngineContext,
)
from actors.engine.threads import SyncItems, Threads, error_or_not
from actors.errors import SpecError
from actors.kernel.links import held
from actors.kernel.requests import RequestStream
from actors.kernel.runtime import Runtime
from actors.kernel.served import Served
from transport.errors import EncodeError, EngineError, qualified_name, text_of
from transport.payload import Encoded, EncodedError
from transport.wire.adapter import PayloadAdapter
from transport.wire.ints import without_ints
from transport.wire.plain import PLAIN

_ACCEPTED = (
    "an Engine or BidirectionalEngine class, an async generator, a coroutine function, or a "
    "generator function (it runs in a thread)"
)


class Handler:
    """A user's engine, ready to run; made once in the worker process."""

    def __init__(self, target: Any, args: dict[str, Any]) -> None:
        """Instantiate or take the engine. Raises SpecError for a shape that is not accepted, and
        whatever the engine's own constructor raises."""
        self.name = getattr(target, "__qualname__", repr(target))
        self.engine: Engine[Any, Any] | BidirectionalEngine[Any, Any] | None = None
        if inspect.isclass(target):
            if not issubclass(target, Engine | BidirectionalEngine):
                raise SpecError(f"engine {self.name} is a class but no Engine; use {_ACCEPTED}")
            self.many = issubclass(target, BidirectionalEngine)
            if inspect.isabstract(target):
                raise SpecError(f"engine {self.name} does not define generate()")
            self.engine = target(**args)
            self._function: Callable[..., Any] = self.engine.generate
        elif callable(target):
            if args:
                raise SpecError(
                    f"engine {self.name} is a function and takes no args; given: {sorted(args)}"
                )
            self.many = bool(getattr(target, BIDIRECTIONAL, False))
            self._function = target
        else:
            raise SpecError(
                f"engine {self.name} is of type {type(target).__name__}; use {_ACCEPTED}"
            )
        self._sort(self._function)

    def _sort(self, function: Callable[..., Any]) -> None:
        self.is_async_generator = inspect.isasyncgenfunction(function)
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self.is_generator = inspect.isgeneratorfunction(function)
        if not (self.is_async_generator or self.is_coroutine or self.is_generator):
            raise SpecError(
                f"engine {self.name} is a plain function, and its answer would block the worker; "
                f"make it 'async def', or let it yield; accepted are {_ACCEPTED}"
            )
        if self.many and self.is_generator:
            raise SpecError(
                f"engine {self.name} reads a stream of requests and must be 'async def'"
            )
        try:
            signature = inspect.signature(function)
        except ValueError as error:
            raise SpecError(
                f"engine {self.name} has no signature that can be read: {error}"
            ) from error
        places = [
            each
            for each in signature.parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
        ]
        needed = [
            each
            for each in places
            if each.default is each.empty and each.kind != each.VAR_POSITIONAL
        ]
        several = any(each.kind == each.VAR_POSITIONAL for each in places)
        if len(needed) > 2 or not places:
            raise SpecError(f"engine {self.name}{signature} must take (request) or (request, ctx)")
        self.takes_context = several or len(places) >= 2

    async def start(self) -> None:
        """The engine's own on_start."""
        if self.engine is not None:
            await self.engine.on_start()

    async def stop(self) -> None:
        """The engine's own on_stop."""
        if self.engine is not None:
            await self.engine.on_stop()


class Adapted:
    """A handler inside one worker: makes the items of each stream."""

    def __init__(self, handler: Handler, runtime: Runtime, adapter: PayloadAdapter | None) -> None:
        self.handler = handler
        self._runtime = runtime
        self._adapter = adapter
        self._threads = Threads(runtime.address.name)

    def close(self) -> None:
        """Let the threads of the handler end."""
        self._threads.close()

    def items(self, stream: Served, decode: Callable[[Served], Any]) -> AsyncIterator[Any]:
        """The items of one stream; nothing of the handler runs before the first is asked for.

        ``decode`` gives the request of a single-in stream and may raise DecodeError.
        """
        context = stream.context
        assert isinstance(context, EngineContext)
        handler = self.handler
        adapter = self._adapter
        if handler.many:
            request: Any = RequestStream(self._runtime, stream, adapter)
        elif adapter is not None:
            stream.taken = True
            request = adapter.decode(without_ints(stream.open.payload, stream.codec))
        else:
            request = decode(stream)
        arguments = (request, context) if handler.takes_context else (request,)
        encode = self._adapter_encode(stream)
        items = self._items(arguments, context, stream, encode)
        if encode is None:
            return items
        # A thread has called the adapter already, before it resumed its generator.
        return _adapted(items, (lambda done: done) if handler.is_generator else encode)

    def _adapter_encode(self, stream: Served) -> Callable[[Any], Any] | None:
        """The adapter's ``encode``, or None without an adapter.

        Under a plain codec its failure is told apart from one of the handler: the peer is foreign,
        and who speaks to it must not write the error in words that the adapter alone has.
        """
        if self._adapter is None:
            return None
        encode = self._adapter.encode
        if stream.codec not in PLAIN:
            return encode

        def guarded(item: Any) -> Any:
            try:
                return encode(item)
            except Exception as error:
                raise EncodeError(
                    f"the payload adapter of {stream.open.target} raised "
                    f"{qualified_name(type(error))}: {text_of(error)[:1000]}",
                    adapter="raised",
                ) from error

        return guarded

    def _encode(self, stream: Served, item: Any) -> Encoded:
        """One item of a generator that runs in a thread."""
        encoded = self._runtime.encode(item, stream.codec, stream.native, "item")
        return error_or_not(item, encoded)

    def trial(self, stream: Served, item: Any) -> str | None:
        """Encode an item that is sent to nobody; None, or of an error item what it says. Raises
        CallHomeError for one that cannot be encoded.
        """
        if type(item) in (Encoded, EncodedError):  # whoever made it drops it
            return "" if type(item) is EncodedError else None
        encoded = self._encode(stream, item)
        self._drop(encoded)
        if not isinstance(encoded, EncodedError):
            return None
        return f": {item.error or '; '.join(item.comment or ()) or 'it does not say why'}"

    def _drop(self, item: Any) -> None:
        """Give back what an item holds that was encoded and then not sent."""
        if isinstance(item, Encoded):
            for handle in held(item.handles):
                self._runtime.memory.unexport(handle)

    def _items(
        self,
        arguments: Any,
        context: EngineContext,
        stream: Served,
        adapted: Callable[[Any], Any] | None,
    ) -> AsyncIterator[Any]:
        handler = self.handler
        if handler.is_generator:
            encode = adapted or partial(self._encode, stream)
            codec = "" if adapted is not None else stream.codec
            return SyncItems(
                lambda: handler._function(*arguments), context, self._threads, encode, codec,
                self._drop,
            )  # fmt: skip
        found = handler._function(*arguments)
        if handler.is_coroutine:
            return _answer(found)
        result: AsyncIterator[Any] = found
        return result


async def _answer(coroutine: Any) -> AsyncIterator[Any]:
    """The one answer of a coroutine function; if it returns an async iterator, that one's items."""
    result = await coroutine
    if not hasattr(result, "__aiter__"):
        yield result
        return
    try:
        async for item in result:
            yield item
    finally:
        close = getattr(result, "aclose", None)
        if close is not None:
            await close()


async def _adapted(
    items: AsyncIterator[Any], encode: Callable[[Any], tuple[bytes, bool, bool]]
) -> AsyncIterator[Encoded]:
    """The user's own bytes for each item; the adapter alone knows what they mean."""
    try:
        async for item in items:
            data, is_error, stop = encode(item)
            kind = EncodedError if is_error else Encoded
            yield kind(bytes(data), [], len(data))
            if is_error:
                raise EngineError(
                    "the payload adapter marked this item as an error", type="error item"
                )
            if stop:
                return
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
