"""Another node's pieces on this loop: an engine and the ingress in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from actors import Settings
from actors.cluster.entry import running
from actors.discovery.record import SPEAKS, routing_path
from actors.engine.actor import EngineActor
from actors.ingress.actor import IngressActor
from actors.messages import Record
from tests.router.rig import Told, far_record, spec


class Node:
    """Engines behind one ingress; ``records`` are theirs as another node sees them."""

    def __init__(self, ingress: IngressActor, told: Told, engines: list[EngineActor]) -> None:
        self.ingress = ingress
        self.engines = engines
        self.told = told

    @property
    def records(self) -> list[Record]:
        return [
            far_record(
                f"{self.ingress.reached}/{routing_path(each)}",
                each.endpoint,
                each.instance,
                many=each.many,
                capacity=each.capacity,
                speaks=SPEAKS,
            )
            for each in self.told.records
        ]


@asynccontextmanager
async def node(
    folder: Path, *engines: tuple[str, type, dict[str, Any]], capacity: int = 64, **settings: Any
) -> AsyncIterator[Node]:
    """A node in ``folder`` with one engine for each endpoint and class."""
    given = Settings(**settings)
    async with AsyncExitStack() as stack:
        told, actors = Told(), []
        for number, (endpoint, engine, args) in enumerate(engines):
            actor = EngineActor(engine, args, endpoint, capacity, 1024, None)
            name = spec(folder, f"engine-{number}", given) | {"role": "engine"}
            await stack.enter_async_context(running(name, actor))
            actors.append(actor)
            many = bool(actor.facts().get("many"))
            own = actor.address
            told.records.append(Record(own.incarnation, own, "engine", endpoint, many, capacity))
        ingress = IngressActor()
        ingress.discovery = told
        role = {"role": "actor"}  # so that it keeps the discovery it has
        await stack.enter_async_context(running(spec(folder, "ingress", given) | role, ingress))
        yield Node(ingress, told, actors)
