"""What answers an actor's streams: the seam between ``Serving`` and engine, router or actor."""

from __future__ import annotations

from typing import Protocol

from actors.kernel.served import Served
from actors.messages import Open, Report
from transport.context import Context


class Role(Protocol):
    """What the actor above does with streams; all called on the loop, none may block."""

    #: Whether errors of callhome that a handler raises go to the caller as they are.
    passes_errors: bool

    def make_context(self, message: Open, deadline: float | None) -> Context:
        """The context that the handler will see."""

    def came(self, stream: Served) -> None:
        """An Open has come; ``gone`` follows for each, whether it begins or not."""

    def begin(self, stream: Served) -> None:
        """Start the stream, queue it, or end it with an error."""

    def faulted(self, stream: Served) -> None:
        """The handler's next item is an error item; told before it leaves, and for each."""

    def killed(self, stream: Served) -> None:
        """Its home has killed the stream, whose handler has not ended yet."""

    def gone(self, stream: Served) -> None:
        """The stream has left the table; its handler, if it ever ran, has ended."""

    def report(self, stream: Served) -> Report | None:
        """The report for the stream's router, to travel with its End."""
