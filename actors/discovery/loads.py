"""What an ingress tells routers of other nodes about the load of each of its engines.

Told by ``actors.ingress.occupancy`` as the items of a stream, read by ``actors.router.reports``.
What is read comes from outside: an entry that does not hold is left out, for nothing known is
better than a load that is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from actors.kernel.verdicts import ILLNESSES, UNREADY

#: The path at which every ingress of ours tells it; older ones have nothing there.
OCCUPANCY: Final = "callhome/occupancy"
_LOADS: Final = "loads"
_ILL: Final = "ill"
_MOST_ILL: Final = 500
#: Characters of a reason.
_WHY: Final = 240
#: What a router asks with: its node takes warnings of streams. Older ones ask with nothing.
FOLLOWS: Final = {"warnings": True}
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


class Ill(NamedTuple):
    """An engine that is ``frozen``, ``stalled`` or ``unready``, ``since`` seconds before it was
    told; ``why`` is told of the last only, which nodes of older versions do not know.
    """

    instance: int
    code: str
    since: float
    why: str = ""


def pack_loads(loads: Iterable[Load], ill: Iterable[Ill] | None = None) -> dict[str, Any]:
    """The item of a stream that tells these; ``ill``: all who are, where that has changed."""
    item: dict[str, Any] = {_LOADS: [list(load) for load in loads]}
    if ill is not None:
        item[_ILL] = [list(each if each.code == UNREADY else each[:3]) for each in ill]
    return item


def read_loads(item: object) -> list[Load]:
    """The loads that an item tells; what is malformed, or of a later version, is left out."""
    told = item.get(_LOADS) if isinstance(item, dict) else None
    if not isinstance(told, list):
        return []
    return [Load(*each) for each in told if _is_load(each)]


def read_ill(item: object) -> list[Ill] | None:
    """Who is ill, as an item tells, which is none that is not told of; None: it tells nothing."""
    told = item.get(_ILL) if isinstance(item, dict) else None
    if not isinstance(told, list):
        return None
    read = [Ill(*each) for each in told[:_MOST_ILL] if _is_ill(each)]
    return [each._replace(why=" ".join(each.why.split())[:_WHY]) for each in read]


def _is_ill(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and [*map(type, entry)] in ([int, str, float], [int, str, float, str])
        and 0 <= entry[0] <= _LARGEST_ID
        and entry[1] in ILLNESSES
        and 0 <= entry[2] < 1e9
    )


def follows_warnings(request: object) -> bool:
    """Whether who follows says that his node takes ``Warned``."""
    return isinstance(request, dict) and request.get("warnings") is True


def _is_load(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == len(Load._fields)
        and all(type(each) is int and each >= 0 for each in entry)
        and max(entry[:2]) <= _LARGEST_ID
        and max(entry[2:]) <= _MOST
    )
