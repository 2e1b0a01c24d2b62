"""What an ingress tells routers of other nodes about the load of each of its engines.

Told by ``actors.ingress.occupancy`` as the items of a stream, read by ``actors.router.reports``.
What is read comes from outside: an entry that does not hold is left out, for nothing known is
better than a load that is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

#: The path at which every ingress of ours tells it; older ones have nothing there.
OCCUPANCY: Final = "callhome/occupancy"
_LOADS: Final = "loads"
_LARGEST_ID: Final = (1 << 64) - 1
#: More streams than this are none that any engine has.
_MOST: Final = 1 << 30


class Load(NamedTuple):
    """One engine's load, as one router should see it.

    ``seq`` grows with each that this ingress tells. ``yours`` are those of the streams, running
    and ``queued``, that came from this router and have not sent an error item.
    """

    instance: int
    seq: int
    in_flight: int
    queued: int
    capacity: int
    yours: int


def pack_loads(loads: Iterable[Load]) -> dict[str, Any]:
    """The item of a stream that tells these."""
    return {_LOADS: [list(load) for load in loads]}


def read_loads(item: object) -> list[Load]:
    """The loads that an item tells; what is malformed, or of a later version, is left out."""
    told = item.get(_LOADS) if isinstance(item, dict) else None
    if not isinstance(told, list):
        return []
    return [Load(*each) for each in told if _is_load(each)]


def _is_load(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == len(Load._fields)
        and all(type(each) is int and each >= 0 for each in entry)
        and max(entry[:2]) <= _LARGEST_ID
        and max(entry[2:]) <= _MOST
    )
