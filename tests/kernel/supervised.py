"""Children of a supervisor as its tests make and watch them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.kernel.children import ChildSpec, State
from actors.kernel.exits import Exit
from actors.kernel.supervisor import Supervisor
from tests.kernel.test_spawn import run as run
from tests.kernel.test_spawn import spec
from tests.waiting import LONG
from transport.bus.address import Address


class Notes:
    """A watcher that writes down what it hears."""

    def __init__(self) -> None:
        self.execs: list[int] = []
        self.ups: list[Address] = []
        self.downs: list[tuple[Address, str, bool]] = []
        self.trouble: list[str] = []
        self.progress: list[str] = []
        self.stages: list[int] = []

    def on_exec(self, spec: ChildSpec, pid: int) -> None:
        self.execs.append(pid)

    def on_up(self, spec: ChildSpec, address: Address, facts: Mapping[str, Any]) -> None:
        self.ups.append(address)

    def on_down(self, spec: ChildSpec, address: Address, reason: str, *, again: bool) -> None:
        self.downs.append((address, reason, again))

    def on_trouble(self, spec: ChildSpec, text: str) -> None:
        self.trouble.append(text)

    def on_lost(self, spec: ChildSpec, how: Exit) -> None:
        self.trouble.append(f"{spec.name} is lost: {how}")

    def on_progress(self, spec: ChildSpec, text: str) -> None:
        self.progress.append(text)

    async def on_stage(self, stage: int) -> None:
        self.stages.append(stage)


def one(run: str, cls: str, name: str, args: Mapping[str, Any] | None = None, **keys: Any) -> Any:
    keys = {"start_timeout": LONG, "grace": LONG, **keys}
    return ChildSpec(name=name, spec=spec(run, cls, args=dict(args or {})), **keys)


def states(supervisor: Supervisor) -> list[State]:
    return [status.state for status in supervisor.status()]
