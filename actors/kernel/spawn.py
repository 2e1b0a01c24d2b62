"""Start a child process, wait until it is ready, notice its end.

Used by ``actors.kernel.supervisor`` for the actors of a node and by ``actors.cluster.launcher`` for
the node itself. A child is exec'd (never forked, never multiprocessing): it inherits no thread,
lock or descriptor but its status pipe, and reads its spec from stdin (see ``actors.kernel.child``).

Its end is noticed through a pidfd on the running loop. SIGCHLD and asyncio's child watchers are not
used: they belong to the program that embeds us, and a pidfd fires for a zombie too, which counts as
dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from actors.errors import CallHomeError, SpawnError, SpecError
from actors.kernel.descriptors import inherited, raised
from actors.kernel.exits import MARKER, UNKNOWN, Exit, end_session, keep_exit_codes
from actors.kernel.importing import import_path
from transport.bus.address import Address
from transport.errors import from_wire

#: Seconds a child has to leave by itself once it has reported why it cannot serve.
_LEAVE: Final = 0.5
_MAX_LINE: Final = 1 << 20
#: What we bring along ourselves: a wrong setting of theirs is told, and not where it was found.
OWN_ROLES: Final = frozenset({"router", "ingress", "node"})
#: Exit code of a child that never was, as of a command that a shell cannot run.
_NO_PROCESS: Final = 127

_NEXT_STEP: Final = {
    "import": "check the module name and that it can be imported from the launcher's sys.path",
    "constructor": "fix the constructor, or the args given to it in the spec",
    "on_start": "fix on_start",
    "bind": "choose another name, or a shorter run folder (CALLHOME_RUN)",
    "timeout": "make it start faster, or allow more time (setting start_timeout)",
    "exit": "see what it wrote to stderr",
}


@dataclass(frozen=True)
class Launch:
    """What a child needs besides its spec.

    ``spec`` is the JSON object of ``actors.kernel.child``; ``name``, ``cluster``, ``node`` and
    ``role`` in it name the child in ``ps`` and in errors. ``env`` is added to our own environment.
    ``linger``: seconds between the news of our death and the child's hard exit. ``death_signal``:
    sent by the kernel when the *thread* that started the child ends; None where that thread may end
    before the process. ``fds``: descriptors that the child inherits, under the same numbers.
    ``on_exec`` gets the pid as soon as there is one, before any code of an actor runs in it.
    """

    spec: Mapping[str, Any]
    env: Mapping[str, str] | None = None
    linger: float = 2.0
    death_signal: int | None = signal.SIGKILL
    fds: Sequence[int] = ()
    on_exec: Callable[[int], None] | None = None


class Child:
    """One child process, from exec to reaped. Belongs to the running loop; not for reuse.

    ``ready`` gets the child's Address or a SpawnError; ``exited`` gets its Exit. Both are always
    settled once ``launch`` has returned, so whoever waits needs no deadline of its own. ``facts``
    is what the actor told about itself when it became ready.
    """

    def __init__(self, launch: Launch, on_progress: Callable[[str], None] | None = None) -> None:
        spec = launch.spec
        self.name = str(spec["name"])
        self.title = f"{spec.get('role', 'actor')} {self.name!r}"
        self.address: Address | None = None
        self.facts: dict[str, Any] = {}
        self._launch = launch
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Address] = self._loop.create_future()
        self.exited: asyncio.Future[Exit] = self._loop.create_future()
        self.ready.add_done_callback(_retrieve)
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._status = -1
        self._buffer = b""
        self._failure: SpawnError | None = None
        self._last_progress = ""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """Process id; 0 before ``launch``."""
        return self._process.pid if self._process else 0

    @property
    def incarnation(self) -> int:
        """What its sockets are named by; 0 where the child chooses it itself."""
        return int(self._launch.spec.get("incarnation") or 0)

    @property
    def _run_folder(self) -> str:
        return str(self._launch.spec.get("run", ""))

    @property
    def alive(self) -> bool:
        """Started and not yet seen to have ended."""
        return self._process is not None and not self.exited.done()

    def launch(self, timeout: float) -> None:
        """Exec the child; it has ``timeout`` seconds to become ready before it is killed.

        Raises SpawnError when the process cannot be created at all.
        """
        theirs = -1
        keep_exit_codes()
        try:
            self._status, theirs = os.pipe()
            theirs = raised(theirs)
            self._process = self._exec(theirs, time.monotonic() + timeout)
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError as cause:
            error = SpawnError(
                f"{self.title}: cannot start a process: {cause}; "
                "check the limits on processes and open files",
                actor=self.name,
                stage="exit",
                type=type(cause).__name__,
            )
            self._abandon(error)
            raise error from cause
        finally:
            if theirs >= 0:
                os.close(theirs)
        os.set_blocking(self._status, False)
        self._loop.add_reader(self._status, self._read_status)
        self._loop.add_reader(self._pidfd, self._reap)
        self._timer = self._loop.call_later(timeout, self._time_out, timeout)

    def _exec(self, status: int, start_by: float) -> subprocess.Popen[bytes]:
        spec = self._launch.spec
        env = {**os.environ, **(self._launch.env or {})}
        path = import_path(self._launch.env)
        full = {
            **spec,
            "parent": os.getpid(),
            "status_fd": status,
            "start_by": start_by,  # by the machine's monotonic clock
            "path": path,
            "pythonpath": env.get("PYTHONPATH"),
            "linger": self._launch.linger,
            "death_signal": self._launch.death_signal,
        }
        line = json.dumps(full).encode() + b"\n"
        label = f"callhome:{spec.get('cluster', '')}/{spec.get('node', '')}/{self.name}"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "actors.kernel.child", label],
            stdin=subprocess.PIPE,
            stdout=inherited(1),
            stderr=inherited(2),
            env={**env, "PYTHONPATH": os.pathsep.join(path), MARKER: self._run_folder},
            pass_fds=(status, *self._launch.fds),
            # Ctrl-C goes to the terminal's group; a child must not die of it out of order.
            start_new_session=True,
        )
        if self._launch.on_exec is not None:
            self._launch.on_exec(process.pid)
        try:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead already; the pidfd tells how
        return process

    def _abandon(self, error: SpawnError) -> None:
        """Nothing came of the launch; whoever waits is told so."""
        code = _NO_PROCESS
        if self._process is not None:
            self._process.kill()
            code = self._process.wait()
        self._fail(error)
        self._close()
        self.exited.set_result(Exit(self.pid, code))

    async def wait_ready(self) -> Address:
        """The child's address.

        Raises SpawnError naming stage, cause and next step; the child is then dead.
        """
        try:
            return await asyncio.shield(self.ready)
        except SpawnError:
            await self.stop(_LEAVE)
            raise

    async def wait_exit(self) -> Exit:
        """How the child ended, once it has."""
        return await asyncio.shield(self.exited)

    def terminate(self) -> None:
        """Ask the child to stop (SIGTERM); returns at once. One that is stopped (SIGSTOP) hears it,
        too.
        """
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the child without asking (SIGKILL); ``exited`` follows."""
        self._signal(signal.SIGKILL)

    async def stop(self, grace: float) -> Exit:
        """Ask, wait ``grace`` seconds, kill; returns how it ended. Safe at any time, also twice."""
        self.terminate()
        try:
            await asyncio.wait((self.exited,), timeout=grace)
        finally:
            self.kill()
        return await self.wait_exit()

    def end_now(self, limit: float = 1.0) -> None:
        """Kill, and wait for the end without the loop: for who is interrupted wherever he waits.

        Blocks for ``limit`` seconds at most. ``exited`` follows when the loop runs again.
        """
        if self._process is None or self._pidfd < 0:
            return
        self.kill()
        ends = select.poll()
        ends.register(self._pidfd, select.POLLIN)
        if ends.poll(limit * 1000):
            end_session(self._process.pid, self._run_folder)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._pidfd >= 0:
            # A zombie that the loop has not reaped yet is no longer there to be signalled.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _read_status(self) -> None:
        try:
            while data := os.read(self._status, 65_536):
                self._buffer += data
                if len(self._buffer) > _MAX_LINE:
                    self._buffer = b""
            self._loop.remove_reader(self._status)  # its end; the exit comes through the pidfd
        except BlockingIOError:
            pass
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self._on_event(event)

    def _on_event(self, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "progress":
            self._last_progress = str(event["text"])
            if self._on_progress is not None:
                self._on_progress(self._last_progress)
        elif kind == "ready" and not self.ready.done():
            self.address = Address(*event["address"])
            self.facts = dict(event.get("facts") or {})
            self._stop_timer()
            self.ready.set_result(self.address)
        elif kind == "failed":
            self._failure = self._explain(event)
            self._fail(self._failure)

    def _fail(self, error: SpawnError) -> None:
        self._stop_timer()
        if not self.ready.done():
            self.ready.set_exception(error)

    def _explain(self, event: dict[str, Any]) -> SpawnError:
        stage = str(event["stage"])
        wire = event.get("error")
        inner = from_wire(*wire) if wire else None
        if isinstance(inner, SpawnError):
            return inner  # a node whose child failed: tell the child's story, not the node's
        if isinstance(inner, SpecError) and self._launch.spec.get("role") in OWN_ROLES:
            text = f"{self.title} (pid {self.pid}) did not start: {inner}"
            return SpawnError(text, actor=self.name, stage=stage, code=inner.code)
        details = {"stage": stage, "type": str(event["type"]), "traceback": str(event["traceback"])}
        if isinstance(inner, CallHomeError):
            details["code"] = inner.code
        text = f"{self.title} (pid {self.pid}) {self._what(stage, event)}"
        if not (isinstance(inner, SpecError) and stage == "constructor"):  # that says what to do
            text += f"; {self._next_step(stage, event)}"
        return SpawnError(text, actor=self.name, **details)

    def _what(self, stage: str, event: Mapping[str, Any]) -> str:
        cause = f"{event['type']}: {event['message']}"
        if event["type"] == "SystemExit":
            cause = f"it called exit({event['message']})"
        if self.address is not None:
            return f"served, and then ended with an error: {cause}"
        what = {
            "import": f"cannot import {self._target}",
            "constructor": "constructor raised",
            "on_start": "on_start raised",
            "bind": "cannot bind its inbox",
        }.get(stage, "ended with an error")
        return f"did not start: {what}: {cause}"

    @property
    def _target(self) -> str:
        return str(self._launch.spec.get("class", "what it consists of"))

    def _next_step(self, stage: str, event: Mapping[str, Any]) -> str:
        step = _NEXT_STEP.get(stage, _NEXT_STEP["exit"])
        if stage == "import" and _ran_as_script(event):
            source = self._target.rpartition(":")[0]
            return (
                f"every process of an actor imports {source}: put what it does when it is run "
                "under 'if __name__ == \"__main__\":'"
            )
        args = self._launch.spec.get("args")
        return f"{step} ({', '.join(args)})" if stage == "constructor" and args else step

    def _time_out(self, limit: float) -> None:
        doing = f" (last heard: {self._last_progress})" if self._last_progress else ""
        self._fail(
            SpawnError(
                f"{self.title} (pid {self.pid}) was not ready after {limit:g} s{doing}; "
                f"{_NEXT_STEP['timeout']}",
                actor=self.name,
                stage="timeout",
            )
        )
        self.kill()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _reap(self) -> None:
        assert self._process is not None
        known = end_session(self._process.pid, self._run_folder)
        code = self._process.poll()
        if code is None:
            return
        self._read_status()  # a failure report may still lie in the pipe
        how = Exit(self._process.pid, code if known else UNKNOWN, known)
        self._fail(
            SpawnError(
                f"{self.title} (pid {how.pid}) ended before it was ready: {how}; "
                f"{_NEXT_STEP['exit']}",
                actor=self.name,
                stage="exit",
            )
        )
        self._close()
        if not self.exited.done():
            self.exited.set_result(how)

    def _close(self) -> None:
        self._stop_timer()
        for fd in (self._status, self._pidfd):
            if fd >= 0:
                self._loop.remove_reader(fd)
                os.close(fd)
        self._status = self._pidfd = -1
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    @property
    def failure(self) -> SpawnError | None:
        """What the child itself reported about its end, also when it came after it was ready."""
        return self._failure


def _ran_as_script(event: Mapping[str, Any]) -> bool:
    """An import failed because the file did what a script does, in the loop of an actor."""
    return event["type"] == "SystemExit" or (
        event["type"] == "RuntimeError" and "event loop" in str(event["message"])
    )


def _retrieve(future: asyncio.Future[Address]) -> None:
    """A start-up failure that nobody awaits any more (the whole node is stopping) is no warning."""
    if not future.cancelled():
        future.exception()
