"""Cores: what is written, what there is, who gets which, and whether it holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.cluster import cores
from actors.cluster.spec import ActorSpec, EngineSpec, NodeSpec, RouterSpec
from actors.errors import SpecError
from tests.waiting import LONG, require_cores

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0,)), ("0,1", (0, 1)), ("1,0", (1, 0)), ("0-3", (0, 1, 2, 3)), (" 2 , 0-1", (2, 0, 1))],
)
def test_cores_are_read_as_written(text: str, expected: tuple[int, ...]) -> None:
    assert cores.parse_cores(text, range(4)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["''", "expected '0,1' or '0-3'", "available: 0-3"]),
        ("a", ["'a'", "available: 0-3"]),
        ("0,", ["'0,'"]),
        ("0-", ["'0-'"]),
        ("-1", ["'-1'"]),
        ("2-1", ["'2-1' runs backwards"]),
        ("0,0-1", ["names a core twice"]),
        ("9", ["core 9 does not exist or is not permitted", "available: 0-3"]),
        ("2-5", ["cores 4-5 do not exist", "available: 0-3"]),
        ("0-99999", ["cores 4-99999"]),
    ],
)
def test_wrong_cores_are_named_beside_those_there_are(text: str, words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        cores.parse_cores(text, range(4))
    for word in words:
        assert word in str(caught.value)


def test_this_process_is_asked_by_default() -> None:
    mine = sorted(os.sched_getaffinity(0))
    assert cores.parse_cores(str(mine[0])) == (mine[0],)
    with pytest.raises(SpecError, match="available: "):
        cores.parse_cores(str(mine[-1] + 1))


def test_cores_are_shown_as_written() -> None:
    assert cores.show([3, 0, 1, 6, 2]) == "0-3,6"
    assert cores.show([5]) == "5"
    assert cores.show([]) == ""


NODE = NodeSpec(
    routers=[RouterSpec()],
    engines=[
        EngineSpec("a.b.c", "m:A", replicas=3),
        EngineSpec("a.b.d", "m:A", cpus=[1]),
        EngineSpec("a.b.e", "m:A", place="here"),
    ],
    actors=[ActorSpec("counter", "m:C")],
)


def test_actors_are_spread_over_the_cores() -> None:
    assert cores.plan(NODE, [0, 1, 2], range(4)) == {
        "router": (0,),
        "a.b.c-0": (1,),
        "a.b.c-1": (2,),
        "a.b.c-2": (1,),
        "a.b.d": (1,),
        "a.b.e": None,
        "counter": (2,),
    }


def test_the_ingress_is_a_door_as_the_router_is() -> None:
    node = NodeSpec(engines=[EngineSpec("a.b.c", "m:A")], listen="127.0.0.1:0")
    assert cores.plan(node, [0, 1], range(4)) == {"router": (0,), "ingress": (0,), "a.b.c": (1,)}


def test_one_core_serves_all() -> None:
    planned = cores.plan(NODE, [1], range(4))
    assert {name: own for name, own in planned.items() if own != (1,)} == {"a.b.e": None}


def test_without_cores_only_those_that_ask_are_pinned() -> None:
    planned = cores.plan(NODE, None, range(4))
    assert {name: own for name, own in planned.items() if own} == {"a.b.d": (1,)}


def test_cpus_outside_the_cores_are_an_error() -> None:
    with pytest.raises(SpecError, match=r"a\.b\.d\.cpus: 1 lies outside the given cores 2-3"):
        cores.plan(NODE, [2, 3], range(4))
    with pytest.raises(SpecError, match=r"a\.b\.d\.cpus: core 1 does not exist.*available: 0\)"):
        cores.plan(NODE, None, [0])
    with pytest.raises(SpecError, match=r"cores: core 7 does not exist.*available: 0-3"):
        cores.plan(NODE, [1, 7], range(4))
    with pytest.raises(SpecError, match="cores: none given"):
        cores.plan(NODE, [], range(4))


def test_the_machine_is_read() -> None:
    machine = cores.read_machine()
    assert machine.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert machine.online >= len(machine.cores)
    assert machine.memory > 1 << 20
    assert machine.quota is None or machine.quota > 0


def test_the_smallest_quota_above_us_counts(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    root = tmp_path / "fs"
    inner = root / "outer" / "inner"
    inner.mkdir(parents=True)
    (root / "outer" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    membership.write_text("0::/outer/inner\n")
    assert cores.cpu_quota(str(membership), str(root)) == 1.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert cores.cpu_quota(str(membership), str(root)) == 0.5
    membership.write_text("0::/\n")
    assert cores.cpu_quota(str(membership), str(root)) is None
    assert cores.cpu_quota(str(tmp_path / "gone"), str(root)) is None


def test_the_old_kind_of_control_group_is_read(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    folder = tmp_path / "fs" / "cpu" / "box"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("200000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    membership.write_text("4:memory:/box\n3:cpu,cpuacct:/box\n")
    assert cores.cpu_quota(str(membership), str(tmp_path / "fs")) == 2.0
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert cores.cpu_quota(str(membership), str(tmp_path / "fs")) is None


PINNED = """
import os, threading
from actors.cluster.cores import permitted, pin, threads_outside
both = permitted()
stay = threading.Event()
threading.Thread(target=stay.wait, daemon=True).start()
pin([both[1]])
print(permitted() == (both[1],), len(threads_outside(os.getpid(), [both[1]])))
os.sched_setaffinity(0, both[:1])
print(len(threads_outside(os.getpid(), [both[1]])))
"""


def test_a_pin_holds_and_threads_that_escape_it_are_found() -> None:
    require_cores(2, "a pin shows only where there is a choice")
    done = subprocess.run(
        [sys.executable, "-c", PINNED], cwd=ROOT, capture_output=True, text=True, timeout=LONG
    )
    assert done.stdout.splitlines() == ["True 1", "2"], done.stderr


def test_an_impossible_pin_is_refused() -> None:
    absent = max(os.sched_getaffinity(0)) + 512
    with pytest.raises(SpecError, match=f"cannot run on {absent}"):
        cores.pin([absent])
