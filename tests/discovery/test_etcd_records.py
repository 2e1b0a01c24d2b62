"""What a list or a change of etcd's keys tells, and what is held back after an outage."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from actors.discovery import etcd_records
from actors.discovery.etcd import shortened
from actors.discovery.etcd_records import (
    LARGEST,
    Pair,
    Table,
    Told,
    prefix_of,
    read_pair,
    record_key,
)
from actors.discovery.record import BadRecord, pack_record
from actors.messages import Added, Record, Removed
from tests.discovery.samples import DYNAMO, dynamo, engine, far

TTL = 10.0


def pair(instance: int = 1, revision: int = 1, **changed: Any) -> Pair:
    data = pack_record(engine(instance), "10.0.0.7:7400", 9) | changed
    return Pair(record_key("demo.shout.generate", instance), json.dumps(data).encode(), revision)


def seen(instance: int) -> Record:
    return far(instance)._replace(capacity=8)


def table() -> Table:
    return Table("etcd://10.0.0.1:2379", TTL)


def words(changes: list[Told]) -> list[tuple[str, int]]:
    return [(type(change).__name__, change.record.instance) for change in changes]


def test_a_worker_of_dynamo_stands_where_dynamo_puts_it() -> None:
    key = b"v1/instances/bench/worker/generate/591daf1894a66ff"
    record = read_pair(Pair(key, DYNAMO.encode(), 1))
    assert record_key(record.endpoint, record.instance) == key
    assert record.via == "127.0.0.1:41525/591daf1894a66ff/bench/worker/generate"


def test_a_namespace_is_what_keys_begin_with() -> None:
    assert prefix_of("") == b"v1/instances/"
    assert prefix_of("demo") == b"v1/instances/demo/"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (pair()._replace(key=b"v1/instances/demo/shout/generate/2"), "it holds the record of"),
        (pair()._replace(key=b"v1/instances/demo%2Fshout%2Fgenerate%2F1"), "it holds the record"),
        (pair()._replace(value=b"{"), "Expecting"),
        (pair()._replace(value=b"\xff\xfe{}"), "decode"),
        (pair()._replace(value=b"[" * 20_000), "recursion"),
        (pair()._replace(value=b" " * (LARGEST + 1)), "bytes, 65536 are allowed"),
        (pair(type="Model"), "type is 'Model'"),
        (pair(transport={"nats": "x"}), "not tcp"),
    ],
)
def test_what_is_no_record_costs_itself_and_one_line(
    wrong: Pair, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadRecord, match=why):
        read_pair(wrong)
    caplog.set_level(logging.WARNING)
    held = table()
    assert words(held.listed([wrong, pair(7)], 0.0)) == [("Added", 7)]
    assert held.put(wrong._replace(revision=5)) == []
    assert len(caplog.records) == 1
    assert "is left: " in caplog.records[0].getMessage()
    assert held.agrees(2, 5)
    assert not held.agrees(2, 6)  # as many, and one of them is written anew


def test_a_record_that_is_mended_is_told_and_one_that_is_spoilt_goes() -> None:
    held = table()
    assert held.listed([pair()._replace(value=b"{")], 0.0) == []
    assert held.put(pair(revision=2)) == [Added(seen(1))]
    assert held.put(pair(revision=3)) == []
    moved = held.put(pair(revision=4, request_plane_codec="json"))
    assert moved == [
        Removed(seen(1), "its record was replaced"),
        Added(seen(1)._replace(codec="json")),
    ]
    assert words(held.put(pair(revision=5)._replace(value=b"{"))) == [("Removed", 1)]


def test_what_comes_and_goes_is_told_each_time() -> None:
    held = table()
    assert held.listed([], 5.0) == []
    told = []
    for revision in range(1, 101, 2):
        told += held.put(pair(revision=revision))
        told += held.deleted(pair().key, 6.0)
    assert words(told) == [("Added", 1), ("Removed", 1)] * 50
    assert held.agrees(0, 0)
    assert not held.agrees(1, 99)
    assert held.deleted(b"v1/instances/what/is/unknown/1", 6.0) == []


def test_b147_what_is_missing_after_an_outage_is_held_for_one_lease() -> None:
    held = table()
    held.listed([pair(1), pair(2), pair(3)], 0.0)
    assert held.listed([pair(2, revision=9)], 100.0) == []
    assert held.next_due == 110.0
    assert held.put(pair(1, revision=10)) == []  # it has registered again
    assert held.due(109.9) == []
    assert words(held.due(110.0)) == [("Removed", 3)]
    assert held.next_due is None


def test_b147_leases_that_end_as_etcd_comes_back_are_held_too() -> None:
    held = table()
    held.listed([pair(1), pair(2)], 0.0)
    assert held.listed([pair(1), pair(2)], 100.0) == []
    assert held.deleted(pair(1).key, 101.0) == []
    assert held.deleted(pair(2).key, 101.0) == []
    assert held.put(pair(1, revision=5)) == []
    assert words(held.due(110.0)) == [("Removed", 2)]
    assert words(held.deleted(pair(1).key, 110.5)) == [("Removed", 1)]


def test_another_outage_begins_the_time_anew() -> None:
    held = table()
    held.listed([pair(1)], 0.0)
    held.listed([], 100.0)
    held.lost(101.0)
    held.listed([], 108.0)
    assert held.due(112.0) == []
    held.shaken(117.0)
    assert held.next_due == 127.0
    assert words(held.due(127.0)) == [("Removed", 1)]


def test_the_dead_are_not_held_for_ever_where_etcd_comes_and_goes() -> None:
    held = table()
    held.listed([pair(1)], 0.0)
    now, changes = 100.0, list[Told]()
    while not changes:
        changes += held.listed([], now)
        changes += held.due(now + 1.9)
        held.lost(now + 1.9)
        held.lost(now + 1.95)  # nobody has come in between
        now += 2.0
    assert words(changes) == [("Removed", 1)]
    assert 120.0 <= now <= 124.0
    assert held.next_due is None


def test_a_long_outage_is_no_time_in_which_anybody_could_have_come_back() -> None:
    held = table()
    held.listed([pair(1)], 0.0)
    assert held.listed([], 100.0) == []
    for second in range(105, 400, 5):  # each try fails
        held.lost(float(second))
    assert held.listed([], 400.0) == []
    assert held.next_due == 410.0
    assert held.listed([pair(1)], 405.0) == []


def test_who_came_back_is_held_anew_when_it_is_missing_again() -> None:
    held = table()
    held.listed([pair(1)], 0.0)
    assert held.listed([], 100.0) == []
    assert held.put(pair(1)) == []
    assert held.listed([], 500.0) == []
    assert held.next_due == 510.0


def test_the_first_list_and_a_quiet_time_hold_nothing() -> None:
    held = table()
    held.listed([pair(1)], 1000.0)
    assert words(held.deleted(pair(1).key, 1000.1)) == [("Removed", 1)]


def test_more_than_can_be_looked_at_is_left_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(etcd_records, "MOST", 3)
    caplog.set_level(logging.WARNING)
    held = table()
    assert len(held.listed([pair(number) for number in range(5)], 0.0)) == 3
    assert held.put(pair(9)) == []
    assert len(caplog.records) == 1
    assert held.agrees(6, 1)
    assert not held.agrees(3, 1)  # there is room again: another list tells


def test_a_record_of_dynamo_may_be_on_any_endpoint() -> None:
    held = table()
    data = dynamo(namespace="ä", component="b", endpoint="c", instance_id=255)
    key = "v1/instances/ä/b/c/ff".encode()
    assert words(held.put(Pair(key, json.dumps(data).encode(), 1))) == [("Added", 255)]


def test_changes_that_nobody_has_taken_are_shortened_to_what_they_come_to() -> None:
    came: Told = Added(seen(1))
    went: Told = Removed(seen(1), "gone")
    other: Told = Added(seen(2))
    held = {(1, seen(1).endpoint)}
    assert shortened([came, went] * 1000 + [other], held) == [went, other]
    assert shortened([went, came] * 1000, held) == [went, came]
    assert shortened([came, other, went, came], held) == [went, came, other]
    assert shortened([came], held) == [came]
    assert shortened([went, went], held) == [went]
    # Nobody was told that it was there.
    assert shortened([came, went] * 1000 + [other], ()) == [other]
    assert shortened([came, went, came], ()) == [came]
