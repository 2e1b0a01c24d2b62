"""Who plays in a chaos run: the nodes with their actors, and the processes of the clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from actors import ActorSpec, EngineSpec, IngressSpec, NodeSpec, RouterSpec, Settings
from actors.kernel.peers import start_time
from perf.chaos.plan import MIB, Options
from perf.chaos.state import CAPACITY
from transport.bus.address import Address

#: Endpoint, engine, replicas of the first eight processes; more come in the same order.
_ENGINES: Final = (
    ("chaos.unary.generate", "unary"),
    ("chaos.stream.generate", "Items"),
    ("chaos.bidi.generate", "Echo"),
    ("chaos.frames.generate", "Items"),
    ("chaos.forward.generate", "Forward"),
    ("chaos.threads.generate", "threads"),
    ("chaos.tokens.generate", "Tokens"),
    ("chaos.tokens.generate", "Tokens"),
)
LEAST: Final = len(_ENGINES)
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_LINE: Final = 4 * MIB


def settings(run: str) -> Settings:
    """Actors are killed all the time and never given up; memory that is not used goes back soon."""
    return Settings(
        run=run,
        max_restarts=1_000_000,
        restart_period=0.5,
        arena_step=16 * MIB,
        arena_limit=512 * MIB,
        arena_idle=2.0,
        quarantine=0.5,
        quarantine_longest=2.0,
        drain_limit=2.0,
        start_timeout=60.0,
    )


def _engines(count: int) -> list[EngineSpec]:
    replicas = Counter(_ENGINES[number % LEAST] for number in range(count))
    return [
        EngineSpec(
            endpoint,
            f"perf.chaos.engines:{engine}",
            replicas=number,
            capacity=CAPACITY,
            queue=256,
            restart="always",
        )
        for (endpoint, engine), number in replicas.items()
    ]


def near(options: Options, run: str, doors: tuple[str, str]) -> NodeSpec:
    """The node that is there all the time: two routers, the engines, an ingress, an actor."""
    return NodeSpec(
        name="a",
        routers=[RouterSpec(name=name, queue=64) for name in ("router", "router-2")],
        engines=_engines(options.engines),
        actors=[ActorSpec("keeper", "perf.chaos.engines:Keeper", restart="always")],
        ingress=IngressSpec(listen=doors[0]),
        peers=[doors[1]] if options.nodes > 1 else [],
        settings=settings(run),
    )


def far(run: str, doors: tuple[str, str]) -> NodeSpec:
    """The node that comes and goes: an engine of each kind behind an ingress."""
    return NodeSpec(
        name="b",
        engines=_engines(LEAST - 1),
        ingress=IngressSpec(listen=doors[1]),
        settings=settings(run),
    )


def free_doors() -> tuple[str, str]:
    """Two addresses on loopback at which nobody listens at this moment."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        first, second = (f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes)
    return first, second


Heard = Callable[[int, dict[str, Any]], None]


class Caller:
    """One client of the plan: its process, started again when it has ended too early."""

    def __init__(
        self, number: int, options: Options, address: str, began: float, heard: Heard
    ) -> None:
        self.number = number
        self._heard = heard
        self._given = {
            "options": asdict(options),
            "client": number,
            "address": address,
            "began": began,
        }
        self._process: asyncio.subprocess.Process | None = None
        self._started = 0
        self.finishing = False
        #: Processes of this client so far.
        self.lives = 0

    @property
    def address(self) -> list[Address]:
        """The living process, if there is one."""
        process = self._process
        if process is None or process.returncode is not None:
            return []
        return [Address(f"client-{self.number}", 0, process.pid, self._started)]

    async def run(self) -> None:
        """Live, and live again, until it is to finish and has."""
        while not self.finishing:
            self.lives += 1
            with tempfile.TemporaryFile() as noise:
                code = await self._live(noise)
                noise.seek(0)
                words = noise.read().decode(errors="replace")[-2_000:]
            self._heard(self.number, {"exit": code, "words": words, "time": time.monotonic()})

    async def _live(self, noise: Any) -> int:
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH", ""))))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "perf.chaos.client",
            json.dumps(self._given),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            env={**os.environ, "PYTHONPATH": path},
            limit=_LINE,
            start_new_session=True,  # a Ctrl-C at the terminal is ours alone
        )
        self._process, self._started = process, start_time(process.pid) or 0
        try:
            if self.finishing:
                self.finish()
            assert process.stdout is not None
            async for line in process.stdout:
                with contextlib.suppress(ValueError):  # one that a SIGKILL has cut
                    self._heard(self.number, json.loads(line))
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def finish(self) -> None:
        """Begin nothing more; what is under way goes on to its end."""
        self.finishing = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def end(self) -> None:
        """Kill what is under way."""
        self.finish()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
