"""What this node serves, by path, and the stream of it that routers of other nodes follow.

``callhome/records`` is a path like an engine's, answered by the ingress itself: the records that
can be reached here as a snapshot, then every change. A reader that is slow misses nothing but what
has been undone meanwhile: for each record only the newest word waits for it. Of one that went and
came again it is told both, for whoever minds an instance must hear that it was away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from actors.discovery.base import Change
from actors.discovery.record import is_own, pack_record, routing_path
from actors.ingress.arrival import Arrival
from actors.ingress.connections import HomeConnection
from actors.ingress.own import OwnStream
from actors.kernel.runtime import Runtime
from actors.messages import Added, Record, Removed, Snapshot
from transport.bus.address import Address

#: Streams of records at the same time; each costs memory as long as its reader is slow.
MOST: Final = 1024
#: Records in the first item: it has to stay a small message.
_FIRST: Final = 200
#: Behind the last record of a snapshot; no path is called so.
_WHOLE: Final = "/"


class Records:
    """The engines of this node by the path that requests name; followed by streams of records."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        #: ``host:port`` that other nodes are told.
        self.reached = ""
        self._by_path: dict[str, Record] = {}
        #: Those that were withdrawn while their engines live, and whether they are served on.
        self._withdrawn: dict[str, tuple[Record, bool]] = {}
        #: Others find the records beyond this node, and come for them a while longer.
        self.published = False
        self.streams: set[RecordsStream] = set()
        #: Told of each record that comes, or comes anew, and of each that goes.
        self.when_added: Callable[[Record], None] = lambda record: None
        self.when_removed: Callable[[Record], None] = lambda record: None
        runtime.when_down.append(self._down)

    def __len__(self) -> int:
        return len(self._by_path)

    def find(self, path: str) -> Record | None:
        """The engine that a path names; one whose record was withdrawn refuses by itself what it
        does not take any more.
        """
        record = self._by_path.get(path)
        if record is None and (withdrawn := self._withdrawn.get(path)) is not None:
            return withdrawn[0] if withdrawn[1] else None
        return record

    def serves(self, instances: Iterable[int]) -> bool:
        """Whether the records of any of them still stand."""
        named = set(instances)
        return any(record.instance in named for record in self._by_path.values())

    def was_withdrawn(self, path: str) -> bool:
        """Whether an engine that lives was served at ``path``."""
        return path in self._withdrawn

    def close_withdrawn(self, instances: Iterable[int] | None) -> None:
        """Nobody is to come for what was withdrawn of ``instances`` (None: of all)."""
        named = None if instances is None else set(instances)
        for path, (record, _) in list(self._withdrawn.items()):
            if named is None or record.instance in named:
                self._withdrawn[path] = record, False

    def changed(self, change: Change) -> None:
        """What the node's registry tells."""
        if isinstance(change, Added):
            self._add(change.record)
        elif isinstance(change, Removed):
            self._remove(change.record, change.reason)
        elif isinstance(change, Snapshot):
            named = {routing_path(each) for each in change.records if is_own(each)}
            for path in [path for path in self._by_path if path not in named]:
                self._remove(self._by_path[path], "it is not in the registry any more")
            for record in change.records:
                self._add(record)

    def _add(self, record: Record) -> None:
        if not is_own(record) or not self.runtime.peers.watch(record.address):
            return
        path = routing_path(record)
        self._by_path[path] = record
        self._withdrawn.pop(path, None)
        self.when_added(record)
        for stream in list(self.streams):
            stream.tell(path, {"added": self.packed(record)})

    def _remove(self, record: Record, reason: str) -> None:
        path = routing_path(record)
        if self._by_path.pop(path, None) is not None:
            if self.published and self.runtime.peers.alive(record.address):
                self._withdrawn[path] = record, True
            self.when_removed(record)
            for stream in list(self.streams):
                stream.tell(path, {"removed": self.packed(record), "reason": reason})

    def packed(self, record: Record) -> dict[str, Any]:
        """A record as other nodes read it."""
        return pack_record(record, self.reached, self.runtime.address.incarnation)

    def all(self) -> Iterator[tuple[str, Record]]:
        """What is served now, with its path."""
        yield from self._by_path.items()

    def withdraw(self, reason: str) -> None:
        """This node serves nothing to others any more."""
        for record in list(self._by_path.values()):
            self._remove(record, reason)
        self._withdrawn.clear()

    def _down(self, address: Address, reason: str) -> None:
        for path, (record, _) in list(self._withdrawn.items()):
            if record.address == address:
                del self._withdrawn[path]


class RecordsStream(OwnStream):
    """One router that follows the records."""

    def __init__(
        self, records: Records, arrival: Arrival, connection: HomeConnection, remote: int
    ) -> None:
        self._records = records
        #: By path, what has not been told: one word, or that it went and came; "" is the snapshot.
        self._due: dict[str, list[dict[str, Any]]] = {}
        super().__init__(records.runtime, arrival, connection, remote)
        records.streams.add(self)

    def begin(self) -> None:
        """The snapshot goes, what does not fit into it follows."""
        first: list[dict[str, Any]] = []
        self._due = {"": [{"snapshot": first}]}
        for path, record in self._records.all():
            packed = self._records.packed(record)
            if len(first) < _FIRST:
                first.append(packed)
            else:
                self._due[path] = [{"added": packed}]
        if len(self._due) > 1:  # who had known more of this node drops it behind the rest only
            self._due[""][0]["more"] = True
            self._due[_WHOLE] = [{"whole": True}]
        self.more()

    def tell(self, path: str, change: dict[str, Any]) -> None:
        """A record has changed."""
        if not self.running:
            return  # it will be in the snapshot, or not
        # Of a snapshot that has not been told to its end it keeps its place, before that end.
        waits = self._due.get(path) if _WHOLE in self._due else self._due.pop(path, None)
        went = waits is not None and "removed" in waits[0] and "added" in change
        self._due[path] = [waits[0], change] if went and waits is not None else [change]
        self.more()

    def more(self) -> None:
        """Tell what is due, as far as the reader has room."""
        while self._due and self.credit.open and self.connection.mux is not None:
            path = next(iter(self._due))
            waits = self._due[path]
            self.send(waits.pop(0))
            if not waits:
                del self._due[path]

    def left(self) -> None:
        """Nobody is told any more."""
        self._records.streams.discard(self)
        self._due.clear()
