"""Messages of a stream that wait for leases on frames that were handed on, and what follows them.

Only from the moment when frames are about in this process is anything looked at on its way: when
memory of ours has been announced to somebody, or a third one's to us. Used by a runtime, on its
loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from actors.kernel.links import read_handles
from actors.messages import End, Feed, FeedEnd, FeedItem, Item, Items
from transport.bus.address import Address
from transport.errors import RemoteProtocolError
from transport.wire.message import Message

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

#: Messages of one stream that may wait beyond those that its window counts.
_BESIDE: Final = 64
#: What comes on a stream, in order, to its home (0) and to who serves it (1).
_SIDES: Final[dict[type, int]] = {Items: 0, Item: 0, End: 0, Feed: 1, FeedItem: 1, FeedEnd: 1}
_HANDLES: Final = (Item, FeedItem)

#: Side, sender, stream.
_Key = tuple[int, int, int]
_Handler = Callable[[int, Any], None]


class _Place:
    """One message that waits, or may go."""

    __slots__ = ("message", "ready")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.ready = False


class _Lane:
    """What waits of one stream in one direction."""

    __slots__ = ("going", "places")

    def __init__(self) -> None:
        self.places: deque[_Place] = deque()
        self.going = False


class Parking:
    """Stands before the handlers of what comes on streams, and lets it through in order.

    ``down`` is called with a sender that is gone, and how, once nothing of it waits here any more.
    """

    def __init__(self, runtime: Runtime, down: Callable[[Address, str], None]) -> None:
        self._runtime = runtime
        self._adopting = runtime.adopting
        self._down = down
        self._bound = runtime.settings.window_items + _BESIDE
        self._inner: dict[type, _Handler] = {}
        self._lanes: dict[_Key, _Lane] = {}
        #: Deaths of senders whose last messages wait here.
        self._deaths: dict[int, tuple[Address, str]] = {}
        self._adopting.begins = self._install

    def _install(self) -> None:
        if self._inner:
            return
        for kind, side in _SIDES.items():
            if not self._runtime.handles(kind):
                continue  # a client serves nothing
            inner: _Handler = self._runtime.handler(kind)
            self._inner[kind] = inner
            heard = self._item if kind in _HANDLES else self._other
            self._runtime.on(kind, partial(heard, side, inner))

    def _other(self, side: int, inner: _Handler, sender: int, m: Any) -> None:
        """Something without handles came on a stream."""
        lane = self._lanes.get((side, sender, m.stream)) if self._lanes else None
        if lane is None:
            inner(sender, m)
        else:
            self._put(lane, sender, m).ready = True
            self._go_on((side, sender, m.stream), lane)

    def _item(self, side: int, inner: _Handler, sender: int, m: Any) -> None:
        """An item with handles came, or something that only looks like one."""
        key = (side, sender, m.stream)
        lane = self._lanes.get(key)
        try:
            lent_on = self._adopting.lent_on(sender, m.handles)
        except RemoteProtocolError:
            lent_on = False  # whoever knows the stream says so
        if lane is None:
            if not lent_on:
                inner(sender, m)
                return
            lane = self._lanes[key] = _Lane()
        place = self._put(lane, sender, m)
        if lent_on:
            then = partial(self._ready, key, lane, place)
            self._adopting.adopt(sender, m.handles, m.stream, then)
        else:
            self._runtime.memory.expect(_checked(m.handles))
            place.ready = True
            self._go_on(key, lane)

    def _put(self, lane: _Lane, sender: int, message: Message) -> _Place:
        if len(lane.places) >= self._bound:
            handles = _checked(getattr(message, "handles", []))
            self._adopting.decline(sender, list(handles))
            raise RemoteProtocolError(
                f"{len(lane.places)} messages of one stream wait for a lease: its sender minds no "
                "credit"
            )
        place = _Place(message)
        lane.places.append(place)
        return place

    def _ready(self, key: _Key, lane: _Lane, place: _Place, values: list[Any]) -> None:
        message: Any = place.message
        place.message = message._replace(handles=values)
        place.ready = True
        self._go_on(key, lane)

    def _go_on(self, key: _Key, lane: _Lane) -> None:
        """Hand over what stands at the head and may go, one after the other."""
        if lane.going:
            return
        lane.going = True
        places, sender = lane.places, key[1]
        while places and places[0].ready:
            message = places.popleft().message
            self._hand_over(sender, message)
            # Whoever took it has noted its handles, or dropped them.
            self._runtime.memory.forgo(_checked(getattr(message, "handles", [])))
        lane.going = False
        if not places:
            self._lanes.pop(key, None)
            if sender in self._deaths and not self._has(sender):
                self._down(*self._deaths.pop(sender))

    def _hand_over(self, sender: int, message: Message) -> None:
        kind = type(message)
        try:
            self._inner[kind](sender, message)
        except RemoteProtocolError as error:
            self._runtime.note(f"refused a {kind.__name__} that had waited: {error}")
        except Exception as error:  # it must not take those behind it along
            self._runtime.complain(f"handling a {kind.__name__} that had waited", error)

    def holds_back(self, address: Address, reason: str) -> bool:
        """A process is gone, behind all that it had sent: True when some of that waits here.

        What waits for its memory is settled, in any case.
        """
        self._adopting.owner_gone(address.incarnation)
        if not self._has(address.incarnation):
            return False
        self._deaths[address.incarnation] = (address, reason)
        return True

    def _has(self, sender: int) -> bool:
        return any(key[1] == sender for key in self._lanes)

    def __len__(self) -> int:
        """How many messages wait."""
        return sum(len(lane.places) for lane in self._lanes.values())


def _checked(values: list[Any]) -> list[Any]:
    try:
        return list(read_handles(values))
    except RemoteProtocolError:
        return []
