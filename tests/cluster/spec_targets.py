"""Targets for the tests of specs: things that a child could import by name."""

from __future__ import annotations

from typing import Any


class Shout:
    """Stands for an engine or an actor."""

    class Inner:
        """A nested one."""


async def length(request: Any, ctx: Any) -> int:
    """Stands for a unary engine."""
    return len(request)
