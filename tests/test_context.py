"""Context: from live to stopped to killed and never back, for itself, its waiters and children."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from tests.waiting import LONG
from transport.context import Context

ACTIONS = ("stop", "kill")


def state(context: Context) -> tuple[bool, bool, str]:
    return context.stopped, context.killed, context.reason


def test_a_new_context_is_live() -> None:
    context = Context("r-1", {"user": "ada"})
    assert (context.id, context.metadata) == ("r-1", {"user": "ada"})
    assert state(context) == (False, False, "")
    assert context.remaining() is None


def test_metadata_is_a_copy() -> None:
    given = {"a": "1"}
    context = Context("r", given)
    given["a"] = "2"
    assert context.metadata == {"a": "1"}
    assert Context("r").metadata == {}


@pytest.mark.parametrize("actions", list(itertools.product(ACTIONS, repeat=4)))
def test_it_never_goes_back_and_keeps_the_reason_of_its_state(actions: tuple[str, ...]) -> None:
    context = Context("r")
    told: list[tuple[bool, bool, str]] = []
    context.when_cancelled = lambda each: told.append(state(each))
    before = state(context)
    changes = 0
    for number, action in enumerate(actions):
        getattr(context, action)(f"reason {number}")
        after = state(context)
        assert after[0] >= before[0]
        assert after[1] >= before[1]
        assert (after == before) == (after[:2] == before[:2])
        if after != before:
            assert after[2] == f"reason {number}"
            changes += 1
            assert told[-1] == after
        before = after
    assert len(told) == changes
    assert before[0]
    assert before[1] == ("kill" in actions)


def test_the_deadline_runs_down_to_zero() -> None:
    assert Context("r", deadline=time.monotonic() - 5).remaining() == 0.0
    left = Context("r", deadline=time.monotonic() + 100).remaining()
    assert left is not None
    assert 99 < left <= 100


def test_a_cancel_reaches_children_in_the_order_of_linking_and_before_the_parents_own() -> None:
    parent = Context("p")
    told: list[str] = []
    children = [Context(f"c{number}") for number in range(5)]
    for each in (*children, parent):
        each.when_cancelled = lambda context: told.append(context.id)
    for child in reversed(children):
        parent.link(child)
    parent.stop("why")
    assert told == ["c4", "c3", "c2", "c1", "c0", "p"]
    assert {state(child) for child in children} == {(True, False, "why")}
    parent.kill("now")
    assert told[6:] == ["c4", "c3", "c2", "c1", "c0", "p"]
    assert {state(child) for child in children} == {(True, True, "now")}


def test_a_child_of_a_cancelled_context_is_cancelled_at_once() -> None:
    for action, expected in (("stop", (True, False, "why")), ("kill", (True, True, "why"))):
        parent, child = Context("p"), Context("c")
        getattr(parent, action)("why")
        parent.link(child)
        assert state(child) == expected


def test_a_childs_cancel_stays_its_own() -> None:
    parent, child, sibling = Context("p"), Context("c"), Context("s")
    parent.link(child)
    parent.link(sibling)
    child.kill("mine")
    assert state(parent) == state(sibling) == (False, False, "")
    parent.stop("yours")
    assert child.reason == "mine"
    assert sibling.reason == "yours"


def test_a_cancel_goes_down_all_generations() -> None:
    line = [Context(str(number)) for number in range(10)]
    for parent, child in itertools.pairwise(line):
        parent.link(child)
    line[3].kill("why")
    assert [context.killed for context in line] == [False] * 3 + [True] * 7


def test_a_child_that_has_left_hears_nothing() -> None:
    parent, child = Context("p"), Context("c")
    parent.link(child)
    child.unlink()
    child.unlink()
    parent.kill("why")
    assert not child.stopped


def test_callbacks_may_link_and_unlink() -> None:
    parent, leaves, joins, stays = (Context(name) for name in "pljs")
    for child in (leaves, stays):
        parent.link(child)

    def change_places(context: Context) -> None:
        context.unlink()
        parent.link(joins)

    leaves.when_cancelled = change_places
    parent.stop("why")
    assert leaves.stopped
    assert stays.stopped
    assert joins.stopped  # linked to a stopped parent
    parent.kill("now")
    assert (leaves.killed, stays.killed, joins.killed) == (False, True, True)


def test_a_finished_context_takes_along_what_it_left_running() -> None:
    grandparent, parent, child = Context("g"), Context("p"), Context("c")
    grandparent.link(parent)
    parent.link(child)
    told: list[str] = []
    parent.when_cancelled = lambda context: told.append(context.id)
    parent.finish("its handler has ended")
    assert state(child) == (True, True, "its handler has ended")
    assert state(parent) == (False, False, "")
    grandparent.kill("later")
    assert not parent.stopped
    assert told == []


async def test_waiters_wake_for_what_they_wait_for() -> None:
    context = Context("r")
    stopped = [asyncio.create_task(context.wait_stopped()) for _ in range(3)]
    killed = [asyncio.create_task(context.wait_killed()) for _ in range(3)]
    await asyncio.sleep(0)
    context.stop("why")
    await asyncio.wait_for(asyncio.gather(*stopped), LONG)
    await asyncio.sleep(0)
    assert not any(each.done() for each in killed)
    context.kill("now")
    await asyncio.wait_for(asyncio.gather(*killed), LONG)


async def test_a_kill_wakes_those_who_wait_for_a_stop() -> None:
    context = Context("r")
    waiting = asyncio.create_task(context.wait_stopped())
    await asyncio.sleep(0)
    context.kill("now")
    await asyncio.wait_for(waiting, LONG)


async def test_waiting_for_what_has_happened_takes_no_time() -> None:
    context = Context("r")
    context.kill("now")
    await asyncio.wait_for(context.wait_stopped(), LONG)
    await asyncio.wait_for(context.wait_killed(), LONG)


async def test_a_waiter_that_gives_up_leaves_nothing() -> None:
    context = Context("r")
    for wait in (context.wait_stopped, context.wait_killed):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert context._waiters == []
    context.stop("why")
    context.kill("now")


async def test_a_waiter_cancelled_in_the_same_turn_as_the_stop_is_no_error() -> None:
    context = Context("r")
    waiting = asyncio.create_task(context.wait_stopped())
    await asyncio.sleep(0)
    waiting.cancel()
    context.stop("why")
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_finished_context_lets_nobody_wait_for_what_will_not_come() -> None:
    context = Context("r")
    waiting = [
        asyncio.create_task(context.wait_stopped()),
        asyncio.create_task(context.wait_killed()),
    ]
    await asyncio.sleep(0)
    context.finish("its handler has ended")
    await asyncio.wait(waiting, timeout=LONG)
    assert all(each.cancelled() for each in waiting)
    assert not context.stopped
