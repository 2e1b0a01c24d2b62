"""Workers that are frozen or stalled: no candidates, no fault, and back as they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from actors.discovery.loads import (
    FOLLOWS,
    Ill,
    Load,
    follows_warnings,
    pack_loads,
    read_ill,
    read_loads,
)
from actors.errors import AllBusy, WorkerUnavailable
from actors.router.member import Limits
from tests.router.pools import ENDPOINT, Rig


def states(rig: Rig) -> list[str]:
    return [state for _, state in rig.pool.seen()]


def chosen(rig: Rig, count: int = 30) -> set[int]:
    return {rig.pool.choose(rig.open()).instance for _ in range(count)}


@pytest.mark.parametrize("mode", ["least_loaded", "round_robin", "random", "sticky"])
@pytest.mark.parametrize("code", ["frozen", "stalled", "unready"])
def test_it_is_no_candidate_and_is_one_again(mode: str, code: str) -> None:
    rig = Rig(3, mode)
    rig.pool.judge(2, code, rig.now - 4)
    assert states(rig) == ["free", code, "free"]
    assert chosen(rig) <= {1, 3}
    freed = rig.freed
    rig.pool.judge(2, "", 0.0)
    assert states(rig) == ["free"] * 3
    assert rig.freed == freed + 1, "whoever waits is told"
    assert rig.pool.calm


def test_nobody_left_says_who_is_ill_since_when() -> None:
    rig = Rig(2)
    rig.pool.judge(1, "frozen", rig.now - 4)
    rig.pool.judge(2, "stalled", rig.now - 7.5)
    with pytest.raises(AllBusy) as told:
        rig.pool.choose(rig.open())
    text = str(told.value)
    assert text.startswith(f"{ENDPOINT}: none of its 2 workers goes on (1 frozen; 1 stalled; ")
    assert "worker 1 (w1 (pid 1)) is frozen since 4.0 s" in text
    assert "worker 2 (w2 (pid 1)) is stalled since 7.5 s" in text
    assert rig.pool.candidates(rig.open()) == []


def test_c36_who_is_unready_says_why() -> None:
    rig = Rig(1)
    rig.pool.judge(1, "unready", rig.now - 4, "its canary gave no item within 3 s")
    text = "worker 1 (w1 (pid 1)) is unready since 4.0 s: its canary gave no item within 3 s"
    with pytest.raises(AllBusy, match=r"takes no streams \(1 unready; ") as told:
        rig.pool.choose(rig.open())
    assert text in str(told.value)
    with pytest.raises(WorkerUnavailable) as pinned:
        rig.pool.choose(rig.open(instance=1))
    assert f"{text}, and gets no new streams" in str(pinned.value)


def test_c36_another_reason_is_told_at_once() -> None:
    rig = Rig(1)
    for why in ("its canary raised ValueError: x", "its canary gave no item within 3 s"):
        rig.pool.judge(1, "unready", rig.now - 4, why)
        with pytest.raises(AllBusy) as told:
            rig.pool.choose(rig.open())
        assert why in str(told.value)


def test_one_that_is_pinned_is_refused_and_others_are_not() -> None:
    rig = Rig(2)
    rig.pool.judge(1, "frozen", rig.now - 4)
    with pytest.raises(WorkerUnavailable, match=r"worker 1 .* is frozen since 4\.0 s") as told:
        rig.pool.choose(rig.open(instance=1))
    assert told.value.details["instance"] == "1"
    assert rig.pool.choose(rig.open(instance=2)).instance == 2


def test_busy_ones_and_ill_ones_are_told_apart() -> None:
    rig = Rig(2, limits=Limits(streams=1))
    rig.pool.judge(1, "frozen", rig.now)
    worker = rig.pool.choose(rig.open())
    rig.occupancy.book(worker, rig.open().home, 99)
    with pytest.raises(AllBusy, match=r"all 2 workers are busy \(1 at the limit .*; 1 frozen;"):
        rig.pool.choose(rig.open())


def test_a_worker_in_quarantine_is_tried_where_all_others_are_ill() -> None:
    """An ill one counts as nobody: neither as another that could do the work, nor as one to try."""
    rig = Rig(2)
    rig.pool.ended(rig.workers[0], (1, 1), "connection.lost")
    assert states(rig) == ["quarantined", "free"]
    rig.pool.judge(2, "frozen", rig.now)
    assert rig.pool.choose(rig.open()).instance == 1
    assert states(rig) == ["trial", "frozen"]


def test_the_last_one_that_goes_on_is_not_put_in_quarantine() -> None:
    rig = Rig(2)
    rig.pool.judge(2, "frozen", rig.now)
    rig.pool.ended(rig.workers[0], (1, 1), "connection.lost")
    assert states(rig) == ["free", "frozen"]


def test_verdicts_on_strangers_change_nothing_and_a_new_one_begins_well() -> None:
    rig = Rig(2)
    rig.pool.judge(77, "frozen", rig.now)
    rig.pool.judge(2, "frozen", rig.now)
    rig.pool.remove(rig.workers[1])
    rig.add(2)
    assert states(rig) == ["free", "free"]


LOAD = Load(7, 1, 2, 3, 4, 5)
BAD: Iterable[Any] = [
    [7, "frozen"],
    [7, "dead", 1.0],
    [7, "unready", 1.0, 5],
    [7, "unready", 1.0, "why", "more"],
    [7, "frozen", 1],
    [7, "frozen", -1.0],
    [7, "frozen", 1e12],
    [7, "frozen", float("nan")],
    [-7, "frozen", 1.0],
    [1 << 64, "frozen", 1.0],
    [True, "frozen", 1.0],
    ["7", "frozen", 1.0],
    "frozen",
    None,
]


def test_what_an_ingress_tells_is_read_and_rubbish_is_left_out() -> None:
    ill = [Ill(7, "frozen", 1.5), Ill(8, "stalled", 0.0), Ill(9, "unready", 1.0, "its canary")]
    item = pack_loads([LOAD], [ill[0]._replace(why="older nodes read three words"), *ill[1:]])
    assert [len(each) for each in item["ill"]] == [3, 3, 4]
    assert read_loads(item) == [LOAD]
    assert read_ill(item) == ill
    assert read_ill(pack_loads([LOAD], [])) == []
    assert read_ill(pack_loads([LOAD])) is None, "older nodes tell nothing of it"
    long = read_ill({"ill": [[7, "unready", 1.0, "two\nlines " * 500]]})
    assert long is not None
    assert long[0].why.startswith("two lines two")
    assert len(long[0].why) <= 240
    for each in BAD:
        assert read_ill({"ill": [each, [7, "frozen", 1.5]]}) == [Ill(7, "frozen", 1.5)], each
    rubbish: list[Any] = [{"ill": 3}, {"ill": None}, [], None, 5]
    for nothing in rubbish:
        assert read_ill(nothing) is None
    assert len(read_ill({"ill": [[each, "frozen", 1.0] for each in range(10_000)]}) or []) <= 500


def test_who_takes_warnings_says_so() -> None:
    assert follows_warnings(FOLLOWS)
    others: list[Any] = [None, {}, {"warnings": 1}, [], "warnings"]
    for other in others:
        assert not follows_warnings(other)
