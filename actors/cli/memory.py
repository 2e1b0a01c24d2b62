"""``ps --memory``: who has how much shared memory, from whom, and for how long."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from actors.cli.show import put, say, size, table
from actors.client import Client
from actors.cluster.folder import NodeInfo
from actors.config import Settings
from actors.errors import CallHomeError
from actors.messages import Record
from actors.notices import InspectMemory

_HEAD: Final = ("NODE", "ACTOR", "WHAT", "WITH", "STREAM", "FRAMES", "SIZE", "SECONDS")
#: Lines of a table, all nodes and actors together.
_LINES: Final = 300
#: How long one actor may take to say what it has, in seconds.
_PATIENCE: Final = 3.0


async def ps_memory(nodes: list[NodeInfo], as_json: bool) -> bool:
    """Print what every actor of these nodes says of its memory; False when one could not be asked.

    Clients are programs of their own that nobody can ask: what they hold of actors stands with
    those, and ``Client.memory`` tells them themselves.
    """
    good, cells, hidden = True, [], 0
    for info in nodes:
        try:
            found = await _ask(info)
        except CallHomeError as error:  # one node that hangs must not hide the others
            say(f"error: node {info.cluster}/{info.node}: {error}")
            good = False
            continue
        if as_json:
            actors = [{"name": name, **memory} for name, memory in found]
            facts = {"cluster": info.cluster, "node": info.node, "pid": info.address.pid}
            put(json.dumps({**facts, "folder": info.folder, "actors": actors}))
            continue
        for name, memory in found:
            rows, more = _rows(memory)
            hidden += more
            cells += [(f"{info.cluster}/{info.node}", name, *row) for row in rows]
    if not as_json:
        put(table(_HEAD, cells[:_LINES]))
        hidden += max(len(cells) - _LINES, 0)
        if hidden:
            put(f"and {hidden} more (--json shows more of them)")
    return good


async def _ask(info: NodeInfo) -> list[tuple[str, dict[str, Any]]]:
    async with Client(run=info.folder, settings=Settings.load()) as client:
        names = sorted({each.address.name for each in _processes(client.records())})
        answers = await asyncio.gather(*[_one(client, name) for name in names])
    return list(zip(names, answers, strict=True))


def _processes(records: list[Record]) -> list[Record]:
    """Those that are on this node's bus."""
    return [each for each in records if each.address.pid]


async def _one(client: Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        answers = client.ref(name).stream(InspectMemory(), timeout=_PATIENCE)
        async with answers:
            async for answer in answers:
                found = answer if isinstance(answer, dict) else {}
    except CallHomeError as error:
        return {"reason": str(error)}
    return found


def _rows(memory: dict[str, Any]) -> tuple[list[tuple[str, ...]], int]:
    """Lines of one actor, and how many it did not tell."""
    if "reason" in memory:
        return [("no answer", " ".join(str(memory["reason"]).split())[:80], *["-"] * 4)], 0
    rows: list[tuple[str, ...]] = []
    for each in _maps(memory, "segments"):
        idle = each.get("idle")
        what = f"segment {each.get('number')} ({each.get('kind')})"
        used = f"{_size(each, 'used')} of {_size(each)}"
        word = f"idle {idle:.1f}" if isinstance(idle, int | float) else "-"
        rows.append((what, "-", "-", "-", used, word))
    for each in _maps(memory, "leases"):
        what = "held" if each.get("actor") is None else "lent to"
        rows.append(
            (what, _who(each), str(each.get("stream") or "-"), "1", _size(each), _age(each))
        )
    for each in _maps(memory, "borrowed"):
        frames = str(each.get("frames"))
        if each.get("unopened"):
            frames += f", {each['unopened']} more not read yet"
        by = f" by {each['road']}" if each.get("road") else ""
        what = f"borrowed{by} from"
        rows.append((what, _who(each), "-", frames, _size(each), _age(each)))
    for each in _maps(memory, "readers"):
        rows.append((f"read by {each.get('road')}", _who(each), "-", "-", "-", "-"))
    for each in _maps(memory, "passed"):
        what = f"passed on, of {each.get('owner')}"
        rows.append(
            (what, _who(each), str(each.get("stream") or "-"), "1", _size(each), _age(each))
        )
    for each in _maps(memory, "waiting"):
        rows.append(("waiting for", "-", "-", "1", _size(each), _age(each)))
    more = memory.get("more")
    return rows, more if type(more) is int else 0


def _maps(memory: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [each for each in memory.get(key) or () if isinstance(each, dict)]


def _who(each: dict[str, Any]) -> str:
    if each.get("actor") is None:
        return "-"
    return f"{each['actor']} (pid {each['pid']})" if each.get("pid") else str(each["actor"])


def _size(each: dict[str, Any], key: str = "size") -> str:
    found = each.get(key)
    return size(found) if type(found) is int else "-"


def _age(each: dict[str, Any]) -> str:
    age = each.get("age")
    return f"{age:.1f}" if isinstance(age, int | float) else "-"
