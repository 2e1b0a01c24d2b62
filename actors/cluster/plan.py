"""From the spec of a node to the processes that it consists of.

Called by the node's own process (children) and by the launcher (the node itself, and what it runs
in its own process). Everything here is plain data that crosses to a child as JSON.

Engines, routers and the ingress start beside each other (half a second less until a node with four
engines serves), then the user's actors, which may call endpoints when they start. Stopping goes
through actors, doors and engines: the doors close before the rooms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.cluster.spec import (
    ActorSpec,
    EngineSpec,
    IngressSpec,
    Instance,
    NodeSpec,
    RouterSpec,
)
from actors.config import Settings
from actors.kernel.children import ChildSpec
from actors.kernel.restart import Intensity
from actors.messages import Record
from transport.bus.address import Address

NODE_NAME: Final = "node"
#: The module whose ``run_actor`` a child calls: the kernel knows no role, so it is told by name.
ENTRY: Final = "actors.cluster.entry"
STAGES: Final = {"engine": 0, "router": 0, "ingress": 0, "actor": 1}
STOPS: Final = {"engine": 0, "router": 1, "ingress": 1, "actor": 2}
#: How many stops there are, one after the other.
ROUNDS: Final = len(set(STOPS.values()))
#: What a node needs on top of its actors' own times, in seconds.
MARGIN: Final = 3.0
#: Seconds for a withdrawal to stand in etcd and directories.
GRACE: Final = 4.0


def patience(settings: Settings) -> float:
    """Seconds that stopping a node may take: records that are withdrawn beyond it, streams that go
    on to their limit, and then every actor that uses up its grace time.
    """
    away = settings.drain_grace + GRACE
    return away + settings.drain_limit + ROUNDS * settings.stop_grace + MARGIN


def node_child(
    node: NodeSpec,
    cluster: str,
    folder: str,
    lock: int,
    cpus: Mapping[str, Sequence[int] | None],
) -> dict[str, Any]:
    """The child spec of the node's own process; ``lock`` is the descriptor of its claim."""
    return {
        "role": "node",
        "name": NODE_NAME,
        "incarnation": None,
        "run": folder,
        "cluster": cluster,
        "node": node.name,
        "supervisor": None,
        "entry": ENTRY,
        "cpus": None,
        "settings": node.settings.to_dict(),
        "class": "actors.cluster.node:NodeActor",
        "args": {
            "node": node.to_dict(),
            "cluster": cluster,
            "folder": folder,
            "lock": lock,
            "cpus": {name: list(own) if own else None for name, own in cpus.items()},
        },
    }


def actor_child(
    instance: Instance,
    *,
    cluster: str,
    node: NodeSpec,
    folder: str,
    supervisor: Address,
    cpus: Sequence[int] | None,
) -> dict[str, Any]:
    """The child spec of one actor of ``node``."""
    return {
        "role": instance.role,
        "name": instance.name,
        "incarnation": None,
        "run": folder,
        "cluster": cluster,
        "node": node.name,
        "supervisor": list(supervisor),
        "entry": ENTRY,
        "cpus": list(cpus) if cpus else None,
        "settings": node.settings.to_dict(),
        **_role_keys(instance.spec, node),
        **_others(instance, node),
    }


def _others(instance: Instance, node: NodeSpec) -> dict[str, Any]:
    """Who starts beside an engine or actor, and who behind it; see ``actors.kernel.starting``."""
    spec = instance.spec
    if spec.place != "process" or not isinstance(spec, ActorSpec | EngineSpec):
        return {}
    given = [each for each in node.instances() if isinstance(each.spec, ActorSpec)]
    beside = [each.name for each in given if each.spec.place == "process"]
    if isinstance(spec, EngineSpec):
        beside = []
    return {
        "beside": beside,
        "behind": [each.name for each in given if each.name not in beside],
    }


def _role_keys(
    spec: RouterSpec | IngressSpec | EngineSpec | ActorSpec, node: NodeSpec
) -> dict[str, Any]:
    if isinstance(spec, RouterSpec):
        return {
            "class": "actors.router.actor:RouterActor",
            "args": {},
            "routing": spec.routing(),
            "peers": list(node.peers),
            **_beyond(node),
        }
    if isinstance(spec, IngressSpec):
        return {
            "class": "actors.ingress.actor:IngressActor",
            "args": {"listen": spec.listen, "advertise": spec.advertise},
            **_beyond(node),
        }
    if isinstance(spec, ActorSpec):
        return {"class": spec.target, "args": dict(spec.args)}
    return {
        "class": spec.target,
        "args": dict(spec.args),
        "endpoint": spec.endpoint,
        "capacity": spec.capacity,
        "queue": spec.queue,
        "adapter": spec.adapter_target,
        "device": spec.device,
        "canary": spec.canary,
    }


def _beyond(node: NodeSpec) -> dict[str, Any]:
    """Where nodes find each other; see ``actors.discovery.sources``."""
    return {"directory": node.directory, "etcd": node.etcd, "namespace": node.namespace}


def children(
    node: NodeSpec,
    *,
    cluster: str,
    folder: str,
    supervisor: Address,
    cpus: Mapping[str, Sequence[int] | None],
) -> list[ChildSpec]:
    """What the node's supervisor starts: every actor with a process of its own."""
    settings = node.settings
    found = []
    for instance in node.instances():
        spec = instance.spec
        if spec.place != "process":
            continue
        found.append(
            ChildSpec(
                name=instance.name,
                spec=actor_child(
                    instance,
                    cluster=cluster,
                    node=node,
                    folder=folder,
                    supervisor=supervisor,
                    cpus=cpus.get(instance.name),
                ),
                env=dict(getattr(spec, "env", {})),
                stage=STAGES[instance.role],
                stop=STOPS[instance.role],
                restart=spec.restart,
                intensity=Intensity(settings.max_restarts, settings.restart_period),
                start_timeout=settings.start_timeout,
                grace=settings.stop_grace,
                essential=spec.essential,
                early=instance.role == "actor",
            )
        )
    return found


def here(node: NodeSpec) -> list[Instance]:
    """What the launcher runs in its own process, in the order of starting."""
    placed = [each for each in node.instances() if each.spec.place == "here"]
    return sorted(placed, key=lambda each: STAGES[each.role])


def record_of(spec: Mapping[str, Any], address: Address, facts: Mapping[str, Any]) -> Record:
    """The record of an actor that serves: from its child spec and what it told about itself."""
    return Record(
        instance=address.incarnation,
        address=address,
        kind=str(spec["role"]),
        endpoint=str(spec.get("endpoint", "")),
        many=bool(facts.get("many", False)),
        capacity=int(facts.get("capacity", 0)),
        codec=str(facts.get("codec", spec["settings"]["codec"])),
        via=str(facts.get("via", "")),
        device=str(spec.get("device", "")),
        device_id=str(facts.get("device_id", "")),
    )
