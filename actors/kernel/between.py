"""Requests between two of their attempts, as their home knows them, and how many there were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.session import FINAL, kind_of
from transport.context import Context
from transport.errors import AttachFailed

if TYPE_CHECKING:
    from actors.kernel.opened import Opened


class Between:
    """Requests without a stream that may have another one: they can be cancelled, their ids are
    taken.
    """

    def __init__(self) -> None:
        #: By the id that the caller gave: what is broken, and its reader has not seen it.
        self._broken: dict[str, Opened] = {}
        self._pausing: dict[Context, bool] = {}
        #: Requests sent once more; streams continued elsewhere, by how far they were.
        self.retried = 0
        self.migrated = {"new_request": 0, "ongoing_request": 0}

    def broke(self, stream: Opened) -> None:
        """A stream of a request that its caller has named has ended. Whether the request goes on
        is decided when its reader comes to that.
        """
        error = stream.error
        if error is None or stream.settled:
            return
        if kind_of(error) != FINAL or isinstance(error, AttachFailed):
            self._broken[stream.context.id] = stream
            stream.context.when_cancelled = lambda context: _cancelled(stream)

    def sent(self, context: Context) -> None:
        """The request has another stream."""
        self._broken.pop(context.id, None)

    def settled(self, stream: Opened) -> None:
        """The request has ended."""
        if self._broken.get(stream.context.id) is stream:
            del self._broken[stream.context.id]
            stream.context.when_cancelled = None

    def pause(self, context: Context, named: bool) -> None:
        """A request waits for a worker; ``named``: its id was given by the caller."""
        self._pausing[context] = named

    def resume(self, context: Context) -> None:
        """The pause is over."""
        self._pausing.pop(context, None)

    def contexts(self) -> list[Context]:
        """Of all requests that pause."""
        return list(self._pausing)

    def find(self, request_id: str) -> Context | None:
        """The context of the request to which the caller gave this id."""
        broken = self._broken.get(request_id)
        if broken is not None:
            return broken.context
        for context, named in self._pausing.items():
            if named and context.id == request_id:
                return context
        return None

    def count(self, migrated: bool, begun: bool) -> None:
        """Another attempt is under way; ``begun``: behind items of those before it."""
        if migrated:
            self.migrated["ongoing_request" if begun else "new_request"] += 1
        else:
            self.retried += 1

    def statistics(self) -> dict[str, int]:
        """The counts by name."""
        moved = {f"migrated.{kind}": count for kind, count in self.migrated.items()}
        return {"retried": self.retried, **moved}


def _cancelled(stream: Opened) -> None:
    """A kill drops what has come and was not taken; the reader finds the rest in its context."""
    if stream.context.killed:
        stream.home.runtime.drop_items(stream.queue)
