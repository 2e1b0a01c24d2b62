"""``drain``: a node, or one of its engines, takes nothing new and ends what it has."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from typing import Any

from actors.cli.command import FAILED
from actors.cli.node import chosen
from actors.cli.show import put, say
from actors.cli.signals import Interrupts
from actors.client import Client
from actors.cluster.folder import NodeInfo
from actors.cluster.node import Ps
from actors.config import Settings
from actors.errors import RemoteProtocolError, SpecError
from actors.notices import DrainTarget

#: Seconds for a node to say which actors it has.
_PATIENCE = 5.0


def drain(options: Namespace) -> int:
    """``callhome drain``."""
    return asyncio.run(_drain(options))


def limit_of(options: Namespace) -> float:
    """Seconds for streams under way; below 0 where the node's setting holds."""
    return -1.0 if options.limit is None else float(options.limit)


async def follow(info: NodeInfo, message: Any, as_json: bool) -> dict[str, Any]:
    """Ask a node and show each step; the last one, ``done``. Raises what it answers."""
    name = f"{info.cluster}/{info.node}"
    async with Client(run=info.folder, settings=Settings.load()) as client:
        step: dict[str, Any] = {}
        async with client.ref("node").stream(message) as answers:
            async for answer in answers:
                if not isinstance(answer, dict) or "step" not in answer:
                    raise RemoteProtocolError(f"{name} tells steps that are none")
                step = answer
                line = f"{step['at']:9.3f} s  {name}  {step['step']:9}  {step['text']}"
                put(json.dumps({"node": name, **step}) if as_json else line)
        if step.get("step") != "done":
            raise RemoteProtocolError(f"{name} did not tell how it ended")
        return step


async def _drain(options: Namespace) -> int:
    nodes, target = chosen(options), options.target or ""
    if options.target == "":  # a variable of a script that is not set must drain no node
        raise SpecError("'' is no node, engine or instance; leave it out for the node itself")
    named = [info for info in nodes if info.node == target]
    if not target or named:
        nodes, target = named or nodes, ""
        if len(nodes) > 1:
            names = ", ".join(f"{info.cluster}/{info.node}" for info in nodes)
            raise SpecError(f"several nodes are running: {names}; name one of them")
    with Interrupts():
        for info in await _with(nodes, target):
            try:
                return await _one(info, target, options)
            except SpecError as error:
                unknown = error  # an instance, perhaps of the next node
            except asyncio.CancelledError:
                say("the drain goes on; 'callhome drain' again follows it, --limit 0 ends it")
                raise
    raise unknown


async def _with(nodes: list[NodeInfo], target: str) -> list[NodeInfo]:
    """Those that may mean the target: with an actor of that name, if there is one."""
    found = [info for info in nodes if len(nodes) > 1 and target in await actors_of(info)]
    if len(found) > 1:
        names = ", ".join(f"{info.cluster}/{info.node}" for info in found)
        raise SpecError(f"{target} is on several nodes: {names}; choose with --node")
    return found or nodes


async def actors_of(info: NodeInfo) -> set[str]:
    """The names of a node's actors."""
    async with Client(run=info.folder, settings=Settings.load()) as client:
        rows = await client.ref("node").ask(Ps(), timeout=_PATIENCE)
        return {row["name"] for row in rows}


async def _one(info: NodeInfo, target: str, options: Namespace) -> int:
    step = await follow(info, DrainTarget(target, limit_of(options)), options.json)
    if step.get("ok"):
        return 0
    say(f"error: {step.get('error') or step.get('text')}")
    return FAILED
