"""What a node is made of, as data: the same thing in Python, in TOML and as JSON for a process.

Every spec checks itself when it is made. A mistake raises ``SpecError`` at that place; it names the
key path (``engines[1].capacity``), what was given, what is allowed and the nearest known word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from actors.cluster import rules
from actors.cluster.checked import Checked
from actors.cluster.rules import Target
from actors.config import (
    FOLDER_NAME,
    SOCKET_NAME,
    Rule,
    Settings,
    flag,
    host_port,
    mapping,
    named,
    one_of,
    seconds,
    whole,
    wrong,
)
from actors.dynamo import device_ratio_of, directory_of, etcd_of, listen_of
from actors.errors import SpecError

Place: TypeAlias = Literal["process", "here"]
Restart: TypeAlias = Literal["on-failure", "always", "never"]
_PLACE = one_of("process", "here")
_RESTART = one_of("on-failure", "always", "never")


def _device_ratio() -> float:
    return device_ratio_of(os.environ)


@dataclass(frozen=True)
class RouterSpec(Checked):
    """A router actor: chooses a worker for each stream by ``policy``.

    ``policy`` is a mode (``least_loaded``, ``round_robin``, ``random``, ``power_of_two_choices``,
    ``device_aware_weighted``, ``direct``, ``sticky``) or a function of yours, ``module:function``.
    ``sticky`` keeps requests with the same text under ``sticky_key`` of their metadata at one
    worker; ``device_ratio`` is what an accelerator is worth in CPU workers.

    A worker is busy from ``busy_streams`` streams or ``busy_fraction`` of its capacity on, where
    these are given. When all are busy, ``queue`` streams may wait for one, ``queue_timeout``
    seconds each; beside several routers the engines need a queue, too, of a place for each router
    at least (they have one by default). ``dispatch`` makes the router's ``StreamingDispatch``, in
    place of ours.

    It is started again however it ends: without it the node has no door.
    """

    policy: Target = "least_loaded"
    name: str = "router"
    restart: Restart = "always"
    place: Place = "process"
    cpus: Sequence[int] | None = None
    sticky_key: str = "session"
    device_ratio: float = field(default_factory=_device_ratio)
    busy_streams: int | None = None
    busy_fraction: float | None = None
    queue: int = 0
    queue_timeout: float = 10.0
    dispatch: Target | None = None
    essential: bool = False

    _RULES: ClassVar[Mapping[str, Rule]] = {
        "policy": rules.policy,
        "name": SOCKET_NAME,
        "restart": _RESTART,
        "place": _PLACE,
        "cpus": rules.optional(rules.cpus),
        "sticky_key": rules.metadata_key,
        "device_ratio": rules.above_zero,
        "busy_streams": rules.optional(whole(1, 1 << 30)),
        "busy_fraction": rules.optional(rules.above_zero),
        "queue": whole(0, 1 << 20),
        "queue_timeout": seconds,
        "dispatch": rules.optional(rules.target),
        "essential": flag,
    }

    def routing(self) -> dict[str, Any]:
        """What the actor needs to know, as keywords of ``RouterActor``."""
        own = {"name", "restart", "place", "cpus", "essential"}
        return {key: value for key, value in self.to_dict().items() if key not in own}


def _listen() -> str:
    return listen_of(os.environ)


@dataclass(frozen=True)
class IngressSpec(Checked):
    """The node's door for streams from other nodes, at ``listen`` (``host:port``; port 0: any).

    Without ``listen`` it is where Dynamo's environment says, else any port of this machine alone.
    Whoever reaches it is trusted: nothing authenticates. ``advertise`` is what other nodes are told
    when they reach it under another address: a host, or ``host:port``.
    """

    listen: str = field(default_factory=_listen)
    advertise: str = ""
    name: str = "ingress"
    restart: Restart = "always"
    place: Place = "process"
    cpus: Sequence[int] | None = None
    essential: bool = False

    _RULES: ClassVar[Mapping[str, Rule]] = {
        "listen": host_port,
        "advertise": rules.advertised,
        "name": SOCKET_NAME,
        "restart": _RESTART,
        "place": _PLACE,
        "cpus": rules.optional(rules.cpus),
        "essential": flag,
    }


@dataclass(frozen=True)
class EngineSpec(Checked):
    """``replicas`` processes that serve ``endpoint`` with the user's ``engine``.

    ``capacity`` is the number of streams that a replica handles at once, ``queue`` the number that
    may wait for a place; one more is refused with ``Overloaded``. ``args`` go to the constructor as
    keywords. ``adapter`` (see ``PayloadAdapter``) reads and writes payloads in place of the codec;
    it takes no frames and nothing else from shared memory. Processes get ``env`` on top of the
    launcher's environment and run on ``cpus``. Without a ``name`` they are called as the endpoint.
    ``device`` is what they compute on (``cpu``, ``cuda`` …), for routers that weigh by it. Where a
    replica is ``essential`` and stays down, by its ``restart`` or after too many of them, the node
    stops, and ends with its exit code. ``canary`` is a request by which an engine that gives no
    item for a while shows that it still can (setting ``canary_wait``); None: none is sent.
    """

    endpoint: str
    engine: Target
    replicas: int = 1
    capacity: int = 64
    queue: int = 1024
    cpus: Sequence[int] | None = None
    restart: Restart = "on-failure"
    args: Mapping[str, Any] = field(default_factory=dict)
    adapter: Target | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    place: Place = "process"
    device: str = ""
    essential: bool = False
    canary: Any = None

    _RULES: ClassVar[Mapping[str, Rule]] = {
        "endpoint": rules.endpoint,
        "engine": rules.target,
        "replicas": whole(1, 1024),
        "capacity": whole(1, 65_536),
        "queue": whole(0, 1_048_576),
        "cpus": rules.optional(rules.cpus),
        "restart": _RESTART,
        "args": rules.arguments,
        "adapter": rules.optional(rules.target),
        "env": rules.variables,
        "name": rules.optional(SOCKET_NAME),
        "place": _PLACE,
        "device": rules.unless_empty(named(40)),
        "essential": flag,
        "canary": rules.json_value,
    }

    @property
    def target(self) -> str:
        """``engine`` as the text by which a child imports it."""
        return str(self.engine)

    @property
    def adapter_target(self) -> str | None:
        """``adapter`` as the text by which a child imports it."""
        return None if self.adapter is None else str(self.adapter)


@dataclass(frozen=True)
class ActorSpec(Checked):
    """An actor of the user's own, reached as ``cluster.ref(name)``; ``essential`` as of engines."""

    name: str
    actor: Target
    args: Mapping[str, Any] = field(default_factory=dict)
    restart: Restart = "on-failure"
    cpus: Sequence[int] | None = None
    place: Place = "process"
    env: Mapping[str, str] = field(default_factory=dict)
    essential: bool = False

    _RULES: ClassVar[Mapping[str, Rule]] = {
        "name": SOCKET_NAME,
        "actor": rules.target,
        "args": rules.arguments,
        "restart": _RESTART,
        "cpus": rules.optional(rules.cpus),
        "place": _PLACE,
        "env": rules.variables,
        "essential": flag,
    }

    @property
    def target(self) -> str:
        """``actor`` as the text by which a child imports it."""
        return str(self.actor)


class Instance(NamedTuple):
    """One actor to be started: a router, the ingress, a replica of an engine, or an actor of the
    user's own.
    """

    name: str
    role: Literal["router", "ingress", "engine", "actor"]
    spec: RouterSpec | IngressSpec | EngineSpec | ActorSpec


def _list_of(cls: type[RouterSpec] | type[EngineSpec] | type[ActorSpec]) -> Rule:
    def rule(value: Any, key: str) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise wrong(key, value, f"a list of {cls.__name__}")
        return tuple(
            part if isinstance(part, cls) else cls.from_dict(part, f"{key}[{i}]")
            for i, part in enumerate(value)
        )

    return rule


def _ingress(value: Any, key: str) -> IngressSpec:
    return value if isinstance(value, IngressSpec) else IngressSpec.from_dict(value, key)


def _directory() -> str:
    return directory_of(os.environ)


def _etcd() -> str:
    return etcd_of(os.environ)


def _settings(value: Any, key: str) -> Settings:
    return value if isinstance(value, Settings) else Settings.from_dict(mapping(value, key))


@dataclass(frozen=True)
class NodeSpec(Checked):
    """One node: its routers, engines and actors, and the settings that they share.

    ``listen`` (``host:port``) or ``ingress`` lets other nodes in; both may stand there if they name
    the same address. Engines of other nodes are found at ``peers`` (the ``listen`` of each) and in
    ``directory``, a folder that several nodes share, where the ingress also writes what this node
    serves, and so in ``etcd`` (``etcd://host:port,…``; needs ``callhome[etcd]``). Where Dynamo's
    environment names one of these it is the default. With a ``namespace``, the first word of
    endpoints, nothing of any other is written or found there.
    """

    name: str = "a"
    routers: Sequence[RouterSpec] = field(default_factory=lambda: (RouterSpec(),))
    engines: Sequence[EngineSpec] = ()
    actors: Sequence[ActorSpec] = ()
    listen: str = ""
    ingress: IngressSpec | None = None
    peers: Sequence[str] = ()
    directory: str = field(default_factory=_directory)
    etcd: str = field(default_factory=_etcd)
    namespace: str = ""
    settings: Settings = field(default_factory=Settings.load)

    _RULES: ClassVar[Mapping[str, Rule]] = {
        "name": FOLDER_NAME,
        "routers": _list_of(RouterSpec),
        "engines": _list_of(EngineSpec),
        "actors": _list_of(ActorSpec),
        "listen": rules.unless_empty(host_port),
        "ingress": rules.optional(_ingress),
        "peers": rules.peers,
        "directory": rules.unless_empty(rules.directory),
        "etcd": rules.unless_empty(rules.etcd),
        "namespace": rules.unless_empty(rules.namespace),
        "settings": _settings,
    }

    def _check(self, where: str) -> None:
        port = self.settings.call_home_port
        if port and len(self.routers) > 1 and (self.peers or self.directory or self.etcd):
            raise SpecError(
                f"{where}.settings.call_home_port: {port} can be one router's only, and there are "
                f"{len(self.routers)}; leave it at 0, or give the node one router"
            )
        if self.listen:
            ingress = self.ingress or IngressSpec(self.listen)
            if ingress.listen != self.listen:
                raise SpecError(
                    f"{where}.listen: {self.listen!r} is not what ingress.listen says "
                    f"({ingress.listen!r}); give one of them"
                )
            object.__setattr__(self, "ingress", ingress)
        for i, engine in enumerate(self.engines):
            if self.namespace and engine.endpoint.partition(".")[0] != self.namespace:
                raise SpecError(
                    f"{where}.engines[{i}].endpoint: {engine.endpoint!r} is not in the namespace "
                    f"of its node, {self.namespace!r}: begin it so, or leave namespace out"
                )
        taken = {"node": "the node itself"}
        for key, instance in self._keyed():
            if instance.name in taken:
                raise SpecError(
                    f"{where}.{key}: the name {instance.name!r} is taken by "
                    f"{taken[instance.name]}; give one of them a name of its own"
                )
            taken[instance.name] = key

    def _keyed(self) -> Iterator[tuple[str, Instance]]:
        for i, router in enumerate(self.routers):
            yield f"routers[{i}].name", Instance(router.name, "router", router)
        if self.ingress is not None:
            yield "ingress.name", Instance(self.ingress.name, "ingress", self.ingress)
        totals: dict[str, int] = {}
        for engine in self.engines:  # unnamed engines of one endpoint are numbered through
            if engine.name is None:
                totals[engine.endpoint] = totals.get(engine.endpoint, 0) + engine.replicas
        counts = dict.fromkeys(totals, 0)
        for i, engine in enumerate(self.engines):
            base = engine.name or engine.endpoint
            total = engine.replicas if engine.name else totals[base]
            start = 0 if engine.name else counts[base]
            for n in range(start, start + engine.replicas):
                name = f"{base}-{n}" if total > 1 else base
                yield f"engines[{i}].name", Instance(name, "engine", engine)
            if not engine.name:
                counts[base] += engine.replicas
        for i, actor in enumerate(self.actors):
            yield f"actors[{i}].name", Instance(actor.name, "actor", actor)

    def instances(self) -> list[Instance]:
        """Every actor of the node in the order written, each with its unique name."""
        return [instance for _, instance in self._keyed()]

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> NodeSpec:
        """The node that a TOML file describes: ``name``, ``listen``, ``peers``, ``directory``,
        ``[[routers]]``, ``[ingress]``, ``[[engines]]``, ``[[actors]]`` and ``[settings]``.

        Files named as targets (``engine = "mine.py:Mine"``) are looked for beside the TOML file,
        and the environment stands above ``[settings]``.
        """
        import tomllib

        place = os.path.abspath(path)
        try:
            with open(place, "rb") as file:
                table = tomllib.load(file)
            if isinstance(table.get("directory"), str) and table["directory"]:
                table["directory"] = os.path.join(os.path.dirname(place), table["directory"])
            for key, target in _TARGETS:
                _settle_targets(table.get(key), target, os.path.dirname(place))
            table["settings"] = Settings.load(table.get("settings"))
            return cls.from_dict(table)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SpecError(f"{os.fspath(path)}: {error}") from error
        except SpecError as error:
            raise SpecError(f"{os.fspath(path)}: {error}") from error


#: Where a table may name a file.
_TARGETS = (
    ("routers", "policy"),
    ("routers", "dispatch"),
    ("engines", "engine"),
    ("engines", "adapter"),
    ("actors", "actor"),
)


def _settle_targets(tables: object, key: str, folder: str) -> None:
    for table in tables if isinstance(tables, list) else ():
        target = table.get(key) if isinstance(table, dict) else None
        if isinstance(target, str) and target.rpartition(":")[0].endswith(".py"):
            table[key] = os.path.join(folder, target)
