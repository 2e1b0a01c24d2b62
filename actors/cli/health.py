"""``health``: whether nodes are live and ready, for people and for probes.

A probe runs every few seconds: what is not needed is not imported, and for ``--live`` a look at the
node's signs of life is enough, as long as they are fresh.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from argparse import Namespace
from typing import Any, Final, NamedTuple

from actors.cli.command import FAILED
from actors.cli.show import put
from actors.cluster.folder import NodeInfo, folders, locked, read_info
from actors.config import Settings
from actors.errors import CallHomeError, SpecError
from actors.health import Finding, Health, judge
from actors.kernel.signs import read_beats

#: Signs of life that are older, or a loop that turns later, are looked into by asking the node.
_FRESH: Final = 2.0
#: Seconds of the timeout that are kept for the answer to be shown.
_SHOW: Final = 0.1
_STARTS: Final = "it starts or stops, and does not answer before all of it serves"


class Verdict(NamedTuple):
    """Of one node; ``ready`` None: it was not asked for."""

    cluster: str
    node: str
    pid: int
    live: bool
    ready: bool | None
    found: list[Finding]
    told: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "cluster": self.cluster,
            "node": self.node,
            "pid": self.pid or None,
            "live": self.live,
            "ready": self.ready,
            "reasons": [each.line() for each in self.found if each.bad],
            "notes": [each.line() for each in self.found if not each.bad],
            "lag": self.told.get("lag"),
            "actors": self.told.get("actors") or [],
        }


def health(options: Namespace) -> int:
    """``callhome health``."""
    return asyncio.run(_health(options))


async def _health(options: Namespace) -> int:
    until = time.monotonic() + (3600.0 if options.timeout is None else options.timeout) - _SHOW
    looks = [_look(folder, options, until) for folder in _folders(options)]
    results = await asyncio.gather(*looks, return_exceptions=True)
    verdicts = [each for each in results if isinstance(each, Verdict)]
    failures = [each for each in results if isinstance(each, BaseException)]
    # An engine that one node does not have is looked for on the others.
    if failures and not (verdicts and all(isinstance(each, SpecError) for each in failures)):
        raise failures[0]
    if not verdicts:
        from actors.cluster.launcher import find_node

        find_node(options.cluster, options.node)  # says what there is instead
        return FAILED
    for each in verdicts:
        if options.json:
            put(json.dumps(each.to_dict()))
        else:
            _show(each, options)
    return 0 if all(_is_well(each, options) for each in verdicts) else FAILED


def _folders(options: Namespace) -> list[str]:
    found = folders(Settings.load().run)
    return [
        folder
        for folder in found
        if options.node in (None, os.path.basename(folder))
        and options.cluster in (None, os.path.basename(os.path.dirname(folder)))
    ]


def _is_well(verdict: Verdict, options: Namespace) -> bool:
    if options.live:
        return verdict.live
    return bool(verdict.live and verdict.ready)


def _show(verdict: Verdict, options: Namespace) -> None:
    words = ["live" if verdict.live else "not live"]
    if verdict.ready is not None:
        words.append("ready" if verdict.ready else "not ready")
    who = f"{verdict.cluster}/{verdict.node}"
    if options.instance and verdict.ready is not None:
        who, words = f"{options.instance} of {who}", words[1:]
    put(f"{who}: {', '.join(words)}")
    for each in verdict.found:
        put(f"  {'' if each.bad else 'note: '}{each.line()}")


async def _look(folder: str, options: Namespace, until: float) -> Verdict | None:
    """The verdict on the node of a folder; None where no node is."""
    info = read_info(folder)
    cluster, node = os.path.basename(os.path.dirname(folder)), os.path.basename(folder)
    if info is None or not info.alive:
        if not locked(folder):
            return None
        found = [Finding("node", _STARTS, "", not options.live)]
        ready = None if options.live else False
        return Verdict(cluster, node, 0, True, ready, found, {})
    if options.live and _beats(info):
        return Verdict(info.cluster, info.node, info.address.pid, True, None, [], {})
    who, live = (info.cluster, info.node, info.address.pid), False
    if (failure := _stopped(info)) is None:
        told = await _ask(info, until)
        if isinstance(told, dict):
            found = [] if options.live else judge(told, options.instance or "")
            ready = None if options.live else not any(each.bad for each in found)
            return Verdict(*who, True, ready, found, told)
        # Perhaps a node of an older version, or one that is busy with something else.
        failure, live = told, _beats(info)
    return Verdict(*who, live, None if options.live else False, [failure], {})


def _beats(info: NodeInfo) -> bool:
    """Whether the node's signs of life are fresh and its loop turns: there is no need to ask."""
    sign = read_beats(info.folder, info.address) if info.near else None
    if sign is None:
        return False
    return time.monotonic() - sign.beat < _FRESH and sign.beat - sign.turn < _FRESH


def _stopped(info: NodeInfo) -> Finding | None:
    """A process that is stopped needs not be asked, and would not answer."""
    if not info.near:
        return None
    from actors.kernel.beats import process_of
    from actors.kernel.verdicts import STOPPED

    process, pid = process_of(info.address.pid), info.address.pid
    if process is None:
        return Finding(f"node (pid {pid})", "its process is gone", "start it anew", True)
    if process.state != STOPPED:
        return None
    action = f"kill -CONT {pid} lets it go on"
    return Finding(f"node (pid {pid})", "its process is stopped", action, True)


async def _ask(info: NodeInfo, until: float) -> dict[str, Any] | Finding:
    """What the node says of itself, or that it does not."""
    from actors.client import Client

    left = max(until - time.monotonic(), 0.05)
    try:
        async with asyncio.timeout(left):
            settings = Settings.load(connect_timeout=left)
            async with (
                Client(run=info.folder, settings=settings) as client,
                client.ref("node").stream(Health(), timeout=left) as answers,
            ):
                async for answer in answers:
                    if isinstance(answer, dict):
                        return answer
        failure = "its answer is none"
    except TimeoutError:
        failure = f"it gave no answer within {left:.1f} s"
    except CallHomeError as error:
        failure = f"it gave no answer: {' '.join(str(error).split())}"
    pid = info.address.pid
    action = f"kill -USR2 {pid} has it write where it is"
    return Finding(f"node (pid {pid})", failure, action, True)
