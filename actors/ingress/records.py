"""What this node serves, by path, and the stream of it that routers of other nodes follow.

``callhome/records`` is a path like an engine's, answered by the ingress itself: the records that
can be reached here as a snapshot, then every change. A reader that is slow misses nothing but what
has been undone meanwhile: for each record only the newest word waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from actors.discovery.base import Change
from actors.discovery.record import pack_record, routing_path
from actors.ingress.arrival import Arrival
from actors.ingress.connections import HomeConnection
from actors.kernel.runtime import Runtime
from actors.messages import Accept, Added, Credit, End, Items, Kill, Record, Removed, Snapshot, Stop
from transport.errors import CallHomeError, to_wire
from transport.wire.codec import encode
from transport.wire.message import Message
from transport.wire.stream import SendCredit

#: Streams of records at the same time; each costs memory as long as its reader is slow.
MOST: Final = 1024
#: Records in the first item: it has to stay a small message.
_FIRST: Final = 200


class Records:
    """The engines of this node by the path that requests name; followed by streams of records."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        #: ``host:port`` that other nodes are told.
        self.reached = ""
        self._by_path: dict[str, Record] = {}
        self.streams: set[RecordsStream] = set()

    def __len__(self) -> int:
        return len(self._by_path)

    def find(self, path: str) -> Record | None:
        """The engine that a path names."""
        return self._by_path.get(path)

    def changed(self, change: Change) -> None:
        """What the node's registry tells."""
        if isinstance(change, Added):
            self._add(change.record)
        elif isinstance(change, Removed):
            self._remove(change.record, change.reason)
        elif isinstance(change, Snapshot):
            named = {routing_path(each) for each in change.records if _is_ours(each)}
            for path in [path for path in self._by_path if path not in named]:
                self._remove(self._by_path[path], "it is not in the registry any more")
            for record in change.records:
                self._add(record)

    def _add(self, record: Record) -> None:
        if not _is_ours(record) or not self._runtime.peers.watch(record.address):
            return
        path = routing_path(record)
        self._by_path[path] = record
        for stream in list(self.streams):
            stream.tell(path, {"added": self.packed(record)})

    def _remove(self, record: Record, reason: str) -> None:
        path = routing_path(record)
        if self._by_path.pop(path, None) is not None:
            for stream in list(self.streams):
                stream.tell(path, {"removed": self.packed(record), "reason": reason})

    def packed(self, record: Record) -> dict[str, Any]:
        """A record as other nodes read it."""
        return pack_record(record, self.reached, self._runtime.address.incarnation)

    def all(self) -> Iterator[tuple[str, Record]]:
        """What is served now, with its path."""
        yield from self._by_path.items()

    def withdraw(self, reason: str) -> None:
        """This node serves nothing to others any more."""
        for record in list(self._by_path.values()):
            self._remove(record, reason)


def _is_ours(record: Record) -> bool:
    return record.kind == "engine" and not record.via


class RecordsStream:
    """One router that follows the records; a relay on its connection like the streams of engines.

    Raises RemoteProtocolError for a number that is in use.
    """

    def __init__(
        self, records: Records, arrival: Arrival, connection: HomeConnection, remote: int
    ) -> None:
        self._records = records
        self._codec = arrival.codec
        self._connection = connection
        self._remote = remote
        self._credit = SendCredit(
            arrival.window_items + arrival.more_items, arrival.window_bytes + arrival.more_bytes
        )
        self._seq = 0
        #: By path, the newest thing that has not been told; "" is the snapshot.
        self._due: dict[str, dict[str, Any]] = {}
        self._ready = False
        connection.enter(self._remote, self)
        records.streams.add(self)

    def ready(self) -> None:
        """The connection is up: the snapshot goes, what does not fit into it follows."""
        connection = self._connection
        if self._ready or connection.mux is None:
            return
        tomb = connection.tombstones.take(connection.home, self._remote, time.monotonic())
        if tomb is not None:
            self._finish(End(self._remote, 0, None))
            return
        self._ready = True
        runtime = self._records._runtime
        connection.mux.send(Accept(self._remote, runtime.address, 0, 0))
        first: list[dict[str, Any]] = []
        self._due = {"": {"snapshot": first}}
        for path, record in self._records.all():
            packed = self._records.packed(record)
            if len(first) < _FIRST:
                first.append(packed)
            else:
                self._due[path] = {"added": packed}
        self._send()

    def tell(self, path: str, change: dict[str, Any]) -> None:
        """A record has changed."""
        if not self._ready:
            return  # it will be in the snapshot, or not
        self._due.pop(path, None)
        self._due[path] = change
        self._send()

    def _send(self) -> None:
        mux = self._connection.mux
        while self._due and self._credit.open and mux is not None:
            path = next(iter(self._due))
            payload = encode(self._due.pop(path), codec=self._codec)
            self._credit.spend(1, len(payload))
            mux.send(Items(self._remote, self._seq, [payload]), len(payload))
            self._seq += 1

    def heard(self, message: Message) -> None:
        """Credit, or the wish to end."""
        if type(message) is Credit:
            self._credit.grant(message.items, message.bytes)
            self._send()
        elif type(message) is Stop:
            self._finish(End(self._remote, self._seq, None))
        elif type(message) is Kill:
            self._finish(None)

    def cut(self, error: CallHomeError) -> None:
        """The connection is gone."""
        self._finish(None)

    def fail(self, error: CallHomeError) -> None:
        """This node stops."""
        self._finish(End(self._remote, self._seq, to_wire(error)))

    def _finish(self, end: End | None) -> None:
        self._records.streams.discard(self)
        self._connection.leave(self._remote, self)
        self._due.clear()
        if end is not None and self._connection.mux is not None:
            self._connection.mux.send(end)
