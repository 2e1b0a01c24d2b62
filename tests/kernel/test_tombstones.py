"""Cancels that came before their Opens: remembered once, for a while, and within a bound."""

from __future__ import annotations

from actors.kernel.tombstones import AGE, MOST, Tombstones


def test_a_cancel_is_found_once_by_the_open_that_it_was_meant_for() -> None:
    tombs = Tombstones()
    tombs.put(1, 7, 0.0, False, "why")
    assert tombs.take(1, 8, 1.0) is None
    assert tombs.take(2, 7, 1.0) is None
    found = tombs.take(1, 7, 1.0)
    assert found is not None
    assert (found.kill, found.reason) == (False, "why")
    assert tombs.take(1, 7, 1.0) is None


def test_a_stop_does_not_soften_a_kill() -> None:
    tombs = Tombstones()
    tombs.put(1, 7, 0.0, True, "now")
    tombs.put(1, 7, 0.1, False, "please")
    found = tombs.take(1, 7, 1.0)
    assert found is not None
    assert found.kill


def test_a_kill_hardens_a_stop() -> None:
    tombs = Tombstones()
    tombs.put(1, 7, 0.0, False, "please")
    tombs.put(1, 7, 0.1, True, "now")
    found = tombs.take(1, 7, 1.0)
    assert found is not None
    assert (found.kill, found.reason) == (True, "now")


def test_an_old_cancel_means_nothing_and_leaves_nothing() -> None:
    tombs = Tombstones()
    tombs.put(1, 7, 0.0, True, "why")
    tombs.put(2, 8, AGE / 2, True, "why")
    assert tombs.take(1, 7, AGE) is None
    tombs.put(1, 9, 0.0, True, "why")
    tombs.crumble(AGE)
    assert len(tombs) == 1
    assert tombs.take(2, 8, AGE) is not None
    tombs.crumble(2 * AGE)
    assert len(tombs) == 0


def test_a_sender_has_its_own_bound() -> None:
    tombs = Tombstones()
    tombs.put(2, 0, 0.0, True, "other")
    for number in range(MOST + 10):
        tombs.put(1, number, 0.0, True, "many")
    assert tombs.take(1, 9, 1.0) is None
    assert tombs.take(1, 10, 1.0) is not None
    assert tombs.take(1, MOST + 9, 1.0) is not None
    assert tombs.take(2, 0, 1.0) is not None


def test_the_dead_send_nothing_more() -> None:
    tombs = Tombstones()
    for number in range(3):
        tombs.put(1, number, 0.0, True, "why")
    tombs.put(2, 0, 0.0, True, "why")
    tombs.forget(1)
    tombs.forget(3)
    assert tombs.take(1, 0, 1.0) is None
    assert tombs.take(2, 0, 1.0) is not None
