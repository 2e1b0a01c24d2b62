"""Whole nodes that find each other in etcd, and callers that go on whatever happens there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actors import Client, EngineSpec, IngressSpec, NodeSpec, RouterSpec, Settings
from actors.cluster.spec import Place
from actors.errors import CallHomeError
from tests.e2e.watching import inspect
from tests.etcd import Etcd

#: Seconds that a record lives in etcd without a sign of its node: processes of a busy machine may
#: stand for two of them.
TTL = 4.0
WHO = "t.who.go"


def settings(**given: Any) -> Settings:
    """Of a node that notices soon."""
    own = {"lease_ttl": TTL, "frozen_after": 1.0, "stop_grace": 2.0, "drain_grace": 0.3}
    return Settings.load(**own | given)


def worker(etcd: Etcd, name: str, endpoint: str = WHO, **given: Any) -> NodeSpec:
    """A node with an engine, which others find in etcd. ``args`` are the engine's, ``replicas`` how
    many of it there are, ``place`` is the ingress's, the rest is the node's.
    """
    door = IngressSpec(place=given.pop("place", "process"))
    replicas = given.pop("replicas", 1)
    args = {"name": name} | given.pop("args", {})
    engine = EngineSpec(endpoint, "tests.e2e.discovery_engines:Who", replicas=replicas, args=args)
    own: dict[str, Any] = {
        "settings": settings(),
        "ingress": door,
        "routers": [],
        "etcd": etcd.address,
    }
    return NodeSpec(name=name, engines=[engine], **own | given)


def caller(etcd: Etcd, name: str = "a", place: Place = "process", **given: Any) -> NodeSpec:
    """A node without engines, whose router finds those of others in etcd. One in the process of the
    test (``place="here"``) is up sooner.
    """
    own: dict[str, Any] = {"name": name, "settings": settings(), "etcd": etcd.address}
    own["routers"] = [RouterSpec(place=place)]
    return NodeSpec(**own | given)


class Load:
    """What became of calls that go on at a steady pace."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        self.failures: list[CallHomeError] = []

    def names(self, since: float = 0.0) -> set[str]:
        """Who has answered since then (monotonic)."""
        return {each["name"] for each in self.answers if each["at"] >= since}


@asynccontextmanager
async def calling(client: Client, rate: float, endpoint: str = WHO) -> AsyncIterator[Load]:
    """Calls, ``rate`` a second, begun whether or not those before have ended; all have ended when
    the block is left.
    """
    load = Load()

    async def call() -> None:
        try:
            load.answers.append(await client.call(endpoint, None, timeout=20.0))
        except CallHomeError as error:
            load.failures.append(error)

    async def go_on(tasks: asyncio.TaskGroup) -> None:
        due = time.monotonic()
        while True:
            tasks.create_task(call())
            due = max(due + 1 / rate, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async with asyncio.TaskGroup() as tasks:
        going = tasks.create_task(go_on(tasks))
        try:
            yield load
        finally:
            going.cancel()


async def known(client: Client, router: str = "router") -> list[int]:
    """The instances that a router knows, each as often as it does."""
    return [each["instance"] for each in (await inspect(client, router)).get("workers", ())]
