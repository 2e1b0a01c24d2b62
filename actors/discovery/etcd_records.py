"""Records as keys and values of etcd, and what a list or a change of keys tells of them. No I/O.

    v1/instances/demo/shout/generate/591daf1894a66ff    (the instance in hex)

Keys and values are Dynamo's (``actors.discovery.record``). Used by ``actors.discovery.etcd``, which
asks etcd and passes the time in, and by ``actors.discovery.etcd_publisher``.

An outage of etcd removes nobody. While it is away nothing is told; when it is back, or has stood
still for so long that leases may have ended, what is missing, or is deleted then, is held for one
lease more: whoever lives registers again within that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from actors.discovery.record import BadRecord, read_record
from actors.messages import Added, Record, Removed
from transport.errors import shown

log = logging.getLogger("callhome.etcd")

#: Keys and records of one etcd that are looked at, and bytes of a value that can be a record.
MOST: Final = 16_384
LARGEST: Final = 64 * 1024

_ROOT: Final = "v1/instances/"

Told: TypeAlias = Added | Removed


class Pair(NamedTuple):
    """A key of etcd, its value, and the revision at which it was last written."""

    key: bytes
    value: bytes
    revision: int


def record_key(endpoint: str, instance: int) -> bytes:
    """Where the record of an instance stands."""
    return f"{_ROOT}{endpoint.replace('.', '/')}/{instance:x}".encode()


def prefix_of(namespace: str) -> bytes:
    """What the keys of a namespace begin with; of all namespaces for ""."""
    return f"{_ROOT}{namespace}/".encode() if namespace else _ROOT.encode()


def read_pair(pair: Pair) -> Record:
    """The record that stands at a key. Raises BadRecord."""
    if len(pair.value) > LARGEST:
        raise BadRecord(f"it has {len(pair.value)} bytes, {LARGEST} are allowed")
    try:
        record = read_record(json.loads(pair.value.decode()))
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecord(str(error)) from None
    wanted = record_key(record.endpoint, record.instance)
    if pair.key != wanted:
        raise BadRecord(f"it holds the record of {wanted.decode()}")
    return record


class Table:
    """What etcd holds below a prefix, and which records of it have been told."""

    def __init__(self, where: str, ttl: float) -> None:
        self._where = where
        self._ttl = ttl
        #: Revision of each key, whether or not it holds a record.
        self._keys: dict[bytes, int] = {}
        self._told: dict[bytes, Record] = {}
        #: Records that are missing, and until when they hold nonetheless.
        self._held: dict[bytes, float] = {}
        #: Since when each of them is missing; time without etcd is none.
        self._missed: dict[bytes, float] = {}
        self._lost = 0.0
        #: Keys that hold no record, told in the log.
        self._bad: set[bytes] = set()
        self._shaky = 0.0
        self._listed = False
        self._crowded = False
        #: Keys written and deleted so far.
        self.changes = 0

    def listed(self, pairs: Iterable[Pair], now: float) -> list[Told]:
        """All that there is, at the start or after a time in which changes may have been missed."""
        if self._lost:
            away, self._lost = now - self._lost, 0.0
            self._missed = {key: since + away for key, since in self._missed.items()}
        if self._listed:
            self.shaken(now)
        self._listed = True
        changes: list[Told] = []
        self._keys, self._crowded = {}, False
        self._held.clear()
        for pair in pairs:
            changes += self.put(pair)
        self._bad.intersection_update(self._keys)
        for key in [key for key in self._told if key not in self._keys]:
            changes += self._miss(key, now)
        return changes

    def shaken(self, now: float) -> None:
        """etcd was away, or stood still for long: leases may end now of nodes that live."""
        self._shaky = now + self._ttl
        for key in self._held:
            self._held[key] = self._held_until(key)

    def lost(self, now: float) -> None:
        """etcd is away, until the next list."""
        self._lost = self._lost or now

    def _held_until(self, key: bytes) -> float:
        """Where etcd comes and goes all the time, the dead must not be held for ever."""
        return min(self._shaky, self._missed[key] + 2 * self._ttl)

    def put(self, pair: Pair) -> list[Told]:
        """A key was written."""
        self.changes += 1
        if pair.key not in self._keys and len(self._keys) >= MOST:
            if not self._crowded:
                self._crowded = True
                log.warning("%s holds more than %d records; the rest is left", self._where, MOST)
            return []
        self._keys[pair.key] = pair.revision
        self._held.pop(pair.key, None)
        self._missed.pop(pair.key, None)
        try:
            record = read_pair(pair)
        except BadRecord as error:
            if pair.key not in self._bad:
                self._bad.add(pair.key)
                log.warning(
                    "%s: %s is left: %s",
                    self._where,
                    shown(pair.key.decode(errors="replace")),
                    shown(str(error)),
                )
            return self._drop(pair.key, "its record was replaced by something else")
        self._bad.discard(pair.key)
        known = self._told.get(pair.key)
        if known == record:
            return []
        changes = self._drop(pair.key, "its record was replaced")
        self._told[pair.key] = record
        return [*changes, Added(record)]

    def deleted(self, key: bytes, now: float) -> list[Told]:
        """A key was deleted, or its lease has ended."""
        self.changes += 1
        self._keys.pop(key, None)
        self._bad.discard(key)
        return self._miss(key, now) if key in self._told else []

    def _miss(self, key: bytes, now: float) -> list[Told]:
        if now < self._shaky:
            self._missed.setdefault(key, now)
            if (until := self._held_until(key)) > now:
                self._held[key] = until
                return []
        return self._drop(key, "its record was withdrawn, or its lease has ended")

    def _drop(self, key: bytes, reason: str) -> list[Told]:
        self._held.pop(key, None)
        self._missed.pop(key, None)
        record = self._told.pop(key, None)
        return [] if record is None else [Removed(record, reason)]

    def due(self, now: float) -> list[Told]:
        """Records that were held, and whose time is over."""
        reason = f"its record did not come back within {self._ttl:g} s after etcd had"
        over = [key for key, until in self._held.items() if until <= now]
        return [change for key in over for change in self._drop(key, reason)]

    @property
    def next_due(self) -> float | None:
        """When ``due`` has something to tell; None: nothing is held."""
        return min(self._held.values(), default=None)

    def agrees(self, count: int, newest: int) -> bool:
        """Whether this is what a list would tell, of which only the number of keys and the newest
        of their revisions are known.
        """
        if self._crowded:
            return count > MOST
        return (len(self._keys), max(self._keys.values(), default=0)) == (count, newest)
