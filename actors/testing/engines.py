"""Engines that do what a check asks of them; any test may name them in an ``EngineSpec``.

Their endpoints stand here too, so that a dispatch which serves its own instances can publish the
same ones (``HANDLERS``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any, Final

from actors.engine.api import BidirectionalEngine, Engine
from actors.kernel.requests import RequestStream
from actors.router.dispatch import Handler
from transport.context import Context

ECHO: Final = "testing.echo.generate"
SLOW: Final = "testing.slow.generate"
TALK: Final = "testing.talk.converse"
CRASH: Final = "testing.crash.generate"


class Echo(Engine[dict[str, Any], Any]):
    """Yields each of the request's ``items``, then raises ValueError(``error``) if there is one."""

    async def generate(self, request: dict[str, Any], ctx: Context) -> AsyncIterator[Any]:
        for item in request.get("items", ()):
            yield item
        if "error" in request:
            raise ValueError(request["error"])


class Slow(Engine[Any, str]):
    """Yields "begun", then waits until it is asked to stop, and yields why."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[str]:
        yield "begun"
        await ctx.wait_stopped()
        yield f"stopped: {ctx.reason}"


class Talk(BidirectionalEngine[Any, Any]):
    """Yields each request item as it comes, then "end" when they have ended."""

    async def generate(self, requests: RequestStream[Any], ctx: Context) -> AsyncIterator[Any]:
        async for item in requests:
            yield item
        yield "end"


class Crash(Engine[Any, str]):
    """Yields "alive"; asked to stop, it ends its process as the kernel would."""

    async def generate(self, request: Any, ctx: Context) -> AsyncIterator[str]:
        yield "alive"
        await ctx.wait_stopped()
        os.kill(os.getpid(), signal.SIGKILL)


#: What a dispatch that serves its own instances publishes: endpoint -> (many, handler). Not
#: ``Crash``, which would take the router with it.
HANDLERS: Final[dict[str, tuple[bool, Handler]]] = {
    ECHO: (False, Echo().generate),
    SLOW: (False, Slow().generate),
    TALK: (True, Talk().generate),
}
