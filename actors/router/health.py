"""How the workers of a router's node are: one that is frozen, stalled or unready gets no new
streams.

Those that it has go on. Their homes look at it themselves as soon as it has accepted them; of an
Open that has just gone to it only this router knows whom it waits for, and tells.
"""

from __future__ import annotations

import time

from actors.kernel.beats import Lookout
from actors.kernel.runtime import Runtime
from actors.kernel.verdicts import FINE, UNREADY, Verdict
from actors.kernel.watchful import THAWED
from actors.messages import Record
from actors.notices import Warned
from actors.router.members import Members
from actors.router.occupancy import Occupancy
from transport.bus.address import Address


class Health:
    """Made by a router when it starts, stopped when it stops."""

    def __init__(self, runtime: Runtime, members: Members, occupancy: Occupancy) -> None:
        self._runtime = runtime
        self._members = members
        self._occupancy = occupancy
        #: What was told of each that is not well.
        self._told: dict[int, Verdict] = {}
        self._lookout = Lookout(runtime, members.near, self._judged)
        members.when_added.append(self._added)
        self.start, self.stop = self._lookout.start, self._lookout.stop

    def _judged(self, address: Address, verdict: Verdict) -> None:
        self._judge(address.incarnation, verdict)
        before = self._told.pop(address.incarnation, FINE)
        if not verdict.well:
            self._told[address.incarnation] = verdict
        now = time.monotonic()
        for home, stream in self._occupancy.holders(address.incarnation):
            if verdict.well:
                text, since = f"{address} goes on", now - before.since
                message = Warned(stream, THAWED, text, since)
            else:
                since = max(0.0, now - verdict.since)
                message = Warned(stream, verdict.code, verdict.text(address), since)
            self._runtime.port.send(home, message, size=256)

    def _judge(self, instance: int, verdict: Verdict) -> None:
        code, why = "" if verdict.well else verdict.code, ""
        if verdict.code == UNREADY:  # the other words say enough
            why = verdict.why
        self._members.judge(instance, code, verdict.since, why=why)

    def _added(self, record: Record) -> None:
        """Its record has come anew, perhaps."""
        verdict = self._lookout.unwell.get(record.address.incarnation)
        if verdict is not None and not record.via:
            self._judge(record.address.incarnation, verdict)

    def down(self, address: Address) -> None:
        """A process of this node is gone."""
        self._told.pop(address.incarnation, None)
