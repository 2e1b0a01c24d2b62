"""The byte-level fuzzer: every decoder stands a short run of it, it finds what it looks for, and
what it has found stays fixed.
"""

from __future__ import annotations

import ctypes
import gc
import re
import time
import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any

import msgpack
import pytest

from actors.messages import End, Record, Report
from actors.router.occupancy import Occupancy
from perf import fuzz_check, fuzz_values
from perf.__main__ import main
from perf.fuzz import TARGETS, Course
from perf.fuzz_check import Broken, Target, judge, watched
from perf.fuzz_mutate import mutate, pieces, smaller
from transport.bus.address import Address
from transport.errors import DecodeError, RemoteProtocolError, described, read_error
from transport.wire.codec import decode
from transport.wire.handle import announcement_from_wire, handle_from_wire
from transport.wire.message import BatchReader, BatchWriter


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    with watched():
        yield
    fuzz_values.close()


def _deep(depth: int = 1000) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("name", TARGETS)
def test_every_decoder_stands_some_hundred_wrong_inputs(name: str) -> None:
    course = Course(TARGETS[name], seed=1)
    for _ in range(400):
        course.step()
    assert course.found == {}
    assert course.inputs == 400


class Heap(ctypes.Structure):
    """What the C library's ``mallinfo2`` tells."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "used", "fordblks", "keepcost"),
        )
    )


def test_what_was_weighed_leaves_nothing_behind() -> None:
    heap = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if heap is None:
        pytest.skip("needs mallinfo2, which glibc has since 2.33: the heap is looked at")
    heap.restype = Heap
    course = Course(TARGETS["failures"], seed=1)
    sizes = []
    for _ in range(2):
        for _ in range(1500):
            data = course._random.choice(course._samples)
            judge(course.target, data, weigh=True)
        gc.collect()
        sizes.append(heap().used)
    assert sizes[1] - sizes[0] < 200_000  # it was a million when each was a session of its own


def test_the_same_seed_makes_the_same_inputs() -> None:
    seen: list[list[bytes]] = []
    for seed in (5, 5, 6):
        tried: list[bytes] = []
        target = Target("t", lambda _: [b"abc", b"\x93\x01\x02\x03"], tried.append)
        course = Course(target, seed)
        for _ in range(100):
            course.step()
        seen.append(tried)
    assert seen[0] == seen[1] != seen[2]


def _untyped(data: bytes) -> None:
    if b"\xff" in data:
        raise KeyError("ff")


def _claiming(data: bytes) -> None:
    bytearray(int.from_bytes(data[:4], "big") % (1 << 28))


def _endless(data: bytes) -> None:
    while b"\xff" in data:
        pass


def _slow(data: bytes) -> None:
    until = time.thread_time() + 0.1
    while b"\xff" in data and time.thread_time() < until:
        pass


def _otherwise(data: bytes) -> None:
    if data.count(b"a") > 3:
        raise Broken("it reads otherwise")


@pytest.mark.parametrize(
    ("run", "kind", "shortest"),
    [
        (_untyped, "exception", 1),
        (_otherwise, "broken", 4),
        (_claiming, "memory", 4),
        (_endless, "hang", 1),
        (_slow, "slow", 1),
    ],
)
def test_each_kind_of_fault_is_found_and_made_short(
    run: Any, kind: str, shortest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_check, "HANGS", 0.05 if kind == "hang" else 5.0)
    monkeypatch.setattr(fuzz_check, "MOST_SECONDS", 0.03 if kind == "slow" else 5.0)
    course = Course(Target("t", lambda _: [b"aab" * 10], run), seed=1)
    for _ in range(4000):
        course.step()
        if course.found:
            break
    (found,) = course.found.values()
    assert found.fault.kind == kind
    if kind in ("exception", "broken"):
        assert len(found.data) == shortest
    assert judge(course.target, found.data, weigh=kind == "memory")[0] is not None


def test_changes_keep_to_their_bound_and_pieces_to_the_whole() -> None:
    random = Random(3)
    for _ in range(500):
        data = mutate(random.randbytes(40), b"other" * 9, random)
        assert len(data) <= 32_768
        assert b"".join(pieces(data, random)) == data
    assert smaller(b"xxxxayyyybzzz", lambda each: b"a" in each and b"b" in each) == b"ab"


def test_the_command_tries_an_input_again_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--decoder", "json", "--input", "5b5d"]) == 0
    assert "read in" in capsys.readouterr().out
    assert main(["fuzz", "--decoder", "json", "--input", "5b"]) == 0
    assert "refused in" in capsys.readouterr().out
    # It has several decoders: none of them has read it.
    assert main(["fuzz", "--decoder", "control", "--input", "c1"]) == 0
    assert "refused in" in capsys.readouterr().out
    for wrong in (["--input", "5b"], ["--decoder", "json", "--input", "zz"]):
        with pytest.raises(SystemExit) as ended:
            main(["fuzz", *wrong])
        assert ended.value.code == 2


def test_the_command_prints_what_it_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["fuzz", "--seconds", "0.3", "--decoder", "json", "--decoder", "mux"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^json +[\d,]+ .* 0$", out, re.MULTILINE)
    assert re.search(r"[\d,]+ inputs in \d+ s, seed 1", out)
    monkeypatch.setitem(TARGETS, "json", Target("json", lambda _: [b"\xff"], _untyped))
    assert main(["fuzz", "--seconds", "0.1", "--decoder", "json"]) == 1
    assert "python -m perf fuzz --decoder json --input ff" in capsys.readouterr().out


def test_a_decoder_that_keeps_what_it_has_read_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bytearray] = []
    keeps = Target("json", lambda _: [b"[1]"], lambda data: kept.append(bytearray(8_000)))
    monkeypatch.setitem(TARGETS, "json", keeps)
    monkeypatch.setattr("perf.fuzz._GROWTH", 1 << 20)
    assert main(["fuzz", "--seconds", "1", "--decoder", "json"]) == 1
    assert "(1,024 are allowed)" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["10:00+00:00~", "2024-01-01T10:00:00+01:00~"])
def test_a_fold_beside_an_offset_is_no_time(text: str) -> None:
    kind = "datetime" if "T" in text else "time"
    tag = f'{{"$callhome":"{kind}","v":"{text}"}}'.encode()
    with pytest.raises(DecodeError, match="fold beside an offset"):
        decode(tag, codec="json")
    assert decode(tag.replace(b"+00:00", b"").replace(b"+01:00", b""), codec="json").fold == 1  # type: ignore[attr-defined]


# What was found: values nested so deep that nothing is left of the stack to show them with.


def test_a_wrong_value_is_shown_however_deep_it_is() -> None:
    for value in (_deep(), {"k": _deep()}, b"x" * 10**6, "x" * 10**6, [b"y" * 10**6] * 10**4):
        assert 0 < len(described(value, 150)) <= 150
    assert described([1, "a", b"b", None]) == "[1, 'a', b'b', None]"


def test_a_handle_that_is_nested_too_deep_to_be_shown_is_refused() -> None:
    for value in (_deep(), {"a": _deep()}, [_deep(), 1, 2, 3, 4, "", []]):
        with pytest.raises(RemoteProtocolError):
            handle_from_wire(value)
        with pytest.raises(RemoteProtocolError):
            announcement_from_wire(value)


def test_a_tag_that_is_nested_too_deep_costs_its_own_message_only() -> None:
    depth = 1000
    good = BatchWriter(7).pack([End(1, 0, None)])
    bad = b"\x92" + b"\x91" * depth + b"\x01" + b"\x01"
    sender, messages, faults = BatchReader().read(good + bad)
    assert (sender, messages, len(faults)) == (7, [End(1, 0, None)], 1)


def test_arrays_that_claim_too_much_take_no_memory() -> None:
    claims = b"\x07" + b"\xdd\x00\xff\xff\xff" * 1000
    reader = BatchReader()
    tracemalloc.start()
    try:
        assert len(reader.read(claims)[2]) == 1
        with pytest.raises(RemoteProtocolError):
            reader.portions(claims)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    good = BatchWriter(7).pack(
        [Report(1, 2, 3, 4, 5, 6, 7, [[n, n, ""] for n in range(3000)])] * 99
    )
    assert len(reader.unpack(good)[1]) == 99


def test_noise_costs_a_bounded_number_of_errors() -> None:
    good = msgpack.packb([5, 1, 0, None])
    noise = b"\x01" * 100_000
    sender, messages, faults = BatchReader().read(b"\x07" + good + noise + good)
    assert (sender, messages) == (7, [End(1, 0, None)])
    assert len(faults) == 1001
    assert "99001 further messages" in str(faults[-1])
    sender, messages, faults = BatchReader().read(b"\x07" + noise[:900] + good)
    assert (messages, len(faults)) == ([End(1, 0, None)], 900)


def test_an_error_that_is_nested_too_deep_ends_its_stream_all_the_same() -> None:
    for values in (
        [_deep()],
        [_deep(), "m", {}],
        ["engine", _deep(), {}],
        ["engine", "m", _deep()],
    ):
        assert read_error(values) is not None
    deep = msgpack.unpackb(msgpack.packb(["engine", "m", {"k": 1}]))
    assert read_error(deep).details == {"k": "1"}


@pytest.mark.parametrize(
    "ended", [[5], [[1, 2]], [[_deep(), 1, ""]], [[{}, 1, ""]], ["abcd"]], ids=range(5)
)
def test_a_report_that_names_streams_wrongly_is_refused(ended: list[Any]) -> None:
    occupancy = Occupancy()
    occupancy.add(Record(9, Address("e", 9, 1, 1), "engine", "a.b.c"))
    with pytest.raises(RemoteProtocolError, match="is named by home, number and code"):
        occupancy.report(Report(9, 1, 0, 0, 1, 0, 0, ended))


def test_a_code_that_is_no_text_settles_its_stream() -> None:
    occupancy, home = Occupancy(), Address("h", 3, 1, 1)
    worker = occupancy.add(Record(9, Address("e", 9, 1, 1), "engine", "a.b.c"))
    occupancy.book(worker, home, 1)
    ((key, code),) = occupancy.report(Report(9, 1, 0, 0, 1, 1, 1, [[3, 1, _deep()]]))
    assert key == (3, 1)
    assert len(code) <= 40
