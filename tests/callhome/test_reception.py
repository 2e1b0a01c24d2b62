"""Calls home: the right ones arrive, once; the others end alone and are told."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.callhome.sockets import Heard, a_net, closed_by_peer, connect
from tests.callhome.test_framed import Frames
from tests.ports import free_address
from tests.waiting import LONG, wait_until
from transport.callhome.address import hostport, local_address_toward
from transport.callhome.dialer import dial
from transport.callhome.framed import FramedLink
from transport.callhome.link import Link, Net
from transport.callhome.reception import Expected, Reception
from transport.errors import CallBackFailed, CallHomeError, ConnectionLost, SpecError
from transport.wire.control import SENTINEL, Handshake, pack_handshake
from transport.wire.framing import HEADER, frame, load_checksum, pack_head

TOWARD = "127.0.0.1:9"
WORKER = ("dynamo", "backend", "generate", 7)


class Caller:
    """A requester that awaits halves and notes what becomes of them."""

    def __init__(self, reception: Reception) -> None:
        self.reception = reception
        self.arrived: list[FramedLink] = []
        self.links: list[tuple[Link, bytes, Handshake]] = []
        self.failures: list[CallHomeError] = []

    def expect(self, half: str = "response", instance: Any = None, wait: float = 60.0) -> Expected:
        return self.reception.expect(
            half,
            "request-1",
            instance,
            self.arrived.append,
            self.failures.append,
            time.monotonic() + wait,
            TOWARD,
        )

    def expect_mux(self) -> Expected:
        return self.reception.expect_mux(
            TOWARD,
            lambda *call: self.links.append(call),
            self.failures.append,
            time.monotonic() + 9,
        )


@contextlib.contextmanager
def a_caller(net: Net, **settings: Any) -> Iterator[Caller]:
    """A requester whose reception is closed at the end."""
    reception = Reception(net, **settings)
    try:
        yield Caller(reception)
    finally:
        reception.close()


def hello(expected: Expected, half: str = "response") -> bytes:
    return pack_handshake(expected.subject, half)


async def test_a_worker_that_calls_home_arrives() -> None:
    with a_net() as net, a_caller(net) as caller:
        assert net.links == set()
        expected = caller.expect()
        assert expected.info == {
            "address": expected.info["address"],
            "subject": expected.subject,
            "context": "request-1",
            "stream_type": "response",
        }
        framed = await dial(net, expected.info["address"], hello(expected) + frame(b"", b"1"), LONG)
        await wait_until(lambda: caller.arrived)
        framed.send(b"", b"2")
        came = Frames(caller.arrived[0])
        back = Frames(framed)
        assert await came.wait(2) == [(b"", b"1"), (b"", b"2")]
        caller.arrived[0].send(b'"stop"')
        assert await back.wait(1) == [(b'"stop"', b"")]
        assert (caller.reception.awaited, caller.reception.strangers) == (0, 0)
        assert net.counters["called_home"] == 1
        assert caller.failures == []


async def test_a_request_half_whose_worker_ends_its_side_at_once_arrives() -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect("request")
        framed = await dial(net, expected.info["address"], hello(expected, "request"), LONG)
        framed.end_write()
        back = Frames(framed)
        await wait_until(lambda: caller.arrived)
        came = Frames(caller.arrived[0])
        assert await came.wait_end() is None
        caller.arrived[0].send(b"", b"item")
        assert await back.wait(1) == [(b"", b"item")]


async def test_a_connection_for_many_streams_is_handed_on_with_all_bytes() -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect_mux()
        assert set(expected.info) == {"address", "subject"}
        first = pack_handshake(expected.subject, "mux", incarnation="1f")
        framed = await dial(net, expected.info["address"], first + b"\xff" * 99, LONG)
        await wait_until(lambda: caller.links)
        link, rest, handshake = caller.links[0]
        assert handshake == Handshake(expected.subject, "mux", {"incarnation": "1f"})
        heard = Heard(link)
        framed.link.write(b"more")
        await wait_until(lambda: len(rest) + len(heard.data) == 103)
        assert rest + heard.data == b"\xff" * 99 + b"more"


async def test_a_handshake_is_checked_where_frames_are() -> None:
    pytest.importorskip("xxhash")
    with a_net() as net, a_caller(net, check=True) as caller:
        expected = caller.expect()
        whole = hello(expected)
        header = whole[HEADER:]
        wrong = pack_head(len(header), 0, 7) + header
        right = pack_head(len(header), 0, load_checksum()(header, b"")) + header
        sock = connect(expected.info["address"])
        sock.send(wrong)
        assert await closed_by_peer(sock)
        assert caller.arrived == []
        await dial(net, expected.info["address"], right, LONG)
        await wait_until(lambda: caller.arrived)


async def test_who_comes_while_nobody_is_awaited_is_looked_after() -> None:
    woken: list[bool] = []
    with a_net() as net, a_caller(net, handshake=LONG, woken=lambda: woken.append(True)) as caller:
        address = caller.expect().info["address"]
        assert caller.reception.check(time.monotonic())
        for subject in list(caller.reception._pending._entries):
            caller.reception.cancel(subject)
        assert not caller.reception.check(time.monotonic())
        assert woken == []
        sock = connect(address)
        await wait_until(lambda: woken)
        assert caller.reception.check(time.monotonic())
        assert not caller.reception.check(time.monotonic() + LONG)
        assert await closed_by_peer(sock)


async def test_one_listener_serves_all_that_are_reached_from_one_address() -> None:
    with a_net() as net, a_caller(net) as caller:
        addresses = {caller.expect().info["address"] for _ in range(20)}
        assert len(addresses) == 1
        assert len(caller.reception._listeners) == 1


async def test_where_the_settings_say_where_it_listens_at_once() -> None:
    port = int(free_address().rpartition(":")[2])
    with a_net() as net:
        with a_caller(net, port=port) as caller:
            caller.reception.open([TOWARD, "nobody.invalid:7"], False)
            connect(f"127.0.0.1:{port}").close()
            assert caller.expect().info["address"] == f"127.0.0.1:{port}"
            other = Reception(net, port=port)
            with pytest.raises(SpecError, match=f"^call_home_port: 127.0.0.1:{port} cannot be b"):
                other.open([TOWARD], False)
            other.close()
        with a_caller(net) as caller:  # nothing is fixed: nobody need be able to come yet
            caller.reception.open([TOWARD], True)
            assert net.links == set()
        wrong = Reception(net, host="192.0.2.7")
        with pytest.raises(SpecError, match=r"^call_home_host: 192\.0\.2\.7 cannot"):
            wrong.open([], True)


async def test_b125_what_is_told_can_always_be_dialled() -> None:
    with a_net() as net:
        for host in ("", "0.0.0.0", "::", "127.0.0.1", "localhost"):
            with a_caller(net, host=host) as caller:
                address = caller.expect().info["address"]
                assert address.rpartition(":")[0] == "127.0.0.1"
                with connect(address):
                    await wait_until(lambda caller=caller: caller.reception.strangers == 1)


async def test_b125_the_address_is_that_from_which_the_worker_is_reached() -> None:
    with a_net() as net, a_caller(net) as caller:
        try:
            own = local_address_toward("192.0.2.1")
        except ConnectionLost:
            pytest.skip("this machine has no road to another")
        expected = caller.reception.expect(
            "response",
            "c",
            None,
            caller.arrived.append,
            caller.failures.append,
            1e12,
            "192.0.2.1:9",
        )
        assert expected.info["address"].startswith(hostport(own, 0)[:-1])
        framed = await dial(net, expected.info["address"], hello(expected), LONG)
        await wait_until(lambda: caller.arrived)
        assert framed.link in net.links


async def test_b125_another_address_can_be_told() -> None:
    with a_net() as net, a_caller(net, advertise="203.0.113.5") as caller:
        assert caller.expect().info["address"].startswith("203.0.113.5:")
    with a_net() as net:
        for advertise in ("0.0.0.0", "::", "*"):
            with pytest.raises(SpecError, match="call_home_advertise"):
                Reception(net, advertise=advertise)
        with a_caller(net, host="203.0.113.77") as caller:
            with pytest.raises(SpecError, match=r"call_home_host.*203\.0\.113\.77"):
                caller.expect()
            assert caller.reception.awaited == 0


async def test_b125_a_worker_that_cannot_reach_us_is_a_failed_call_back_in_time() -> None:
    with a_net() as net, a_caller(net, advertise="203.0.113.5") as caller:
        before = time.monotonic()
        expected = caller.expect(wait=2000.0)
        assert caller.reception.check(before + 1999.9)
        assert caller.failures == []
        assert not caller.reception.check(time.monotonic() + 2000.1)
        (error,) = caller.failures
        assert isinstance(error, CallBackFailed)
        assert "call-back failed" in str(error)
        assert expected.info["address"] in str(error)
        assert TOWARD in str(error)
        assert "within 2e+03 s" in str(error)


async def test_what_is_overdue_does_not_arrive_any_more() -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect(wait=1.0)
        caller.reception.check(time.monotonic() + 2)
        sock = connect(expected.info["address"])
        sock.send(hello(expected))
        assert await closed_by_peer(sock)
        assert caller.arrived == []
        assert len(caller.failures) == 1


async def test_a_removed_instance_ends_both_halves_and_holds_back_the_next() -> None:
    with a_net() as net, a_caller(net) as caller:
        caller.expect("response", WORKER)
        caller.expect("request", WORKER)
        other = caller.expect("response", ("other",))
        caller.reception.removed(WORKER, "its lease has run out")
        assert [type(error) for error in caller.failures] == [ConnectionLost] * 2
        assert "its lease has run out" in str(caller.failures[0])
        with pytest.raises(ConnectionLost, match="nothing was sent"):
            caller.expect("response", WORKER)
        caller.reception.added(WORKER)
        caller.expect("response", WORKER)
        assert caller.reception.awaited == 2
        await dial(net, other.info["address"], hello(other), LONG)
        await wait_until(lambda: caller.arrived)


async def test_what_is_cancelled_tells_nobody() -> None:
    with a_net() as net, a_caller(net) as caller:
        expected = caller.expect()
        caller.reception.cancel(expected.subject)
        caller.reception.cancel(expected.subject)
        assert not caller.reception.check(time.monotonic() + 999)
        assert caller.failures == []


async def test_closing_fails_what_is_awaited_and_keeps_what_has_arrived() -> None:
    with a_net() as net, a_caller(net) as caller:
        here, never = caller.expect(), caller.expect()
        framed = await dial(net, here.info["address"], hello(here), LONG)
        with connect(here.info["address"]):
            await wait_until(lambda: caller.arrived and caller.reception.strangers)
            caller.reception.close()
            caller.reception.close()
        assert len(caller.failures) == 1
        with pytest.raises(ConnectionLost, match="closed"):
            caller.expect()
        came = Frames(caller.arrived[0])
        framed.send(b"still")
        await came.wait(1)
        with pytest.raises(ConnectionLost, match="ECONNREFUSED"):
            await dial(net, never.info["address"], hello(never), LONG)


async def test_an_arrival_that_is_not_understood_costs_that_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def arrived(framed: FramedLink) -> None:
        raise ZeroDivisionError("bug")

    def failed(error: CallHomeError) -> None:
        raise KeyError("bug")

    with a_net() as net, a_caller(net) as caller:
        for _ in range(2):
            expected = caller.reception.expect(
                "response", "c", None, arrived, failed, time.monotonic() + 9, TOWARD
            )
        sock = connect(expected.info["address"])
        sock.send(hello(expected))
        assert await closed_by_peer(sock)
        assert "ZeroDivisionError" in caplog.text
        assert not caller.reception.check(time.monotonic() + 10)
        assert net.counters["handshake.failed"] == 2


def test_conformance_33_two_event_loops_one_after_another() -> None:
    async def one() -> None:
        with a_net() as net, a_caller(net) as caller:
            expected = caller.expect()
            framed = await dial(net, expected.info["address"], hello(expected), LONG)
            await wait_until(lambda: caller.arrived)
            came = Frames(framed)
            caller.arrived[0].link.write(SENTINEL)
            await came.wait(1)

    for _ in range(3):
        asyncio.run(one(), debug=True)


def test_b133_subjects_are_128_random_bits() -> None:
    async def draw() -> list[int]:
        with a_net() as net, a_caller(net) as caller:
            return [uuid.UUID(caller.expect().subject).int for _ in range(300)]

    drawn = asyncio.run(draw())
    assert len(set(drawn)) == 300
    for bit in range(128):
        assert 75 < sum(number >> bit & 1 for number in drawn) < 225, f"bit {bit} is not random"


async def test_a_name_is_never_looked_up_on_the_loop() -> None:
    def expect(caller: Caller) -> Expected:
        return caller.reception.expect_mux(
            "localhost:9", lambda *call: None, caller.failures.append, time.monotonic() + 9
        )

    with a_net() as net, a_caller(net) as caller:
        with pytest.raises(ConnectionLost, match="not been looked up"):
            expect(caller)
        assert await net.names.find("localhost") == "127.0.0.1"
        assert expect(caller).info["address"].startswith("127.0.0.1:")
        await asyncio.get_running_loop().shutdown_default_executor()
