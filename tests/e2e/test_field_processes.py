"""Field reports on processes: how they start, die, loop and stop, and what is told of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from actors import ActorSpec, Cluster, EngineSpec, NodeSpec, Settings
from actors.cluster.folder import folders
from actors.cluster.node import Ps
from actors.cluster.stopping import stop_node
from actors.errors import CallHomeError, NoWorkers, PeerLost, SpawnError
from tests.e2e.process_engines import Hurt
from tests.waiting import DEADLINE, LONG, PATIENCE, TICK, wait_until

ENGINES = "tests.e2e.process_engines"
ROOT = Path(__file__).resolve().parents[2]
ECHO = EngineSpec("t.echo.go", "tests.cluster.workers:Echo")


def run_root() -> str:
    return os.environ["CALLHOME_RUN"]


def state(pid: int) -> str:
    """The state letter of a process, "" when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pids: list[int]) -> bool:
    """Whether none of them runs; a zombie is its parent's affair."""
    return all(state(pid) in ("", "Z") for pid in pids)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", ["ValueError: no such model"]),
        ("exit", ["exit code 3"]),
        ("crash", ["killed by SIGSEGV"]),
    ],
)
async def test_b51_a_constructor_that_fails_is_told_at_once(how: str, words: list[str]) -> None:
    began = time.monotonic()
    broken = ActorSpec("broken", f"{ENGINES}:NoModel", args={"how": how})
    settings = Settings.load(start_timeout=60.0)
    with pytest.raises(SpawnError) as caught:
        async with Cluster(NodeSpec(actors=[broken], settings=settings)):
            pytest.fail("it came up")
    assert time.monotonic() - began < 30.0
    for word in ["'broken'", *words]:
        assert word in str(caught.value)
    if how == "raise":
        assert "process_engines.py" in caught.value.details["traceback"]
    assert folders(run_root()) == []


async def test_b49_b58_the_dead_are_named_and_the_living_serve() -> None:
    victim = EngineSpec("t.ends.go", f"{ENGINES}:ends", restart="never", replicas=4)
    spec = NodeSpec(
        engines=[victim],
        actors=[ActorSpec(f"v{n}", f"{ENGINES}:Victim", restart="never") for n in range(2)],
        settings=Settings.load(retry_limit=0),
    )
    hurts = [("exit 3", "exit code 3"), ("signal 11", "SIGSEGV"), ("signal 9", "SIGKILL")]
    async with Cluster(spec) as cluster, cluster.client() as client:
        for n, (how, words) in enumerate(hurts):
            name = f"t.ends.go-{n}"
            address = client.ref(name).address
            began = time.monotonic()
            with pytest.raises(CallHomeError) as caught:
                await client.call("t.ends.go", how, instance=address.incarnation)
            for word in (name, str(address.pid), words):
                assert word in str(caught.value), caught.value
            assert time.monotonic() - began < DEADLINE
        for n, (how, words) in enumerate(hurts[:2]):
            address = client.ref(f"v{n}").address
            with pytest.raises(PeerLost) as lost:
                await client.ref(f"v{n}").ask(Hurt(how))
            assert words in str(lost.value)
            assert f"v{n} (pid {address.pid})" in str(lost.value)

        async def failed() -> bool:
            rows = await client.ref("node").ask(Ps())
            engines = {row["name"]: row["state"] for row in rows if row["role"] == "engine"}
            down = [name for name, state in engines.items() if state != "up"]
            return down == ["t.ends.go-0", "t.ends.go-1", "t.ends.go-2"]

        await wait_until(failed, what="three are down")
        with pytest.raises(CallHomeError):  # the last one
            await client.call("t.ends.go", "exit 3")

        async def nobody() -> bool:
            try:
                await client.call("t.ends.go", "exit 3", timeout=PATIENCE)
            except NoWorkers:
                return True
            except CallHomeError:
                return False
            return False

        await wait_until(nobody)


@pytest.mark.parametrize("killed", [False, True])
async def test_b48_what_an_actor_started_ends_with_it_in_whatever_group(killed: bool) -> None:
    engines = [
        EngineSpec(f"t.{own}.go", f"{ENGINES}:Keeper", args={"own": own}, restart="never")
        for own in ("group", "session")
    ]
    async with Cluster(NodeSpec(engines=engines)) as cluster, cluster.client() as client:
        leader, group = await client.call("t.group.go", None)
        _, session = await client.call("t.session.go", None)
        if killed:
            os.kill(leader, signal.SIGKILL)
            await wait_until(lambda: gone([leader, group]))
    try:
        await wait_until(lambda: gone([leader, group]))  # one that was killed has to run for it
        assert not gone([session])  # what is to outlive its actor does
    finally:
        os.kill(session, signal.SIGKILL)


async def test_b55_who_hears_no_sigterm_is_killed_and_that_is_told(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    sits = str(tmp_path / "sits")
    # The others hear it, and need their time on a busy machine.
    settings = Settings.load(stop_grace=3.0)
    deaf = ActorSpec("deaf", f"{ENGINES}:Deaf", args={"sits": sits})
    spec = NodeSpec(actors=[deaf], settings=settings)
    async with Cluster(spec) as cluster:
        (info,) = cluster.nodes
        (pid,) = [child.pid for child in info.children if child.name == "deaf"]
        await wait_until(lambda: os.path.exists(sits), what="it sits in a call")
        began = time.monotonic()
        stopped = await stop_node(info, LONG)
        assert time.monotonic() - began < DEADLINE
        assert stopped.in_order
        assert stopped.killed == [f"actor 'deaf' (pid {pid})"]
        assert gone([pid])
    assert (
        f"actor 'deaf' (pid {pid}) did not stop within 3 s and was killed" in capfd.readouterr().err
    )


async def test_b57_a_crash_loop_is_braked_and_ends(tmp_path: Path) -> None:
    lives = {"at-once": 0.01, "soon": 0.4}
    loops = [
        ActorSpec(
            name, f"{ENGINES}:Breaks", args={"file": str(tmp_path / name), "life": life, "code": 1}
        )
        for name, life in lives.items()
    ]
    settings = Settings.load(max_restarts=5, restart_period=10.0, start_timeout=60.0)
    spec = NodeSpec(engines=[ECHO], actors=loops, settings=settings)
    async with Cluster(spec) as cluster, cluster.client() as client:

        async def failed() -> bool:
            await asyncio.sleep(TICK)
            assert await client.call("t.echo.go", 1, timeout=DEADLINE) == 1
            rows = await client.ref("node").ask(Ps())
            return [row["state"] for row in rows if row["name"] in lives] == ["failed"] * 2

        await wait_until(failed, 2 * LONG)
    for name, life in lives.items():
        times = [float(line) for line in (tmp_path / name).read_text().split()]
        assert len(times) == 6
        # At least the pauses; the start-up of a process comes on top.
        for n, pause in enumerate([0.0, 0.1, 0.2, 0.4, 0.8]):
            assert times[n + 1] - times[n] >= life + pause


async def test_b61_a_clean_stop_says_nothing_of_errors(tmp_path: Path) -> None:
    script = tmp_path / "clean.py"
    script.write_text(CLEAN)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    _, err = await asyncio.wait_for(process.communicate(), LONG)
    text = err.decode()
    assert process.returncode == 0, text
    for word in ("ERROR", "error", "Traceback", "Exception", "Warning"):
        assert word not in text, text


CLEAN = """
import asyncio
from actors import Cluster, EngineSpec, NodeSpec, Settings, connect

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60.0  # slowness is no error
    settings = Settings.load(drain_limit=0.2)
    spec = NodeSpec(
        engines=[EngineSpec("t.counts.go", "tests.e2e.process_engines:Counts"),
                 EngineSpec("t.echo.go", "tests.cluster.workers:Echo")],
        listen="127.0.0.1:0", settings=settings)
    async with Cluster(spec) as cluster:
        far = connect(f"tcp://{cluster.nodes[0].listen}")
        async with far:
            for number in range(10):
                assert await far.call("t.echo.go", number) == number
            streams = [far.stream("t.counts.go", {}) for _ in range(3)]
            for stream in streams:
                await stream.__aenter__()
                await anext(stream)
            stopping = cluster.__aexit__(None, None, None)
            await stopping

asyncio.run(main(), debug=True)
"""


async def test_b66_workers_draw_different_numbers() -> None:
    draws = EngineSpec("t.draws.go", f"{ENGINES}:draws", replicas=4)
    async with Cluster(NodeSpec(engines=[draws])) as cluster, cluster.client() as client:
        instances = [each.instance for each in client.records() if each.endpoint == "t.draws.go"]

        async def all_draw(seed: int | None) -> list[Any]:
            return [await client.call("t.draws.go", seed, instance=each) for each in instances]

        free = await all_draw(None)
        for generator in range(3):
            assert len({numbers[generator] for numbers in free}) == 4
        seeded = await all_draw(7)
        assert seeded[0][:2] == seeded[3][:2] == (await all_draw(7))[1][:2]
