"""``callhome up``: start a node from its spec and keep it until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from argparse import Namespace
from dataclasses import replace
from typing import Any, Final

from actors.cli.command import FAILED
from actors.cli.show import say
from actors.cli.signals import Interrupts
from actors.cluster import rules
from actors.cluster.cores import parse_cores
from actors.cluster.folder import live_nodes
from actors.cluster.launcher import Cluster
from actors.cluster.meeting import unreadable
from actors.cluster.script import load_spec
from actors.cluster.spec import IngressSpec, NodeSpec
from actors.config import FOLDER_NAME, Settings, host_port
from actors.errors import CallHomeError, ConnectionLost, SpecError
from actors.ingress.advertised import members
from actors.kernel.exits import Exit
from actors.messages import Inspect
from transport.callhome.address import hostport, local_address_toward

_ETCD: Final = "etcd://"
#: Seconds between two looks whether other nodes are known: the first, and the longest.
_FIRST_LOOK: Final = 0.1
_LONGEST_LOOK: Final = 5.0
#: Seconds between two looks for a way to etcd.
_AGAIN: Final = 0.25
#: How long a router may take to say what it knows, in seconds.
_PATIENCE: Final = 3.0


def up(options: Namespace) -> int:
    """``callhome up SPEC``."""
    cores = None if options.cores is None else parse_cores(options.cores)
    spec = _with_roads(load_spec(options.spec), options)
    name = _name(options.spec) if options.cluster is None else options.cluster
    cluster = Cluster(spec, cluster=name, cores=cores, progress=say)
    return asyncio.run(_keep(cluster, spec))


def _with_roads(spec: NodeSpec, options: Namespace) -> NodeSpec:
    """The spec with what the options say of other nodes: they stand above it, and add peers."""
    if options.listen is not None:
        listen = host_port(options.listen, "--listen")
        ingress = spec.ingress and replace(spec.ingress, listen=listen)
        spec = replace(spec, listen=listen, ingress=ingress)
    if options.peer:
        added = [rules.peer(each, "--peer") for each in options.peer]
        if twice := next((each for each in added if added.count(each) > 1), ""):
            raise SpecError(f"--peer: {twice!r} stands twice")
        spec = replace(spec, peers=tuple(dict.fromkeys((*spec.peers, *added))))
    if options.directory is not None:
        spec = replace(spec, directory=rules.directory(options.directory, "--directory"))
    if options.node is not None:
        spec = replace(spec, name=FOLDER_NAME(options.node, "--node"))
    if options.namespace is not None:
        spec = replace(spec, namespace=rules.namespace(options.namespace, "--namespace"))
    return spec if options.join is None else _joined(spec, options.join)


def _joined(spec: NodeSpec, join: str) -> NodeSpec:
    """The spec of a node that finds others by etcd, and is found by them where it has engines."""
    if not join.startswith(_ETCD):
        raise SpecError(
            f"--join: {join[:200]!r} is no etcd://host:port; for the address at which another node "
            "listens use --peer HOST:PORT, for a folder that nodes share --directory PATH"
        )
    spec = replace(spec, etcd=rules.etcd(join, "--join"))
    if spec.ingress is not None or not spec.engines:
        return spec
    if os.environ.get("DYN_TCP_RPC_HOST"):
        return replace(spec, ingress=IngressSpec())
    own = _own_address(join, spec.settings.start_timeout)
    return replace(spec, ingress=IngressSpec(hostport(own, 0)))


def _own_address(etcd: str, limit: float) -> str:
    """The address of this machine by which etcd is reached: others come by the same network.

    A machine that has just started may have no network yet, or nobody who knows names: that is
    waited for. Raises ConnectionLost after ``limit`` seconds.
    """
    until = time.monotonic() + limit
    told = False
    while True:
        failures = []
        for host in members(etcd):
            try:
                return local_address_toward(host)
            except ConnectionLost as error:
                failures.append(str(error))
        text = f"--join: {'; '.join(failures)}"
        if time.monotonic() >= until:
            text += "; start it when there is a way, or give --listen HOST:PORT"
            raise ConnectionLost(text)
        if not told:
            told = True
            say(f"{text}; tried again for {limit:g} s")
        time.sleep(_AGAIN)


def _name(reference: str) -> str:
    """A cluster is called like its file, so that a second start of the same file is noticed."""
    stem = os.path.basename(reference).partition(":")[0].rpartition(".")[0]
    return re.sub(r"[^A-Za-z0-9_.-]", "-", stem).strip("-.")[:40] or "main"


async def _keep(cluster: Cluster, spec: NodeSpec) -> int:
    stopping = asyncio.Event()
    with Interrupts(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as interrupts:
        async with cluster:
            # It serves: from here on a signal stops it in order, and that is no failure.
            interrupts.ask = stopping.set
            if spec.etcd:
                await _tell_joined(cluster, spec)
            talks = await _suggest(cluster)
            late = asyncio.create_task(_suggest_far(cluster, spec, talks))
            try:
                ended = await _wait(cluster, stopping)
            finally:
                late.cancel()
                await asyncio.wait({late})
            if ended is None:
                say("stopping; once more ends it by force")
    name = f"{cluster.name}/{spec.name}"
    if ended is None:
        _, how = await cluster.wait_ended()
        if not how.clean:
            say(f"error: node {name} has not stopped in order: {how}; its actors ended with it")
            return FAILED
    if ended is None or ended.clean:
        say(f"node {name} has stopped")
        return 128 + signal.SIGINT if interrupts.number == signal.SIGINT else 0
    say(f"error: node {name} ended by itself: {ended}; see its output above, start it again")
    # Of an essential actor, where that was why.
    return ended.code if ended.code > 0 else FAILED


async def _wait(cluster: Cluster, stopping: asyncio.Event) -> Exit | None:
    """How a node ended, or None when we are told to stop first."""
    asked = asyncio.create_task(stopping.wait())
    ended = asyncio.create_task(cluster.wait_ended())
    try:
        await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        return ended.result()[1] if ended.done() else None
    finally:
        asked.cancel()
        ended.cancel()


async def _tell_joined(cluster: Cluster, spec: NodeSpec) -> None:
    """Where the node looks for others, and at what address they find it."""
    listen = next((info.listen for info in cluster.nodes if info.listen), "")
    told = f"advertises {listen}" if listen else "offers no engines to others: it has no ingress"
    within = f" (namespace {spec.namespace})" if spec.namespace else ""
    router = await _asked(cluster, spec.routers[0].name) if spec.routers else {}
    if why := unreadable(router):
        say(f"warning: {why}; until then nodes elsewhere are not found, and do not find this one")
        say(f"node {spec.name} joins {spec.etcd}{within} as soon as it can, and {told}")
    else:
        say(f"node {spec.name} has joined {spec.etcd}{within}, and {told}")


async def _suggest(cluster: Cluster) -> bool:
    """What to type next, with endpoints that there are; whether there are any."""
    try:
        async with cluster.client() as client:
            records = client.records()
    except ConnectionLost:
        return True  # the node has ended again; that is told next
    engines = [record for record in records if record.kind == "engine"]
    talks = {record.many: _try(record.endpoint, record.many) for record in reversed(engines)}
    option = _option(cluster)
    say("try, from another shell:")
    for line in ("callhome ps", *talks.values(), "callhome stop"):
        say(f"  {line}{option}")
    listen = next((info.listen for info in cluster.nodes if info.listen), "")
    if listen and talks:
        talk = next(iter(talks.values()))
        say(f"or, from wherever it can be reached: {talk} --connect tcp://{listen}")
    return bool(talks)


async def _suggest_far(cluster: Cluster, spec: NodeSpec, talks: bool) -> None:
    """An endpoint of another node to try, once one is known, where this node has none itself."""
    if talks or not spec.routers or not (spec.peers or spec.directory or spec.etcd):
        return
    pause = _FIRST_LOOK
    while not (far := await _far(cluster, spec.routers[0].name)):
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_LOOK)
    say("engines of other nodes are known now; try, from another shell:")
    for line in far:
        say(f"  {line}{_option(cluster)}")


async def _asked(cluster: Cluster, router: str) -> dict[str, Any]:
    """What a router says of itself; nothing while it is being started again, perhaps."""
    found: Any = {}
    try:
        async with cluster.ref(router).stream(Inspect(), timeout=_PATIENCE) as answers:
            async for answer in answers:
                found = answer
    except CallHomeError:
        return {}
    return found if isinstance(found, dict) else {}


async def _far(cluster: Cluster, router: str) -> list[str]:
    workers = (await _asked(cluster, router)).get("workers", [])[::-1]
    talks = {each["many"]: _try(each["endpoint"], each["many"]) for each in workers}
    return list(talks.values())


def _option(cluster: Cluster) -> str:
    others = {info.cluster for info in live_nodes(Settings.load().run)} - {cluster.name}
    return f" --cluster {cluster.name}" if others else ""


def _try(endpoint: str, many: bool) -> str:
    return f"callhome chat {endpoint}" if many else f"callhome stream {endpoint} JSON"
