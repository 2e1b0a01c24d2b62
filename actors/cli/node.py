"""``ps`` and ``stop``: nodes that somebody else has started."""

from __future__ import annotations

import asyncio
import json
import time
from argparse import Namespace
from typing import Any, Final

from actors.cli.command import FAILED
from actors.cli.memory import ps_memory
from actors.cli.show import put, say, size, table
from actors.cli.signals import Interrupts
from actors.client import Client
from actors.cluster.cores import show
from actors.cluster.folder import NodeInfo, live_nodes
from actors.cluster.inspecting import cores_of, read_inspection
from actors.cluster.launcher import find_node
from actors.cluster.node import Ps
from actors.cluster.stopping import stop_node
from actors.config import Settings
from actors.errors import CallHomeError, SpecError
from actors.messages import Inspect, Record

_HEAD: Final = (
    "NODE", "ACTOR", "STATE", "PID", "CORES", "IN FLIGHT", "QUEUED", "RESTARTS", "RSS", "ENDPOINT",
)  # fmt: skip
#: What the states of workers mean that get no streams, and how many of them are told one by one.
_WORDS: Final = {
    "quarantined": "in quarantine after a fault",
    "trial": "being tried after a fault",
    "frozen": "frozen, its process shows no sign of life",
    "stalled": "stalled, its event loop does not turn",
    "unready": "unready, it has not answered its canary",
    "leased": "left alone for a moment, for it had no room",
}
_LINES: Final = 20
#: How long one node or actor may take to say what it carries, in seconds.
_PATIENCE: Final = 3.0


def ps(options: Namespace) -> int:
    """``callhome ps``."""
    return asyncio.run(_ps(options))


def stop(options: Namespace) -> int:
    """``callhome stop``."""
    return asyncio.run(_stop(options))


def chosen(options: Namespace) -> list[NodeInfo]:
    """The running nodes that the options describe. Raises ActorDead when there is none."""
    settings = Settings.load()
    found = [
        info
        for info in live_nodes(settings.run)
        if options.cluster in (None, info.cluster) and options.node in (None, info.node)
    ]
    return found or [find_node(options.cluster, options.node, settings.run)]


async def _ps(options: Namespace) -> int:
    code = 0
    seen: list[tuple[NodeInfo, list[dict[str, Any]]]] = []
    with Interrupts():
        if options.memory:
            return 0 if await ps_memory(chosen(options), options.json) else FAILED
        for info in chosen(options):
            try:
                seen.append((info, await _rows(info, options.counters)))
            except CallHomeError as error:  # one node that hangs must not hide the others
                say(f"error: node {info.cluster}/{info.node}: {error}")
                code = FAILED
    if options.json:
        for info, rows in seen:
            facts = {"cluster": info.cluster, "node": info.node, "pid": info.address.pid}
            put(json.dumps({**facts, "folder": info.folder, "actors": rows}))
        return code
    cells = [_cells(f"{info.cluster}/{info.node}", row) for info, rows in seen for row in rows]
    put(table(_HEAD, cells))
    for line in [*_unwell(seen), *_unseen(seen), *_unread(seen), *_away(seen)]:
        put(line)
    if options.counters:
        put("")
        put(table(("NODE", "ACTOR", "COUNTER", "VALUE"), _counted(seen)))
    return code


async def _rows(info: NodeInfo, counters: bool) -> list[dict[str, Any]]:
    """What a node says of its actors, and those in the launcher's process say of themselves."""
    async with Client(run=info.folder, settings=Settings.load()) as client:
        rows: list[dict[str, Any]]
        rows = await client.ref("node").ask(Ps(counters), timeout=_PATIENCE)
        told = {row["name"] for row in rows}
        for record in client.records():
            if record.kind != "node" and record.address.name not in told:
                rows.append(await _here(client, record, counters))
        return rows


async def _here(client: Client, record: Record, counters: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    vigil = client.runtime.vigil
    vigil.of(record.address, time.monotonic())  # a verdict takes two looks
    try:
        answers = client.ref(record.address.name).stream(Inspect(), timeout=_PATIENCE)
        async with answers:
            async for answer in answers:
                found = read_inspection(answer)
    except CallHomeError as error:
        found = {"reason": str(error)}
    now = time.monotonic()
    verdict = vigil.of(record.address, now)
    if not verdict.well:
        found = {"reason": verdict.why}
    row = {
        "name": record.address.name,
        "role": record.kind,
        "endpoint": record.endpoint or None,
        "listen": record.via or None,
        "state": "here" if verdict.well else verdict.code,
        "since": None if verdict.well else round(now - verdict.since, 1),
        "lag": vigil.lag(record.address, now),
        "pid": record.address.pid,
        "cores": cores_of(record.address.pid),
        "rss": None,  # of the whole program, not of the actor
        "restarts": 0,
        "reason": found.get("reason", ""),
        **{key: found.get(key) for key in ("in_flight", "queued", "capacity")},
        "peers": found.get("peers") or None,
        "discovery": found.get("discovery") or None,
        "advertised": found.get("advertised") or None,
        "away": found.get("away") or None,
    }
    return row | ({"counters": found.get("counters")} if counters else {})


def _cells(node: str, row: dict[str, Any]) -> tuple[str, ...]:
    flight = "-" if row["in_flight"] is None else str(row["in_flight"])
    if row["capacity"] is not None:
        flight += f"/{row['capacity']}"
    return (
        node,
        row["name"],
        row["state"],
        str(row["pid"] or "-"),
        "-" if row["cores"] is None else show(row["cores"]),
        flight,
        "-" if row["queued"] is None else str(row["queued"]),
        str(row["restarts"]),
        size(row["rss"]),
        row["endpoint"] or (f"{row['role']} {row['listen']}" if row["listen"] else row["role"]),
    )


def _unseen(seen: list[tuple[NodeInfo, list[dict[str, Any]]]]) -> list[str]:
    """A line for each peer that a node's routers were told of and do not see."""
    lines: dict[str, None] = {}
    for info, rows in seen:
        whose = f" of {info.cluster}/{info.node}" if len(seen) > 1 else ""
        for row in rows:
            for peer, why in (row["peers"] or {}).items():
                if why:
                    lines[f"peer {peer}{whose}: cannot be seen: {' '.join(why.split())}"] = None
    return list(lines)


def _unread(seen: list[tuple[NodeInfo, list[dict[str, Any]]]]) -> list[str]:
    """A line for each directory or etcd that cannot be used, and for each address that an ingress
    tells others and that does not lead to it.
    """
    lines = []
    for info, rows in seen:
        for row in rows:
            who = f"{row['name']} of {info.cluster}/{info.node}"
            for why in (row["discovery"] or {}).values():
                if why:
                    lines.append(f"{who}: {' '.join(why.split())}")
            if row["advertised"]:
                lines.append(f"{who}: {row['advertised']}")
    return lines


def _unwell(seen: list[tuple[NodeInfo, list[dict[str, Any]]]]) -> list[str]:
    """A line for each actor that is there and does not go on."""
    return [
        f"actor {row['name']} (pid {row['pid']}) of {info.cluster}/{info.node}: {row['state']} for "
        f"{row['since']:.1f} s: {row['reason']}"
        for info, rows in seen
        for row in rows
        if row.get("since") is not None
    ]


def _away(seen: list[tuple[NodeInfo, list[dict[str, Any]]]]) -> list[str]:
    """A line for each worker that gets no streams from a router now, though it is there."""
    lines = [
        f"worker {worker}: {_WORDS.get(state, state)}, at {row['name']} of "
        f"{info.cluster}/{info.node}"
        for info, rows in seen
        for row in rows
        for worker, state in sorted((row["away"] or {}).items())
    ]
    more = [f"and {len(lines) - _LINES} more workers"] if len(lines) > _LINES else []
    return lines[:_LINES] + more


def _counted(seen: list[tuple[NodeInfo, list[dict[str, Any]]]]) -> list[tuple[str, ...]]:
    """Counters that are not zero."""
    return [
        (f"{info.cluster}/{info.node}", row["name"], name, str(value))
        for info, rows in seen
        for row in rows
        for name, value in sorted((row["counters"] or {}).items())
        if value
    ]


async def _stop(options: Namespace) -> int:
    nodes = chosen(options)
    clusters = sorted({info.cluster for info in nodes})
    if len(clusters) > 1:
        raise SpecError(
            f"several clusters are running: {', '.join(clusters)}; choose with --cluster"
        )
    grace = 3600.0 if options.grace is None else options.grace
    code = 0
    with Interrupts():
        for info in nodes:
            stopped = await stop_node(info, grace)
            if stopped.in_order and not stopped.killed:
                say(f"node {info.cluster}/{info.node} has stopped")
            elif stopped.in_order:
                say(
                    f"error: node {info.cluster}/{info.node} has stopped; killed, for they did not "
                    f"stop in their time: {', '.join(stopped.killed)}"
                )
                code = FAILED
            else:
                say(
                    f"error: node {info.cluster}/{info.node} did not stop within {grace:g} s and "
                    "was killed; its actors end with it"
                )
                code = FAILED
    return code
