"""Which router a call is given, where a node has several and not all are well."""

from __future__ import annotations

import os

import pytest

from actors.discovery.base import Listener
from actors.discovery.lookup import NodeLookup
from actors.errors import NoWorkers
from actors.messages import Record, Snapshot
from transport.bus.address import Address


class Told:
    """A discovery that has said all when it is asked."""

    def __init__(self, *records: Record) -> None:
        self._records = list(records)

    async def subscribe(self, listener: Listener) -> Told:
        listener(Snapshot(self._records))
        return self

    def cancel(self) -> None:
        """Nothing more is told."""


def router(number: int, pid: int = 1) -> Record:
    return Record(number, Address(f"r{number}", number, pid, 1), "router")


async def chosen(lookup: NodeLookup, count: int = 12) -> list[int]:
    return [lookup.router("t.e.go").incarnation for _ in range(count)]


async def test_one_that_is_not_well_is_passed_over_as_long_as_another_is() -> None:
    ill = {2}
    records = [router(each) for each in (1, 2, 3)]
    lookup = NodeLookup(Told(*records), lambda each: each.incarnation not in ill)
    await lookup.start()
    found = await chosen(lookup)
    assert set(found) == {1, 3}
    assert abs(found.count(1) - found.count(3)) <= 4
    ill |= {1, 3}
    assert set(await chosen(lookup)) == {1, 2, 3}, "nobody is well: all take their turn"
    ill.clear()
    assert set(await chosen(lookup)) == {1, 2, 3}


async def test_the_only_one_is_taken_unseen() -> None:
    looks: list[Address] = []

    def well(each: Address) -> bool:
        looks.append(each)
        return False

    lookup = NodeLookup(Told(router(1)), well)
    await lookup.start()
    assert await chosen(lookup, 3) == [1, 1, 1]
    assert not looks
    near = NodeLookup(Told(router(1), router(2, os.getpid())), well)
    await near.start()
    assert await chosen(near, 3) == [2, 2, 2], "one in this process costs no hop"
    nobody = NodeLookup(Told(), well)
    await nobody.start()
    with pytest.raises(NoWorkers):
        nobody.router("t.e.go")
