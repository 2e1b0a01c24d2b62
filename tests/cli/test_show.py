"""How values and tables are written."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from actors.cli.show import size, table, to_line
from transport.wire.codec import Annotated


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (None, "null"),
        ({"a": [1, 2.5, True, "x\ny"]}, '{"a": [1, 2.5, true, "x\\ny"]}'),
        ((1, (2,)), "[1, [2]]"),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        (b"\x00" * 20, '"<bytes 20: 00000000000000000000000000000000...>"'),
        (bytearray(b"a"), '"<bytearray 1: 61>"'),
        ({None: 1, 2: 2, (1,): 3}, '{"null": 1, "2": 2, "[1]": 3}'),
        (Decimal("1.50"), '"1.50"'),
        (
            Annotated(data=1, comment=["c"]),
            '{"data": 1, "id": null, "event": null, "comment": ["c"], "error": null}',
        ),
    ],
)
def test_a_value_is_one_line_of_json(value: object, line: str) -> None:
    assert to_line(value) == line


def test_sizes_and_tables_are_for_people() -> None:
    assert [size(count) for count in (None, 0, 1023, 1536, 5 << 30)] == [
        "-", "0 B", "1023 B", "1.5 KiB", "5.0 GiB",
    ]  # fmt: skip
    assert table(("A", "LONG"), [("wide", "b"), ("c", "")]) == "A     LONG\nwide  b\nc"
