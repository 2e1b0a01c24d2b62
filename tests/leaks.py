"""What a test left behind: processes, threads, descriptors, files of ours, shared memory.

``Traces.now()`` is taken before and after a test; ``after.beyond(before)`` are lines that name what
is new. A process is ours when its environment carries the marker of this session, so a grandchild
whose parent has died is found as well.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

#: Environment variable that marks every process of this test session.
MARKER = "CALLHOME_TEST_RUN"


class Traces(NamedTuple):
    """What this process and its offspring hold at one moment, each by a readable key."""

    processes: dict[int, str]
    threads: frozenset[str]
    descriptors: frozenset[str]
    files: frozenset[str]
    mappings: frozenset[str]
    #: Native ids of all threads: one of ZeroMQ's that has just started has no name yet.
    tasks: frozenset[str]

    @classmethod
    def now(cls) -> Traces:
        """The traces of this process; the run root is read from ``CALLHOME_RUN``."""
        return cls(
            processes=dict(our_processes(os.environ.get(MARKER, ""))),
            threads=frozenset(_threads()),
            descriptors=frozenset(_descriptors()),
            files=frozenset(_files(os.environ.get("CALLHOME_RUN", ""))),
            mappings=frozenset(_mappings()),
            tasks=frozenset(os.listdir("/proc/self/task")),
        )

    def beyond(self, before: Traces, *, processes_only: bool = False) -> list[str]:
        """One line for each thing that is here and was not there before."""
        lines = [
            f"process {pid}: {what}"
            for pid, what in self.processes.items()
            if pid not in before.processes
        ]
        if processes_only:
            return lines
        for kind in ("threads", "descriptors", "files", "mappings"):
            new = getattr(self, kind) - getattr(before, kind)
            new = {each for each in new if _native(each) not in before.tasks}
            lines += [f"{kind[:-1]}: {what}" for what in sorted(new)]
        return lines


def _native(what: str) -> str:
    """The native id of a thread of ZeroMQ, as it is told; "" of all else."""
    return what.rpartition(" (native ")[2].removesuffix(")") if what.startswith("ZMQ") else ""


#: Pids of processes that are none of this session's, which each look would have to read anew.
_strangers: set[str] = set()
#: Of the flags in /proc/PID/stat.
_KERNEL_THREAD = 0x0020_0000


def our_processes(marker: str) -> Iterator[tuple[int, str]]:
    """Pid and command of each process that carries ``marker`` or is a child of this one."""
    me = os.getpid()
    entries = {entry for entry in os.listdir("/proc") if entry.isdigit()} - {str(me)}
    _strangers.intersection_update(entries)
    for entry in entries - _strangers:
        with contextlib.suppress(OSError):
            fields = _read(f"/proc/{entry}/stat").rpartition(b")")[2].split()
            state, parent = fields[0].decode(), int(fields[1])
            if int(fields[6]) & _KERNEL_THREAD:
                _strangers.add(entry)
                continue
            if parent == me or (marker and _carries(entry, marker)):
                command = _read(f"/proc/{entry}/cmdline").replace(b"\0", b" ").decode()
                yield (
                    int(entry),
                    f"state {state}, parent {parent}, {command.strip() or 'no command'}",
                )


def _carries(pid: str, marker: str) -> bool:
    environ = _read(f"/proc/{pid}/environ")
    if f"{MARKER}={marker}".encode() in environ.split(b"\0"):
        return True
    # It is empty for a moment while a program begins, and for a zombie, which may be ours.
    if environ:
        _strangers.add(pid)
    return False


def _read(path: str) -> bytes:
    """A small file of /proc; several times quicker than a Path, and there are two looks a test."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while part := os.read(descriptor, 65_536):
            found += part
        return found
    finally:
        os.close(descriptor)


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        yield f"{thread.name} (ident {thread.ident})"
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            name = _read(f"/proc/self/task/{task}/comm").decode().strip()
            if name.startswith("ZMQ"):  # a ZeroMQ context that was not terminated
                yield f"{name} (native {task})"


def _descriptors() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if not (target.startswith("/proc/") and target.endswith("/fd")):  # our own listing
                yield f"{fd} -> {target}"


def _files(root: str) -> Iterator[str]:
    for folder, names, files in os.walk(root):
        for name in names + files:
            # An actor opens its door (``.m``) with its first frame, and closes it with its inboxes.
            if not name.endswith(".m") or f"{name[:-1]}d" not in files:
                yield os.path.join(folder, name)
    for name in shared():
        yield f"/dev/shm/{name}"


#: Folders in shared memory that were seen in the hands of processes of no concern to this session.
_foreign: set[str] = set()


def shared() -> set[str]:
    """Names in /dev/shm of our files and folders but those that another program holds, or has held:
    another run of these tests, say. Whose a folder is tells the lock in it.
    """
    found = {name for name in os.listdir("/dev/shm") if name.startswith("callhome")}
    _foreign.intersection_update(found)
    if found - _foreign:
        ours = {os.getpid(), *(pid for pid, _ in our_processes(os.environ.get(MARKER, "")))}
        holders = _lock_holders()
        for name in found - _foreign:
            with contextlib.suppress(OSError):
                facts = os.stat(f"/dev/shm/{name}/lock")
                holder = holders.get((facts.st_dev, facts.st_ino))
                if holder is not None and holder not in ours:
                    _foreign.add(name)
    return found - _foreign


def _lock_holders() -> dict[tuple[int, int], int]:
    """Pids by device and inode of what they have locked."""
    found = {}
    for line in _read("/proc/locks").decode().splitlines():
        fields = line.split()
        if "->" not in fields:  # who waits for a lock
            major, minor, inode = fields[5].split(":")
            found[os.makedev(int(major, 16), int(minor, 16)), int(inode)] = int(fields[4])
    return found


#: Paths of memory that is shared.
_SHARED = (b"/memfd:", b"/dev/shm/callhome")


def _mappings() -> Iterator[str]:
    found = _read("/proc/self/maps")
    if not any(each in found for each in _SHARED):  # mostly, of a thousand lines
        return
    for line in found.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(_SHARED):
            yield f"{fields[5].decode()} inode {fields[4].decode()}"


def settle(before: Traces, grace: float, *, processes_only: bool = False) -> list[str]:
    """What is left after at most ``grace`` seconds; leftover processes are killed."""
    deadline = time.monotonic() + grace
    while True:
        now = Traces.now()
        left = now.beyond(before, processes_only=processes_only)
        if left and any(line.startswith(("descriptor", "mapping", "thread")) for line in left):
            gc.collect()
            now = Traces.now()
            left = now.beyond(before, processes_only=processes_only)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    for pid in now.processes.keys() - before.processes.keys():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)
    return left
