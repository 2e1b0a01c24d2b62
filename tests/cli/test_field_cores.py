"""Field reports on cores: what is permitted, what a quota allows, what an import may not move."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.cluster import cores
from tests.cli.tool import LIMIT, ROOT, Tool, up
from tests.waiting import require_cores, require_root

SPEC = str(ROOT / "examples" / "cluster.toml")
PERMITTED = sorted(os.sched_getaffinity(0))


class Narrow(Tool):
    """The command as ``taskset -c CORE`` starts it."""

    core = PERMITTED[-1]

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started: subprocess.Popen[str] = subprocess.Popen(
            ["taskset", "-c", str(self.core), sys.executable, "-m", "actors", *arguments],
            text=True,
            env={
                **self.environ,
                "OMP_PROC_BIND": "true",
                "KMP_AFFINITY": "granularity=fine,compact",
            },
            **{**pipes, **options},  # type: ignore[call-overload]
        )
        return started


@pytest.fixture
def narrow(tool: Tool) -> Narrow:
    return Narrow(tool.run_folder)


def test_b153_a_launcher_on_one_core_uses_that_core_and_says_so(
    narrow: Narrow, tmp_path: Path
) -> None:
    core = narrow.core
    spec = tmp_path / "node.toml"
    spec.write_text(
        f'[[engines]]\nendpoint = "t.n.go"\nengine = "{__file__}:counts"\nreplicas = 4\n'
        "[[routers]]\n"
    )
    with up(narrow, tmp_path / "log", str(spec), "--cores", str(core)) as running:
        rows = narrow.actors()
        assert len([name for name in rows if name.startswith("t.n.go")]) == 4
        assert {tuple(row["cores"]) for row in rows.values() if row["role"] != "node"} == {(core,)}
        for row in rows.values():
            if row["role"] != "node":
                # Every thread, NumPy's and ZeroMQ's too.
                assert cores.threads_outside(row["pid"], [core]) == []
        said = running.text
        assert f"core {core}: router, t.n.go-0, t.n.go-1, t.n.go-2, t.n.go-3" in said
        assert f"5 actors share 1 core ({core} permitted)" in said
        # B161: the engine has imported numpy under OMP_PROC_BIND and KMP_AFFINITY.
        answer = narrow.run("call", "t.n.go", "null")
        assert answer.stdout == f"[{core}]\n", answer


@pytest.mark.parametrize("asked", ["63", "0-63"])
def test_b153_a_core_that_is_not_permitted_is_refused_before_anything_starts(
    tool: Tool, asked: str
) -> None:
    if os.cpu_count() is not None and 63 in PERMITTED:
        pytest.skip("this machine has a core 63")
    done = tool.run("up", SPEC, "--cores", asked)
    assert done.returncode == 2
    assert "not permitted to this process" in done.stderr
    assert f"available: {cores.show(PERMITTED)}" in done.stderr
    assert os.listdir(tool.run_folder) == []


def test_b153_what_taskset_took_away_is_refused_and_named(narrow: Narrow) -> None:
    require_cores(2, "taskset takes one of them away")
    done = narrow.run("up", SPEC, "--cores", cores.show(PERMITTED))
    assert done.returncode == 2
    assert f"available: {narrow.core}" in done.stderr


IMPORTS = """
import os
before = os.sched_getaffinity(0)
import numpy
numpy.dot(numpy.ones((300, 300)), numpy.ones((300, 300)))
tasks = [os.sched_getaffinity(int(each)) for each in os.listdir("/proc/self/task")]
print(before == os.sched_getaffinity(0), all(each == before for each in tasks))
"""


@pytest.mark.parametrize(
    "environ",
    [
        {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"},
        {"KMP_AFFINITY": "granularity=fine,compact,1,0", "GOMP_CPU_AFFINITY": "0"},
    ],
    ids=["omp", "kmp"],
)
def test_b161_an_import_moves_no_pin(environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


async def counts(request: object) -> list[int]:
    """The cores that the engine may run on, once numpy is there."""
    import numpy

    numpy.dot(numpy.ones((200, 200)), numpy.ones((200, 200)))
    return sorted(os.sched_getaffinity(0))


def test_b158_a_quota_smaller_than_the_cores_is_told_with_its_reason() -> None:
    planned = {"router": (0,), **{f"e-{number}": (number % 4,) for number in range(12)}}
    lines = cores.told(planned, 13, 1.5, range(4))
    assert lines[:2] == ["core 0: router, e-0, e-4, e-8", "core 1: e-1, e-5, e-9"]
    assert lines[-2].startswith("13 actors share 4 cores (0-3 permitted)")
    assert lines[-1].startswith("a quota (cpu.max of the control group) allows 1.5 cores' worth")
    assert "13 processes are started on 4 cores" in lines[-1]
    unpinned = dict.fromkeys(planned)
    (line,) = cores.told(unpinned, 13, 1.5, range(4))
    assert "13 processes are started on 4 cores" in line
    assert cores.told(unpinned, 13, None, range(4)) == []
    assert cores.told(unpinned, 1, 1.5, range(4)) == []
    assert cores.told(unpinned, 13, 4.0, range(4)) == []
    many = {f"e-{number}": (1,) for number in range(100)}
    assert cores.told(many, 100, None, range(4))[0].endswith("e-7 and 92 more")


QUOTA = """
set -e
group=/sys/fs/cgroup/callhome-b158-$$
[ -d /sys/fs/cgroup/cpu ] && group=/sys/fs/cgroup/cpu/callhome-b158-$$
mkdir "$group"
trap 'rmdir "$group"' EXIT
if [ -e "$group/cpu.max" ]; then echo "150000 100000" >"$group/cpu.max"
else echo 100000 >"$group/cpu.cfs_period_us"; echo 150000 >"$group/cpu.cfs_quota_us"; fi
(echo $BASHPID >"$group/cgroup.procs"; exec "$@")
"""
ASKS = "from actors.cluster.cores import cpu_quota; print(cpu_quota())"


def test_b158_a_real_quota_is_seen(tool: Tool) -> None:
    require_root("a control group is made")
    done = subprocess.run(
        ["bash", "-c", QUOTA, "bash", sys.executable, "-c", ASKS],
        env=tool.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no control group with a CPU limit can be made here: {done.stderr[-200:]}")
    assert float(done.stdout) == 1.5
