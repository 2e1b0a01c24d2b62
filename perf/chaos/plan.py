"""What a chaos run does, when and to whom: all of it follows from the seed. Pure.

Two runs of one seed ask for the same streams and send the same signals at the same times to the
same roles. How far each stream is when a signal comes is up to the processes, and not repeatable.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

KIB, MIB = 1 << 10, 1 << 20
#: How often each shape comes, of 100.
SHAPES: Final = {
    "unary": 20,  # one value there and back, large ones too
    "stream": 20,
    "bidi": 14,  # what is sent comes back
    "frames": 12,  # written in place, or copied
    "forward": 10,  # an engine hands on the items of another
    "threads": 8,  # a sync engine
    "tokens": 12,  # may be continued elsewhere
    "ask": 4,  # a user's actor
}
#: What a caller does before the end; most do nothing.
ACTIONS: Final = {"": 66, "leave": 8, "stop": 8, "kill": 6, "cancel": 6, "by_id": 6}
#: The deadline of most streams: far more than ``perf.chaos.tally.QUIET``, which is to tell who
#: waits for what is lost.
LONG: Final = 40.0
#: Whom a signal is for; those of the second node are not there all the time.
TARGETS: Final = {
    "engine": 40,
    "far.engine": 16,
    "router": 12,
    "ingress": 8,
    "far.ingress": 6,
    "actor": 4,
    "client": 10,
}
#: What is done to them.
DEEDS: Final = {"kill": 40, "stop": 35, "term": 25}
#: Bytes of all items of one stream, and of one item.
TOTAL: Final = 16 * MIB
LARGEST: Final = 4 * MIB
#: The shapes whose engines may stand on two workers and continue one another's streams.
RESUMED: Final = ("tokens",)


class Play(NamedTuple):
    """One stream: who opens it, when, and what is to come of it.

    ``at`` and all times are seconds; ``kind`` is what the items carry (``bytes``, ``array``,
    ``frame``), ``size`` their bytes. ``pace`` is the reader's pause after each item, ``slow`` the
    engine's. ``action`` is done after ``after`` items (``cancel``: after ``wait`` seconds).
    """

    number: int
    at: float
    client: int
    shape: str
    items: int
    size: int
    kind: str
    pace: float
    slow: float
    action: str
    after: int
    wait: float
    timeout: float
    priority: int
    migrations: int


class Fault(NamedTuple):
    """One signal: ``deed`` is kill, stop (for ``seconds``) or term; ``which`` counts within the
    role, modulo how many there are.
    """

    at: float
    deed: str
    role: str
    which: int
    seconds: float


@dataclass(frozen=True)
class Options:
    """What a run was asked for; with the seed, all that the plan depends on."""

    seed: int
    seconds: float
    engines: int = 8
    nodes: int = 2
    clients: int = 4
    rate: float = 20.0
    every: float = 0.5
    roles: tuple[str, ...] = tuple(TARGETS)
    deeds: tuple[str, ...] = tuple(DEEDS)

    def to_json(self) -> str:
        """For a client's process."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Plan:
    """All of a run: streams and signals by time, and when the second node is up (from, to)."""

    options: Options
    plays: tuple[Play, ...]
    faults: tuple[Fault, ...]
    phases: tuple[tuple[float, float], ...]

    @property
    def digest(self) -> str:
        """Two runs with one digest were asked for the same."""
        text = json.dumps([self.plays, self.faults, self.phases])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def lines(self) -> Iterator[str]:
        """JSON lines: the options, then every stream and every signal."""
        yield json.dumps({"options": asdict(self.options), "digest": self.digest})
        yield from (json.dumps({"node b": phase}) for phase in self.phases)
        yield from (json.dumps({"stream": play._asdict()}) for play in self.plays)
        yield from (json.dumps({"signal": fault._asdict()}) for fault in self.faults)


def make(options: Options) -> Plan:
    """The plan of a seed."""
    return Plan(
        options,
        tuple(_plays(options, _random(options, "streams"))),
        tuple(_faults(options, _random(options, "signals"))),
        tuple(_phases(options, _random(options, "phases"))),
    )


def _random(options: Options, part: str) -> random.Random:
    """Each part draws on its own, so that one can be changed and the others stay as they were."""
    return random.Random(f"{options.seed}/{part}")


def _pick(dice: random.Random, weights: dict[str, int]) -> str:
    return dice.choices(list(weights), list(weights.values()))[0]


def _plays(options: Options, dice: random.Random) -> Iterator[Play]:
    at, number = 0.0, 0
    while (at := at + dice.expovariate(options.rate)) < options.seconds:
        yield _play(number, round(at, 3), options, dice)
        number += 1


def _play(number: int, at: float, options: Options, dice: random.Random) -> Play:
    shape = _pick(dice, SHAPES)
    size = _size(shape, dice)
    items = _items(shape, size, dice)
    action = _pick(dice, ACTIONS)
    if shape in ("unary", "ask") and action in ("leave", "stop", "kill"):
        action = "by_id" if shape == "unary" else "cancel"
    slow = dice.choice((0.0, 0.0, 0.001, 0.01)) if items <= 300 else 0.0
    pace = dice.choice((0.0, 0.0, 0.0, 0.002, 0.02)) if items <= 300 else 0.0
    return Play(
        number,
        at,
        # Actors of the node are out of reach of the last client, who is outside.
        dice.randrange(options.clients - (shape == "ask")),
        shape,
        items,
        size,
        _kind(shape, dice),
        pace,
        slow,
        action,
        dice.randint(0, max(items - 1, 0)),
        round(dice.uniform(0.0, 0.5), 3),
        _timeout(dice),
        dice.choice((0, 0, 0, 5, -5)),
        dice.choice((1, 3, 8)) if shape in RESUMED else 0,
    )


def _size(shape: str, dice: random.Random) -> int:
    """Any power of ten as likely as the next; frames are those that do not go inline."""
    least = 32 * KIB if shape in ("frames", "forward") and dice.random() < 0.8 else 1
    most = KIB if shape == "tokens" else LARGEST
    return int(math.exp(dice.uniform(math.log(least), math.log(most))))


def _items(shape: str, size: int, dice: random.Random) -> int:
    if shape in ("unary", "ask"):
        return 1
    least = 1 if shape == "tokens" else 0
    most = dice.choice((1, 10, 50, 300, 2_000))
    return min(dice.randint(least, most), max(1, TOTAL // size))


def _kind(shape: str, dice: random.Random) -> str:
    if shape == "frames":
        return dice.choice(("frame", "array"))
    if shape == "forward":
        return dice.choice(("frame", "array", "frame", "bytes"))
    return dice.choice(("bytes", "bytes", "array", "frame"))


def _timeout(dice: random.Random) -> float:
    kind = dice.random()
    if kind < 0.7:
        return LONG
    low, high = (2.0, 8.0) if kind < 0.92 else (0.02, 1.0)
    return round(dice.uniform(low, high), 3)


def _faults(options: Options, dice: random.Random) -> Iterator[Fault]:
    roles = {role: weight for role, weight in TARGETS.items() if role in options.roles}
    deeds = {deed: weight for deed, weight in DEEDS.items() if deed in options.deeds}
    at = 1.0
    while (at := at + dice.expovariate(1.0 / options.every)) < options.seconds:
        role, deed = _pick(dice, roles), _pick(dice, deeds)
        which = dice.randrange(1 << 16)
        seconds = round(dice.uniform(0.2, 5.0), 3)
        if options.nodes > 1 or not role.startswith("far."):
            yield Fault(round(at, 3), deed, role, which, seconds)


def _phases(options: Options, dice: random.Random) -> Iterator[tuple[float, float]]:
    """The second node is up for two stretches of the run."""
    if options.nodes < 2:
        return
    for begin, end in ((0.05, 0.45), (0.55, 0.95)):
        low, high = sorted(dice.uniform(begin, end) for _ in range(2))
        middle, half = (low + high) / 2, max((high - low) / 2, 0.1)
        yield (
            round(options.seconds * max(begin, middle - half), 3),
            round(options.seconds * min(end, middle + half), 3),
        )
