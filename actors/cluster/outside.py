"""A client outside any node: ``connect("tcp://host:port")``.

It has what a node has, as far as calling needs it, in the program's own process: a bus, a router
that follows the node at that address, and the client itself. Their sockets stand in a run folder of
their own, which goes when the client is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from types import TracebackType
from typing import Any, Final, Self

from actors.client import Client
from actors.cluster.folder import Claim, remove_folder
from actors.cluster.here import Placed
from actors.cluster.sweep import OUTSIDE, sweep_outside
from actors.cluster.unmet import silent, uncalled, worded
from actors.config import Settings
from actors.discovery.base import Listener
from actors.discovery.lookup import NodeLookup
from actors.discovery.merged import MergedDiscovery
from actors.discovery.registry import Registry, RegistrySubscription
from actors.errors import (
    CallHomeError,
    LocalProtocolError,
    SpawnError,
    SpecError,
)
from actors.kernel.actor import Actor
from actors.kernel.runtime import Runtime
from actors.router.actor import RouterActor
from transport.bus.port import Bus
from transport.callhome.address import check_hostport

SCHEME: Final = "tcp://"
#: Seconds between two looks at what the router has heard.
_LOOK: Final = 0.01


class _Own:
    """The records of this program itself: its router, for the client to find."""

    def __init__(self) -> None:
        self.registry = Registry()

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        return self.registry.subscribe(listener)


class OutsideClient(Client):
    """A Client of the node whose ingress listens at ``address`` (``tcp://host:port``).

    Made by ``connect``; everything a Client does, and actors of that node are out of its reach.
    Raises SpecError for an address that is none. Entering it raises what the road raises:
    ConnectionLost when nobody listens there, RemoteProtocolError when it is no node of callhome,
    CallBackFailed when the node cannot call this program back, DeadlineExceeded when it says
    nothing within ``connect_timeout``.
    """

    def __init__(
        self, address: str, *, settings: Settings | None = None, name: str | None = None
    ) -> None:
        self._peer = address.removeprefix(SCHEME)
        if self._peer == address:
            raise SpecError(f"connect: {address[:200]!r} is not of the form 'tcp://host:port'")
        check_hostport(self._peer, SpecError, "connect")
        self._outside = settings or Settings.load()
        super().__init__(run="", settings=self._outside, name=name, bus=Bus())
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._entered:
            raise LocalProtocolError("this client was entered before; make another one")
        self._entered = True
        try:
            await self._build()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _build(self) -> None:
        assert self._bus is not None
        stack, settings = self._stack, self._outside
        unique = f"{OUTSIDE}{os.getpid():x}-{secrets.token_hex(2)}"
        sweep_outside(settings.run)
        claim = Claim(settings.run, unique, "client")
        stack.callback(claim.close)
        stack.callback(remove_folder, claim.folder)
        stack.callback(self._bus.close)
        # Not the block's own group: a failure of the router must not cancel the program.
        group = await stack.enter_async_context(asyncio.TaskGroup())
        own = _Own()
        self._merged = MergedDiscovery(own)
        stack.callback(self._merged.stop)
        placed = Placed(self._router_spec(claim.folder), self._bus, self._prepare)
        task = group.create_task(placed.run(), name="router of an outside client")
        stack.push_async_callback(placed.wait_stopped, task, settings.stop_grace)
        try:
            own.registry.add(await placed.wait_started(task, settings.start_timeout))
        except SpawnError as error:  # a router is no news to whoever connects
            if isinstance(error.__cause__, SpecError):
                raise error.__cause__ from None
            raise
        await self._meet()
        lookup = NodeLookup(own)
        await lookup.start()
        runtime = Runtime(run=claim.folder, name=self._name, settings=settings, bus=self._bus)
        stack.callback(self.close)
        self._begin(runtime, self._merged, lookup)

    def _router_spec(self, folder: str) -> dict[str, Any]:
        return {
            "role": "router",
            "name": "router",
            "run": folder,
            "settings": self._outside.to_dict(),
            "peers": [self._peer],
        }

    def _prepare(self, actor: Actor) -> None:
        assert isinstance(actor, RouterActor)
        actor.discovery = self._merged
        self._router = actor

    async def _meet(self) -> None:
        """Wait until the node has told what it serves. Raises why it has not."""
        peers = self._router.peers
        settings = self._outside
        limit = settings.connect_timeout or settings.start_timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        try:
            while self._peer not in peers.connected:
                if (failure := peers.failures.get(self._peer)) is not None:
                    raise worded(self._peer, failure, limit)
                if loop.time() > deadline:
                    told = self._router.awaits(self._peer)
                    raise uncalled(self._peer, told, limit) if told else silent(self._peer, limit)
                await asyncio.sleep(_LOOK)
        except CallHomeError:
            self._router.patience = 0.0  # who has not met us has nothing to hear at the end
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open and self._fork.happened:
            self._fork.end(f"left the block of a client of {self._peer}", error)
        await self._stack.aclose()
