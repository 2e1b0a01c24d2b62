"""The guard itself: a test that leaves something behind fails, and says what it left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import LONG, TICK, wait_until, wait_until_sync
from transport.shm.files import Folder

SPAN = re.MULTILINE | re.DOTALL
ROOT = Path(__file__).resolve().parent.parent


def run_planted(folder: Path, body: str) -> tuple[int, str]:
    """Exit code and output of a pytest run of its own over one planted file."""
    (folder / "test_planted.py").write_text("import asyncio, os, subprocess, threading\n" + body)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "setup.cfg"), str(folder / "test_planted.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, "CALLHOME_TEST_TICK": "0.01"},
    )
    return done.returncode, done.stdout + done.stderr


PLANTED = {
    "task": (
        "async def test_x():\n    global t\n    t = asyncio.create_task(asyncio.sleep(30))\n",
        "left 1 tasks running",
    ),
    "untold error": (
        "async def test_x():\n"
        "    asyncio.get_running_loop().call_soon(lambda: 1 / 0)\n"
        "    await asyncio.sleep(0.01)\n",
        "ZeroDivisionError",
    ),
    "child": (
        "def test_x():\n    global p\n    p = subprocess.Popen(['sleep', '30'])\n",
        "sleep 30",
    ),
    "grandchild": (
        "def test_x():\n    subprocess.run(['sh', '-c', 'sleep 30 >/dev/null 2>&1 &'])\n",
        "sleep 30",
    ),
    "descriptor": ("def test_x():\n    os.dup(1)\n", "descriptor: "),
    "thread": (
        "def test_x():\n"
        "    w = threading.Event().wait\n"
        "    threading.Thread(target=w, args=(60,), name='idler', daemon=True).start()\n",
        "thread: idler",
    ),
    "file": (
        "def test_x():\n    open(os.environ['CALLHOME_RUN'] + '/left.d', 'w').close()\n",
        "left.d",
    ),
    "mapping": (
        "def test_x():\n"
        "    global m\n"
        "    import mmap\n"
        "    fd = os.memfd_create('planted')\n"
        "    os.truncate(fd, 4096)\n"
        "    m = mmap.mmap(fd, 4096)\n"
        "    os.close(fd)\n",
        "mapping: /memfd:planted",
    ),
}


def test_planted_leftovers_are_named(tmp_path: Path) -> None:
    bodies = [
        body.replace("def test_x(", f"def test_{kind.replace(' ', '_')}(")
        for kind, (body, _) in PLANTED.items()
    ]
    code, output = run_planted(tmp_path, "".join(bodies))
    assert code == 1, output
    for kind, (_, words) in PLANTED.items():
        # What is said of one test: from its name in a line of underscores to the next such line.
        told = re.search(rf"^_+ .*test_{kind.replace(' ', '_')} _+$(.*?)^[_=]{{5}}", output, SPAN)
        assert told, f"{kind}: {output}"
        assert words in told[1], kind


def test_tests_that_clean_up_pass(tmp_path: Path) -> None:
    body = (
        "async def test_a(tmp_path):\n    await asyncio.create_task(asyncio.sleep(0))\n"
        "def test_b():\n    subprocess.run(['true'])\n"
    )
    code, output = run_planted(tmp_path, body)
    assert code == 0, output
    assert "2 passed" in output


def test_shared_memory_of_another_session_is_none_of_ours(tmp_path: Path) -> None:
    """Whether a folder that comes and stays counts depends on who holds its lock."""
    body = (
        "import pathlib, time, transport.shm.files\n"
        "def test_theirs(tmp_path):\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'begun').touch()\n"
        f"    while not pathlib.Path({str(tmp_path)!r}, 'made').exists():\n"
        "        time.sleep(0.005)\n"
        "def test_ours():\n"
        "    global kept\n"
        "    kept = transport.shm.files.Folder('planted')\n"
        "    import atexit\n"
        "    atexit.register(kept.close)\n"
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_planted, tmp_path, body)
        wait_until_sync((tmp_path / "begun").exists, LONG)
        folder = Folder("other")
        try:
            (tmp_path / "made").touch()
            _, output = running.result()
        finally:
            folder.close()
    assert "1 failed" in output or "1 error" in output, output
    assert "file: /dev/shm/callhome-" in output
    assert "-planted-" in output
    assert folder.path not in output


async def test_wait_until_takes_functions_and_coroutine_functions() -> None:
    async def true() -> bool:
        return True

    await wait_until(true)
    await wait_until(lambda: True)
    wait_until_sync(lambda: True)


async def test_wait_until_names_what_did_not_come() -> None:
    with pytest.raises(AssertionError, match="the moon"):
        await wait_until(lambda: False, TICK / 10, "the moon")
    with pytest.raises(AssertionError, match="the sun"):
        wait_until_sync(lambda: False, TICK / 10, "the sun")


def test_the_run_root_is_short_and_ours() -> None:
    assert len(os.environ["CALLHOME_RUN"]) <= 20
    assert Path(os.environ["CALLHOME_RUN"]).is_dir()
