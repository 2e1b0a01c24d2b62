"""First code of a child process: read the spec, pin, and only then import what is heavy.

Started as ``python -P -m actors.kernel.child LABEL`` by ``actors.kernel.spawn``. One JSON line on
stdin is the spec; stdin then stays open, and its end means that the parent is gone. What the child
has to say before it has an inbox goes over the status pipe (``spec["status_fd"]``), a JSON object a
line::

    {"event": "progress", "text": ...}
    {"event": "ready", "address": [name, incarnation, pid, started, space],
     "facts": {...}}
    {"event": "failed", "stage": import|constructor|on_start|bind|exit, "type", "message",
     "traceback", "error": [code, message, details] of a CallHomeError, else null}

Nothing but the standard library may be imported at the top of this file: threads of BLAS or ZeroMQ
that start before ``sched_setaffinity`` keep all cores.

A child dies with its parent in three ways, each for the case where the one before it fails: a
signal from the kernel (``spec["death_signal"]``), SIGTERM from its own watcher thread when stdin
ends or the parent's pidfd fires, and a hard exit ``spec["linger"]`` seconds later.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transport.bus.address import Address

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_MAX_SPEC = 16 << 20
_DESCRIPTORS = 65_536
_MAX_TEXT = 16_384
#: Exit code of a child whose actor failed, and of one that had to leave hard after its parent died.
EXIT_FAILED = 1
EXIT_ORPHAN = 113


class Status:
    """The child's end of the status pipe."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd

    def _send(self, event: dict[str, object]) -> None:
        line = json.dumps(event).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:
            return  # the parent is gone; the watcher ends this process

    def progress(self, text: str) -> None:
        """Tell what takes time before the actor is ready."""
        self._send({"event": "progress", "text": text[:_MAX_TEXT]})

    def ready(self, address: Address, facts: dict[str, object] | None = None) -> None:
        """The actor serves at ``address``; ``facts`` (JSON) is what its supervisor should know."""
        self._send({"event": "ready", "address": list(address), "facts": facts or {}})

    def failed(self, stage: str, cause: BaseException) -> None:
        """The actor did not come up (or, stage ``exit``, ended with an error)."""
        from transport.errors import CallHomeError, qualified_name, to_wire

        text = "".join(traceback.format_exception(cause))
        self._send(
            {
                "event": "failed",
                "stage": stage,
                "type": qualified_name(type(cause)),
                "message": str(cause)[:_MAX_TEXT],
                "traceback": text[-_MAX_TEXT:],
                "error": to_wire(cause) if isinstance(cause, CallHomeError) else None,
            }
        )


def _read_line(fd: int) -> bytes:
    """One line from a pipe, nothing behind it taken; b"" when the parent died before writing it."""
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = os.read(fd, 65_536)
        if not chunk or len(data) > _MAX_SPEC:
            return b""
        data += chunk
    return bytes(data)


def _take_stdin() -> int:
    """Move the parent's pipe off descriptor 0: user code that reads stdin meets its end at once."""
    fd = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return fd


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _settle(spec: dict[str, Any]) -> None:
    """Everything about this process that must hold before the first heavy import."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's; it stops us in order
    # Inherited as ignored, nobody here would learn how the processes end that he has started.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prctl(_PR_SET_NAME, str(spec["name"]).encode()[:15])
    if spec.get("death_signal"):
        _prctl(_PR_SET_PDEATHSIG, int(spec["death_signal"]))
    if os.getppid() != spec["parent"]:
        os._exit(EXIT_ORPHAN)  # it died before prctl could tell the kernel
    cpus = spec.get("cpus")
    if cpus:
        os.sched_setaffinity(0, cpus)
        for variable in _BLAS_THREADS:
            os.environ.setdefault(variable, str(len(cpus)))
    _allow_descriptors()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # kill -USR2 prints all stacks
    sys.path[:] = [str(entry) for entry in spec["path"]]
    _restore_pythonpath(spec.get("pythonpath"))


def _allow_descriptors() -> None:
    """Take what descriptors the hard limit allows: each peer costs a few, 1,024 is little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _restore_pythonpath(value: str | None) -> None:
    """PYTHONPATH was lent to find this module; what user code starts gets the caller's own."""
    if value is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = value


def _watch_parent(stdin: int, parent: int, linger: float) -> None:
    """Thread: wait for the parent's end, ask this process to stop, then make it."""
    watched = select.poll()
    watched.register(stdin, select.POLLIN)
    try:
        watched.register(os.pidfd_open(parent), select.POLLIN)
    except OSError:
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        watched.poll()
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(linger)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with what user code has started: it is nobody's any more
    os._exit(EXIT_ORPHAN)


def _run(spec: dict[str, Any], status: Status) -> int:
    try:
        import asyncio

        from actors.kernel.stage import StageError

        # By name: what runs an actor stands above everything that an actor may be.
        entry = importlib.import_module(spec["entry"])
    except BaseException as error:
        status.failed("import", error)
        raise
    try:
        code: int = asyncio.run(entry.run_actor(spec, status.ready, status.progress))
    except StageError as error:
        cause = error.cause
        status.failed(error.stage, cause)
        if error.stage == "exit" and not error.told:
            # Nobody waits for this news at a call site: leave it in the log.
            _tell(cause)
        return EXIT_FAILED
    except SystemExit as error:
        if error.code in (None, 0):
            raise
        status.failed("exit", error)
        raise
    except BaseException as error:
        status.failed("exit", error)
        _tell(error)
        return EXIT_FAILED
    return code


def _tell(error: BaseException) -> None:
    sys.stderr.write("".join(traceback.format_exception(error)))


def main() -> int:
    """Run the actor that stdin describes; the process's exit code."""
    stdin = _take_stdin()
    line = _read_line(stdin)
    if not line:
        return EXIT_ORPHAN
    spec: dict[str, Any] = json.loads(line)
    _settle(spec)
    threading.Thread(
        target=_watch_parent,
        args=(stdin, spec["parent"], float(spec.get("linger", 2.0))),
        name="callhome-parent",
        daemon=True,
    ).start()
    return _run(spec, Status(spec["status_fd"]))


if __name__ == "__main__":
    sys.exit(main())
