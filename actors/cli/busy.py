"""``busy``: from when on the routers of a node give a worker no more streams."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any, Final

from actors.cli.node import chosen
from actors.cli.show import put, table
from actors.cli.signals import Interrupts
from actors.client import Client
from actors.cluster.folder import NodeInfo
from actors.config import Settings, nearest
from actors.errors import SpecError
from actors.messages import BusyAt, Inspect

_HEAD: Final = ("ROUTER", "ENDPOINT", "WORKER", "INSTANCE", "STATE", "LOAD", "DEVICE", "WHERE")
#: How long a router may take to answer, in seconds.
_PATIENCE: Final = 3.0


def busy(options: Namespace) -> int:
    """``callhome busy``."""
    return asyncio.run(_busy(options))


async def _busy(options: Namespace) -> int:
    rows: list[tuple[str, ...]] = []
    with Interrupts():
        for info in chosen(options):
            async with Client(run=info.folder, settings=Settings.load()) as client:
                for name in _routers(client, info, options.router):
                    rows += await _one(client, f"{info.cluster}/{info.node} {name}", name, options)
    if rows:
        put(table(_HEAD, rows))
    return 0


def _routers(client: Client, info: NodeInfo, name: str | None) -> list[str]:
    known = sorted(each.address.name for each in client.records() if each.kind == "router")
    if name is None:
        return known
    if name not in known:
        raise SpecError(
            f"--router: {info.cluster}/{info.node} has no router {name!r}{nearest(name, known)} "
            f"(it has: {', '.join(known) or 'none'})"
        )
    return [name]


async def _one(client: Client, where: str, name: str, options: Namespace) -> list[tuple[str, ...]]:
    """Set and tell the limits of one router; the rows of its workers, where nothing is set."""
    router = client.ref(name)
    found: dict[str, Any] = {}
    async with router.stream(Inspect(), timeout=_PATIENCE) as answers:
        async for answer in answers:
            found = answer
    limits = found.get("busy") or {}
    streams, fraction = limits.get("streams"), limits.get("fraction")
    if options.streams is None and options.fraction is None:
        put(f"{where}: {_words(streams, fraction)}")
        return [_row(name, worker) for worker in found.get("workers", ())]
    wanted = BusyAt(_chosen(options.streams, streams), _chosen(options.fraction, fraction))
    former = await router.ask(wanted, timeout=_PATIENCE)
    put(f"{where}: {_words(*wanted)} (before: {_words(*former)})")
    return []


def _chosen(option: Any, former: Any) -> Any:
    return former if option is None else None if option == "none" else option


def _words(streams: int | None, fraction: float | None) -> str:
    parts = [] if streams is None else [f"{streams} streams"]
    if fraction is not None:
        parts.append(f"{100 * fraction:g} % of its capacity")
    return f"busy from {' or '.join(parts)} on" if parts else "no limit"


def _row(router: str, worker: dict[str, Any]) -> tuple[str, ...]:
    load = f"{worker['load']}/{worker['capacity'] or '-'}"
    instance, state = str(worker["instance"]), str(worker["state"])
    rest = (worker["device_id"] or worker["device"] or "-", worker["where"] or "-")
    return (router, worker["endpoint"], worker["worker"], instance, state, load, *rest)
