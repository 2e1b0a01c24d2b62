"""``tests/conformance.md`` says where each of the request plane's conformance tests is found."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
#: Rows of the request plane's own list.
NUMBERS = range(1, 41)

_NAME = re.compile(r"def test_(?:conformance_|c)(\d\d?[a-z]?(?:_(?:and_)?\d\d)*)_")
_ROW = re.compile(r"\| (\d+) \| ([^|]+) \| ([^|]+) \|")


def numbers_of(source: str) -> set[int]:
    """The numbers that stand in the names of the tests of a file."""
    found = re.findall(r"\d+", " ".join(_NAME.findall(source)))
    return set(map(int, found))


def rows() -> dict[int, list[str]]:
    """The files of each row of the table."""
    lines = (TESTS / "conformance.md").read_text().splitlines()
    found = filter(None, map(_ROW.fullmatch, lines))
    return {int(row[1]): re.findall(r"`([^`]+)`", row[3]) for row in found}


def test_how_a_name_tells_its_numbers() -> None:
    names = (
        "test_c12_one",
        "test_conformance_39_and_40_two",
        "test_conformance_20a_x",
        "test_c7_5_y",
    )
    assert numbers_of("".join(f"def {name}(" for name in names)) == {12, 39, 40, 20, 7}
    assert numbers_of("def test_b141_lease(): ...") == set()
    assert numbers_of("def test_512_streams_at_once(): ...") == set()


def test_each_conformance_test_is_found_where_the_table_says() -> None:
    table = rows()
    assert list(table) == list(NUMBERS)
    there = {
        str(path.relative_to(TESTS)): numbers_of(path.read_text())
        for path in TESTS.rglob("test_*.py")
    }
    for number, files in table.items():
        assert files, f"{number} is tested nowhere"
        wrong = [name for name in files if number not in there.get(name, ())]
        assert not wrong, f"{number} is not tested in {wrong}"
