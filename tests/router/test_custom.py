"""A policy of the user's own: what it is shown, and that whatever it does costs one request."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from actors.errors import CallHomeError, PolicyFailed, SpecError
from actors.messages import Open, Route
from actors.router import asks, custom
from actors.router.custom import RoutedRequest, UserPolicy, WorkerView, load_policy
from actors.router.loads import Worker
from actors.router.options import Options
from tests.router import policies
from tests.router.choosing import Seen, request, seen
from tests.waiting import DEADLINE, LONG, TICK, wait_until, wait_until_sync
from transport.errors import RemoteProtocolError

Result = Worker | CallHomeError | None
MADE: list[UserPolicy] = []


@pytest.fixture(autouse=True)
def nobody_hangs() -> Iterator[None]:
    policies.GO.clear()
    policies.SHOWN.clear()
    yield
    policies.GO.set()
    while MADE:
        MADE.pop().close()
    wait_until_sync(lambda: not threads(), what="no thread of a policy")


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("policy ")]


def made(function: Callable[..., Any] = policies.as_told, limit: float = LONG) -> UserPolicy:
    MADE.append(UserPolicy(function, "mine:it", limit, asyncio.get_running_loop()))
    return MADE[-1]


def asked(
    policy: UserPolicy, workers: Sequence[Worker], open: Open | None = None
) -> asyncio.Future[Result]:
    """The result, booked as a router does it."""
    found: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def done(result: Result) -> None:
        if isinstance(result, Seen):
            result.load += 1
        found.set_result(result)

    policy.ask(open or request(), workers, done)
    return found


def told(what: str) -> Open:
    return request(metadata={"do": what})


async def failure(policy: UserPolicy, what: str = "") -> PolicyFailed:
    result = await asyncio.wait_for(asked(policy, seen(0, 0), told(what)), DEADLINE)
    assert isinstance(result, PolicyFailed)
    assert "mine:it" in result.message
    return result


async def test_it_is_shown_workers_and_the_request_and_chooses() -> None:
    policy = made(policies.idlest)
    workers = [Seen(4, 3, "cpu", 9), Seen(5, 1, "cuda")]
    open = request(metadata={"user": "anna"}, payload=b"12345")
    open = open._replace(
        handles=[[1, 2, 0, 100, 1, "", []], ["", [], b"1234"], None, ["", [], 4], [1] * 5],
        route=Route(priority=3),
        many=True,
    )
    assert await asked(policy, workers, open) is workers[1]
    shown, seen_request = policies.SHOWN[0]
    assert shown == [
        WorkerView(instance=4, load=3, capacity=9, device="cpu", endpoint="t.x.go"),
        WorkerView(instance=5, load=1, capacity=8, device="cuda", endpoint="t.x.go"),
    ]
    assert seen_request == RoutedRequest(
        endpoint="t.x.go", request_id="r-1", metadata={"user": "anna"}, many=True, size=109,
        priority=3,
    )  # fmt: skip
    for function in (policies.by_instance, policies.KEPT):
        assert await asked(made(function), workers) is workers[1]


async def test_b110_each_choice_sees_what_was_booked_before() -> None:
    policy = made(policies.idlest)
    workers = seen(0, 0, 0, 0)
    await asyncio.gather(*[asked(policy, workers) for _ in range(100)])
    assert [worker.load for worker in workers] == [25, 25, 25, 25]
    assert len(threads()) == 1


async def test_workers_are_looked_at_when_it_is_the_requests_turn() -> None:
    policy = made()
    (worker,) = there = seen(0)
    going = seen(0)
    first = asked(policy, there, told("hang"))
    second, third = asked(policy, there), asked(policy, going)
    there[:] = [newer := Seen(8)]
    going.clear()
    policies.GO.set()
    assert await first is worker
    assert await second is newer
    assert await third is None
    assert await asked(policy, []) is None


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("raise", "raised ValueError: no luck with 2 workers"),
        ("talk", "raised ValueError: no luck no luck"),
        ("exit", "raised SystemExit: 3"),
        ("unspeakable", "raised tests.router.policies.Unspeakable"),
        ("none", "returned None; it is to return one of the 2 workers"),
        ("text", "returned 'the first';"),
        ("number", "returned 7;"),
        ("true", "returned True;"),
        ("list", "returned [WorkerView("),
        ("stranger", "returned 99;"),
        ("repr", "raised RuntimeError: no words"),
        ("coroutine", "returned <coroutine object later"),
    ],
)
async def test_what_it_does_wrong_is_an_error_of_that_request(what: str, words: str) -> None:
    policy = made()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = await failure(policy, what)
        gc.collect()
    assert error.message.startswith(f"policy mine:it {words}")
    assert len(error.message) < 600
    assert all(isinstance(each, str) and len(each) < 10_000 for each in error.details.values())
    if what == "raise":
        assert "in as_told" in error.details["traceback"]
    (worker,) = seen(0)
    assert await asked(policy, [worker]) is worker


async def test_one_that_hangs_costs_its_request_and_others_go_on() -> None:
    policy = made(limit=TICK)
    (worker,) = workers = seen(0)
    first, second = asked(policy, workers, told("hang")), asked(policy, workers)
    policy._limit = LONG  # of the second, for which a thread is to begin
    error = await asyncio.wait_for(first, DEADLINE)
    assert isinstance(error, PolicyFailed)
    assert error.message == f"policy mine:it did not choose within {LONG:g} s; make it faster"
    assert await asyncio.wait_for(second, DEADLINE) is worker
    assert len(threads()) == 2
    policies.GO.set()
    await wait_until(lambda: len(threads()) == 1, what="the end of the thread that hung")
    assert worker.load == 1  # what comes too late chooses nobody


async def test_when_too_many_hang_nobody_is_asked_until_one_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(custom, "_HUNG", 3)
    policy = made(limit=TICK / 2)
    results = [asked(policy, seen(0), told("hang")) for _ in range(10)]
    texts = [str(result) for result in await asyncio.gather(*results)]
    assert sum("did not choose within" in text for text in texts) == 3
    assert sum("was not asked: 3 calls hang in it" in text for text in texts) == 7
    assert len(threads()) == 3
    assert asked(policy, seen(0)).done()
    policies.GO.set()
    await wait_until(lambda: not threads(), what="their return")
    (worker,) = seen(0)
    assert await asked(policy, [worker]) is worker


async def test_no_more_than_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "MOST", 2)
    policy = made()
    results = [asked(policy, seen(0), told("hang")) for _ in range(4)]
    assert [result.done() for result in results] == [False, False, False, True]
    assert "is too slow: 2 requests of 0 MiB wait for it" in str(results[3].result())
    policies.GO.set()
    await asyncio.gather(*results)


async def test_no_more_bytes_than_so_many_wait_but_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "BYTES", 100)
    policy = made()
    results = [asked(policy, seen(0), told("hang"))]
    for size in (200, 1):  # what is larger than all that may wait may wait alone
        results.append(asked(policy, seen(0), request(payload=b"x" * size)))
    assert [result.done() for result in results] == [False, False, True]
    policies.GO.set()
    await asyncio.gather(*results)
    assert isinstance(await asked(policy, seen(0), request(payload=b"x")), Seen)


async def test_who_is_in_a_hurry_is_asked_for_first() -> None:
    policy = made(policies.idlest)
    results = []
    for number, priority in enumerate([0, 0, 5, -1, 5]):
        open = request()._replace(route=Route(priority=priority), request_id=str(number))
        results.append(asked(policy, seen(0), open))
    await asyncio.gather(*results)
    assert [each.request_id for _, each in policies.SHOWN] == ["0", "2", "4", "1", "3"]


async def test_what_was_withdrawn_is_not_asked_for_and_not_kept() -> None:
    policy = made()
    heard: list[Result] = []
    first = policy.ask(told("hang"), seen(0), heard.append)
    many = [policy.ask(request(payload=bytes(10)), seen(0), heard.append) for _ in range(1000)]
    last = asked(policy, seen(0))
    assert (len(policy._waiting), policy._waiting.bytes) == (1001, 10_000)
    for ask in (*many, first, first, *many):
        ask.withdraw()
    assert (len(policy._waiting), policy._waiting.bytes) == (1, 0)
    assert len(policy._waiting._heap) < 70
    policies.GO.set()
    assert isinstance(await last, Seen)
    assert heard == []
    made().ask(request(), [], heard.append).withdraw()  # it had its answer
    assert heard == [None]


async def test_a_request_that_cannot_be_shown_fails_alone() -> None:
    policy = made()
    wrong = request()._replace(metadata=7)  # type: ignore[arg-type]
    assert "was not asked: " in str(await asked(policy, seen(0), wrong))
    assert isinstance(await asked(policy, seen(0)), Seen)
    with pytest.raises(RemoteProtocolError, match="priority"):
        asked(policy, seen(0), request()._replace(route=Route(priority="high")))  # type: ignore[arg-type]


async def test_closing_tells_those_that_wait_and_leaves_no_thread() -> None:
    policy = made()
    results = [asked(policy, seen(0), told("hang")) for _ in range(3)]
    policy.close()
    assert all(result.done() for result in results)
    assert "the router stops" in (await failure(policy)).message
    policies.GO.set()
    await wait_until(lambda: not threads(), what="the end of the thread")
    made().close()


def test_a_call_that_hangs_survives_its_loop_and_ends() -> None:
    async def left_behind() -> None:
        policy = made(limit=TICK / 2)
        await asked(policy, seen(0), told("hang"))
        policy.close()

    asyncio.run(left_behind())
    assert len(threads()) == 1
    policies.GO.set()
    wait_until_sync(lambda: not threads(), what="the end of the thread")


async def test_without_a_thread_the_request_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    policy = made()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert "was not asked: can't start new thread" in (await failure(policy)).message
    assert isinstance(await asked(policy, seen(0)), Seen)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("later", "is async, and a choice cannot be awaited; it is to be a plain function"),
        ("LATER", "is async"),
        ("PARTLY_LATER", "is async"),
        ("one_at_a_time", "is a generator"),
        ("of_one", "too many positional arguments"),
        ("Chosen", "is a class"),
        ("NUMBER", "is 7, no function"),
    ],
)
async def test_what_is_no_policy_is_refused_at_the_start(name: str, words: str) -> None:
    target = f"tests.router.policies:{name}"
    with pytest.raises(SpecError, match=f"policy: {target}.*{words}"):
        load_policy(Options(policy=target, load=lambda _: getattr(policies, name)))
    with pytest.raises(SpecError, match=words):
        made(getattr(policies, name))


def test_what_cannot_be_imported_is_named() -> None:
    def missing(target: str) -> object:
        raise ModuleNotFoundError("No module named 'mine'")

    def ending(target: str) -> object:
        raise SystemExit("not today")

    with pytest.raises(SpecError, match="policy: mine:it cannot be imported: ModuleNotFoundError"):
        load_policy(Options(policy="mine:it", load=missing))
    with pytest.raises(SpecError, match="policy: mine:it cannot be imported: SystemExit: not"):
        load_policy(Options(policy="mine:it", load=ending))
    with pytest.raises(SpecError, match="policy: mine:it: this router was made without a way"):
        load_policy(Options(policy="mine:it"))
