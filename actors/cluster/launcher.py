"""Start a cluster from a script, and leave nothing of it behind.

``Cluster`` is what launcher scripts and ``callhome up`` use; ``find_node`` serves the other
commands, which meet a node that somebody else has started.

Every node is a process of its own (``actors.cluster.node``), so a launcher that is killed takes its
nodes with it and not the other way round: a node ends when its launcher does, in order if there is
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

from actors.client import Client
from actors.cluster.cores import cpu_quota, parse_cores, permitted, plan, told
from actors.cluster.first import First
from actors.cluster.folder import (
    Claim,
    NodeInfo,
    barred,
    live_nodes,
    read_info,
    remove_folder,
)
from actors.cluster.force import Force
from actors.cluster.here import Outpost
from actors.cluster.meeting import found_by
from actors.cluster.plan import MARGIN, ROUNDS, node_child, patience
from actors.cluster.spec import NodeSpec
from actors.cluster.sweep import sweep_claimed, sweep_stale
from actors.config import FOLDER_NAME, Settings
from actors.errors import ActorDead, LocalProtocolError, SpecError
from actors.kernel.descriptors import scarce
from actors.kernel.exits import Exit
from actors.kernel.forks import Fork
from actors.kernel.ref import Ref
from actors.kernel.spawn import Child, Launch

_OUTSIDE: Final = "the cluster is not running; use it inside its 'async with' block"

Progress = Callable[[str], None]


def _print_progress(text: str) -> None:
    if sys.stderr is not None:  # the launcher may have been started without one
        with contextlib.suppress(OSError):  # or its terminal has been closed
            sys.stderr.write(f"callhome: {text}\n")
            sys.stderr.flush()


class _Node:
    """One node of a cluster as its launcher holds it."""

    def __init__(
        self,
        spec: NodeSpec,
        cluster: str,
        cpus: dict[str, tuple[int, ...] | None],
        progress: Progress | None,
    ) -> None:
        self.spec = spec
        self.cluster = cluster
        self._cpus = cpus
        self._progress = progress
        self._child: Child | None = None
        self._outpost: Outpost | None = None
        self._began = time.monotonic()
        self.folder = ""

    @property
    def child(self) -> Child:
        """The node's process. Raises LocalProtocolError outside the cluster's block."""
        if self._child is None:
            raise LocalProtocolError(_OUTSIDE)
        return self._child

    @property
    def outpost(self) -> Outpost:
        """Our place on the node. Raises LocalProtocolError outside the cluster's block."""
        if self._outpost is None:
            raise LocalProtocolError(_OUTSIDE)
        return self._outpost

    @property
    def patience(self) -> float:
        """Seconds that stopping may take."""
        return patience(self.spec.settings)

    def launch(self) -> None:
        """Claim the name and start the process. Raises NameTaken, SpecError, SpawnError."""
        self._began = time.monotonic()
        claim = Claim(self.spec.settings.run, self.cluster, self.spec.name)
        self.folder = claim.folder
        try:
            for line in sweep_claimed(claim.folder):
                self._tell(f"left by a dead node: {line}")
            for line in sweep_stale(self.spec.settings.run):
                self._tell(f"left by another that was killed: {line}")
            if few := scarce(len(self.spec.instances())):
                self._tell(f"warning: {few}")
            for line in told(self._cpus, len(self._cpus), cpu_quota(), permitted()):
                self._tell(f"node {self.spec.name}: {line}")
            spec = node_child(self.spec, self.cluster, claim.folder, claim.fd, self._cpus)
            launch = Launch(
                spec=spec,
                linger=self.patience,
                death_signal=None,  # our thread may end before our process does
                fds=(claim.fd,),
            )
            child = Child(launch, self._tell)
            child.launch(ROUNDS * self.spec.settings.start_timeout + MARGIN)
            self._child = child
        except BaseException:
            remove_folder(claim.folder)
            raise
        finally:
            claim.close()

    def _tell(self, text: str) -> None:
        if self._progress is not None:
            self._progress(text)

    async def wait_ready(self, group: asyncio.TaskGroup) -> None:
        """Wait for the node, then start what lives in this process. Raises SpawnError."""
        address = await self.child.wait_ready()
        self._outpost = Outpost(self.spec, self.cluster, group)
        await self._outpost.start(self.folder, address)
        self._tell(
            f"node {self.spec.name} of cluster {self.cluster} is ready "
            f"({time.monotonic() - self._began:.2f} s)"
        )

    @property
    def listen(self) -> str:
        """Where other nodes reach this one, or ""."""
        info = read_info(self.folder)
        return "" if info is None else info.listen

    async def meet(self, others: Sequence[_Node]) -> None:
        """Wait until this node knows the engines of those of the same cluster that it is to find,
        as peers, in a directory or in etcd: from then on they can be called.
        """
        peers = {
            each.listen: partial(each.outpost.engines, namespace)
            for each in others
            if each is not self
            and (namespace := found_by(self.spec, each.spec, each.listen)) is not None
        }
        limit = self.spec.settings.connect_timeout or self.spec.settings.start_timeout
        if peers:
            for peer, why in (await self.outpost.meet(peers, limit)).items():
                self._tell(f"node {self.spec.name} has not met its peer {peer} yet: {why}")

    async def stop(self) -> None:
        """Stop in order, then by force; nothing is left."""
        outpost, self._outpost = self._outpost, None
        if self._child is None:
            return
        force = Force(self._child, self.folder)
        force.begin()
        try:
            if outpost is not None:
                try:
                    await outpost.wait_drained()
                except asyncio.CancelledError:
                    self.child.kill()  # whoever waits has lost patience
                    raise
                finally:
                    await outpost.stop()
        finally:
            try:
                await self._child.stop(self.patience)
            finally:
                force.end()  # it has ended, or whoever waits has lost patience


class Cluster:
    """Nodes of one cluster, from entering the block (all ready) to leaving it (all gone).

    ``nodes``: one NodeSpec or several. ``cluster``: its name, by which ``callhome ps --cluster``
    finds it; a unique one by default. ``cores``: core numbers, or text such as ``"0-3"``, that the
    actors are spread over. ``progress``: True prints a line on stderr for each step of the start, a
    callable gets it.

    Raises SpecError at once for cores and names that are wrong; entering raises NameTaken and
    SpawnError (which names actor, stage and cause) after everything that had started is stopped
    again.
    """

    def __init__(
        self,
        nodes: NodeSpec | Sequence[NodeSpec],
        *,
        cluster: str | None = None,
        cores: Sequence[int] | str | None = None,
        progress: bool | Progress | None = None,
    ) -> None:
        specs = [nodes] if isinstance(nodes, NodeSpec) else list(nodes)
        given_name = f"c{secrets.token_hex(3)}" if cluster is None else cluster
        self.name = FOLDER_NAME(given_name, "cluster name")
        if not specs:
            raise SpecError("a cluster needs at least one NodeSpec")
        names = [spec.name for spec in specs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError(f"nodes: the name {twice[0]!r} stands twice; give each node its own")
        given = parse_cores(cores) if isinstance(cores, str) else cores
        tell = _print_progress if progress is True else progress or None
        self._nodes = [_Node(spec, self.name, plan(spec, given), tell) for spec in specs]
        self._tasks = contextlib.AsyncExitStack()
        self._first = First()

    async def __aenter__(self) -> Self:
        self._fork = Fork()
        self._first.begin()
        try:
            for node in self._nodes:
                node.launch()
            # Tasks of actors in this process; they keep their failures to themselves.
            group = await self._tasks.enter_async_context(asyncio.TaskGroup())
            for node in self._nodes:
                await node.wait_ready(group)
            for node in self._nodes:
                await node.meet(self._nodes)
        except BaseException as error:
            await self._leave(error)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fork.happened:
            self._fork.end(f"left the block of cluster {self.name}", error)
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        """Stop, for ``error`` or for the end of the block, and hear of SIGTERM until it is done."""
        try:
            await self._stop()
        except asyncio.CancelledError as late:
            error = late
            raise
        finally:
            self._first.end(error)

    async def _stop(self) -> None:
        async with self._tasks, contextlib.AsyncExitStack() as stack:
            for node in self._nodes:
                stack.push_async_callback(node.stop)

    def _node(self, name: str | None) -> _Node:
        for node in self._nodes:
            if name is None or node.spec.name == name:
                return node
        known = ", ".join(node.spec.name for node in self._nodes)
        raise SpecError(f"cluster {self.name!r} has no node {name!r}; it has: {known}")

    def client(
        self,
        node: str | None = None,
        *,
        name: str | None = None,
        settings: Settings | None = None,
    ) -> Client:
        """A client on ``node`` (the first by default), to be entered with ``async with``.

        ``settings``: its windows and limits, by default the node's. Raises LocalProtocolError
        outside the cluster's block, SpecError for a node that is not there.
        """
        return self._node(node).outpost.client(name, settings)

    def ref(self, name: str, node: str | None = None) -> Ref:
        """An actor on ``node`` (the first by default): tell, ask, stream. Raises as ``client``."""
        return self._node(node).outpost.ref(name)

    @property
    def nodes(self) -> list[NodeInfo]:
        """What each running node says about itself."""
        infos = (read_info(node.folder) for node in self._nodes)
        return [info for info in infos if info is not None]

    async def wait_ended(self) -> tuple[str, Exit]:
        """Wait until a node ends, however it does; its name and how it ended.

        A node ends by itself when an ``essential`` actor of it stays down, and with the exit code
        of that actor: ``sys.exit(how.status)`` hands it on, once the block is left.
        """
        exits = {node.child.exited: node.spec.name for node in self._nodes}
        done, _ = await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
        first = done.pop()
        return exits[first], first.result()


def connect(
    cluster: str | None = None,
    node: str | None = None,
    *,
    run: str | None = None,
    name: str | None = None,
    settings: Settings | None = None,
) -> Client:
    """A client of a node that somebody else has started: ``async with connect() as client``.

    The only running node of this machine by default; see ``find_node`` for the names and for what
    is raised. ``connect("tcp://host:port")`` is a client of the node whose ingress listens there,
    on this machine or another: see ``OutsideClient``.
    """
    settings = settings or Settings.load()
    if cluster is not None and "://" in cluster:
        if node is not None or run is not None:
            raise SpecError(f"connect: {cluster[:200]!r} names the node; leave out node and run")
        # Only who calls over TCP needs a router of its own.
        from actors.cluster.outside import OutsideClient

        return OutsideClient(cluster, settings=settings, name=name)
    info = find_node(cluster, node, run or settings.run)
    return Client(run=info.folder, settings=settings, name=name)


def find_node(
    cluster: str | None = None, node: str | None = None, run: str | None = None
) -> NodeInfo:
    """The one running node that the names describe, below ``run`` (the setting by default).

    Raises ActorDead when there is none, SpecError when there are several, or when a folder of
    another user is in the way.
    """
    root = run or Settings.load().run
    nodes = live_nodes(root)
    found = [
        info
        for info in nodes
        if (cluster is None or info.cluster == cluster) and (node is None or info.node == node)
    ]
    names = ", ".join(f"{info.cluster}/{info.node}" for info in nodes) or "none"
    if not found and (why := barred(root)):
        raise SpecError(f"no node can be looked for below {root}: {why}")
    if not found:
        which = "node" if cluster is None and node is None else "such node"
        raise ActorDead(
            f"no {which} is running (running below {root}: {names}); "
            "start one with 'callhome up', or set CALLHOME_RUN to its run folder"
        )
    if len(found) > 1:
        raise SpecError(f"several nodes are running: {names}; choose with --cluster and --node")
    return found[0]
