"""What an ingress tells of loads, as another node reads it."""

from __future__ import annotations

from typing import Any

import pytest

from actors.discovery.loads import Load, pack_loads, read_loads
from transport.wire.codec import decode, encode


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_loads_come_as_they_were_told(codec: str) -> None:
    loads = [Load((1 << 64) - 1, 5, 3, 2, 64, 1), Load(1, 6, 0, 0, 1, 0)]
    assert read_loads(decode(encode(pack_loads(loads), codec=codec), codec=codec)) == loads
    assert read_loads(pack_loads([])) == []


@pytest.mark.parametrize(
    "entry",
    [
        None, 5, [], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, None],
        [1, 2, -3, 4, 5, 6], [1, 2, 3.0, 4, 5, 6], [1, 2, True, 4, 5, 6], [1 << 64, 1, 1, 1, 1, 1],
        [1, 2, 1 << 40, 4, 5, 6], {"instance": 1},
    ],
)  # fmt: skip
def test_b122_a_load_without_all_its_fields_is_left_out_and_not_taken_for_none(entry: Any) -> None:
    good = Load(7, 1, 2, 0, 4, 0)
    assert read_loads({"loads": [entry, list(good)]}) == [good]


@pytest.mark.parametrize("item", [None, 5, [], {}, {"loads": 5}, {"loads": {}}, {"news": []}])
def test_what_is_no_list_of_loads_tells_nothing(item: Any) -> None:
    assert read_loads(item) == []
