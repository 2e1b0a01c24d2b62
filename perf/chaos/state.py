"""What a node holds: streams, permits, leases, tasks, descriptors, memory, processes, files; read
before a run and after it, and compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from actors import CallHomeError, Client
from actors.cluster.folder import locked
from actors.messages import Inspect, Record

#: What has to be as before to the last one, and what may differ by so much: a process that was
#: started again has other connections, and the allocator keeps what it has had.
SLACK: Final = {"descriptors": 16, "threads": 4, "tasks": 4, "segments": 1, "rss": 96 << 20}
#: An engine that has a thread for each stream at the same time, up to its capacity.
SYNC: Final = "chaos.threads"
CAPACITY: Final = 32
_MUST_BE_ZERO: Final = ("in_flight", "queued", "permits", "memory.slots", "memory.lent")
_INCARNATION: Final = re.compile(r"\.[0-9a-f]{8,16}\.")
#: Seconds that an actor may take to say how it is, on a machine that has others to serve.
_ANSWER: Final = 20.0
_KINDS: Final = ("engine", "router", "ingress", "actor", "node")


@dataclass
class State:
    """``actors``: by name, what each carries and holds; ``files``: kinds of files in the run
    folder; ``shared``: our files below /dev/shm.
    """

    actors: dict[str, dict[str, int]] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)
    shared: list[str] = field(default_factory=list)
    #: Descendants of this process, zombies among them.
    processes: int = 0
    #: What the descriptors of each actor are.
    held: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def living(client: Client, kind: str) -> list[Record]:
    """Actors of one kind on the client's own node, ordered by name."""
    found = [each for each in client.records() if each.kind == kind]
    if kind == "engine":
        found = [each for each in found if not each.via]
    return sorted(found, key=lambda each: each.address.name)


async def read(client: Client, folder: str) -> State:
    """The state of the node in ``folder``; an actor that does not answer is not in it."""
    state = State(files=_files(folder), shared=_shared(folder), processes=_processes())
    for kind in _KINDS:
        for record in living(client, kind):
            try:
                carried = await _inspect(client, record.address.name)
                if kind in ("actor", "node"):
                    carried["in_flight"] -= 1  # our question
            except CallHomeError:
                continue
            state.held[record.address.name] = _held(record.address.pid)
            state.actors[record.address.name] = carried | of_process(record.address.pid)
    # Last: asking has made the connections that it takes.
    state.actors["this process"] = _own(client)
    state.held["this process"] = _held(os.getpid())
    return state


def missing(client: Client, state: State) -> list[str]:
    """Names of those of the node who live, and are not in ``state``."""
    names = [each.address.name for kind in _KINDS for each in living(client, kind)]
    return [name for name in names if name not in state.actors]


def _processes() -> int:
    import psutil

    return len(psutil.Process().children(recursive=True))


def _own(client: Client) -> dict[str, int]:
    """What the launcher and its client hold."""
    memory = client.runtime.memory.statistics()
    held = {"memory.slots": memory.slots, "memory.lent": memory.lent}
    return held | {"tasks": len(asyncio.all_tasks())} | of_process(os.getpid())


async def _inspect(client: Client, name: str) -> dict[str, int]:
    found: dict[str, Any] = {}
    async with client.ref(name).stream(Inspect(), timeout=_ANSWER) as answers:
        async for answer in answers:
            found = answer
    counters = found.get("counters", {})
    carried = {
        "in_flight": found.get("in_flight") or 0,
        "queued": found.get("queued") or 0,
        "permits": sum(each["load"] for each in found.get("workers", ())),
        "memory.slots": counters.get("memory.slots", 0),
        "memory.lent": counters.get("memory.lent", 0),
    }
    if "tasks" in counters:
        carried["tasks"] = counters["tasks"]
    return carried


def of_process(pid: int) -> dict[str, int]:
    """What the kernel knows of a process; segments are mappings of shared memory."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        status = Path(f"/proc/{pid}/status").read_text()
        return {
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "segments": sum("/memfd:" in line or "/dev/shm/callhome" in line for line in maps),
            "threads": int(_field(status, "Threads")),
            "rss": int(_field(status, "VmRSS").split()[0]) << 10,
        }
    except (OSError, ValueError, IndexError):
        return {}


def _held(pid: int) -> Counter[str]:
    """Kinds of descriptors of a process."""
    kinds: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                kinds[os.readlink(f"/proc/{pid}/fd/{fd}").partition(":[")[0]] += 1
    return kinds


def _field(status: str, name: str) -> str:
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    raise ValueError(name)


def _files(folder: str) -> Counter[str]:
    """Names without the incarnations, which change with every restart, and without clients. The
    door to an actor's memory is made when it is first needed: it is left out while its actor lives.
    """
    names = set(os.listdir(folder))
    kept = [
        name
        for name in names
        if "client-" not in name and not (name.endswith(".m") and f"{name[:-2]}.d" in names)
    ]
    return Counter(_INCARNATION.sub(".*.", name) for name in kept)


def _shared(folder: str) -> list[str]:
    """Memory of this cluster that has a name and no living owner; others may run on the machine."""
    cluster = os.path.basename(os.path.dirname(folder))
    names = [name for name in os.listdir("/dev/shm") if name.startswith("callhome")]
    return sorted(name for name in names if cluster in name and not _owned(f"/dev/shm/{name}"))


def _owned(path: str) -> bool:
    """Whether a living process holds the lock of its folder of segments, or it has just gone."""
    return locked(path) or not os.path.exists(path)


def busy(state: State) -> list[str]:
    """What is still under way."""
    return [
        f"{name} has {what} {carried[what]}"
        for name, carried in state.actors.items()
        for what in _MUST_BE_ZERO
        if carried.get(what)
    ]


def differences(base: State, now: State) -> Iterator[str]:
    """All that is not back to base, a line each."""
    yield from busy(now)
    for name in sorted(base.actors.keys() - now.actors.keys()):
        yield f"{name} does not answer"
    for name in sorted(now.actors.keys() - base.actors.keys()):
        yield f"{name} was not there before"
    for name in sorted(base.actors.keys() & now.actors.keys()):
        for line in _grown(name, base.actors[name], now.actors[name]):
            more = now.held[name] - base.held[name] if "descriptors" in line else ""
            yield f"{line} {more}".rstrip()
    if now.processes != base.processes:
        yield f"{now.processes} processes below this one, {base.processes} before"
    if now.files != base.files:
        more, less = now.files - base.files, base.files - now.files
        yield f"files of the node: {dict(more)} more, {dict(less)} less than before"
    if new := sorted(set(now.shared) - set(base.shared)):
        yield f"left below /dev/shm: {', '.join(new)}"


def _grown(name: str, base: dict[str, int], now: dict[str, int]) -> Iterator[str]:
    for what, slack in SLACK.items():
        if what == "threads" and name.startswith(SYNC):
            slack += CAPACITY  # they stay, for the next streams
        if what in base and now.get(what, 0) > base[what] + slack:
            yield f"{name} has {now[what]:,} {what}, {base[what]:,} before"


async def wait_back(client: Client, folder: str, base: State, limit: float) -> tuple[State, float]:
    """Wait until all is as before, for ``limit`` seconds at most; the state then, and the wait."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        now = await read(client, folder)
        waited = loop.time() - begun
        if not list(differences(base, now)) or waited > limit:
            return now, waited
        await asyncio.sleep(0.25)
