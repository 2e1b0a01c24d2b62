"""Requests between two of their attempts, as their home knows them, and how many there were."""

from __future__ import annotations

from transport.context import Context


class Between:
    """Requests that pause before their next attempt: they can be cancelled, their ids are taken."""

    def __init__(self) -> None:
        self._pausing: dict[Context, bool] = {}
        #: Requests sent once more; streams continued elsewhere, by how far they were.
        self.retried = 0
        self.migrated = {"new_request": 0, "ongoing_request": 0}

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
