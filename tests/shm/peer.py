"""A second process with shared memory of its own, driven over its stdin: owner and reader alike.

``Peer`` starts it and speaks to it; ``python -m tests.shm.peer OWNER STEP LIMIT`` is the process.
A line is a JSON list ``[command, arguments]``; the answer is a JSON object, with ``error`` for a
typed error.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from transport.errors import CallHomeError
from transport.shm.memory import Memory
from transport.wire.handle import Announcement, Handle, announcement_from_wire, handle_from_wire

ROOT = Path(__file__).parents[2]


def plain(announced: Announcement) -> list[Any]:
    """An announcement as JSON can carry it."""
    return [*announced._replace(token=announced.token.hex())]  # type: ignore[arg-type]


def announcement(value: list[Any]) -> Announcement:
    """The announcement of ``plain``."""
    at = Announcement._fields.index("token")
    return announcement_from_wire([*value[:at], bytes.fromhex(value[at]), *value[at + 1 :]])


class Peer:
    """A process with a ``Memory``; used with ``with``, which kills it."""

    def __init__(self, owner: int, *, step: int = 1 << 20, limit: int = 16 << 20) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.shm.peer", str(owner), str(step), str(limit)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def ask(self, command: str, *arguments: object) -> dict[str, Any]:
        """Run a command there; its answer."""
        self.send(command, *arguments)
        return self.answer()

    def send(self, command: str, *arguments: object) -> None:
        """Start a command there."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to a command that was sent."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"peer ended: {self.finish()}"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def finish(self) -> tuple[int, bytes]:
        """End its input; exit code and what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()


class Session:
    """The commands, inside the process."""

    def __init__(self, owner: int, step: int, limit: int) -> None:
        self.wakes = 0
        self.memory = Memory(owner, wake=self.wake, step=step, limit=limit)
        self.views: dict[int, Any] = {}

    def wake(self) -> None:
        self.wakes += 1

    def export(self, borrower: int, shape: list[int], dtype: str, value: int) -> dict[str, Any]:
        """Make a frame in place, lend it; its handle and what the borrower has to be told."""
        frame = self.memory.frames.new(shape, dtype)
        frame.array[...] = value
        handle = frame.hand_on()
        assert handle is not None
        told = self.memory.needs(borrower, [handle])
        self.memory.lend(handle, borrower, 1)
        return {"handle": handle, "announcements": [plain(one) for one in told]}

    def attach(self, announced: list[Any]) -> dict[str, Any]:
        self.memory.attach(announcement(announced))
        return {}

    def attach_often(self, announced: list[Any], handle: list[Any], times: int) -> dict[str, Any]:
        """Map, look and unmap again and again; the sum of the first items."""
        total = 0
        for _ in range(times):
            self.memory.attach(announcement(announced))
            total += int(self.memory.view_array(handle_from_wire(handle)).flat[0])
            self.memory.detach(announced[0])
        return {"total": total}

    def view(self, handle: list[Any]) -> dict[str, Any]:
        array = self.memory.view_array(handle_from_wire(handle))
        self.views[len(self.views)] = array
        return {"id": len(self.views) - 1, "writeable": array.flags.writeable}

    def look(self, number: int) -> dict[str, Any]:
        array = self.views[number]
        return {"sum": int(array.sum()), "shape": array.shape, "dtype": array.dtype.str}

    def keep_slice(self, number: int) -> dict[str, Any]:
        self.views[number] = self.views[number][1:].T
        return {}

    def forget(self, number: int) -> dict[str, Any]:
        self.views[number] = None
        gc.collect()
        return {"wakes": self.wakes, "releases": list(self.memory.drain_releases().items())}

    def only_views(self) -> dict[str, Any]:
        """Close the memory and drop it; the views stay."""
        self.memory.close()
        del self.memory
        gc.collect()
        return {}

    def release(self, borrower: int, releases: list[list[int]]) -> dict[str, Any]:
        self.memory.release(borrower, [(a, b, c) for a, b, c in releases])
        return {}

    def statistics(self) -> dict[str, Any]:
        found = self.memory.statistics()
        return {"slots": found.slots, "lent": found.lent, "segments": found.segments}


def main() -> None:
    """Answer commands until stdin ends."""
    session = Session(*(int(argument) for argument in sys.argv[1:4]))
    for line in sys.stdin:
        command, arguments = json.loads(line)
        try:
            answer = getattr(session, command)(*arguments)
        except CallHomeError as error:
            answer = {"error": error.code, "message": str(error)}
        os.write(1, json.dumps(answer).encode() + b"\n")


def lend_to(peer: Peer, memory: Memory, handle: Handle, borrower: int) -> None:
    """Announce and lend one of this process's handles to a peer."""
    for told in memory.needs(borrower, [handle]):
        answer = peer.ask("attach", plain(told))
        memory.mark(borrower, told.segment, "error" not in answer)
    memory.lend(handle, borrower, 1)


if __name__ == "__main__":
    main()
