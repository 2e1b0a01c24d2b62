"""Signs of life: each actor writes when it last beat, whoever has to do with it may look.

A thread of the actor's process beats twice a second into ``NAME.INCARNATION.b`` beside its inboxes,
and asks the loop for a sign whose time it writes along. No message, no other process: an actor that
is stopped cannot tell anybody, and neither can one whose loop is blocked. Read and written as a
file and not as mapped memory, so that whoever cuts it short costs nobody more than the verdict. An
engine tells in the same file whether it is ready (``actors.engine.canary``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from actors.kernel.peers import there
from actors.kernel.signs import LANE, READ, SIZE, TOLD, pack_beat, pack_ready, read_sign
from actors.kernel.verdicts import (
    FINE,
    HIDDEN,
    IDLE,
    LOOK,
    PERIOD,
    RUNNING,
    STOPPED,
    Judge,
    Process,
    Sign,
    Verdict,
)
from transport.bus.address import Address, inbox_path
from transport.errors import LocalProtocolError
from transport.shm.segment import proc_folder

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

log = logging.getLogger("callhome")

#: A thread that wakes so late was not let run: what the loop has missed meanwhile is not its fault.
_LATE: Final = int(3 * PERIOD * 1e9)
#: Seconds after which somebody who is not looked at any more is forgotten.
_FORGOTTEN: Final = 5.0
#: Seconds until a missing file is looked for again.
_AGAIN: Final = 1.0
#: Seconds for the thread to end: it waits for nothing but the disk.
_PATIENCE: Final = 1.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Heart:
    """The beats of one actor; made, started and stopped by whoever runs it, on its loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._name = runtime.address.name
        self._incarnation = runtime.address.incarnation
        self._path = inbox_path(runtime.run, runtime.address, LANE)
        self._wanted = runtime.settings.frozen_after > 0
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._turn = self._last = time.monotonic_ns()
        #: When the loop was asked for a turn that has not come so far; 0: it has.
        self._asked = 0
        self._lag = 0
        #: Since when the engine here is not ready; 0: it is.
        self._unready = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="callhome-beats", daemon=True)

    def start(self) -> None:
        """Make the file and begin; on a full disk there are no beats, and a warning. None either
        where nobody is to be taken for frozen.
        """
        if not self._wanted:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self._path, flags, 0o600)
            os.posix_fallocate(self._fd, 0, SIZE)
            self._write()
        except OSError as error:
            log.warning(
                "%s: gives no signs of life, and nobody will see it freeze: %s", self._name, error
            )
            self._remove()
            return
        self._thread.start()

    def _write(self) -> None:
        asked = self._asked
        lag = max(self._lag, self._last - asked) if asked else self._lag
        os.pwrite(self._fd, pack_beat(self._incarnation, self._last, self._turn, lag), 0)

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD):
            now = time.monotonic_ns()
            if now - self._last > _LATE:
                self._turn = now
                self._asked = self._asked and now
            self._last = now
            try:
                self._write()
                if not self._asked:
                    self._asked = now
                    self._loop.call_soon_threadsafe(self._turned)
            except RuntimeError:  # the loop has closed
                return
            except OSError as error:
                log.warning("%s: gives no more signs of life: %s", self._name, error)
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, 0)  # silence would be taken for a freeze
                return

    def _turned(self) -> None:
        self._turn = time.monotonic_ns()
        self._lag = self._turn - self._asked
        self._asked = 0

    def ready(self, why: str) -> None:
        """An engine is ready (""), or since now it is not, and ``why``. Called on the loop."""
        if self._fd < 0:
            return
        self._unready = (self._unready or time.monotonic_ns()) if why else 0
        try:
            os.pwrite(self._fd, pack_ready(self._unready, why), TOLD)
        except OSError as error:
            log.warning("%s: cannot say whether it is ready: %s", self._name, error)

    def stop(self) -> None:
        """No more beats; the file goes. A second call does nothing."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)
        if not self._thread.is_alive():  # else it hangs in a disk, and ends with the process
            self._remove()

    def _remove(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class _Watched:
    """One actor: its file (-1: none was found), and what is thought of it."""

    __slots__ = ("fd", "judge", "looked", "opened", "process")

    def __init__(self, limit: float, process: Callable[[], Process | None]) -> None:
        self.fd = -1
        self.opened = -_AGAIN
        self.looked = -LOOK
        self.judge = Judge(limit)
        self.process = process


class Vigil:
    """What one runtime knows of the actors of its node that it has to do with; belongs to its loop.

    Looking at somebody begins with the first question; who is not asked about is forgotten.
    """

    def __init__(self, run: str, limit: float, own: Address) -> None:
        self._run = run
        self._limit = limit
        self._place = (own.pid, own.space)
        self._watched: dict[int, _Watched] = {}
        self._pruned = 0.0

    def of(self, address: Address, now: float) -> Verdict:
        """What is thought of an actor, ``now`` (monotonic); looks again after ``LOOK`` seconds.

        One in this very process is never frozen or stalled: whoever asks is running.
        """
        if not self._limit:
            return FINE
        watched = self._watched.get(address.incarnation)
        if watched is None:
            ours = (address.pid, address.space) == self._place
            watched = _Watched(0.0 if ours else self._limit, self._asking(address))
            self._watched[address.incarnation] = watched
        if now - watched.looked < LOOK * 0.9:
            return watched.judge.verdict
        watched.looked = now
        if now - self._pruned > _FORGOTTEN:
            self._prune(now)
        return watched.judge.look(self._read(watched, address, now), watched.process, now)

    def well(self, address: Address) -> bool:
        """Whether a new stream may go to the actor."""
        return self.of(address, time.monotonic()).well

    def lag(self, address: Address, now: float) -> float | None:
        """Seconds that the actor's event loop took to turn when it was last asked, which is twice a
        second; None where it does not say.
        """
        self.of(address, now)
        watched = self._watched.get(address.incarnation)
        return None if watched is None else watched.judge.lag

    def _read(self, watched: _Watched, address: Address, now: float) -> Sign | None:
        if watched.fd < 0:
            if now - watched.opened < _AGAIN:
                return None
            watched.opened = now
            try:
                path = inbox_path(self._run, address, LANE)
                watched.fd = os.open(path, READ)
            except (OSError, LocalProtocolError):
                return None
        try:
            data = os.pread(watched.fd, SIZE + 1, 0)
        except OSError:
            return None
        return read_sign(data, address.incarnation)

    def _prune(self, now: float) -> None:
        self._pruned = now
        for incarnation, watched in list(self._watched.items()):
            if now - watched.looked > _FORGOTTEN:
                del self._watched[incarnation]
                if watched.fd >= 0:
                    os.close(watched.fd)

    def _asking(self, address: Address) -> Callable[[], Process | None]:
        if address.space != self._place[1]:
            return lambda: Process(HIDDEN, 0.0)
        return lambda: process_of(address.pid)

    def close(self) -> None:
        """Look at nobody any more."""
        self._prune(float("inf"))


class Lookout:
    """Looks at actors of this node again and again, as long as it runs, and tells of changes.

    Used by those who have to do with them all the time: routers, the ingress, the node. Whoever was
    told not to be well is looked at until he is, or is gone, though ``actors`` names him no more.
    That he is gone is not told: others do.
    """

    def __init__(
        self,
        runtime: Runtime,
        actors: Callable[[], Iterable[Address]],
        told: Callable[[Address, Verdict], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._actors = actors
        self._told = told
        #: Called after each look with those who are not well.
        self.looked: Callable[[dict[int, Verdict]], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: Those who are not well, as it was told.
        self.unwell: dict[int, Verdict] = {}
        self._addresses: dict[int, Address] = {}

    def start(self) -> None:
        """Begin; ``stop`` must follow."""
        if self._runtime.settings.frozen_after:
            self._timer = self._loop.call_later(LOOK, self._look)

    def stop(self) -> None:
        """End; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def mute(self, incarnation: int) -> bool:
        """Whether an actor would not answer a question now: it is frozen or stalled."""
        verdict = self.unwell.get(incarnation)
        return verdict is not None and verdict.mute

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK, self._look)
        now, vigil = time.monotonic(), self._runtime.vigil
        before, self.unwell = self.unwell, {}
        alive = self._runtime.peers.alive
        actors = {each: address for each, address in self._addresses.items() if alive(address)}
        actors |= {each.incarnation: each for each in self._actors()}
        self._addresses = {}
        for incarnation, address in actors.items():
            verdict = vigil.of(address, now)
            if not verdict.well:
                self.unwell[incarnation] = verdict
                self._addresses[incarnation] = address
            elif incarnation not in before:
                continue
            if self._told is not None and verdict != before.get(incarnation):
                self._guarded(self._told, address, verdict)
        if self.looked is not None:
            self._guarded(self.looked, self.unwell)

    def _guarded(self, tell: Callable[..., None], *what: object) -> None:
        try:
            tell(*what)
        except Exception as error:  # costs that one, and none of the others
            self._runtime.complain(f"taking note of {what[0]}", error)


def process_of(pid: int) -> Process | None:
    """What the system says of a process; None when it is gone."""
    try:
        folder = proc_folder(pid)
        fields = _stat(Path(f"{folder}/stat"))
        if fields[0] in "Tt":
            return Process(STOPPED, 0.0)
        if fields[0] in "ZX":
            return None
        used = (int(fields[11]) + int(fields[12])) / _TICKS
        for task in os.listdir(f"{folder}/task"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                if _stat(Path(f"{folder}/task/{task}/stat"))[0] == "R":
                    return Process(RUNNING, used)
    except (OSError, ValueError, IndexError):
        # It is gone; or /proc does not show it, or here is no descriptor left to look.
        return Process(HIDDEN, 0.0) if there(pid) else None
    return Process(IDLE, used)


def _stat(path: Path) -> list[str]:
    """The fields of a stat file from the state on."""
    return path.read_bytes().rpartition(b") ")[2].decode("ascii", "replace").split()
