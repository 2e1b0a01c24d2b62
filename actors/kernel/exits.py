"""How processes end: in words, with everything that they had started, and without leaving zombies.

A child leads a session of its own. What user code starts in it (a subprocess, a pool of
``multiprocessing``, a shell with job control) belongs to that session, whatever process group it
has made for itself, and ends with the child, however the child ends; what is to outlive it starts
a session of its own. Used by ``actors.kernel.spawn`` for each child,
by the node for orphans, by ``actors.cluster.sweep`` for what a crashed node has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: In the environment of every child, and so of what it starts: the run folder of its node. By this
#: and by its session a process is known for a dead actor's, whoever has got the actor's pid since.
MARKER: Final = "CALLHOME_ACTOR"
_PR_SET_CHILD_SUBREAPER: Final = 36
#: Exit code of a process whose exit code nobody knows.
UNKNOWN: Final = 255
#: How often a session is looked through for what its members started while they were killed.
_PASSES: Final = 8
#: Seconds from the news of an end until orphans are looked for: they come in swarms.
_GATHER: Final = 0.05
#: How often those that were killed just now are looked for as a node ends, and the pause between.
_LOOKS: Final = 20
_PAUSE: Final = 0.01


@dataclass(frozen=True)
class Exit:
    """How a process ended: ``code`` is its exit code, or minus the signal that killed it.

    Without ``known`` somebody else has reaped it, or the kernel, for a process that ignores
    SIGCHLD: then nobody can say, and ``code`` is ``UNKNOWN``.
    """

    pid: int
    code: int
    known: bool = True

    @property
    def clean(self) -> bool:
        """It ended by itself with exit code 0."""
        return self.code == 0 and self.known

    @property
    def status(self) -> int:
        """The exit code that tells it onward, as shells do: 128 + N where signal N killed it."""
        return 128 - self.code if self.code < 0 else self.code

    def __str__(self) -> str:
        if not self.known:
            return "ended, with an exit code that somebody else has taken"
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"killed by {name}"


def _stat(pid: str) -> list[str]:
    """State, parent, group, session ... of a process; nothing when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _processes() -> Iterator[tuple[int, list[str]]]:
    try:
        entries = os.listdir("/proc")
    except OSError:  # out of descriptors: they end with their parents, or at the next start
        return
    for entry in entries:
        if entry.isdigit() and (fields := _stat(entry)):
            yield int(entry), fields


def _marked(pid: int, folder: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(f"{MARKER}={folder}") in environ.split(b"\0")


def keep_exit_codes() -> None:
    """Undo an inherited "SIGCHLD is ignored": the kernel would reap, and tell nobody how they end.

    Only the main thread may; elsewhere exit codes stay unknown.
    """
    ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def end_session(leader: int, folder: str) -> bool:
    """Kill what a child that has ended, and is not reaped yet, has left in its session; whether
    its exit code is still there to be had.

    As long as it is a zombie nobody else can have its number. Of one that somebody has reaped
    behind our back those are killed that carry the node's ``folder``, too.
    """
    try:
        found = os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        end_sessions({leader}, folder)
        return False
    if found is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)  # most of them, at once
        _kill_all(lambda pid, fields: pid != leader and int(fields[3]) == leader)
    return True


def end_sessions(leaders: set[int], folder: str) -> list[int]:
    """Kill what dead actors of the node in ``folder`` have left in their sessions; the pids.

    ``leaders`` are the actors' pids. A process must be of such a session and carry the folder in
    its environment: a number that was given away meanwhile harms nobody.
    """
    return _kill_all(
        lambda pid, fields: (
            pid not in leaders and int(fields[3]) in leaders and _marked(pid, folder)
        )
    )


def _kill_all(meant: Callable[[int, list[str]], bool]) -> list[int]:
    """SIGKILL each process that is ``meant``, until none is found; their pids."""
    killed: list[int] = []
    for _ in range(_PASSES):
        found = [
            pid for pid, fields in _processes() if fields[0] not in "ZX" and meant(pid, fields)
        ]
        # One that was killed already only takes its time to go.
        if not set(found) - set(killed):
            break
        killed += [pid for pid in found if pid not in killed and _kill(pid, meant)]
    return killed


def _kill(pid: int, meant: Callable[[int, list[str]], bool]) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        fields = _stat(str(pid))  # the descriptor holds it: is it still the one that was looked at?
        if not fields or not meant(pid, fields):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def occupied_sessions() -> set[int]:
    """The sessions in which any process still runs."""
    return {int(fields[3]) for _, fields in _processes() if fields[0] not in "ZX"}


class Orphans:
    """Reaps processes that fall to this one because their parents have died; never its own.

    For a process in which nothing but callhome runs: it takes SIGCHLD. ``own`` tells the pids of
    those children whose exit codes somebody waits for.
    """

    def __init__(self, own: Callable[[], set[int]]) -> None:
        self._own = own
        self._loop = asyncio.get_running_loop()
        self._planned: asyncio.TimerHandle | None = None
        self._active = False

    def start(self, *, adopt: bool) -> None:
        """``adopt``: the orphans of all descendants shall fall to this process, not to pid 1."""
        if threading.current_thread() is not threading.main_thread():
            return  # signals are the main thread's
        if adopt:
            prctl = ctypes.CDLL(None, use_errno=True).prctl
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._loop.add_signal_handler(signal.SIGCHLD, self._came)
        self._active = True

    def _came(self) -> None:
        if self._planned is None:
            self._planned = self._loop.call_later(_GATHER, self._look)

    def _look(self) -> bool:
        """Reap; whether some are there that still run."""
        self._planned = None
        own, here, running = self._own(), str(os.getpid()), False
        for pid, fields in _processes():
            if fields[1] != here or pid in own:
                continue
            with contextlib.suppress(ChildProcessError):
                running = os.waitpid(pid, os.WNOHANG)[0] == 0 or running
        return running

    async def stop(self) -> None:
        """Reap those whose actors were stopped just now, and look no more."""
        if not self._active:
            return
        self._active = False
        for _ in range(_LOOKS):
            if not self._look():
                break
            await asyncio.sleep(_PAUSE)
        if self._planned is not None:
            self._planned.cancel()
        self._loop.remove_signal_handler(signal.SIGCHLD)
