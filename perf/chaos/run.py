"""One chaos run: start everything, take the base, play the plan, be quiet, compare."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from actors import CallHomeError, Client, Cluster, connect
from actors.client import Client as NodeClient
from perf.chaos import cast, state
from perf.chaos.plan import LONG, SHAPES, Options, Plan, Play, make
from perf.chaos.player import Player
from perf.chaos.signals import Signals
from perf.chaos.tally import QUIET, Tally
from transport.bus.address import Address

Say = Callable[[str], None]

_PROGRESS: Final = 10.0
#: Streams end by their own deadlines; clients that have not finished so long after the last one
#: may begin have hung.
_FINISH: Final = 90.0
_BACK: Final = 60.0


@dataclass
class Result:
    """What a run has shown; ``failures`` empty means that all is accounted for and back to base."""

    plan: Plan
    tally: Tally
    signals: Signals | None = None
    base: state.State = field(default_factory=state.State)
    now: state.State = field(default_factory=state.State)
    waited: float = 0.0
    seconds: float = 0.0
    lives: int = 0
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """No failure of any kind."""
        return not self.tally.failures


class Run:
    """A run under way; ``interrupt`` ends it in order."""

    def __init__(self, options: Options, say: Say) -> None:
        plan = make(options)
        self.result = Result(plan, Tally(plan.plays))
        self._options = options
        self._say = say
        self._over = asyncio.Event()
        self._callers: list[cast.Caller] = []
        self._far: Client | None = None

    def interrupt(self) -> None:
        """Ctrl-C, or SIGTERM: stop what is under way, and say what was seen so far."""
        self._say("interrupted: ending in order")
        self.result.interrupted = True
        self._over.set()
        for caller in self._callers:
            caller.end()

    async def run(self) -> Result:
        """All of it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.interrupt)
        try:
            with tempfile.TemporaryDirectory(prefix="chaos-") as run:
                await self._in(run)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return self.result

    async def _in(self, run: str) -> None:
        doors = cast.free_doors()
        spec = cast.near(self._options, run, doors)
        async with (
            Cluster(spec, cluster=f"chaos-{os.getpid()}") as cluster,
            cluster.client() as client,
        ):
            folder = cluster.nodes[0].folder
            await self._both_rounds(client, doors[0], "warm-up")
            self.result.base = await self._settled(client, folder)
            self._say(
                f"seed {self._options.seed}, plan {self.result.plan.digest}: "
                f"{len(self.result.plan.plays)} streams, {len(self.result.plan.faults)} signals, "
                f"{self.result.base.processes} processes, {self._options.clients} clients"
            )
            await self._play(client, folder, run, doors)
            if not self.result.interrupted:
                await self._both_rounds(client, doors[0], "closing round")
            await self._compare(client, folder)

    async def _settled(self, client: Client, folder: str) -> state.State:
        """The base: what an idle node holds that has served every shape once."""
        before, now = None, await state.read(client, folder)
        for _ in range(100):
            # Whoever did not answer, or was only passing, would not be as before in the end.
            whole = not state.missing(client, now) and not state.busy(now)
            if before is not None and whole and not list(state.differences(before, now)):
                break
            await asyncio.sleep(0.1)
            before, now = now, await state.read(client, folder)
        return now

    async def _both_rounds(self, client: Client, door: str, name: str) -> None:
        """Every shape, undisturbed: before and after, all have to be complete, by both roads."""
        await self._round(client, name, [*SHAPES])
        try:
            async with connect(f"tcp://{door}", settings=client.runtime.settings) as outside:
                shapes = [shape for shape in SHAPES if shape != "ask"]
                await self._round(outside, f"{name} from outside", shapes)
        except CallHomeError as error:
            self.result.tally.fail(f"{name} from outside: {type(error).__name__}: {error}")

    async def _round(self, client: Client, name: str, shapes: list[str]) -> None:
        deadline = time.monotonic() + 120.0
        for number, shape in enumerate(shapes):
            for kind in ("bytes", "array", "frame"):
                if shape == "tokens" and kind != "bytes":
                    continue
                play = Play(
                    number, 0.0, 0, shape, 1 if shape in ("unary", "ask") else 5,
                    1_000 if shape == "tokens" else 100_000,
                    kind, 0.0, 0.0, "", 0, 0.0, LONG, 0, 0,
                )  # fmt: skip
                played = await Player(client, play).run()
                while played.outcome.startswith("error") and time.monotonic() < deadline:
                    if played.quiet > QUIET:
                        break  # nobody is stopped: something was lost
                    await asyncio.sleep(0.5)  # the last who was killed may still be starting
                    played = await Player(client, play).run()
                if played.outcome != "complete":
                    self.result.tally.fail(
                        f"{name}: {shape} with {kind}: {played.outcome} {played.text}", played.log
                    )

    async def _play(self, client: Client, folder: str, run: str, doors: tuple[str, str]) -> None:
        began = time.monotonic()
        result = self.result
        self._callers = [
            cast.Caller(
                number,
                self._options,
                # The last one is outside the node and comes through its ingress.
                f"tcp://{doors[0]}" if number == self._options.clients - 1 else folder,
                began,
                result.tally.heard,
            )
            for number in range(self._options.clients)
        ]
        signals = Signals(result.plan.faults, began, lambda role: self._targets(client, role))
        signals.on_hit = self._noted
        result.tally.stops = signals.stops
        result.signals = signals
        async with asyncio.TaskGroup() as group:
            lives = [group.create_task(caller.run()) for caller in self._callers]
            others = [
                group.create_task(signals.run()),
                group.create_task(self._second(began, run, doors)),
                group.create_task(self._progress(began)),
            ]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(began + self._options.seconds - time.monotonic()):
                    await self._over.wait()
            others[0].cancel()
            signals.continue_all()
            for caller in self._callers:
                caller.finish()
            await self._finished(lives)
            for task in others[1:]:
                task.cancel()
        result.seconds = time.monotonic() - began
        result.lives = sum(caller.lives for caller in self._callers)
        result.tally.close(result.interrupted)

    async def _finished(self, lives: list[asyncio.Task[None]]) -> None:
        """Wait for the clients, by force in the end."""
        _, late = await asyncio.wait(lives, timeout=_FINISH)
        for number, task in enumerate(lives):
            if task in late:
                self.result.tally.fail(f"client {number} does not finish")
                task.cancel()

    def _noted(self, role: str, deed: str, target: Address) -> None:
        if role == "client" and deed in ("kill", "term"):
            self.result.tally.killed[int(target.name.partition("-")[2])] = time.monotonic()

    def _targets(self, client: Client, role: str) -> list[Address]:
        if role == "client":
            return [address for caller in self._callers for address in caller.address]
        far, _, kind = role.rpartition(".")
        source = self._far if far else client
        return [] if source is None else [each.address for each in state.living(source, kind)]

    async def _second(self, began: float, run: str, doors: tuple[str, str]) -> None:
        """The second node, up for its stretches."""
        spec = cast.far(run, doors)
        for begin, end in self.result.plan.phases:
            await asyncio.sleep(max(0.0, began + begin - time.monotonic()))
            if self._over.is_set():
                return
            self._say("node b comes up")
            async with Cluster(spec, cluster=f"chaos-{os.getpid()}-b") as cluster:
                folder = cluster.nodes[0].folder
                async with NodeClient(run=folder) as client:
                    self._far = client
                    try:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(max(0.0, began + end - time.monotonic())):
                                await self._over.wait()
                    finally:
                        self._far = None
            self._say("node b is down")

    async def _progress(self, began: float) -> None:
        tally = self.result.tally
        while True:
            await asyncio.sleep(_PROGRESS)
            done = sum(tally.outcomes.values())
            sent = self.result.signals.counts.total() if self.result.signals else 0
            self._say(
                f"{time.monotonic() - began:5.0f} s: {done} streams ended, "
                f"{len(tally.under_way)} under way, {tally.items:,} items, {sent} signals, "
                f"{len(tally.failures)} failures"
            )

    async def _compare(self, client: Client, folder: str) -> None:
        result = self.result
        try:
            result.now, result.waited = await state.wait_back(client, folder, result.base, _BACK)
        except (CallHomeError, OSError) as error:
            result.tally.fail(f"the node cannot be looked at: {error!r}")
            return
        for line in state.differences(result.base, result.now):
            result.tally.fail(f"not back to base after {result.waited:.0f} s: {line}")


def facts(result: Result) -> dict[str, Any]:
    """The run as data, for ``--json``."""
    signals = result.signals
    return {
        "seed": result.plan.options.seed,
        "plan": result.plan.digest,
        "options": vars(result.plan.options),
        "seconds": round(result.seconds, 1),
        "interrupted": result.interrupted,
        "outcomes": [[*key, count] for key, count in sorted(result.tally.outcomes.items())],
        "items": result.tally.items,
        "bytes": result.tally.bytes,
        "statistics": dict(result.tally.statistics),
        "signals": dict(signals.counts) if signals else {},
        "signals missed": signals.missed if signals else 0,
        "client processes": result.lives,
        "back after": round(result.waited, 1),
        "base": result.base.actors,
        "now": result.now.actors,
        "failures": result.tally.failures,
        "pid": os.getpid(),
    }
