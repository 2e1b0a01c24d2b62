"""What an ingress tells of engines of its node that are not well.

Routers that follow the loads hear who is, and give it no new streams; the callers of the streams
that it has are warned, where their router knows of that (``HomeConnection.knows_warnings``). What a
Dynamo requester speaks has no place for it: where the records stand beyond the node, that of an
engine that can do nothing is withdrawn meanwhile (``actors.ingress.publishing``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from actors.ingress.occupancy import Loads
from actors.ingress.publishing import Publishing
from actors.ingress.records import Records
from actors.ingress.relay import RelayedStream
from actors.ingress.streams import Streams
from actors.kernel.beats import Lookout
from actors.kernel.runtime import Runtime
from actors.kernel.verdicts import FINE, Verdict
from actors.kernel.watchful import THAWED
from actors.notices import Warned
from transport.bus.address import Address


class Health:
    """Made by an ingress when it starts, stopped when it stops."""

    def __init__(
        self,
        runtime: Runtime,
        records: Records,
        streams: Streams,
        loads: Loads,
        publishing: Publishing,
    ) -> None:
        self._records = records
        self._publishing = publishing
        self._streams = streams
        self._loads = loads
        #: By the number of a stream what its caller was told last.
        self._warned: dict[int, Verdict] = {}
        self._lookout = Lookout(runtime, self._engines)
        self._lookout.looked = self._looked
        self.start, self.stop = self._lookout.start, self._lookout.stop

    def _engines(self) -> Iterator[Address]:
        """Whoever somebody elsewhere has to do with."""
        if self._loads.streams or self._streams.table or self._publishing.active:
            for _, record in self._records.all():
                yield record.address

    def _looked(self, unwell: dict[int, Verdict]) -> None:
        """Tell the routers, and warn the callers of streams: those, too, that have come since the
        engine froze.
        """
        self._publishing.judge((each, verdict.code) for each, verdict in unwell.items())
        self._loads.judge(unwell)
        if not unwell and not self._warned:
            return
        before, self._warned = self._warned, {}
        now = time.monotonic()
        for number, stream in list(self._streams.table.items()):
            if not isinstance(stream, RelayedStream) or not stream.opened:
                continue
            verdict = unwell.get(stream.engine.incarnation, FINE)
            told = before.get(number, FINE)
            if not verdict.well:
                self._warned[number] = verdict
            if verdict is not told:
                self._warn(stream, verdict, told, now)

    def _warn(self, stream: RelayedStream, verdict: Verdict, told: Verdict, now: float) -> None:
        connection = stream.connection
        if connection.mux is None or not connection.knows_warnings:
            return
        where = f"{stream.engine} behind {self._records.reached}"
        if verdict.well:
            text, since = f"{where} goes on", now - told.since
            message = Warned(stream.remote, THAWED, text, since)
        else:
            since = max(0.0, now - verdict.since)
            message = Warned(stream.remote, verdict.code, verdict.text(where), since)
        connection.mux.send(message)
