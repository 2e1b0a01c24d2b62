"""What leaves between two nodes when a message is no good, and when the peer does not read."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from actors.messages import Items, Kill
from tests.callhome.mux_ends import A, ends, items, raw_end
from tests.waiting import LONG, TICK, wait_until
from transport.callhome import mux_out
from transport.errors import ConnectionLost
from transport.wire.mux import MAX_BATCH

MIB = 1 << 20


async def test_a_message_that_cannot_be_packed_costs_itself_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ends() as (a, b):
        a.connection.send(items(1))
        a.connection.send(("no", "message"))
        a.connection.send(Items(2, 1 << 70, []))
        a.connection.send(items(3))
        await wait_until(lambda: len(b.messages) == 2)
        assert b.messages == [items(1), items(3)]
        assert a.errors == b.errors == []
        assert "cannot be packed" in caplog.text


async def test_a_message_that_is_larger_than_it_said_costs_itself_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ends() as (a, b):
        a.connection.send(items(1))
        a.connection.send(Items(2, 0, [bytes(MAX_BATCH)]))
        for number in range(5):
            a.connection.send(Items(3, number, [bytes(MAX_BATCH // 3)]))
        await wait_until(lambda: len(b.messages) == 6)
        assert b.messages[0] == items(1)
        assert [message[1] for message in b.messages[1:]] == list(range(5))
        assert "fits into no batch" in caplog.text


async def test_control_passes_what_waits_for_a_peer_that_does_not_read() -> None:
    with raw_end() as (side, sock):
        size = 100_000
        for number in range(400):
            side.connection.send(Items(1, number, [bytes(size)]), size)
        await asyncio.sleep(TICK)
        link = side.connection.link
        assert side.connection.backlog > 20 * MIB
        assert link.backlog < 2 * MIB
        side.connection.send(Kill(A, 1, "PASSES"))
        await asyncio.sleep(TICK)
        sock.settimeout(LONG)
        came, last = 0, b""
        while True:
            data = await asyncio.to_thread(sock.recv, 1 << 18)
            came += len(data)
            if b"PASSES" in last + data:
                break
            last = data[-5:]
        # Behind what the system and the link had already, and before the rest.
        assert came < 30 * MIB
        assert side.connection.backlog > 0


@pytest.mark.parametrize("bound", ["MOST_MESSAGES", "MOST_BYTES", "MOST_CONTROL"])
async def test_a_peer_that_never_reads_is_cut_off_before_it_takes_all_memory(
    bound: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    most = {"MOST_MESSAGES": 5_000, "MOST_BYTES": 40 * MIB, "MOST_CONTROL": 40 * MIB}[bound]
    monkeypatch.setattr(mux_out, bound, most)
    with raw_end() as (side, _):
        connection, size = side.connection, 1 if bound == "MOST_MESSAGES" else 100_000
        for number in range(2_000):  # fills what the system takes
            connection.send(Items(1, number, [bytes(10_000)]), 10_000)
        for number in range(20_000):
            if bound == "MOST_CONTROL":
                connection.send(Kill(A, number, "x" * 10_000))
            else:
                connection.send(Items(1, number, [b"x" * size]), size)
            if number % 100 == 0:
                await asyncio.sleep(0)
            if side.errors:
                break
        (error,) = side.errors
        assert isinstance(error, ConnectionLost)
        assert "does not read" in str(error)
        assert error.details["errno"] == "ENOBUFS"
        assert connection.gone
        assert connection.backlog == 0
        assert caplog.text.count("does not read") == 1
        assert connection.link.net.counters["mux.overfull"] == 1


async def test_bodies_are_no_reason_to_cut_a_peer_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mux_out, "MOST_BYTES", 4 * MIB)
    with ends() as (a, b):
        for number in range(8):
            a.body(number, bytes(8 * MIB))
            a.connection.send(items(number))
            a.connection.flush()
        await wait_until(lambda: len(b.done) == 8, 20)
        assert a.errors == []
        out = a.connection._out
        assert (out._body_bytes, out._waiting_messages) == (0, 0)


async def test_parts_of_a_body_are_not_copied_and_let_go_when_they_have_left() -> None:
    class Owner(bytearray):
        """Memory that tells when it goes."""

    with ends() as (a, b):
        b.wanted = False
        memory = Owner(4 * MIB)
        gone = weakref.ref(memory)
        number = a.connection.new_body()
        a.connection.send_body(
            items(1), number, [memoryview(memory)], lambda: a.left.append(number)
        )
        with pytest.raises(BufferError):  # it is lent out, not copied
            memory.append(1)
        del memory
        await wait_until(lambda: a.left == [number])
        gc.collect()
        await wait_until(lambda: gone() is None)
