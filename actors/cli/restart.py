"""``restart``: actors of running nodes are started anew, without a failed request."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

from actors.cli.command import FAILED
from actors.cli.drain import actors_of, follow, limit_of
from actors.cli.node import chosen
from actors.cli.show import say
from actors.cli.signals import Interrupts
from actors.cluster.folder import NodeInfo
from actors.errors import SpecError
from actors.notices import RestartActors


def restart(options: Namespace) -> int:
    """``callhome restart``."""
    return asyncio.run(_restart(options))


async def _restart(options: Namespace) -> int:
    nodes = chosen(options)
    if len(clusters := sorted({info.cluster for info in nodes})) > 1:
        raise SpecError(
            f"several clusters are running: {', '.join(clusters)}; choose with --cluster"
        )
    with Interrupts():
        work = await _shared(nodes, options.actors) if options.actors else [(n, []) for n in nodes]
        for at, (info, names) in enumerate(work):
            try:
                done = await _one(info, names, options)
            except asyncio.CancelledError:
                say("interrupted: the node finishes the actor that it is at, and stops there")
                raise
            if not done.get("ok"):
                say(f"error: {done.get('error') or done.get('text')}")
                _say_left([info for info, _ in work[at + 1 :]])
                return FAILED
    return 0


def _say_left(nodes: list[NodeInfo]) -> None:
    if nodes:
        names = ", ".join(f"{info.cluster}/{info.node}" for info in nodes)
        say(f"left as they were: all actors of {names}")


async def _shared(nodes: list[NodeInfo], wanted: list[str]) -> list[tuple[NodeInfo, list[str]]]:
    """Which node has which of the actors that were named. Raises SpecError for one that none has.

    A single node is asked for all of them, and knows best what is wrong with a name.
    """
    if len(nodes) == 1:
        return [(nodes[0], wanted)]
    found = []
    missing = set(wanted)
    for info in nodes:
        there = await actors_of(info)
        if names := [each for each in wanted if each in there]:
            found.append((info, names))
            missing -= set(names)
    if missing:
        known = ", ".join(f"{info.cluster}/{info.node}" for info in nodes)
        raise SpecError(f"no actor is called {', '.join(sorted(missing))} on {known}")
    return found


async def _one(info: NodeInfo, names: list[str], options: Namespace) -> dict[str, Any]:
    message = RestartActors(names, options.rolling, limit_of(options))
    return await follow(info, message, options.json)
