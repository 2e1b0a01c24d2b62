"""Moves a handler's items to their home: the hot path of a worker.

One ``Pump`` a runtime; every stream's task runs ``Pump.run``. What can be done once a batch, or
once a turn of the loop, is not done here once an item.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from actors.kernel.served import Served
from actors.kernel.turnstile import Turnstile
from transport.errors import (
    CallHomeError,
    Cancelled,
    EngineError,
    FrameReleased,
    MemoryExhausted,
    PayloadError,
    qualified_name,
    text_of,
)
from transport.payload import Encoded, EncodedError
from transport.wire.codec import pack_plain
from transport.wire.values import Annotated

if TYPE_CHECKING:
    from actors.kernel.serving import Serving

#: Items between two looks at the control inbox, counted over all streams of this process.
POLL_EVERY = 64
#: Payloads up to this size, in bytes, are tried without looking for arrays in them first.
_SMALL = 4096
_TRACEBACK = 8_000
#: Failures of the road that a handler meets in its own code; they keep their class.
_OURS = (EngineError, PayloadError, FrameReleased, MemoryExhausted)


class Pump:
    """Sends what handlers yield, minding credit, control and the turns of the other streams."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._runtime = serving.runtime
        #: Shared with ``Serving``, which queues the streams that get credit.
        self.turns = Turnstile()
        self._until_poll = POLL_EVERY

    async def run(self, stream: Served, items: AsyncIterator[Any]) -> None:
        """Send what ``items`` yields until it ends, minding credit and cancellation; then the end.

        Never raises but for what ends the process. A failure of the handler's own is an
        EngineError, whatever its class, so that nobody takes it for one of the road or the worker.
        """
        error: BaseException | None = None
        self.turns.running += 1
        try:
            error = await self._send_items(stream, items)
        except asyncio.CancelledError:
            reason = stream.context.reason or "the handler was cancelled"
            error = Cancelled(f"{stream.open.target}: {reason}")
        except CallHomeError as failure:
            keep = self._serving.role.passes_errors or isinstance(failure, _OURS)
            error = failure if keep else engine_error(failure)
            if _asked_to_end(stream, failure):
                error = _asked_end(stream)
        except BaseException as failure:
            error = _asked_end(stream) if _asked_to_end(stream, failure) else failure
            if isinstance(failure, (KeyboardInterrupt, SystemExit)):
                raise
        finally:
            self.turns.running -= 1
            await self._close_iterator(stream, items)
            self._serving.end(stream, error)
            # Its traceback holds this frame and the handler's: the frames in them would stay.
            error = None

    async def _send_items(self, stream: Served, items: AsyncIterator[Any]) -> CallHomeError | None:
        """The loop of ``run``; the error of an item that could not be encoded.

        Each item is encoded before the handler is resumed, so a handler may reuse its objects. This
        is the hot path of a worker: what can be done once a batch is not done here.
        """
        context, credit, codec = stream.context, stream.credit, stream.codec
        plain = codec == "msgpack"
        turns = self.turns
        left = turn = turns.turn
        async for item in items:
            if credit.items <= 0 or credit.bytes <= 0:
                # Only here, not behind the item before: the end of a handler needs no room.
                await stream.wait_credit()
                left = turn = turns.turn
            if context.killed:
                break
            data = pack_plain(item) if plain else None
            if data is None or len(data) > _SMALL:
                try:
                    encoded = item if type(item) is Encoded else self._encoded(stream, item, data)
                except CallHomeError as failure:
                    return failure
                # The next item is most likely of the same kind as this one.
                plain = codec == "msgpack" and type(item) is not Encoded and encoded.size <= _SMALL
                if encoded.handles:
                    encoded = await self._runtime.lend(encoded, stream.home, stream.key[1])
                stream.emit(encoded)
            else:
                if type(item) is Annotated and item.is_error:
                    self._serving.role.faulted(stream)
                credit.items -= 1
                credit.bytes -= len(data)
                if not stream.batch:
                    self._serving.mark(stream)
                stream.batch.append(data)
            left -= 1
            if left > 0:
                continue
            self._until_poll -= turn
            if self._until_poll <= 0:
                self._until_poll = POLL_EVERY
                self._runtime.port.poll_control()
            await turns.wait()
            if self._runtime.port.full(stream.home):
                await self._runtime.port.wait_drained(stream.home)
            left = turn = turns.turn
        return None

    def _encoded(self, stream: Served, item: Any, data: bytes | None) -> Encoded:
        """An item as it travels; ``data`` as for ``encode_payload``. The role hears of an error
        item before it leaves. Raises CallHomeError.
        """
        kind = type(item)
        encoded: Encoded = (
            item
            if kind is EncodedError
            else self._runtime.encode(item, stream.codec, stream.native, "item", data)
        )
        if kind is EncodedError or (kind is Annotated and item.is_error):
            self._serving.role.faulted(stream)
        return encoded

    async def _close_iterator(self, stream: Served, items: AsyncIterator[Any]) -> None:
        """Run the handler's ``finally`` now, not when the collector comes by."""
        close = getattr(items, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except asyncio.CancelledError:
            return
        except Exception as failure:
            self._runtime.complain(f"closing the handler of {stream.open.target}", failure)


def _asked_to_end(stream: Served, failure: BaseException) -> bool:
    """Whether a handler raised what its own calls ended with because its stream was cancelled."""
    if not stream.context.stopped:
        return False
    if isinstance(failure, BaseExceptionGroup):
        return failure.split(Cancelled)[1] is None
    return isinstance(failure, Cancelled)


def _asked_end(stream: Served) -> Cancelled | None:
    """How such a stream ends: cleanly when it was only asked to."""
    context = stream.context
    return Cancelled(f"{stream.open.target}: {context.reason}") if context.killed else None


def engine_error(error: BaseException) -> EngineError:
    """What a handler raised, as its caller will see it."""
    text = "".join(traceback.format_exception(error))
    return EngineError(
        text_of(error),
        type=qualified_name(type(error)),
        traceback=text[-_TRACEBACK:],
    )
