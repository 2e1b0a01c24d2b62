"""Large values on their way between nodes: views out, arena in, and no lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.errors import MemoryExhausted, RemoteProtocolError, TooLarge
from actors.kernel.bodies import LARGE, Incoming, in_line, outgoing
from actors.messages import ItemBody
from tests.kernel.relays import STREAM, actors, at_rest, bytes_of, send
from transport.payload import Encoded
from transport.shm.frames import Frame

MIB = 1 << 20


async def test_what_is_small_needs_no_body(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay") as (relay,):
        assert outgoing(relay.runtime, bytes(LARGE), [], 1) is None
        near = ["<f4", [8], bytes(32)]
        assert outgoing(relay.runtime, b"x", [near], 1) is None
        large = outgoing(relay.runtime, bytes(LARGE), [near], 5)
        assert large is not None
        assert large.message(STREAM, 3) == ItemBody(STREAM, 3, LARGE, [near], LARGE + 32, 5)
        assert bytes_of(large) == [bytes(LARGE)]


async def test_arrays_go_out_as_views_whose_end_is_the_lease_s_end(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "engine", "relay") as (engine, relay):
        array = np.arange(MIB, dtype="<f4")
        size = await send(engine, relay, {"a": array, "t": (1, "x"), "b": b"y" * 50_000})
        found = await relay.item()
        out = outgoing(relay.runtime, found.payload, found.handles, 9)
        assert out is not None
        assert (out.payload, out.size, out.body) == (found.payload, size, 9)
        assert out.table == [["<f4", [MIB], 4 * MIB], ["", [50_000], 50_000]]
        assert [part.nbytes for part in out.parts] == [4 * MIB, 50_000]
        assert all(part.readonly for part in out.parts)
        assert bytes(out.parts[0]) == array.tobytes()
        slices = [out.parts[0][:100], out.parts[1][:100]]
        assert engine.runtime.memory.statistics().lent == 2
        del out
        relay.runtime.links.send_releases()
        assert slices[1] == b"y" * 100
        assert engine.runtime.memory.statistics().lent == 2
        del slices
        await at_rest(engine)


async def test_small_frames_travel_in_the_message(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "engine", "relay") as (engine, relay):
        frames = engine.runtime.memory.frames
        small, empty = frames.new(3, "uint8"), frames.new((0, 2), "<i8")
        small.array[:] = 5
        await send(engine, relay, [small, empty])
        found = await relay.item()
        out = outgoing(relay.runtime, found.payload, found.handles, 1)
        assert out is not None
        assert out.parts == []
        assert out.table == [["|u1", [3], b"\5\5\5"]]
        await at_rest(engine)


async def test_a_message_is_bounded_however_many_small_parts_it_has(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay") as (relay,):
        near = ["", [10_000], bytes(10_000)]
        out = outgoing(relay.runtime, b"", [near] * 40, 1)
        assert out is not None
        assert len(out.parts) == 27
        assert sum(len(each[2]) for each in out.table if type(each[2]) is bytes) <= LARGE


async def test_an_error_gives_back_every_handle(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "engine", "relay") as (engine, relay):
        await send(engine, relay, [np.zeros(MIB, "u1"), np.zeros(MIB, "u1"), np.zeros(MIB, "u1")])
        found = await relay.item()
        stale = list(found.handles[1])
        stale[3] = 1 << 40
        with pytest.raises(RemoteProtocolError, match="in a segment of"):
            outgoing(relay.runtime, b"", [found.handles[0], stale, found.handles[2]], 1)
        relay.runtime.drop([found.handles[1]])
        await at_rest(engine)
        with pytest.raises(RemoteProtocolError, match="handle from a peer"):
            outgoing(relay.runtime, b"", [[1, 2]], 1)
        with pytest.raises(RemoteProtocolError, match="not \\[dtype, shape, bytes\\]"):
            outgoing(relay.runtime, b"", [["<f4", [1], 4]], 1)


def _fill(incoming: Incoming, parts: list[bytes]) -> Encoded:
    for target, part in zip(incoming.targets, parts, strict=True):
        target[:] = part
    return incoming.finish()


async def test_a_body_arrives_in_our_arena_and_reads_as_it_was_sent(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "engine", "relay", "far") as (engine, relay, far):
        frame = engine.runtime.memory.frames.new((2, MIB), "<i2")
        frame.array[:] = 7
        structured = np.ones(20_000, dtype=[("a", "<i4"), ("b", ">f8")])
        text = "long" * 50_000
        await send(engine, relay, {"f": frame, "s": structured, "b": b"z" * 40_000, "t": text})
        found = await relay.item()
        out = outgoing(relay.runtime, found.payload, found.handles, 1)
        assert out is not None
        assert isinstance(out.payload, int)
        incoming = Incoming(far.runtime, out.message(STREAM, 0))
        encoded = _fill(incoming, bytes_of(out))
        del out
        await at_rest(engine)
        assert far.runtime.memory.statistics().slots == 3
        value = far.runtime.decode(encoded.data, encoded.handles, "msgpack")
        assert isinstance(value["f"], Frame)
        assert value["f"].array.shape == (2, MIB)
        assert (value["f"].array == 7).all()
        assert (value["s"] == structured).all()
        assert (value["b"], value["t"]) == (b"z" * 40_000, text)
        for handle in encoded.handles:
            far.runtime.memory.unexport(handle)
        del value, incoming
        await at_rest(far)


async def test_small_parts_and_a_full_arena_leave_them_in_line(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "far", arena_step=MIB, arena_limit=3 * MIB) as (far,):
        parts = [bytes([each]) * size for each, size in enumerate((20_000, MIB, MIB))]
        table: list[Any] = [["|u1", [len(part)], len(part)] for part in parts]
        table.append(["|u1", [2], b"ab"])
        message = ItemBody(STREAM, 0, b"", table, 20_000 + 2 * MIB + 2, 1)
        held = far.runtime.memory.frames.new(MIB, "u1")
        first, second = Incoming(far.runtime, message), Incoming(far.runtime, message)
        assert far.runtime.memory.statistics().slots == 3
        encoded = _fill(second, parts)
        assert [each[2][:1] for each in encoded.handles] == [b"\0", b"\1", b"\2", b"a"]
        encoded = _fill(first, parts)
        kinds = [type(each) is list for each in encoded.handles]
        assert kinds == [True, False, False, True]
        assert encoded.carried == 20_002
        for handle in encoded.handles[1:3]:
            far.runtime.memory.unexport(handle)
        held.release()
        del first, second
        await at_rest(far)


async def test_what_is_dropped_stays_ours_while_somebody_still_fills_it(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "far") as (far,):
        message = ItemBody(STREAM, 0, b"", [["|u1", [MIB], MIB]], MIB, 1)
        incoming = Incoming(far.runtime, message)
        (target,) = incoming.targets
        incoming.drop()
        assert far.runtime.memory.statistics().slots == 1
        target[:] = bytes(MIB)
        del target
        await at_rest(far)


_GOOD: dict[str, Any] = {
    "stream": STREAM, "seq": 0, "payload": 10, "table": [["<f4", [2, 2], 16]], "size": 26, "body": 1
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": 25}, "counts as 25 bytes and has 26"),
        ({"size": 27}, "counts as 27"),
        ({"payload": 0, "size": 16}, "payload of 0 bytes"),
        ({"payload": -1, "size": 15}, "payload of -1 bytes"),
        ({"payload": 1 << 40}, "counts as"),
        ({"table": [["<f4", [2, 3], 16]]}, "16 bytes that is '<f4'"),
        ({"table": [["", [15], 16]]}, "16 bytes that is ''"),
        ({"table": [["<f4", [2, 2], b"x"]]}, "1 bytes that is '<f4'"),
        ({"table": [["O", [2], 16]]}, "cannot be shared"),
        ({"table": [["nonsense", [2], 16]]}, "dtype that is none"),
        ({"table": [["x" * 3000, [2], 16]]}, "no text of at most"),
        ({"table": [[4, [2, 2], 16]]}, "no text"),
        ({"table": [["<f4", [-2, -2], 16]]}, "a length that is none"),
        ({"table": [["<f4", [2.0, 2], 16]]}, "a length that is none"),
        ({"table": [["<f4", [True, 4], 16]]}, "a length that is none"),
        ({"table": [["<f4", [1] * 65, 4]]}, "no list of at most 64"),
        ({"table": [["<f4", 4, 16]]}, "no list"),
        ({"table": [["<f4", [0], 0]]}, "neither bytes nor a number"),
        ({"table": [["<f4", [2, 2], "x"]]}, "neither bytes nor a number"),
        ({"table": [["<f4", [2, 2], True]]}, "neither bytes nor a number"),
        ({"table": [["<f4", [2, 2]]]}, "not \\[dtype, shape, bytes\\]"),
        ({"table": [7]}, "not \\[dtype, shape, bytes\\]"),
        ({"table": [["", [0], b""]] * 65_537}, "65537 parts"),
    ],
)
async def test_a_message_that_lies_takes_no_memory(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    async with actors(str(tmp_path), "far") as (far,):
        Incoming(far.runtime, ItemBody(**_GOOD))
        with pytest.raises(RemoteProtocolError, match=says) as caught:
            Incoming(far.runtime, ItemBody(**(_GOOD | change)))
        assert len(str(caught.value)) < 600
        assert far.runtime.memory.statistics().segments == 0


@pytest.mark.parametrize(
    "change",
    [
        {"payload": 1 << 40, "size": (1 << 40) + 16},
        {"table": [["|u1", [1 << 40], 1 << 40]], "size": (1 << 40) + 10},
    ],
)
async def test_a_value_beyond_our_limits_takes_no_memory(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    async with actors(str(tmp_path), "far") as (far,):
        with pytest.raises(TooLarge, match=r"payload_limit.*arena_limit"):
            Incoming(far.runtime, ItemBody(**(_GOOD | change)))
        assert far.runtime.memory.statistics().segments == 0


async def test_an_announced_payload_takes_memory_only_as_it_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with actors(str(tmp_path), "far") as (far,):
        large = 200 * MIB
        before = _resident()
        incoming = Incoming(far.runtime, ItemBody(STREAM, 0, large, [], large, 1))
        incoming.targets[0][:10] = bytes(10)
        assert _resident() - before < 20 * MIB
        incoming.drop()
        monkeypatch.setattr("mmap.mmap", _no_memory)
        with pytest.raises(MemoryExhausted, match="no memory for a value of"):
            Incoming(far.runtime, ItemBody(STREAM, 0, large, [], large, 1))


async def test_many_small_parts_take_memory_only_as_they_fill(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay") as (relay,):
        part, count = 20_000, 5_000
        table = [["", [part], part] for _ in range(count)]
        before = _resident()
        incoming = Incoming(relay.runtime, ItemBody(STREAM, 0, b"", table, part * count, 1))
        assert [len(each) for each in incoming.targets] == [part] * count
        assert _resident() - before < 16 << 20
        incoming.targets[0][:] = b"a" * part
        incoming.targets[-1][:] = b"z" * part
        encoded = incoming.finish()
        assert encoded.handles[0][2] == b"a" * part
        assert encoded.handles[-1][2] == b"z" * part


async def test_small_parts_count_as_what_is_in_line_does(tmp_path: Path) -> None:
    async with actors(str(tmp_path), "relay", payload_limit=64 << 10) as (relay,):
        table = [["", [20_000], 20_000] for _ in range(4)]
        with pytest.raises(TooLarge, match="small ones"):
            Incoming(relay.runtime, ItemBody(STREAM, 0, b"", table, 80_000, 1))
        large = [["", [200_000], 200_000]]
        Incoming(relay.runtime, ItemBody(STREAM, 0, b"", large, 200_000, 1)).drop()


def _no_memory(*arguments: Any) -> None:
    raise OSError("none left")


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_only_what_is_in_line_comes_from_another_node() -> None:
    assert in_line([]) == 0
    assert in_line([["<f4", [2], bytes(8)], ["", [3], b"abc"]]) == 11
    for wrong in (
        [[1, 2, 3, 4, 5, "<f4", [1]]],
        [["<f4", [1], bytes(4)], [1, 2, 3, 4, 5, "<f4", [1]]],
        [7],
        [b"abc"],
        ["abc"],
        [["<f4", [1]]],
    ):
        with pytest.raises(RemoteProtocolError, match="never leave their node"):
            in_line(wrong)
    for wrong in ([[1, [1], b"x"]], [["", 1, b"x"]], [["", [1], 1]], [["", [1], b""]] * 100_000):
        with pytest.raises(RemoteProtocolError):
            in_line(wrong)
