"""The chaos run: its plan, its judgement of streams and of states, its signals, and short runs."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from actors.errors import Cancelled, DeadlineExceeded, DecodeError, PeerLost
from actors.kernel.peers import start_time
from perf.__main__ import main
from perf.chaos import plan
from perf.chaos.items import Wrong, check_value, data, last
from perf.chaos.plan import Fault, Options, Play, make
from perf.chaos.player import Played, Player
from perf.chaos.signals import Signals
from perf.chaos.state import SLACK, State, differences
from perf.chaos.tally import QUIET, Tally
from tests.waiting import LONG, wait_until, wait_until_sync
from transport.bus.address import Address

ROOT = Path(__file__).resolve().parents[2]


# --------------------------------------------------------------------------- the plan


def test_a_seed_gives_one_plan_and_another_seed_another() -> None:
    options = Options(seed=7, seconds=60.0)
    assert make(options) == make(options)
    assert make(options).digest == make(options).digest != make(Options(8, 60.0)).digest
    lines = [json.loads(line) for line in make(options).lines()]
    assert sum("stream" in line for line in lines) == len(make(options).plays)
    assert sum("signal" in line for line in lines) == len(make(options).faults)


def test_a_plan_has_everything_within_its_bounds() -> None:
    made = make(Options(seed=1, seconds=600.0))
    assert {play.shape for play in made.plays} == set(plan.SHAPES)
    assert {play.action for play in made.plays} == set(plan.ACTIONS)
    assert {play.kind for play in made.plays} == {"bytes", "array", "frame"}
    assert {(fault.role, fault.deed) for fault in made.faults} == {
        (role, deed) for role in plan.TARGETS for deed in plan.DEEDS
    }
    assert all(1 <= play.size <= plan.LARGEST for play in made.plays)
    assert all(play.items * play.size <= max(plan.TOTAL, play.size) for play in made.plays)
    assert {0, 1, 2000} <= {min(play.items, 2000) for play in made.plays} | {2000}
    assert max(play.items for play in made.plays) > 1500
    assert [play.at for play in made.plays] == sorted(play.at for play in made.plays)
    assert len(made.phases) == 2


def test_one_node_has_no_second_one() -> None:
    made = make(Options(seed=1, seconds=60.0, nodes=1))
    assert made.phases == ()
    assert not any(fault.role.startswith("far.") for fault in made.faults)


# --------------------------------------------------------------------------- streams


def test_items_are_known_to_the_last_byte() -> None:
    import numpy as np

    for size in (0, 1, 15, 16, 17, 100_000):
        content = data(3, 4, size)
        assert len(content) == size
        assert check_value(content, 3, 4, size, "bytes") is None
        array = np.frombuffer(content, np.uint8)
        assert check_value(array, 3, 4, size, "array") is array
    torn = np.frombuffer(data(3, 4, 1_000), np.uint8).copy()
    torn[700] ^= 1
    for wrong, kind in (
        (data(3, 5, 100), "bytes"), (data(4, 4, 100), "bytes"), (data(3, 4, 99), "bytes"),
        (bytearray(data(3, 4, 100)), "bytes"), (torn, "array"), (torn, "frame"), (None, "bytes"),
    ):  # fmt: skip
        with pytest.raises(Wrong, match="item 4"):
            check_value(wrong, 3, 4, 1_000 if kind != "bytes" else 100, kind)


class Stream:
    """Stands in for a stream: gives these items, then raises or ends."""

    def __init__(self, items: list[Any], error: BaseException | None) -> None:
        self._items = iter(items)
        self._error = error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        for item in self._items:
            return item
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def stop(self, reason: str) -> None:
        """Ends at once, without an item more."""
        self._items = iter([])

    def kill(self, reason: str) -> None:
        """As a stream of ours does."""
        self._items, self._error = iter([]), Cancelled(reason)


class Client:
    """Stands in for a client: every stream is this one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def stream(self, endpoint: str, request: Any, **options: Any) -> Stream:
        return self._stream


def play(**changes: Any) -> Play:
    base = Play(
        9, 0.0, 0, "stream", 3, 10, "bytes", 0.0, 0.0, "", 0, 0.0, 5.0, 0, 0
    )  # fmt: skip
    return base._replace(**changes)


def items(*numbers: int, end: int | None = None) -> Iterator[dict[str, Any]]:
    for number in numbers:
        yield {"s": 9, "n": number, "v": data(9, number, 10)}
    if end is not None:
        yield last(9, end)


async def played(
    given: Iterator[dict[str, Any]], error: BaseException | None = None, **changes: Any
) -> Played:
    client: Any = Client(Stream(list(given), error))
    return await Player(client, play(**changes)).run()


async def test_what_comes_whole_and_in_order_is_complete() -> None:
    found = await played(items(0, 1, 2, end=3))
    assert (found.outcome, found.items, found.bytes) == ("complete", 3, 30)


@pytest.mark.parametrize(
    ("numbers", "end", "why"),
    [
        ((0, 1, 2), None, "a clean end after 3 of 3"),
        ((0, 1), None, "a clean end after 2 of 3"),
        ((), None, "a clean end after 0 of 3"),
        ((0, 1), 3, "2 items came, the engine gave 3"),
        ((0, 1), 2, "ended in order after 2 of 3"),
        ((0, 2), 3, "item 2 came where 1 was due"),
        ((0, 0), 3, "item 0 came where 1 was due"),
    ],
)
async def test_what_is_lost_or_doubled_is_a_failure(
    numbers: tuple[int, ...], end: int | None, why: str
) -> None:
    found = await played(items(*numbers, end=end))
    assert found.outcome == "FAILURE"
    assert why in found.text
    assert "begins" in found.log[0]


async def test_errors_are_told_apart() -> None:
    assert (await played(items(0), PeerLost("gone"))).outcome == "error connection.peer"
    assert (await played(items(0), DeadlineExceeded("late"))).outcome == "error deadline"
    for error in (DecodeError("?"), ValueError("?"), KeyError("?")):
        assert (await played(items(0), error)).outcome == "FAILURE"
    wrong = iter([{"s": 9, "n": 0, "v": b"0123456789"}])
    assert (await played(wrong)).outcome == "FAILURE"


async def test_what_the_caller_does_is_no_failure() -> None:
    assert (await played(items(0, 1), action="leave")).outcome == "left"
    assert (await played(items(0, 1), action="kill")).outcome == "killed"
    assert (await played(items(0, 1), action="stop")).outcome == "stopped"
    # but he has no excuse for what he did not do
    assert (await played(items(0), Cancelled("by whom?"))).outcome == "error cancelled"


async def test_a_task_that_somebody_else_cancels_is_not_ours() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel("by somebody")
    with pytest.raises(asyncio.CancelledError):
        await played(items(0), action="cancel", pace=1.0, wait=30.0)
    task.uncancel()


def test_every_stream_has_an_account() -> None:
    tally = Tally((play(), play(), play()))
    for number in range(3):
        tally.heard(number, {"begin": number, "time": 1.0})
    done = Played(0, "complete", 3, 30, "", [])
    tally.heard(0, {"end": {**done._asdict(), "time": 2.0}})
    tally.killed[1] = 3.0
    tally.heard(1, {"exit": -9, "words": "", "time": 3.0})
    assert tally.failures == []
    assert tally.outcomes[("stream", "died with its client")] == 1
    tally.heard(2, {"exit": -9, "words": "Killed", "time": 3.0})  # by none of our signals
    tally.close(interrupted=False)
    assert [failure["text"] for failure in tally.failures] == [
        "client 2 ended with exit code -9",
        "stream 2 of client 2 began, and nobody knows its end",
    ]
    assert "signal" not in tally.told([(1.0, "kill somebody")])
    assert "complete" in tally.totals()


@pytest.mark.parametrize(
    ("quiet", "stops", "failed"),
    [
        (QUIET + 8.0, [], True),  # an end, or a credit, that nobody has sent
        (QUIET - 1.0, [], False),
        (QUIET + 8.0, [(90.0, 96.0), (81.0, 85.0)], False),  # for ten of those seconds
        (QUIET + 8.0, [(0.0, 50.0), (98.0, 99.0), (98.2, 98.8)], True),
    ],
)
def test_a_deadline_that_nothing_explains_is_a_failure(
    quiet: float, stops: list[tuple[float, float]], failed: bool
) -> None:
    tally = Tally((play(),), stops=stops)
    late = Played(0, "error deadline", 3, 30, "DeadlineExceeded: no end", [], quiet)
    tally.heard(0, {"begin": 0, "time": 1.0})
    tally.heard(0, {"end": {**late._asdict(), "time": 100.0}})
    assert bool(tally.failures) == failed
    assert tally.outcomes[("stream", "error deadline")] == 1


# --------------------------------------------------------------------------- states and signals


def state(**changes: int) -> State:
    carried = {"in_flight": 0, "queued": 0, "permits": 0, "memory.lent": 0, "memory.slots": 0}
    carried |= {"descriptors": 20, "threads": 4, "tasks": 9, "rss": 40 << 20, "segments": 0}
    return State({"router": carried | changes}, Counter({"router.*.d": 1}))


def test_what_is_not_back_to_base_is_named() -> None:
    base = state()
    assert list(differences(base, state())) == []
    for what in ("in_flight", "queued", "permits", "memory.lent", "memory.slots"):
        assert list(differences(base, state(**{what: 1}))) == [f"router has {what} 1"]
    for what, slack in SLACK.items():
        allowed = base.actors["router"][what] + slack
        assert list(differences(base, state(**{what: allowed}))) == []
        (line,) = differences(base, state(**{what: allowed + 1}))
        assert line.startswith(f"router has {allowed + 1:,} {what}")
    gone = State(files=base.files, processes=1)
    assert list(differences(base, gone)) == [
        "router does not answer",
        "1 processes below this one, 0 before",
    ]
    more = State(base.actors, Counter({"router.*.d": 2}), ["callhome-x"])
    assert [line.partition(":")[0] for line in differences(base, more)] == [
        "files of the node",
        "left below /dev/shm",
    ]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be hit."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_signals_reach_their_process_and_none_stays_stopped(
    sleeper: subprocess.Popen[bytes],
) -> None:
    address = Address("client-0", 0, sleeper.pid, start_time(sleeper.pid) or 0)

    def stopped() -> bool:
        fields = Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] == "T"

    def targets(role: str) -> list[Address]:
        return {"client": [address], "actor": [address._replace(started=1)]}.get(role, [])

    faults = (
        Fault(0.0, "kill", "actor", 0, 0.0),  # that one has ended, this is somebody else
        Fault(0.0, "kill", "router", 0, 0.0),
        Fault(0.0, "stop", "client", 12_345, 600.0),
    )
    signals = Signals(faults, time.monotonic(), targets)
    await signals.run()
    assert signals.missed == 2
    assert signals.counts == {"stop client": 1}
    await wait_until(stopped, what="it is stopped")
    signals.continue_all()
    await wait_until(lambda: not stopped(), what="it goes on")
    await Signals((Fault(0.0, "term", "client", 0, 0.0),), time.monotonic(), targets).run()
    await wait_until(lambda: sleeper.poll() == -signal.SIGTERM, LONG, "it ends")


# --------------------------------------------------------------------------- whole runs


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "perf", "chaos", *arguments]


@pytest.mark.timeout(240)
def test_a_short_run_accounts_for_everything(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = subprocess.run(
        command("--minutes", "0.04", "--seed", "5", "--nodes", "1", "--clients", "2",
                "--every", "0.2", "--json", str(found)),
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=220,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(found.read_text())
    assert seen["failures"] == []
    assert seen["items"] > 0
    assert sum(seen["signals"].values()) > 0
    assert sum(count for *_, count in seen["outcomes"]) > 0
    assert f"seed 5, plan {seen['plan']}: 0 failures" in done.stdout


@pytest.mark.timeout(240)
def test_ctrl_c_ends_a_run_in_order_and_tells_what_was_seen() -> None:
    with subprocess.Popen(
        command("--minutes", "9", "--seed", "6", "--nodes", "1", "--clients", "2", "--every", "9"),
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as run:  # fmt: skip
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("seed 6"):
                break
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=220)
    assert run.returncode == 0, said
    assert "interrupted; seed 6" in said


def test_the_help_teaches_and_wrong_calls_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["chaos", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(word in text for word in ("seed alone", "SIGSTOP", "Ctrl-C", "FAILURE", "examples"))
    for arguments in (["--engines", "3"], ["--clients", "1"], ["--minutes", "0"]):
        with pytest.raises(SystemExit) as ended:
            main(["chaos", *arguments])
        assert ended.value.code == 2


def test_no_run_leaves_a_client_behind() -> None:
    """Clients end with their stdin: a run that is killed takes them along."""
    options = {"seed": 1, "seconds": 600.0, "clients": 2, "rate": 0.001}
    given = {"options": options, "client": 0, "address": "/nowhere", "began": time.monotonic()}
    client = subprocess.Popen(
        [sys.executable, "-m", "perf.chaos.client", json.dumps(given)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert "not in yet" in client.stdout.readline()
        client.stdin.close()
        wait_until_sync(lambda: client.poll() is not None, LONG, "the client ends")
        assert client.returncode == 0
        assert json.loads(client.stdout.read().splitlines()[-1]) == {"ended": True, "tasks": []}
