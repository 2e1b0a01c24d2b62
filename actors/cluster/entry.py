"""Runs one actor in this process: loads its class, gives it its place, serves until it is told to
stop.

``actors.kernel.child`` calls ``run_actor`` after it has pinned the process; nothing else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from actors.cluster.devices import device_id
from actors.config import Settings
from actors.discovery.lookup import NodeLookup
from actors.discovery.merged import MergedDiscovery
from actors.discovery.registry import RegistryDiscovery
from actors.discovery.sources import Sources
from actors.errors import CallHomeError, SpecError
from actors.kernel.actor import Actor
from actors.kernel.beats import Heart
from actors.kernel.forks import Fork
from actors.kernel.lines import name_lines
from actors.kernel.ref import Ref, read_arguments
from actors.kernel.runtime import Runtime
from actors.kernel.stage import StageError
from actors.kernel.starting import Starting
from actors.messages import Withdraw
from transport.bus.address import Address
from transport.bus.port import Bus
from transport.wire.adapter import load_adapter

Ready = Callable[[Address, dict[str, Any]], None]
Progress = Callable[[str], None]


@contextlib.contextmanager
def _stage(name: str) -> Any:
    try:
        yield
    except StageError:
        raise
    except (Exception, SystemExit) as error:
        raise StageError(name, error) from error


def load_target(target: str) -> Any:
    """The class or function of ``module:attr`` or ``/path/file.py:attr``. Raises SpecError, or
    what importing it raises.
    """
    where, _, attribute = target.rpartition(":")
    module = _load_file(where) if where.endswith(".py") else importlib.import_module(where)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise SpecError(
                f"{where} has no {attribute!r}; a spec names module:attribute"
            ) from None
    return found


def _load_file(path: str) -> Any:
    """A script as a module: its ``if __name__ == "__main__"`` does not run."""
    name = "callhome_script_" + os.path.basename(path)[:-3]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def make_actor(spec: dict[str, Any]) -> Actor:
    """The actor object of a child spec. Raises StageError naming the stage that failed.

    Only what the role needs is imported: import time is most of the time until a node serves.
    """
    role = spec["role"]
    if role == "router":
        with _stage("constructor"):
            from actors.router.actor import RouterActor

            router = RouterActor(**spec.get("routing", {}), load=load_target)
            router.static_peers = list(spec.get("peers", ()))
            router.outside = Sources.of(spec).any
            return router
    if role == "ingress":
        with _stage("constructor"):
            from actors.ingress.actor import IngressActor

            ingress = IngressActor(**spec["args"])
            ingress.sources = Sources.of(spec)
            return ingress
    with _stage("import"):
        target = load_target(spec["class"])
        named = spec.get("adapter")
        adapter = load_adapter(named, load_target) if named else None
    with _stage("constructor"):
        given: list[Ref] = []
        args = spec["args"] if role == "node" else read_arguments(spec["args"], given)
        if role == "engine":
            from actors.engine.actor import EngineActor

            engine = EngineActor(
                target,
                args,
                spec["endpoint"],
                spec["capacity"],
                spec["queue"],
                adapter,
            )
            engine.given = given
            engine.canary_request = spec.get("canary")
            return engine
        if not (isinstance(target, type) and issubclass(target, Actor)):
            raise SpecError(
                f"actor {spec['name']!r}: {spec['class']} is no class derived from Actor"
            )
        actor: Actor = target(**args)
        actor.given = given
        return actor


@contextlib.asynccontextmanager
async def running(
    spec: dict[str, Any],
    actor: Actor,
    bus: Bus | None = None,
    group: asyncio.TaskGroup | None = None,
) -> AsyncIterator[tuple[Actor, Runtime]]:
    """The actor with its runtime and task group, started; leaving the block stops it in order.

    ``group`` is to be a fresh one, which nobody has entered.
    """
    with _stage("bind"):
        runtime = Runtime(
            run=spec["run"], name=spec["name"], settings=Settings.from_dict(spec["settings"]),
            incarnation=spec.get("incarnation"), bus=bus,
        )  # fmt: skip
    discovery = lookup = far = None
    heart = Heart(runtime)
    try:
        heart.start()
        async with group or asyncio.TaskGroup() as tasks:
            if spec.get("supervisor") is not None:
                with _stage("on_start"):
                    discovery = RegistryDiscovery(runtime, Address(*spec["supervisor"]))
                    lookup = NodeLookup(discovery, runtime.vigil.well)
                    await lookup.start()
            if spec["role"] == "router" and discovery is not None:
                with _stage("on_start"):
                    far = _Far(discovery, Sources.of(spec))
                actor.discovery = far.merged  # type: ignore[attr-defined]
                actor.sources = far.states  # type: ignore[attr-defined]
            elif spec["role"] == "ingress":
                actor.discovery = discovery  # type: ignore[attr-defined]
            elif spec["role"] == "engine":
                actor.tell_ready = heart.ready  # type: ignore[attr-defined]
                actor.start_by = spec.get("start_by")  # type: ignore[attr-defined]
            actor.attach(runtime, tasks, lookup)
            try:
                with _stage("on_start"):
                    await _start(spec, actor, lookup)
                yield actor, runtime
            finally:
                actor.shut()
                await actor.wait_ended()
                try:
                    await actor.on_stop()
                except Exception as error:
                    runtime.complain(f"on_stop of {actor.name}", error)
                runtime.port.flush()
    except BaseExceptionGroup as group:
        raise _only(group) from None
    finally:
        if far is not None:
            far.stop()
        if discovery is not None:
            discovery.stop()
        heart.stop()
        runtime.close(f"{spec['name']} stops")


async def _start(spec: dict[str, Any], actor: Actor, lookup: NodeLookup | None) -> None:
    if lookup is None or "beside" not in spec:
        await actor.on_start()
        return
    runtime = actor.runtime
    limit = runtime.settings.start_timeout
    starting = Starting(spec["name"], limit, lookup.alive, spec["beside"], spec["behind"])
    lookup.when_changed.append(starting.news)
    runtime.starting = starting
    try:
        await actor.on_start()
    finally:
        runtime.starting = None
        lookup.when_changed.remove(starting.news)


class _Far:
    """What a router of this process can find: its node's registry, and beyond it a directory, etcd
    and whatever the router itself hears of.
    """

    def __init__(self, local: RegistryDiscovery, sources: Sources) -> None:
        self._beyond = sources.discoveries()
        self.merged = MergedDiscovery(local, *self._beyond.values(), doubt=sources.doubt)

    def states(self) -> dict[str, str]:
        """Why each source beyond the node cannot be read, and since when; "" while it can."""
        return {name: source.state() for name, source in self._beyond.items()}

    def stop(self) -> None:
        self.merged.stop()
        for source in self._beyond.values():
            source.stop()


def facts_of(spec: dict[str, Any], actor: Actor) -> dict[str, Any]:
    """What the registry should know of a built-in role; users' actors have nothing to publish."""
    if spec["role"] not in ("engine", "router", "ingress"):
        return {}
    facts: dict[str, Any] = actor.facts()  # type: ignore[attr-defined]
    if device := device_id(str(spec.get("device", "")), os.environ):
        facts["device_id"] = device
    return facts


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one failure that a task group wraps, or the group when there are several."""
    failures = list(group.exceptions)
    if len(failures) > 1:
        return group
    first = failures[0]
    return _only(first) if isinstance(first, BaseExceptionGroup) else first


class _Stopping:
    """What ends an actor that serves: SIGTERM, or for a node the loss of an essential child."""

    def __init__(self, starting: asyncio.Task[Any]) -> None:
        self._starting = starting
        self._asked = asyncio.Event()
        #: The exit code of the process.
        self.code = 0
        #: The actor, while it serves.
        self.actor: Actor | None = None

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def terminate(self) -> None:
        """SIGTERM: end the wait for the end, or the start that has not come so far; a second one
        ends the time that streams have.
        """
        if self.actor is None:
            self._starting.cancel()
        elif self.asked:
            self.actor.hurry()
        self._asked.set()

    def leave(self, code: int) -> None:
        """The actor wants to end, with this exit code."""
        self.code = code
        self._asked.set()

    async def wait(self, spec: dict[str, Any], actor: Actor, runtime: Runtime) -> None:
        """Returns when the actor is to stop, and what was under way has ended or used up its
        time.
        """
        await self._asked.wait()
        if spec["role"] == "engine" and spec.get("supervisor") is not None:
            withdraw = Withdraw(runtime.address.incarnation, "it stops")
            with contextlib.suppress(CallHomeError):  # a node that is gone needs no word
                runtime.send(Address(*spec["supervisor"]), withdraw, control=True)
        await actor.wait_drained(runtime.settings.drain_limit)


async def run_actor(spec: dict[str, Any], ready: Ready, progress: Progress) -> int:
    """Run the actor of a child spec until SIGTERM; the exit code of its process. Raises StageError
    when it does not come up or fails later.
    """
    name_lines(spec["name"])
    starting = asyncio.current_task()
    assert starting is not None
    stopping = _Stopping(starting)
    stray = Fork(returns=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.terminate)
    actor = make_actor(spec)
    if spec["role"] == "node":
        actor.progress = progress
        actor.leave = stopping.leave  # type: ignore[attr-defined]
    try:
        async with running(spec, actor) as (_, runtime):
            stopping.actor = actor
            # What start-up has made lives as long as the process: no collection need look at it.
            gc.collect()
            gc.freeze()
            ready(runtime.address, facts_of(spec, actor))
            await stopping.wait(spec, actor, runtime)
    except asyncio.CancelledError:
        if not stopping.asked:
            raise
    except StageError:
        raise
    except Exception as error:
        told = stopping.actor is not None and error is stopping.actor.cut_off
        raise StageError("exit", error, told=told) from error
    finally:
        del stray  # kept until here: a fork that comes back to this loop ends
    return stopping.code
