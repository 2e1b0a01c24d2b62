"""Strangers on the socket folder: whatever they send, or hold open, disturbs nobody."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import threading
from pathlib import Path

import pytest
import zmq

from actors.kernel.runtime import Runtime
from actors.messages import Bye, Down, Hello
from tests.bus.posts import Post, arrived, numbered, posts, weighty
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address, inbox_path
from transport.bus.claim import Claim
from transport.bus.flow import FLIGHT, Mark, Marked
from transport.errors import ConnectionLost, LocalProtocolError, OutboxFull, RemoteProtocolError
from transport.wire.message import BatchWriter, Message

#: What a PUSH socket says first in ZMTP 3.0, security NULL.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 4) + b"PUSH"


def raw(path: str) -> socket.socket:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(path)
    return stranger


async def answers(a: Post, b: Post, first: int, count: int = 20) -> None:
    """Good messages pass, in order."""
    for number in range(first, first + count):
        a.port.send(b.address, numbered(number))
        await asyncio.sleep(0)
    await arrived(b, first + count)
    assert b.numbers[first:] == list(range(first, first + count))


def bind(gate: threading.Barrier, path: str, won: list[Claim], lost: list[str]) -> None:
    gate.wait()
    try:
        won.append(Claim(path))
    except LocalProtocolError as error:
        lost.append(str(error))


async def test_of_many_who_bind_one_path_at_once_one_does(run: str) -> None:
    for number in range(20):
        path = f"{run}/{number}"
        won: list[Claim] = []
        lost: list[str] = []
        gate = threading.Barrier(8)

        threads = [threading.Thread(target=bind, args=(gate, path, won, lost)) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert (len(won), len(lost)) == (1, 7)
        assert all("another actor is bound" in text for text in lost)
        won[0].abandon()


async def test_silent_half_and_hasty_connections_cost_nobody_anything(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        path = inbox_path(run, b.address, "d")
        await answers(a, b, 0)
        held = [raw(path) for _ in range(200)]
        for number, each in enumerate(held):
            each.sendall(GREETING[: number % len(GREETING)])
        for _ in range(2000):
            raw(path).close()
        await answers(a, b, 20)
        for each in held:
            each.close()
        await answers(a, b, 40)
        await wait_until(lambda: len(os.listdir("/proc/self/fd")) < 400, what="they are let go")


@pytest.mark.parametrize(
    "frame",
    [
        b"\x02" + struct.pack(">Q", 1 << 62),  # a frame that claims 4 EiB
        b"\x02" + struct.pack(">Q", 1 << 31),
        b"\xff" * 64,
        b"\x00\x00",
        os.urandom(4096),
    ],
    ids=["4 EiB", "2 GiB", "ones", "zeros", "noise"],
)
async def test_wild_frames_cost_only_their_connection(run: str, frame: bytes) -> None:
    with posts(run, "a", "b") as (a, b):
        await answers(a, b, 0)
        stranger = raw(inbox_path(run, b.address, "d"))
        stranger.settimeout(LONG)
        stranger.sendall(GREETING)
        greeted = 0  # in as many parts as the machine likes: a time-out makes MSG_WAITALL void
        while greeted < 64:
            part = stranger.recv(64 - greeted)
            assert part
            greeted += len(part)
        with contextlib.suppress(OSError):  # it is cut off as soon as the beginning is read
            stranger.sendall(READY + frame)
        await answers(a, b, 20)
        stranger.close()


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.SUB])
async def test_b33_sockets_of_other_kinds_are_not_heard(run: str, kind: int) -> None:
    with posts(run, "a", "b") as (a, b), zmq.Context() as context:
        stranger = context.socket(kind)
        stranger.linger = 0
        stranger.connect(f"ipc://{inbox_path(run, b.address, 'd')}")
        if kind != zmq.SUB:
            with contextlib.suppress(zmq.Again):  # once it was not let in
                for _ in range(500):
                    stranger.send(b"\xc1", zmq.NOBLOCK)
        await answers(a, b, 0)
        stranger.close(0)
        assert b.port.statistics().unreadable == 0


async def test_b33_a_flood_of_noise_is_told_once_a_sender(
    run: str, caplog: pytest.LogCaptureFixture
) -> None:
    with posts(run, "a", "b") as (a, b), caplog.at_level(logging.WARNING, "callhome.bus"):
        with zmq.Context() as context:
            stranger = context.socket(zmq.PUSH)
            stranger.connect(f"ipc://{inbox_path(run, b.address, 'd')}")
            for number in range(2000):
                stranger.send_multipart([b"\xc1", os.urandom(30)] if number % 2 else [b""])
            await answers(a, b, 0)
            await wait_until(lambda: b.port.statistics().batches_in >= 3000)
            stranger.close(0)
        assert b.port.statistics().unreadable >= 2000
        assert len(caplog.records) <= 300  # noise names random senders; all further ones are one


async def test_made_up_senders_take_no_memory(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.bus.intake._SENDERS", 100)
    with posts(run, "a", "b") as (a, b), zmq.Context() as context:
        stranger = context.socket(zmq.PUSH)
        stranger.connect(f"ipc://{inbox_path(run, b.address, 'd')}")
        for number in range(1000):
            stranger.send(BatchWriter(number + (1 << 50)).pack([numbered(-1)]))
        await wait_until(lambda: len(b.came) == 1000)
        assert len(b.port.came) <= 100
        stranger.close(0)
        a.port.send(b.address, numbered(1))
        await arrived(b, 1001)


async def until_refused(a: Post, b: Post, size: int, text: str) -> int:
    """Send messages with numbers until one is refused; how many were taken."""
    for count in range(100_000):
        try:
            a.port.send(b.address, weighty(count, size), size=size, bounded=True)
        except OutboxFull as error:
            return count if text in str(error) else -1
        if count % 8 == 0:
            await asyncio.sleep(0)
    raise AssertionError("nothing was refused")


async def test_what_stands_in_pipes_is_bounded_in_bytes(run: str) -> None:
    with posts(run, "a", "b") as (a, b):
        b.port.hold_data(True)
        size = 1 << 20
        count = await until_refused(a, b, size, "bounds 65536 and 268435456")
        assert count == 256  # as the bound says, wherever they stand
        (box,) = (each for each in a.port._boxes.values() if not each.control)
        assert FLIGHT <= box.flight.bytes < FLIGHT + 2 * size
        b.port.hold_data(False)
        await arrived(b, count)
        assert b.numbers == list(range(count))
        await wait_until(lambda: box.flight.bytes < FLIGHT // 2)
        a.port.send(b.address, weighty(count, size), size=size, bounded=True)
        await arrived(b, count + 1)


async def test_b45_a_small_bound_is_the_bound(run: str) -> None:
    with posts(run, "a", "b", outbox_messages=10) as (a, b):
        b.port.hold_data(True)
        accepted = await until_refused(a, b, 10, "bounds 10 and")
        assert accepted <= 10
        b.port.hold_data(False)
        await arrived(b, accepted)
        # Whoever is read goes on for ever.
        for number in range(accepted, 500):
            box = a.port._boxes[b.address.incarnation, False]
            await wait_until(lambda box=box: not box.full((10, 1 << 30)))
            a.port.send(b.address, weighty(number, 10), bounded=True)
        await arrived(b, 500)
        assert b.numbers == list(range(500))


async def test_b42_the_first_message_is_never_lost(run: str) -> None:
    with posts(run, "subscriber") as (subscriber,):
        for number in range(50):
            with posts(run, "publisher") as (publisher,):
                publisher.port.send(subscriber.address, numbered(number), control=number % 2 == 0)
                publisher.port.close(LONG)
        await arrived(subscriber, 50)
        assert sorted(subscriber.numbers) == list(range(50))


async def test_marks_that_make_no_sense_do_no_harm(
    run: str, caplog: pytest.LogCaptureFixture
) -> None:
    with posts(run, "a", "b") as (a, b), zmq.Context() as context:
        await answers(a, b, 0)
        stranger = context.socket(zmq.PUSH)
        stranger.connect(f"ipc://{inbox_path(run, b.address, 'd')}")
        control = context.socket(zmq.PUSH)
        control.connect(f"ipc://{inbox_path(run, a.address, 'c')}")
        fake = BatchWriter(77)
        stranger.send(fake.pack([Mark(b.address, 1)]))
        stranger.send(fake.pack([Mark(Address("nobody", 77, 1, 1), 1 << 60)]))
        claimed = BatchWriter(b.address.incarnation)
        for number in (-1, 0, 5, 1 << 62):
            control.send(claimed.pack([Marked(number), numbered(1000)]))
        await wait_until(lambda: len(a.came) == 4)
        await answers(a, b, 20)
        (box,) = (each for each in a.port._boxes.values() if not each.control)
        assert box.flight.messages >= 0
        await wait_until(lambda: "names another sender" in caplog.text)
        stranger.close(0)
        control.close(0)


# ------------------------------------------------------------------------------------ the runtime


async def test_a_hello_or_bye_for_somebody_else_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(run=str(tmp_path), name="a")
    other = Runtime(run=str(tmp_path), name="b")
    try:

        def take(sender: int, message: Message) -> None:
            runtime.port._intake.hand_over(sender, [message])

        take(other.address.incarnation, Hello(other.address))
        gone: list[Address] = []
        runtime.when_down.append(lambda address, reason: gone.append(address))
        take(7, Hello(other.address))
        take(other.address.incarnation, Hello(other.address._replace(name="c")))
        take(7, Bye())
        mark = Mark(other.address._replace(name="c"), 1)
        with pytest.raises(RemoteProtocolError, match="another sender"):
            runtime.port._told(other.address.incarnation, mark)
        await asyncio.sleep(0.05)
        assert not runtime.port.peers()  # and so nobody who cannot be reached
        runtime.node = 99
        take(7, Down(other.address, "says a stranger"))
        assert runtime.peers.find(other.address.incarnation) == other.address
        assert gone == []
        assert caplog.text.count("claims to be somebody else") == 2
        assert "only the node says" in caplog.text
        for number in range(10_000):  # nobody who has to do with us is pushed out
            take(number + (1 << 40), Hello(Address("x", number + (1 << 40), 1, 1)))
        assert len(runtime.peers.known()) <= 4097
    finally:
        runtime.close()
        other.close()


@pytest.mark.parametrize("how", ["removed", "taken over"])
async def test_an_inbox_that_is_taken_away_is_an_error_and_no_silence(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.kernel.belonging._LOOK", TICK)
    runtime = Runtime(run=str(tmp_path), name="a")
    told: list[str] = []
    runtime.when_broken = lambda error: told.append(str(error))
    path = inbox_path(str(tmp_path), runtime.address, "d")
    try:
        os.unlink(path)
        thief = None
        if how == "taken over":
            thief = socket.socket(socket.AF_UNIX)
            thief.bind(path)
        await wait_until(lambda: told)
        assert how in told[0]
        with pytest.raises(ConnectionLost, match=f"a can be reached no longer: .*{how}"):
            runtime.check_open()
    finally:
        runtime.close()
        if thief is not None:
            assert os.stat(path)  # it is not ours to remove
            thief.close()
            os.unlink(path)
