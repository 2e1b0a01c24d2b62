"""Children as real processes: every way to come up, to fail and to end."""

from __future__ import annotations

import ast
import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.config import Settings
from actors.errors import SpawnError
from actors.kernel.exits import Exit
from actors.kernel.peers import start_time
from actors.kernel.spawn import Child, Launch
from tests.clock import Clock
from tests.clock import clock as clock
from tests.waiting import LONG, TICK, wait_until

ROOT = str(Path(__file__).resolve().parent.parent.parent)


@pytest.fixture
def run() -> Iterator[str]:
    folder = Path(os.environ["CALLHOME_RUN"], secrets.token_hex(3))
    folder.mkdir(0o700)
    yield str(folder)
    for left in folder.iterdir():
        left.unlink()  # sockets of children that were killed
    folder.rmdir()


def spec(run: str, cls: str, **keys: Any) -> dict[str, Any]:
    return {
        "role": "actor",
        "name": cls.lower(),
        "incarnation": secrets.randbits(62) + 1,
        "run": run,
        "cluster": "test",
        "node": "a",
        "supervisor": None,
        "entry": "actors.cluster.entry",
        "cpus": None,
        "settings": Settings().to_dict(),
        "class": f"tests.kernel.troubled:{cls}",
        "args": {},
        **keys,
    }


def child(run: str, cls: str, **keys: Any) -> Child:
    one = Child(Launch(spec(run, cls, **keys)))
    one.launch(LONG)
    return one


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


async def failure(run: str, cls: str, **keys: Any) -> SpawnError:
    one = child(run, cls, **keys)
    with pytest.raises(SpawnError) as caught:
        await one.wait_ready()
    assert not one.alive
    assert start_time(one.pid) == 0
    return caught.value


async def test_a_child_is_ready_and_stops_when_asked(run: str) -> None:
    one = child(run, "Fine")
    address = await one.wait_ready()
    assert address.name == "fine"
    assert address.pid == one.pid
    assert address.started == start_time(one.pid)
    how = await one.stop(LONG)
    assert how == Exit(one.pid, 0)
    assert how.clean
    assert str(how) == "exit code 0"


async def test_its_command_line_names_it(run: str) -> None:
    one = child(run, "Fine")
    await one.wait_ready()
    assert "callhome:test/a/fine" in command_line(one.pid)
    await one.stop(LONG)


async def test_constructor_that_raises(run: str) -> None:
    error = await failure(run, "BadConstructor")
    assert error.details["stage"] == "constructor"
    assert error.details["type"] == "ValueError"
    assert "no luck with this constructor" in str(error)
    assert "'badconstructor'" in str(error)
    assert "troubled.py" in error.details["traceback"]


async def test_on_start_that_raises(run: str) -> None:
    error = await failure(run, "BadStart")
    assert error.details["stage"] == "on_start"
    assert "RuntimeError: no luck at the start" in str(error)


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("tests.kernel.no_such:Fine", "no_such"),
        ("tests.kernel.troubled:NoSuch", "NoSuch"),
        ("tests.kernel.unimportable:Fine", "this module refuses"),
    ],
)
async def test_import_that_fails(run: str, target: str, word: str) -> None:
    error = await failure(run, "Fine", **{"class": target})
    assert error.details["stage"] == "import"
    assert word in str(error)


async def test_args_that_do_not_fit(run: str) -> None:
    error = await failure(run, "Fine", args={"colour": "red"})
    assert error.details["stage"] == "constructor"
    assert "colour" in str(error)


async def test_a_socket_path_too_long(run: str) -> None:
    error = await failure(run, "Fine", name="x" * 100)
    assert error.details["stage"] == "bind"
    assert "CALLHOME_RUN" in str(error)


async def half(task: asyncio.Task[Any], clock: Clock) -> None:
    """Half of its limit, ``LONG``, is over: no other one strikes before."""
    await asyncio.sleep(2 * TICK)
    clock.turn(LONG / 2)
    await asyncio.sleep(2 * TICK)
    assert not task.done()


async def test_slow_start_times_out_and_is_killed(run: str, clock: Clock) -> None:
    one = child(run, "SlowStart")
    waiting = asyncio.create_task(one.wait_ready())
    await half(waiting, clock)
    clock.turn(LONG / 2)
    with pytest.raises(SpawnError, match=r"not ready after .* start_timeout") as caught:
        await waiting
    assert caught.value.details["stage"] == "timeout"
    assert (await one.wait_exit()).code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("cls", "words"), [("ExitsAtOnce", "exit code 3"), ("KilledAtOnce", "killed by SIGKILL")]
)
async def test_exit_before_ready(run: str, cls: str, words: str) -> None:
    error = await failure(run, cls)
    assert error.details["stage"] == "exit"
    assert words in str(error)


async def test_deaf_child_is_killed_after_the_grace_time(run: str, clock: Clock) -> None:
    one = child(run, "Deaf")
    await one.wait_ready()
    stopping = asyncio.create_task(one.stop(LONG))
    await half(stopping, clock)
    clock.turn(LONG / 2)
    assert str(await stopping) == "killed by SIGKILL"


async def test_a_kill_from_outside_is_noticed_and_named(run: str) -> None:
    one = child(run, "Fine")
    await one.wait_ready()
    os.kill(one.pid, signal.SIGUSR1)
    how = await one.wait_exit()
    assert str(how) == "killed by SIGUSR1"
    assert not how.clean


def reap(pid: int) -> None:
    os.waitpid(pid, 0)


async def test_who_was_reaped_by_somebody_else_did_not_end_well(run: str) -> None:
    one = child(run, "Fine")
    await one.wait_ready()
    one.kill()
    reap(one.pid)  # before the loop looks
    how = await one.wait_exit()
    assert not how.known
    assert not how.clean
    assert how.status != 0
    assert "somebody else" in str(how)


async def test_an_end_without_the_loop(run: str) -> None:
    one = child(run, "Fine")
    await one.wait_ready()
    one.end_now(LONG)
    assert start_time(one.pid) == 0
    assert str(await one.wait_exit()) == "killed by SIGKILL"
    one.end_now()


async def test_stop_twice_and_after_the_end(run: str) -> None:
    one = child(run, "Fine")
    await one.wait_ready()
    first = await one.stop(LONG)
    assert await one.stop(LONG) == first
    one.kill()
    one.terminate()


async def test_stop_while_starting(run: str) -> None:
    one = child(run, "SlowStart")
    how = await one.stop(LONG)
    assert not one.alive
    assert how.code != 0 or how.clean
    with pytest.raises(SpawnError):
        await one.wait_ready()


async def test_what_a_child_process_looks_like(run: str, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    file = tmp_path / "facts"
    launch = Launch(spec(run, "Facts", cpus=[core], args={"file": str(file)}), env={"EXTRA": "yes"})
    one = Child(launch)
    secret, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    try:
        one.launch(LONG)
        await one.wait_ready()
        facts = ast.literal_eval(file.read_text())
        assert f"pipe:[{os.fstat(theirs).st_ino}]" not in facts.pop("fds")
    finally:
        os.close(secret)
        os.close(theirs)
    assert facts == {
        "cores": [core],
        "threads": "1",
        "stdin": b"",
        "sigint": True,
        "pythonpath": os.environ.get("PYTHONPATH"),
        "extra": "yes",
        "comm": "facts",
        "numpy": False,
    }
    for task in os.listdir(f"/proc/{one.pid}/task"):
        assert os.sched_getaffinity(int(task)) == {core}
    await one.stop(LONG)


async def test_a_python_path_of_its_own(run: str, tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("from tests.kernel.troubled import Fine as Fine\n")
    keys = spec(run, "Fine", **{"class": "only_there:Fine"})
    one = Child(Launch(keys, env={"PYTHONPATH": str(tmp_path)}))
    one.launch(LONG)
    await one.wait_ready()
    await one.stop(LONG)


async def test_many_children_start_beside_each_other(run: str) -> None:
    several = [child(run, "Fine", name=f"fine-{number}") for number in range(4)]
    addresses = [await one.wait_ready() for one in several]
    assert len({address.pid for address in addresses}) == 4
    for one in several:
        one.terminate()
    for one in several:
        assert (await one.wait_exit()).clean


PARENT = """
import asyncio, json, sys
from actors.kernel.spawn import Child, Launch

async def main():
    child = Child(Launch(json.loads(sys.argv[1]), death_signal=json.loads(sys.argv[2]), linger=0.5))
    child.launch(60)
    print((await child.wait_ready()).pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("death_signal", [signal.SIGKILL, None])
@pytest.mark.parametrize("cls", ["Fine", "Deaf"])
async def test_children_of_a_killed_parent_are_gone(
    run: str, cls: str, death_signal: int | None
) -> None:
    import json

    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        json.dumps(spec(run, cls)),
        json.dumps(death_signal),
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert start_time(pid)
    parent.kill()
    # Without the signal it is the watcher thread: SIGTERM at once, a hard exit half a second later.
    await wait_until(lambda: start_time(pid) == 0, timeout=LONG)
    await parent.wait()
    await wait_until(lambda: not os.path.exists(f"/proc/{pid}"), what="it is reaped by its heir")


async def test_an_interrupt_to_the_group_does_not_reach_children(run: str) -> None:
    one = child(run, "Fine")
    await one.wait_ready()
    assert os.getpgid(one.pid) != os.getpgid(0)
    os.kill(one.pid, signal.SIGINT)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.wait_exit(), 2 * TICK)
    assert (await one.stop(LONG)).clean


async def test_a_missing_interpreter_is_a_spawn_error(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    one = Child(Launch(spec(run, "Fine")))
    with pytest.raises(SpawnError, match="cannot start a process"):
        one.launch(LONG)
    assert not one.alive
    assert (await one.stop(0.0)).code != 0


async def test_a_script_without_its_guard_is_told_about_it(run: str, tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    for last in (
        "asyncio.run(asyncio.sleep(0))",
        "asyncio.new_event_loop().run_forever()",
        "exit(3)",
    ):
        script.write_text(f"import asyncio\nclass Fine: ...\n{last}\n")
        error = await failure(run, "Fine", **{"class": f"{script}:Fine"})
        assert f"cannot import {script}:Fine: " in str(error)
        assert f"imports {script}: put what it does" in str(error)
        assert "under 'if __name__ == \"__main__\":'" in str(error)


async def test_the_module_that_cannot_be_imported_is_named(run: str) -> None:
    error = await failure(run, "Fine", **{"class": "tests.kernel.nosuch:Fine"})
    assert "did not start: cannot import tests.kernel.nosuch:Fine: ModuleNotFound" in str(error)
    assert "__main__" not in str(error)
