"""B136: short streams in a row, a socket for each of them, where ports are few."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROUNDS = 4
ROOT = Path(__file__).parents[2]


def short_streams(folder: Path, *before: str) -> list[dict[str, Any]]:
    """What each round of the program has to tell."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.router.short_streams", str(folder), str(ROUNDS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def few_ports() -> tuple[str, ...]:
    """A command that runs another in a network of its own with 1,000 ports, where that can be."""
    if os.geteuid() or shutil.which("unshare") is None or shutil.which("ip") is None:
        return ()
    script = (
        "ip link set lo up && "
        "echo 20000 20999 > /proc/sys/net/ipv4/ip_local_port_range && "
        'exec "$@"'
    )
    before = ("unshare", "--net", "sh", "-c", script, "sh")
    done = subprocess.run([*before, "true"], capture_output=True, check=False)
    return () if done.returncode else before


@pytest.mark.timeout(300)
def test_b136_a_socket_for_each_stream_exhausts_no_ports(tmp_path: Path) -> None:
    """Twice as many streams as there are ports. Who may have no network of its own has all ports,
    and sees all but that; the long form is ``python -m tests.router.short_streams FOLDER 40``.
    """
    before = few_ports()
    found = short_streams(tmp_path, *before)
    assert [each["failed"] for each in found] == [0] * ROUNDS
    assert found[-1]["dialled"] == 500 * ROUNDS
    used = [each["fds"] for each in found]
    assert max(used) - min(used) <= 2, used
    assert (found[-1]["dial.ports"], found[-1]["dial.failed"]) == (0, 0)  # none had to wait
    # What goes wrong with time does so in all of the last rounds, and costs time of ours; other
    # work on this machine only makes some of them wait.
    p99, cpu = ([each[what] for each in found] for what in ("p99", "cpu"))
    half = ROUNDS // 2
    slower = min(p99[half:]) > 4 * min(p99[:half])
    assert not (slower and min(cpu[half:]) > 4 * min(cpu[:half])), (p99, cpu)
