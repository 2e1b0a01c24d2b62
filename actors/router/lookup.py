"""Streams to workers whose host is a name that is being looked up.

Such a stream waits here, where it can be cancelled as any other, and is dispatched as soon as the
address is known. Most records hold addresses; their streams cost one look into a dictionary.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from actors.messages import Credit, End, Feed, FeedEnd, FeedItem, Open, Record
from actors.router.relay import Plane, Relay
from transport.callhome.address import check_hostport, numeric
from transport.errors import (
    CallHomeError,
    Cancelled,
    ConnectionLost,
    RemoteProtocolError,
    to_wire,
)

#: Addresses of instances whose hosts are remembered.
_KEPT: Final = 65_536
#: Seconds for a lookup where no limit is set for connections.
_LIMIT: Final = 30.0


class Lookups:
    """Made by a router. ``again`` dispatches an Open to its worker once more, and tells its home
    what goes wrong.
    """

    def __init__(self, plane: Plane, again: Callable[[Open, Record], None]) -> None:
        self._plane = plane
        self._again = again
        #: The name in each instance's address; "" for one that is no name.
        self._hosts: dict[str, str] = {}

    def hold(self, open: Open, worker: Record) -> bool:
        """Whether the stream waits here, since the worker's host has to be looked up first.

        Raises RemoteProtocolError when its address is none, ActorDead when the home is gone.
        """
        host = self._hosts.get(worker.via)
        if host is None:
            host = self._remember(worker.via)
        if not host or self._plane.net.names.address(host):
            return False
        relay = Waiting(self._plane, open, worker)
        self._plane.begin(relay)
        limit = self._plane.runtime.settings.connect_timeout or _LIMIT
        self._plane.net.names.look_up(host, partial(self._looked_up, relay), limit)
        return True

    def _remember(self, via: str) -> str:
        host, _ = check_hostport(via.partition("/")[0])
        if len(self._hosts) >= _KEPT:
            self._hosts.clear()
        found = self._hosts[via] = "" if numeric(host) else host
        return found

    def _looked_up(self, relay: Waiting, error: CallHomeError | None) -> None:
        if relay.over:
            return
        if error is not None:
            text = f"{relay.target}: {relay.worker.via}: {error}"
            relay.fail(type(error)(text, **error.details))
            return
        self._plane.undo(relay)
        self._again(relay.resumed(), relay.worker)


class Waiting(Relay):
    """One stream that no worker has heard of: its worker's address is not known yet."""

    __slots__ = ("open", "since")

    def __init__(self, plane: Plane, message: Open, worker: Record) -> None:
        super().__init__(plane, message, worker)
        self.open = message
        self.since = time.monotonic()

    def resumed(self) -> Open:
        """Its Open, now that it goes on: less is left until its deadline."""
        if self.open.remaining is None:
            return self.open
        waited = time.monotonic() - self.since
        return self.open._replace(remaining=max(0.0, self.open.remaining - waited))

    def cancel(self, reason: str) -> None:
        """The home is told all the same: what it has lent to the request waits for that."""
        self.plane.runtime.drop(self.open.handles)
        if self.open.handles:
            with contextlib.suppress(CallHomeError):  # it is dead
                self.to_home(End(self.stream, 0, to_wire(Cancelled(f"{self.target}: {reason}"))))

    def fail(self, error: CallHomeError) -> None:
        if not self.over:
            self.plane.runtime.drop(self.open.handles)
            self.finish(error)

    def stop(self, reason: str) -> None:
        """It never starts, which is what a stop asks for."""
        if not self.over:
            self.plane.runtime.drop(self.open.handles)
            self.finish()

    def expired(self) -> CallHomeError:
        return ConnectionLost(f"{self.target}: the host of {self.worker.via} was not looked up")

    def credit(self, m: Credit) -> None:
        """There is nothing to spend it on yet, and no item that it could be for."""

    def feed(self, m: Feed) -> None:
        self._early()

    def feed_item(self, m: FeedItem) -> None:
        self.plane.runtime.expect(m.handles)
        self.plane.runtime.drop(m.handles)
        self._early()

    def feed_end(self, m: FeedEnd) -> None:
        self._early()

    def _early(self) -> None:
        text = f"{self.target}: request items before the stream was accepted"
        self.fail(RemoteProtocolError(text))
