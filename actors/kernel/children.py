"""The children of one process as plain data, and who hears of them.

Used by ``actors.kernel.supervisor``, which keeps them, and by the node, which decides what runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from actors.kernel.exits import Exit
from actors.kernel.restart import Intensity, Strategy
from transport.bus.address import Address

State: TypeAlias = Literal["starting", "up", "restarting", "failed", "ended", "stopped", "leaving"]


@dataclass(frozen=True)
class ChildSpec:
    """One child: what it runs, when it starts, how it restarts and stops. Times in seconds.

    ``stage`` is its place in the order of starting, ``stop`` the one in the order of stopping,
    which runs backwards: the highest stops first. None: the same as ``stage``. ``essential``: the
    others make no sense once this one stays down. ``early``: it is told as up as soon as it is, for
    others of its stage may wait for it; else with all of the stage. ``fds``: descriptors that it
    inherits.
    """

    name: str
    spec: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    stage: int = 0
    stop: int | None = None
    restart: Strategy = "on-failure"
    intensity: Intensity = field(default_factory=Intensity)
    start_timeout: float = 10.0
    grace: float = 5.0
    essential: bool = False
    early: bool = False
    fds: Sequence[int] = ()


@dataclass(frozen=True)
class ChildStatus:
    """A child as it is now; ``pid`` is 0 and ``address`` None while it is down. One that is
    ``leaving`` has a successor, which has a status of its own.
    """

    spec: ChildSpec
    state: State
    pid: int
    address: Address | None
    restarts: int
    reason: str


class Watcher(Protocol):
    """Who hears of the children. Called on the loop; must neither block nor raise."""

    def on_exec(self, spec: ChildSpec, pid: int) -> None:
        """The child's process is there; no code of its actor has run yet."""

    def on_up(self, spec: ChildSpec, address: Address, facts: Mapping[str, Any]) -> None:
        """The child serves; ``facts`` is what it told about itself."""

    def on_down(self, spec: ChildSpec, address: Address, reason: str, *, again: bool) -> None:
        """The child that served at ``address`` has ended; ``again``: it will be restarted."""

    def on_trouble(self, spec: ChildSpec, text: str) -> None:
        """A restart failed, the child is given up, or had to be killed; text for the operator."""

    def on_lost(self, spec: ChildSpec, how: Exit) -> None:
        """An essential child has ended and stays down."""

    def on_progress(self, spec: ChildSpec, text: str) -> None:
        """What a starting child is busy with."""

    async def on_stage(self, stage: int) -> None:
        """All children of a stage serve; the next stage starts when this returns."""
