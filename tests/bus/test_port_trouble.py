"""Ports in trouble: names taken, paths too long, noise, bad messages; what closing leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import resource

import pytest
import zmq

from actors.messages import FeedEnd
from tests.bus.posts import arrived, numbered, posts, weighty
from tests.waiting import LONG, wait_until
from transport.bus.address import MAX_PATH, Address, inbox_path
from transport.bus.port import Bus, Port
from transport.errors import LocalProtocolError, OutboxFull, RemoteProtocolError
from transport.wire.message import BatchWriter


async def test_what_was_sent_last_arrives_though_the_port_closes(run: str) -> None:
    for _ in range(20):
        with posts(run, "a", "b") as (a, b):
            for number in range(100):
                a.port.send(b.address, numbered(number))
            a.port.close(LONG)
            await arrived(b, 100)
            assert b.numbers == list(range(100))


async def test_a_closed_port_is_quiet_and_leaves_no_file(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        assert len(os.listdir(run)) == 4
        a.port.send(b.address, numbered(1))
        await arrived(b, 1)
        b.port.close()
        b.port.close()
        assert sorted(os.listdir(run)) == sorted(
            os.path.basename(inbox_path(run, a.address, lane)) for lane in "cd"
        )
        b.port.send(a.address, numbered(2))
        b.port.flush()
        b.port.hold_data(True)
        for _ in range(10):
            await asyncio.sleep(0)
        assert a.came == []


async def test_an_incarnation_is_bound_once(run: str) -> None:
    with posts(run, "a") as (a,):
        with pytest.raises(LocalProtocolError, match="another actor is bound"):
            Port(a.bus, run, a.address, lambda *_: None, hello=numbered(0))
        assert len(os.listdir(run)) == 2  # the first one's files are untouched


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "../x", "a\0b"])
def test_a_name_that_leads_out_of_the_folder_has_no_inbox(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="cannot have a socket"):
        inbox_path("/run", Address(name, 256, 1, 1), "d")


async def test_a_path_that_is_too_long_is_named_with_its_limit(run: str) -> None:
    name = "x" * (MAX_PATH - len(run) - len("/.100.d"))
    fits, beyond = Address(name, 256, 1, 1), Address(name + "y", 256, 1, 1)
    assert len(inbox_path(run, fits, "d")) == MAX_PATH
    bus = Bus()
    try:
        with pytest.raises(LocalProtocolError, match=rf"108 bytes, 107 .*{run}.*CALLHOME_RUN"):
            Port(bus, run, beyond, lambda *_: None, hello=numbered(0))
        assert os.listdir(run) == []
        Port(bus, run, fits, lambda *_: None, hello=numbered(0)).close(0)
    finally:
        bus.close()


async def test_a_folder_that_is_not_there_is_named(run: str) -> None:
    bus = Bus()
    try:
        with pytest.raises(LocalProtocolError, match="cannot be bound"):
            Port(bus, run + "/none", Address("a", 1, 1, 1), lambda *_: None, hello=numbered(0))
    finally:
        bus.close()


async def test_b33_noise_between_good_messages_is_dropped_and_counted(
    run: str, caplog: pytest.LogCaptureFixture
) -> None:
    noise = [b"", b"\xc1", os.urandom(1 << 20), *(os.urandom(50) for _ in range(8))]
    with posts(run, "a", "b") as (a, b), caplog.at_level(logging.WARNING, "callhome.bus"):
        socket = a.bus.context.socket(zmq.PUSH)
        socket.connect(f"ipc://{inbox_path(run, b.address, 'd')}")
        try:
            for number, bad in enumerate(noise):
                a.port.send(b.address, numbered(number))
                a.port.flush()
                socket.send(bad)
            await arrived(b, len(noise))
            await wait_until(lambda: b.port.statistics().batches_in >= 2 * len(noise))
        finally:
            socket.close(0)
        assert b.numbers == list(range(len(noise)))
        # Noise may by chance be a batch without a message; it is never more than a warning each.
        assert len(noise) - 2 <= b.port.statistics().unreadable <= len(noise)
        assert len(caplog.records) <= len(noise)


async def test_a_message_that_its_receiver_refuses_takes_no_other_with_it(
    run: str, caplog: pytest.LogCaptureFixture
) -> None:
    def react(message: object) -> None:
        if message == numbered(3):
            raise RemoteProtocolError("it makes no sense")
        if message == numbered(4):
            raise ValueError("a bug of ours")

    with posts(run, "a", "b") as (a, b):
        b.react = react
        for number in range(8):
            a.port.send(b.address, numbered(number))
        await arrived(b, 8)
        assert b.numbers == list(range(8))
        texts = [record.getMessage() for record in caplog.records]
        assert any("refused a Credit: it makes no sense" in text for text in texts)
        assert any("failed on a Credit" in text for text in texts)


async def test_a_message_that_cannot_be_packed_takes_no_other_with_it(
    run: str, caplog: pytest.LogCaptureFixture
) -> None:
    with posts(run, "a", "b") as (a, b):
        a.port.send(b.address, numbered(1))
        a.port.send(b.address, FeedEnd(1, object()))  # type: ignore[arg-type]
        a.port.send(b.address, numbered(2))
        await arrived(b, 2)
        assert b.numbers == [1, 2]
        assert "could not pack" in caplog.text


@pytest.mark.parametrize("stuck", [False, True])
async def test_no_batch_is_larger_than_a_reader_takes(
    run: str, monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    monkeypatch.setattr("transport.wire.message.MAX_BATCH", 3 << 20)
    monkeypatch.setattr("transport.bus.port._LARGE", 1 << 20)
    with posts(run, "a", "b") as (a, b):
        a.port.send(b.address, numbered(0))
        await arrived(b, 1)
        (box,) = a.port._boxes.values()
        outlet = box.outlet
        assert outlet is not None
        if stuck:  # what waits for a reader that stands still leaves in one go later
            outlet.waiting.append(BatchWriter(a.address.incarnation).pack([numbered(0)]))
        for number in range(8):
            a.port.send(b.address, weighty(number, 1_000_000), size=1_000_000)
        if stuck:
            a.port.flush()
            assert a.port.backlog(b.address) >= 8_000_000
            outlet._writable()
        before = 2 if stuck else 1
        await arrived(b, before + 8)
        assert b.numbers == [0] * before + list(range(8))
        assert b.port.statistics().unreadable == 0


async def test_a_port_without_descriptors_loses_one_peer_and_says_so(run: str) -> None:
    with posts(run, "a", "b", "c") as (a, b, c):
        told: list[str] = []
        a.port.unreachable = lambda address, reason: told.append(f"{address.name}: {reason}")
        a.port.send(b.address, numbered(1))
        await arrived(b, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = os.dup(0)
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
        try:
            with pytest.raises(OutboxFull, match=r"no socket .* towards c .*ulimit -n"):
                a.port.send(c.address, numbered(2), bounded=True)
            await wait_until(lambda: told)
            for number in range(2, 50):
                a.port.send(b.address, numbered(number))
                await asyncio.sleep(0)
            await arrived(b, 49)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert told[0].startswith("c: no socket can be opened")
        a.port.send(c.address, numbered(3), bounded=True)  # there is room again
        await arrived(c, 1)
