"""Streams to endpoints that nobody is known to serve, as long as that is still being found out.

A router that has just started has not heard of other nodes. "Nobody serves it" would be untrue
then: the stream waits, where it can be cancelled as any other, until the others have answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from actors.errors import CallHomeError
from actors.messages import Open, Record
from actors.router.lookup import Waiting
from actors.router.relay import Plane
from transport.bus.address import Address
from transport.errors import RemoteProtocolError

#: Streams that wait at most, and bytes of their requests.
_STREAMS: Final = 1024
_BYTES: Final = 64 << 20


class HeldStreams:
    """Made by a router.

    ``ready`` tells whether a stream to this endpoint need not wait any longer, ``again`` routes it
    then, and ``late`` is the error for one that has waited too long.
    """

    def __init__(
        self,
        plane: Plane,
        ready: Callable[[str], bool],
        again: Callable[[Open], None],
        late: Callable[[str], CallHomeError],
    ) -> None:
        self._plane = plane
        self._ready = ready
        self._again = again
        self._late = late
        self._held: list[_Held] = []
        self._bytes = 0
        self._planned = False

    def hold(self, open: Open, until: float) -> bool:
        """Whether the stream waits here, at most ``until`` (monotonic); not where too many do.

        Raises ActorDead when its home is gone, RemoteProtocolError when it waits already.
        """
        if self._plane.find(open.home.incarnation, open.stream) is not None:
            raise RemoteProtocolError(f"stream {open.stream} of {open.home} was opened twice")
        if not self._has_room(len(open.payload)):
            self._keep([each for each in self._held if not each.over])
            if not self._has_room(len(open.payload)):
                return False
        relay = _Held(self, self._plane, open)
        self._plane.begin(relay)
        relay.await_until(until - time.monotonic())
        self._held.append(relay)
        self._bytes += len(open.payload)
        return True

    def late(self, target: str) -> CallHomeError:
        """What a stream is told that has waited in vain."""
        return self._late(target)

    def wake(self) -> None:
        """Something was found out: look at all of them, once for all that comes in this turn."""
        if self._held and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._look)

    def _has_room(self, size: int) -> bool:
        return len(self._held) < _STREAMS and self._bytes + size <= _BYTES

    def _keep(self, held: list[_Held]) -> None:
        self._held = held
        self._bytes = sum(len(each.open.payload) for each in held)

    def _look(self) -> None:
        self._planned = False
        waiting: list[_Held] = []
        ready: list[_Held] = []
        for each in self._held:
            if not each.over:
                (ready if self._ready(each.target) else waiting).append(each)
        self._keep(waiting)
        for each in ready:
            self._plane.undo(each)
            try:
                self._again(each.resumed())
            except Exception as error:  # it was told; the others go on
                self._plane.runtime.complain(f"a stream of {each.target} that had waited", error)


class _Held(Waiting):
    """One stream that nobody has heard of."""

    __slots__ = ("_streams",)

    def __init__(self, streams: HeldStreams, plane: Plane, message: Open) -> None:
        nobody = Address(message.target, 0, 0, 0)
        super().__init__(plane, message, Record(0, nobody, "engine", message.target))
        self._streams = streams

    def expired(self) -> CallHomeError:
        return self._streams.late(self.target)
