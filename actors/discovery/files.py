"""Files that hold records: how they are called, what is taken from them, what has changed.

Used by ``actors.discovery.directory``, in its threads. What others write is not trusted: a file is
taken if it is a plain one of at most 64 KiB, holds a record (``actors.discovery.record``) and is
called as that record must be.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from actors.discovery.record import BadRecord, read_record
from actors.messages import Added, Record, Removed

log = logging.getLogger("callhome.directory")

#: Largest file that can be a record, in bytes, and how many files are looked at.
LARGEST: Final = 64 * 1024
MOST: Final = 16_384

#: Seconds between two looks above which ages say nothing.
_GAP: Final = 2.0

_Stamp: TypeAlias = tuple[int, int, int]
#: No file has it, so a file with it is read again.
_NEVER: Final = (-1, -1, -1)


def instances_folder(directory: str) -> str:
    """Where in ``directory`` the records are."""
    return os.path.join(directory, "v1", "instances")


def file_name(endpoint: str, instance: int) -> str:
    """What the file of a record is called."""
    return quote(f"{endpoint.replace('.', '/')}/{instance:x}", safe="")


class _Seen(NamedTuple):
    """A file as it was last seen: its stamp, when that stamp was new, and what was in it."""

    stamp: _Stamp
    since: float
    record: Record | None


class Reader:
    """Looks at the directory and tells what has changed. No loop, no thread, clocks passed in.

    Files of other namespaces than ``namespace`` are not there for it; "" is all.
    """

    def __init__(self, directory: str, ttl: float, namespace: str = "") -> None:
        self._namespace = namespace
        self._folder = instances_folder(directory)
        self._ttl = ttl
        self._seen: dict[str, _Seen] = {}
        self._told: dict[str, Record] = {}
        self._failing: dict[str, _Stamp] = {}
        self._looked = 0.0
        #: Why it could not be read when it was last looked at, and since when (monotonic).
        self._complaint, self._since = "", 0.0
        self._crowded = False

    def state(self, now: float) -> str:
        """See ``Source.state``; for any thread."""
        trouble = self._complaint
        lasts = max(0.0, now - self._since)
        return trouble and f"{self._folder} cannot be read for {lasts:.0f} s: {trouble}"

    def look(self, now: float, wall: float) -> list[Added | Removed]:
        """Changes since the last look, removals first.

        ``now`` is a steady clock. ``wall`` is asked only of a file that is new to us, for how old
        it was then: clocks of two machines may differ, so later only its changes count.

        A directory that cannot be read says nothing about the workers: what was known stays.
        """
        if not self._seen:
            self._looked = now
        found = self._found(now, wall)
        if found is None:
            return []
        gap, self._looked = now - self._looked, now
        if gap > _GAP:  # nobody looked: what was alive then gets time to show that it still is
            found = {
                name: seen._replace(since=min(now, seen.since + gap))
                for name, seen in found.items()
            }
        self._seen = found
        alive = {
            name: seen.record
            for name, seen in found.items()
            if seen.record is not None and now - seen.since <= self._ttl
        }
        changes: list[Added | Removed] = []
        for name, record in list(self._told.items()):
            if alive.get(name) != record:
                changes.append(Removed(record, self._why(name, now)))
                del self._told[name]
        for name, record in alive.items():
            if name not in self._told:
                changes.append(Added(record))
                self._told[name] = record
        return changes

    def _found(self, now: float, wall: float) -> dict[str, _Seen] | None:
        try:
            found = self._scan(now, wall)
        except FileNotFoundError:
            # Made by whoever writes there first; once it was there its absence is an outage.
            self._complain("is not there" if self._told else "")
            return None if self._told else {}
        except OSError as error:
            self._complain(error.strerror or str(error))
            return None
        self._complain("")
        return found

    def _why(self, name: str, now: float) -> str:
        seen = self._seen.get(name)
        if seen is None:
            return "its record was withdrawn"
        if now - seen.since > self._ttl:
            return f"its record was not renewed for {self._ttl:g} s"
        return "its record was replaced"

    def _scan(self, now: float, wall: float) -> dict[str, _Seen]:
        found: dict[str, _Seen] = {}
        crowded = False
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue  # somebody's file on its way to its name
                if self._namespace and not _within(entry.name, self._namespace):
                    continue
                crowded = len(found) >= MOST
                if crowded:
                    break
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = self._look_at(entry, now, wall)
        if crowded and not self._crowded:
            log.warning("%s holds more than %d files; the rest is left", self._folder, MOST)
        self._crowded = crowded
        self._failing = {name: at for name, at in self._failing.items() if name in found}
        return found

    def _look_at(self, entry: os.DirEntry[str], now: float, wall: float) -> _Seen:
        status = entry.stat(follow_symlinks=False)
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        before = self._seen.get(entry.name)
        if before is not None and before.stamp == stamp:
            return before
        since = now
        if before is None:
            since -= max(0.0, wall - status.st_mtime)
        try:
            record = _record(entry)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            again = self._failing.get(entry.name) == stamp
            self._failing[entry.name] = stamp
            if before is not None and before.record is not None and now - before.since < self._ttl:
                return before  # half written perhaps; unless it is whole again, it expires
            if not again:
                return _Seen(_NEVER, since, None)
            log.warning("%s is left: %s", _shown(entry.path), _shown(str(error)))
            return _Seen(stamp, since, None)
        self._failing.pop(entry.name, None)
        return _Seen(stamp, since, record)

    def _complain(self, trouble: str) -> None:
        """One line for each trouble and one when it is over, not one for each look."""
        if trouble != self._complaint:
            self._complaint, self._since = trouble, self._looked
            if trouble:
                log.warning("%s %s; what was known of it still holds", self._folder, trouble)
            else:
                log.warning("%s can be read again", self._folder)


def _within(name: str, namespace: str) -> bool:
    return unquote(name).startswith(f"{namespace}/")


def _record(entry: os.DirEntry[str]) -> Record:
    """The record in a file. Raises OSError, ValueError (BadRecord is one) and RecursionError."""
    record = read_record(json.loads(_content(entry.path)))
    wanted = file_name(record.endpoint, record.instance)
    if unquote(entry.name) != unquote(wanted):
        raise BadRecord(f"it holds the record {wanted}")
    return record


def _shown(text: str) -> str:
    """Text from outside, for one line of a log."""
    return ascii(text)[1:-1][:300]


def _content(path: str) -> bytes:
    """What a plain file of bearable size holds. Raises OSError or BadRecord."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadRecord("it is a symbolic link") from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadRecord("it is no plain file")
        if status.st_size > LARGEST:
            raise BadRecord(f"it has {status.st_size} bytes, {LARGEST} are allowed")
        data = os.read(fd, LARGEST + 1)
    finally:
        os.close(fd)
    if not data.isascii():
        data.decode()  # a ValueError of its own; json would try other encodings
    return data
