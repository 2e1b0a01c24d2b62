"""``callhome doctor``: what the machine and the installation must give, one line a check."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from actors.cli.command import FAILED
from actors.cli.show import put, size
from actors.cluster.cores import read_machine, show
from actors.cluster.folder import folders, read_info, try_lock
from actors.cluster.sweep import sweep_folder
from actors.config import Settings
from actors.errors import CallHomeError
from actors.kernel.descriptors import fellows
from transport.bus.address import MAX_PATH
from transport.bus.shared import socket_limit

DISTRIBUTION: Final = "callhome"
#: The lowest versions, as in setup.cfg (a test compares them).
PYTHON: Final = "3.11"
FLOORS: Final = {"pyzmq": "25.1", "msgpack": "1.2.4", "numpy": "1.26", "psutil": "5.9.4"}
#: Longest tail of a socket path that specs commonly lead to: cluster, node, actor, incarnation.
_TAIL: Final = len("/cluster/a/demo.shout.generate-0.ffffffffffffffff.d")
_FEW_FILES: Final = 1024
_MANY_FILES: Final = 4096
_FEW_SOCKETS: Final = 1024

#: Read one byte of our memory as a reader on this node does; argv: pid, descriptor.
_READER: Final = """
import mmap, os, sys
fd = os.open(f"/proc/{sys.argv[1]}/fd/{sys.argv[2]}", os.O_RDONLY)
print(mmap.mmap(fd, 4096, prot=mmap.PROT_READ)[0])
"""


class Finding(NamedTuple):
    """One check: ``level`` is ok, warn or FAIL; ``advice`` what to do unless it is ok."""

    level: str
    text: str
    advice: str = ""


def doctor(options: Namespace) -> int:
    """``callhome doctor``."""
    failed = False
    for check in (
        _python, _packages, _import_names, _memory, _pidfd, _files, _cores,
        lambda: _run_folder(options.fix),
    ):  # fmt: skip
        for level, text, advice in _guarded(check):
            failed = failed or level == "FAIL"
            put(f"{level:4}  {text}" + (f"; {advice}" if advice else ""))
    return FAILED if failed else 0


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check; one that cannot be made is a finding too."""
    try:
        yield from check()
    except (OSError, CallHomeError, subprocess.SubprocessError) as error:
        yield Finding("FAIL", " ".join(str(error).split()))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    if not sys.platform.startswith("linux"):
        yield Finding("FAIL", f"platform {sys.platform}", "callhome runs on Linux")
    if sys.version_info[:2] < _numbers(PYTHON):
        yield Finding("FAIL", f"python {found}", f"use {PYTHON} or newer")
    else:
        yield Finding("ok", f"python {found} ({sys.executable})")


def _packages() -> Iterator[Finding]:
    for name, floor in FLOORS.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding("FAIL", f"{name} is not installed", f"pip install '{name} >= {floor}'")
            continue
        if _numbers(found) < _numbers(floor):
            yield Finding("FAIL", f"{name} {found}", f"pip install '{name} >= {floor}'")
        else:
            yield Finding("ok", f"{name} {found} (at least {floor})")


def _import_names() -> Iterator[Finding]:
    """``actors`` and ``transport`` are names that another distribution could have overwritten."""
    owners = metadata.packages_distributions()
    try:
        home = _home(metadata.distribution(DISTRIBUTION))
    except metadata.PackageNotFoundError:
        home = None
    for name in ("actors", "transport"):
        loaded = [str(Path(place).resolve()) for place in sys.modules[name].__path__]
        others = sorted(set(owners.get(name, ())) - {DISTRIBUTION})
        if others:
            yield Finding(
                "FAIL",
                f"import {name}: {', '.join(others)} ships a package of this name too",
                f"pip uninstall {others[0]} and reinstall {DISTRIBUTION}, or use a venv of its own",
            )
        elif home is None:
            yield Finding("ok", f"import {name}: {loaded[0]} (source tree; not installed)")
        elif loaded != [str(home / name)]:
            yield Finding(
                "warn",
                f"import {name}: {loaded[0]}, but {DISTRIBUTION} is installed in {home}",
                "look at PYTHONPATH and the working folder",
            )
        else:
            yield Finding("ok", f"import {name}: {loaded[0]}")


def _home(distribution: metadata.Distribution) -> Path:
    """The folder that the installed distribution's packages are imported from."""
    direct = json.loads(distribution.read_text("direct_url.json") or "{}")
    if direct.get("dir_info", {}).get("editable"):
        return Path(str(direct["url"]).removeprefix("file://")).resolve()
    return Path(str(distribution.locate_file(""))).resolve()


def _memory() -> Iterator[Finding]:
    fd = os.memfd_create("callhome-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, 4096)
        os.pwrite(fd, b"\x07", 0)
        command = [sys.executable, "-c", _READER, str(os.getpid()), str(fd)]
        reader = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    finally:
        os.close(fd)
    if reader.stdout.strip() == "7":
        yield Finding("ok", "shared memory: memfd, attached by another process through /proc")
    else:
        why = (reader.stderr.strip().splitlines() or ["the reader saw something else"])[-1]
        yield Finding(
            "warn",
            f"shared memory cannot be attached through /proc: {why}",
            "frames will be sent as bytes; look at the user and PID namespaces, hidepid and ptrace",
        )


def _pidfd() -> Iterator[Finding]:
    os.close(os.pidfd_open(os.getpid()))  # OSError: a kernel before 5.3, or a seccomp filter
    yield Finding("ok", "pidfd: deaths are noticed at once")


def _files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = (
        f"open files: {soft} allowed (hard limit {hard}), enough for nodes of some {fellows(soft)} "
        "actors and clients"
    )
    if soft < _FEW_FILES:
        yield Finding("FAIL", text, f"ulimit -n {_MANY_FILES}")
    elif soft < _MANY_FILES:
        yield Finding("warn", text, f"ulimit -n {_MANY_FILES} for larger ones")
    else:
        yield Finding("ok", text)
    sockets = socket_limit()
    text = f"sockets: {sockets} in a process, by ZeroMQ's limit"
    if sockets < _FEW_SOCKETS:
        yield Finding("warn", text, "install a pyzmq whose libzmq was built for more (epoll)")
    else:
        yield Finding("ok", text)


def _cores() -> Iterator[Finding]:
    machine = read_machine()
    text = (
        f"cores: {show(machine.cores)} of {machine.online}, "
        f"{machine.physical or 'unknown'} physical; {size(machine.memory)} of memory"
    )
    if machine.quota is not None and machine.quota < len(machine.cores):
        yield Finding(
            "warn",
            f"{text}; a quota allows {machine.quota:g} cores' worth of time",
            "pinned actors will be throttled together; raise the container's CPU limit",
        )
    elif len(machine.cores) < 2:
        yield Finding("warn", text, "router and engines share one core; figures will be low")
    else:
        yield Finding("ok", text)


def _run_folder(fix: bool) -> Iterator[Finding]:
    root = Settings.load().run
    yield _rights(root)
    spare = MAX_PATH - len(root.encode()) - _TAIL
    if spare < 0:
        yield Finding(
            "warn",
            f"run folder {root}: socket paths below it may be longer than {MAX_PATH} bytes",
            f"set CALLHOME_RUN to a path that is {-spare} bytes shorter, or use short names",
        )
    else:
        yield Finding("ok", f"run folder {root}: {spare} bytes to spare for longer names")
    yield from _left_over(root, fix)


def _rights(root: str) -> Finding:
    there = root
    while not os.path.exists(there):
        there = os.path.dirname(there)
    advice = "set CALLHOME_RUN to a folder of your own"
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        return Finding("FAIL", f"run folder {root}: {there} cannot be written", advice)
    found = os.stat(there)
    if there == root and found.st_uid != os.geteuid():
        return Finding("FAIL", f"run folder {root} belongs to uid {found.st_uid}", advice)
    return Finding("ok", f"run folder {root}: {'writable' if there == root else 'can be made'}")


def _left_over(root: str, fix: bool) -> Iterator[Finding]:
    for folder in folders(root):
        fd = try_lock(folder)
        if fd < 0:
            info = read_info(folder)
            who = f"pid {info.address.pid}" if info else "starting or stopping"
            yield Finding("ok", f"node {os.path.relpath(folder, root)} runs ({who})")
            continue
        os.close(fd)
        if fix:
            for line in sweep_folder(folder):
                yield Finding("ok", f"left by a dead node: {line}")
        else:
            yield Finding("warn", f"{folder}: left by a dead node", "callhome doctor --fix")
