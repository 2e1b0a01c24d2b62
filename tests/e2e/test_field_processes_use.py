"""Field reports on how people start clusters: without a guard, at a prompt, from a notebook's
cells, out of programs that fork and have threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from actors import Cluster, EngineSpec, NodeSpec
from actors.cluster.folder import folders
from tests.leaks import MARKER, our_processes
from tests.waiting import LONG

ROOT = Path(__file__).resolve().parents[2]

DEFINED = """
import asyncio
from actors import Actor, ActorSpec, Cluster, NodeSpec, handles
from tests.cluster.workers import Add

class Mine(Actor):
    @handles(Add)
    async def add(self, message: Add) -> int:
        return message.amount + 1

async def main():
    async with Cluster(NodeSpec(actors=[ActorSpec("mine", Mine)])) as cluster:
        print(await cluster.ref("mine").ask(Add(1)))

asyncio.run(main())
"""
IMPORTED = (
    DEFINED.replace("class Mine", "class Unused")
    .replace("Mine)", "'tests.cluster.workers:Counter')")
    .replace("Add(1)", "Add(2)")
)


def run(*arguments: str, stdin: str = "") -> tuple[subprocess.CompletedProcess[str], int]:
    """A Python with these arguments, and how many processes of it ran at once at most."""
    most = 0
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    before = {pid for pid, _ in our_processes(os.environ[MARKER])} - {process.pid}
    found: list[tuple[str, str]] = []
    reader = threading.Thread(target=lambda: found.append(process.communicate(stdin, LONG)))
    reader.start()
    while reader.is_alive():
        most = max(most, len({pid for pid, _ in our_processes(os.environ[MARKER])} - before))
        time.sleep(0.1)
    out, err = found[0]
    return subprocess.CompletedProcess(arguments, process.returncode, out, err), most


def test_b60_a_script_without_its_guard_is_one_clear_error(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(DEFINED)
    began = time.monotonic()
    found, most = run(str(script))
    assert time.monotonic() - began < LONG
    assert found.returncode == 1
    assert most < 5
    last = found.stderr.strip().splitlines()[-1]
    assert "SpawnError" in last
    assert "under 'if __name__ == \"__main__\":'" in last
    assert str(script) in last
    assert folders(os.environ["CALLHOME_RUN"]) == []


@pytest.mark.parametrize("how", ["-c", "-"])
def test_b60_a_class_that_stands_in_no_file_is_told_so(how: str) -> None:
    found, most = run("-c", DEFINED) if how == "-c" else run("-", stdin=DEFINED)
    assert found.returncode == 1
    assert most <= 1  # none where it has ended before anybody looked
    last = found.stderr.strip().splitlines()[-1]
    assert "define the class in a module" in last
    assert "Mine was defined in no file" in last


@pytest.mark.parametrize("how", ["-", "-i"])
def test_b60_what_stands_in_a_module_works_from_anywhere(how: str) -> None:
    typed = IMPORTED.replace("\nasync def main", "\n\nasync def main")
    found, _ = {
        "-": lambda: run("-", stdin=IMPORTED),
        "-i": lambda: run("-i", "-q", stdin=typed),  # a prompt
    }[how]()
    assert "2" in found.stdout.split(), found.stderr
    assert found.returncode == 0


def test_b60_cells_of_a_notebook_may_enter_and_leave_in_tasks_of_their_own() -> None:
    """As its kernel does: one loop in a thread, each cell a task in a context of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def cell(code: object) -> object:
        async def run_cell() -> object:
            return await code  # type: ignore[misc]

        def start() -> asyncio.Task[object]:
            return loop.create_task(run_cell(), context=contextvars.Context())

        async def outside() -> object:
            return await start()

        return asyncio.run_coroutine_threadsafe(outside(), loop).result(LONG)

    try:
        here = EngineSpec("t.here.go", "tests.cluster.workers:Echo", place="here")
        cluster = Cluster(NodeSpec(engines=[here, EngineSpec("t.echo.go", here.target)]))
        assert cell(cluster.__aenter__()) is cluster

        async def make() -> object:
            return await cluster.client().__aenter__()

        client = cell(make())
        assert cell(client.call("t.echo.go", 1)) == 1  # type: ignore[attr-defined]
        assert cell(client.call("t.here.go", 2)) == 2  # type: ignore[attr-defined]
        cell(client.__aexit__(None, None, None))  # type: ignore[attr-defined]
        cell(cluster.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert folders(os.environ["CALLHOME_RUN"]) == []


FORKING = """
import asyncio, multiprocessing, threading, time, warnings
warnings.simplefilter("error")
from actors import ActorSpec, Cluster, NodeSpec
from tests.cluster.workers import Add

ending = threading.Event()
lock = threading.Lock()

def work(number):
    while not ending.is_set():
        with lock:
            sum(range(2000))
        time.sleep(0.002)

def once(number):
    async def main():
        spec = NodeSpec(actors=[ActorSpec("a", "tests.cluster.workers:Counter")])
        async with Cluster(spec) as cluster:
            assert await cluster.ref("a").ask(Add(number)) == number
    asyncio.run(main())

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(TIMES):
            once(number)
    finally:
        ending.set()
    print("done")
"""


def test_b63_a_program_that_forks_and_has_busy_threads_starts_and_stops(tmp_path: Path) -> None:
    script = tmp_path / "forking.py"
    script.write_text(FORKING.replace("TIMES", "2"))
    found, _ = run(str(script))
    assert (found.returncode, found.stdout, found.stderr) == (0, "done\n", "")
