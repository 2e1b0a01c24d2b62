"""The command as tests run it: a process of its own, a run folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.waiting import LONG, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
ENGINES = Path(__file__).with_name("engines.py")
#: Longest run of a command, start of its interpreter included, in seconds.
LIMIT = LONG


class Tool:
    """``callhome`` with the run folder ``run``."""

    def __init__(self, run: str) -> None:
        self.run_folder = run
        self.environ = {
            **os.environ,
            "CALLHOME_RUN": run,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """The command running; stdin is a pipe unless ``options`` say otherwise."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [sys.executable, "-m", "actors", *arguments],
            text=True,
            env=self.environ,
            **{**pipes, **options},
        )

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """The command run to its end."""
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(stdin, timeout=LIMIT)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def actors(self, *options: str) -> dict[str, dict[str, Any]]:
        """What ``ps`` says of the actors of the one node that runs, by name."""
        found = self.run("ps", "--json", *options)
        assert found.returncode == 0, found.stderr
        return {row["name"]: row for row in json.loads(found.stdout)["actors"]}


class Up:
    """``callhome up`` in the background; ``node`` is the pid of the node once it is up."""

    def __init__(self, tool: Tool, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = tool.start(
                "up", *arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self._tool = tool

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it has written ``text``; fails when it ends before."""
        wait_until_sync(
            lambda: text in self.text or self.process.poll() is not None, LIMIT, f"{text!r} said"
        )
        assert text in self.text, self.text

    def end(self, number: int) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the exit code."""
        return self.process.wait(LIMIT)


@contextlib.contextmanager
def up(tool: Tool, log: Path, *arguments: str) -> Iterator[Up]:
    """A node that is up inside the block and stopped after it."""
    running = Up(tool, log, *arguments)
    try:
        running.wait_for("  callhome stop")  # the last of what to try
        yield running
        if running.process.poll() is None:
            assert running.end(signal.SIGINT) == 130, running.text
    finally:
        running.process.kill()
        running.process.wait()


def write_spec(folder: Path, **engines: str) -> str:
    """A TOML file with one engine for each keyword: the target, ``demo.KEYWORD.run`` its name."""
    lines = ['name = "a"', "[settings]", "start_timeout = 60.0"]
    for name, target in engines.items():
        where = target if ":" in target else f"{ENGINES}:{target}"
        lines += ["[[engines]]", f'endpoint = "demo.{name}.run"', f'engine = "{where}"']
    path = folder / "node.toml"
    path.write_text("\n".join(lines))
    return str(path)
