"""What a router says of workers that take no stream now. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from actors.kernel.verdicts import FROZEN, ILLNESSES, STALLED, UNREADY
from actors.router.member import (
    BUSY,
    FREE,
    LEASED,
    QUARANTINED,
    TRIAL,
    Limits,
    Member,
)

#: Workers that are named.
_NAMED = 4


def ill_words(member: Member, now: float) -> str:
    """Who is frozen, stalled or unready, since when, and why where that is told."""
    carried = member.carried
    lasted = max(0.0, now - member.ill_since)
    why = f": {member.ill_why}" if member.ill_why else ""
    who = f"worker {carried.instance} ({carried.address})"
    return f"{who} is {member.ill} since {lasted:.1f} s{why}"


def busy_words(states: Counter[str], limits: Limits, ill: Sequence[Member], now: float) -> str:
    """How many workers are in which of the ``states``, and why none takes a stream; ``ill``: those
    that are frozen, stalled or unready.
    """
    count = states.total()
    if not count:
        return "no worker of it is there any more; wait for a restart (see callhome ps)"
    steps = []
    if limits.streams is not None:
        steps.append(f"busy_streams={limits.streams}")
    if limits.fraction is not None:
        steps.append(f"busy_fraction={limits.fraction:g}")
    words = {
        FREE: "free for others",
        BUSY: f"at the limit ({', '.join(steps)})",
        LEASED: "refused a stream for want of room a moment ago",
        QUARANTINED: "in quarantine after a fault",
        TRIAL: "on trial after a fault",
        FROZEN: "frozen",
        STALLED: "stalled",
        UNREADY: "unready",
    }
    told = [f"{states[each]} {text}" for each, text in words.items() if states[each]]
    told += [ill_words(each, now) for each in ill[:_NAMED]]
    if sum(states[each] for each in ILLNESSES) == count:
        who = (
            "its one worker takes no streams"
            if count == 1
            else f"none of its {count} workers goes on"
        )
        return (
            f"{who} ({'; '.join(told)}); wait until they go on, or restart them (see callhome ps)"
        )
    who = "its one worker is busy" if count == 1 else f"all {count} workers are busy"
    if states[FREE]:
        who = "its one worker" if count == 1 else f"none of its {count} workers"
        who += " does not take this stream" if count == 1 else " takes this stream"
    ways = ["try again later", "add replicas or capacity", "raise the limits (callhome busy)"]
    if not limits.queue:
        ways.append("give the router a queue")
    return f"{who} ({'; '.join(told)}); {', '.join(ways[:-1])}, or {ways[-1]}"
