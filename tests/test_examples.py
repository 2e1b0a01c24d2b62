"""The examples as users run them: copied elsewhere, from another folder, as processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.etcd import require_etcd
from tests.waiting import LONG

ROOT = Path(__file__).resolve().parent.parent


def run(script: Path, limit: float = 2 * LONG, **environ: str) -> str:
    """What a script prints when it is run from the root folder; it must succeed silently else."""
    found = subprocess.run(
        [sys.executable, str(script)],
        cwd="/",
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=limit,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_the_main_job_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    out = run(tmp_path / "examples" / "launch.py", PYTHONPATH=str(ROOT))
    told = {line[:10].strip() for line in out.splitlines()}
    assert {"up", "unary", "stream", "chat", "frames", "stop", "drop", "proxy", "down"} <= told
    assert "60 pictures of 1920x1080 in, darkened, out" in out
    assert out.splitlines()[-1].startswith("left       nothing: 9 processes")


def test_two_nodes_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    out = run(tmp_path / "examples" / "two_nodes.py", PYTHONPATH=str(ROOT))
    told = {line[:10].strip() for line in out.splitlines()}
    assert {"up", "unary", "stream", "chat", "frames", "stop", "outside", "kill", "down"} <= told
    assert "24 frames of 8 MiB in, darkened, out" in out
    assert "PeerLost: demo.tokens.generate" in out
    assert "killed by SIGKILL" in out
    assert out.splitlines()[-1].startswith("left       nothing: 9 processes")


def test_routing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    out = run(tmp_path / "examples" / "routing.py", PYTHONPATH=str(ROOT))
    told = {line[:10].strip() for line in out.splitlines()}
    shown = {"worker", "least", "instance", "turns", "weighted", "sticky", "yours", "burst", "busy"}
    assert shown | {"up", "migration", "routers", "down"} <= told
    assert "turns      cpu-0 4, cpu-1 4, gpu 4" in out
    assert "small requests: cpu-0 2, cpu-1 2; large ones: gpu 4" in out
    assert "48 calls for 12 places, none refused" in out
    assert "AllBusy: " in out
    assert "200 tokens, none twice, none missing: writer-" in out
    assert "one of two was killed: 50 calls answered" in out
    assert out.splitlines()[-1].startswith("left       nothing")


@pytest.mark.timeout(180)
def test_several_machines_from_elsewhere(tmp_path: Path) -> None:
    require_etcd()
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    script = tmp_path / "examples" / "several_machines.py"
    out = run(script, PYTHONPATH=str(ROOT), ETCD_ENDPOINTS="")
    told = {line[:10].strip() for line in out.splitlines()}
    assert {"up", "found", "streams", "etcd", "$", "down"} <= told
    assert "9 from each to each, 1000 tokens each, in order" in out
    assert out.count("calls meanwhile, 0 failed") == 3
    assert "4 of 4 actors were started anew" in out
    assert out.splitlines()[-1].startswith("left       nothing")


def test_without_etcd_the_example_says_what_is_missing() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "several_machines.py")],
        env={**os.environ, "PATH": "/nowhere", "ETCD_ENDPOINTS": ""},
        capture_output=True,
        text=True,
        timeout=LONG,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("missing: etcd (Debian: etcd-server) in PATH")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "counter",
            ["total: 3", "[3, 4, 5, 6]", "exit code 3", "anew: 5", "process: True"],
        ),
        ("adapter", ["words: ['ONE', 'TWO', 'STOP']", "frame: Unsupported: demo.lines.shout has"]),
        (
            "recording",
            [
                "engine: ['ONE', 'TWO']",
                "inside: [1, 2, 3, 4, 5]",
                "chat: you said hello",
                "recorded: added         demo.shout.words",
                "recorded: unary         demo.inside.count   dispatched in",
                "recorded: bidirectional demo.inside.answer  dispatched in",
            ],
        ),
        (
            "frozen",
            [
                "(pid PID) is frozen: its process is stopped",
                "others: 10 of 10 calls",
                "50 numbers, each once: True",
                "told: frozen, thawed",
            ],
        ),
        ("canary", ["others: 10 of 10 calls", "both are back"]),
        ("frames", ["largest 7", "twice: FrameReleased", "'writeable': False", "right: True"]),
    ],
)
def test_the_others_uninstalled(name: str, lines: list[str]) -> None:
    out = run(ROOT / "examples" / f"{name}.py")
    for line in lines:
        assert line in out
