"""A request that an engine is sent by its own worker, to show that it still answers.

Dynamo's health check, by the same rules: an engine that has given no item for ``canary_wait``
seconds gets the ``canary`` of its spec; its first item must come within ``canary_timeout`` seconds
and be no error item. Items of real streams count as much, error items of theirs do not. The verdict
stands in the file of its signs of life (``actors.kernel.signs``), where routers, the ingress and
the node read it.

A canary takes no road but the handler's own: it is decoded, answered and encoded as any request,
and nothing of it is sent. It has a place of the engine's capacity for as long as its handler runs:
no handler ever has more company than its engine was made for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from actors.engine.api import CANARY
from actors.kernel.served import Served
from actors.messages import Open
from transport.errors import LocalProtocolError, qualified_name, text_of
from transport.wire import stream as machine

if TYPE_CHECKING:
    from actors.engine.actor import EngineActor

log = logging.getLogger("callhome")

#: Seconds between two looks whether items have been given: no longer than this, and a part of
#: ``canary_wait``.
_LOOK: Final = 1.0
_PART: Final = 10
_LEAST: Final = 0.02
#: Seconds until an engine that was found wanting is tried again; doubled each time, up to
#: ``canary_wait``.
_PAUSE: Final = 1.0
_TEXT: Final = 150
#: Part of ``start_timeout`` that is left for what comes behind the first canary.
_REST: Final = 0.1
#: Looks for an answer within ``canary_timeout``.
_STEPS: Final = 10


class Canary:
    """Looks after one engine; made by its actor, on its loop. ``request`` None: none is sent."""

    def __init__(self, actor: EngineActor, request: Any) -> None:
        settings = actor.settings
        self._actor = actor
        self._request = request
        self._wait = settings.canary_wait
        self._limit = settings.canary_timeout
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        #: The handler that answers a canary now, which may not have ended long after its limit.
        self._running: asyncio.Task[None] | None = None
        self._context: Any = None
        self._why = ""
        self._good = 0
        self._pause = _PAUSE
        self._due = 0.0
        self._tried = asyncio.Event()
        self._start_by = actor.start_by or time.monotonic() + settings.start_timeout
        #: Places of the engine that canaries hold: 1 while a handler runs, else 0.
        self.held = 0
        #: Canaries that were sent, and those that were not answered.
        self.sent = 0
        self.failed = 0

    def start(self) -> None:
        """Send the first at once, and others when they are due. The engine counts as ready."""
        if self._request is None or not self._wait:
            return
        name = self._actor.name
        if not self._actor.settings.frozen_after:
            log.warning(
                "%s: its canary is not sent: where frozen_after is 0 nobody looks at signs of life",
                name,
            )
            return
        encoded = self._actor.runtime.encode(
            self._request, self._actor.settings.codec, True, "canary"
        )
        self._payload = encoded.data
        self._due = self._loop.time()
        self._task = self._actor.tasks.create_task(self._look_after(), name=f"{name} canary")

    async def wait_first(self) -> None:
        """Until the first was answered or was not: whoever finds the engine knows whether it is
        ready. An engine that took long to load has less time for this, down to none: it is up
        then, and unready until it has answered.
        """
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            whole = self._actor.settings.start_timeout
            left = self._start_by - time.monotonic() - whole * _REST
            async with asyncio.timeout(min(whole / 2, left)):
                await self._tried.wait()
        if not self._tried.is_set():
            self._tell("its first canary is not answered yet")

    def stop(self) -> None:
        """No more; one that is under way is killed. A second call does nothing."""
        if self._task is not None:
            self._task.cancel()
        self._end()

    @property
    def stuck(self) -> bool:
        """Whether a handler still has a canary that was given up."""
        return self._running is not None and self._context.killed

    def counts(self) -> dict[str, int]:
        """For ``callhome ps --counters``; ``stuck`` is 1 while a handler does not end."""
        return {
            "canary.sent": self.sent,
            "canary.failed": self.failed,
            "canary.stuck": int(self.stuck),
        }

    async def _look_after(self) -> None:
        look = max(min(_LOOK, self._wait / _PART), _LEAST)
        while True:
            self._heard()
            now = self._loop.time()
            if now >= self._due and self._actor.has_place and not self.held:
                await self._try()
                self._tried.set()
            elif self.stuck and self._why and not self._why.endswith(_STUCK):
                self._tell(self._why + _STUCK)
            await asyncio.sleep(look)

    def _heard(self) -> bool:
        """Whether real streams have had items since the last look: then all is well."""
        before, self._good = self._good, self._actor.good_items()
        if self._good <= before:
            return False
        self._well()
        return True

    def _well(self) -> None:
        self._due = self._loop.time() + self._wait
        self._pause = _PAUSE
        self._tell("")

    def _tell(self, why: str) -> None:
        if why != self._why:
            self._why = why
            self._actor.tell_ready(why)

    async def _try(self) -> None:
        self.sent += 1
        first: asyncio.Future[str] = self._loop.create_future()
        stream = self._stream()
        self._context, self.held = stream.context, 1
        self._running = self._actor.tasks.create_task(
            self._answer(stream, first), name=f"{self._actor.name} answers its canary"
        )
        self._running.add_done_callback(self._ended)
        await self._wait_for(first)
        why = first.result() if first.done() else f"its canary got no item within {self._limit:g} s"
        if not first.done():
            self._end()
        if self._heard():
            return  # real streams have answered meanwhile
        if not why:
            self._well()
            return
        self.failed += 1
        self._due = self._loop.time() + min(self._pause, self._wait)
        self._pause *= 2
        self._tell(why)

    async def _wait_for(self, first: asyncio.Future[str]) -> None:
        """Until the first item, or the limit: of the time that something else blocks the loop, or
        the process stands still, no more counts than of any step.
        """
        step = self._limit / _STEPS
        left = self._limit
        while left > 0 and not first.done():
            began = self._loop.time()
            await asyncio.wait({first}, timeout=min(step, left))
            left -= min(self._loop.time() - began, 2 * step)

    def _stream(self) -> Served:
        """A stream that nobody has opened; its request is whole."""
        actor, settings = self._actor, self._actor.settings
        many = actor.handler.many
        message = Open(
            0, actor.address, actor.endpoint, many, settings.codec, True,
            b"" if many else self._payload, [], [], settings.window_items, settings.window_bytes,
            None, {CANARY: str(self.sent)}, f"canary-{self.sent}",
        )  # fmt: skip
        context = actor.make_context(message, None)
        stream = Served(actor.serving, message, context)
        if many:
            stream.feed_window.arrive(1, len(self._payload))
            stream.feed_queue.append(self._payload)
            stream.state.feed(machine.FEED_END, LocalProtocolError)
            stream.feed_ended = True
        return stream

    async def _answer(self, stream: Served, first: asyncio.Future[str]) -> None:
        """Run the handler up to its first item; ``first``: "" or what was wrong with that."""
        items: AsyncIterator[Any] | None = None
        why = "its canary was cancelled"
        try:
            items = self._actor.adapted.items(stream, self._actor.serving.request)
            why = await self._first(stream, items)
        except asyncio.CancelledError:
            pass  # it was given up, or the handler has cancelled itself
        except Exception as failure:
            why = f"its canary raised {qualified_name(type(failure))}: {text_of(failure)[:_TEXT]}"
            if not self._why:
                log.warning("%s: %s", self._actor.name, why, exc_info=failure)
        finally:
            if not first.done():
                first.set_result(why)
            stream.context.kill("its canary is over")
            stream.wake_feed()
            await self._close(items)
            stream.context.finish("its canary is over")

    async def _first(self, stream: Served, items: AsyncIterator[Any]) -> str:
        async for item in items:
            error = self._actor.adapted.trial(stream, item)
            return "" if error is None else f"its canary got an error item{error[:_TEXT]}"
        return "its canary got no item, and no error"

    async def _close(self, items: AsyncIterator[Any] | None) -> None:
        """The handler's ``finally``; one that does not return holds its place."""
        close = getattr(items, "aclose", None)
        if close is None:
            return
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await close()
        except Exception as failure:
            self._actor.runtime.complain("closing the handler of a canary", failure)

    def _end(self) -> None:
        if self._running is not None and not self._running.done():
            self._context.kill("its canary is over")
            self._running.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        self.held = 0
        self._actor.refill()


#: Behind the reason, once a handler goes on with a canary that was given up.
_STUCK: Final = "; its handler has not ended since, and keeps its place"
