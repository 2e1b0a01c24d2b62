"""Who is let in: paths, places, shapes; and what happens to requests whose home is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors import Settings
from actors.cluster.entry import running
from actors.errors import SpecError
from actors.ingress.actor import IngressActor
from actors.kernel.stage import StageError
from actors.messages import Accept, Inspect, Kill
from tests.clock import Clock
from tests.clock import clock as clock
from tests.ingress.engines import Chat, Held, echo
from tests.ingress.rig import rig
from tests.ingress.test_relay import both
from tests.waiting import LONG, TICK, wait_until


async def test_conformance_05_an_unknown_path(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        for wrong in ("abc/x/y/z", path[1:], path + "/", "callhome/records"):
            asked = await at.requester.ask(wrong, {})
            assert asked.reply is not None
            assert asked.reply.startswith(b"Server unavailable: ")
        assert (await (await at.requester.ask(path, {"n": 1, "text": ""})).answer()).final


async def test_conformance_06_places_and_queue_are_taken(tmp_path: Path) -> None:
    async with rig(tmp_path, ingress_pool=2, ingress_queue=1) as at:
        path = await at.engine(Held)
        asked = [await at.requester.ask(path, {"who": index}) for index in range(4)]
        assert [each.reply for each in asked[:3]] == [b""] * 3
        assert asked[3].reply is not None
        assert asked[3].reply.startswith(b"Server overloaded: ")
        carried = at.ingress.carries()
        assert (carried["in_flight"], carried["queued"], carried["capacity"]) == (2, 1, 2)
        engine: Any = at.engines[0].handler.engine
        await wait_until(lambda: len(engine.begun) == 2)
        assert not asked[2].dialled()
        engine.gate.set()
        for each in asked[:3]:
            assert (await each.answer()).final
        assert [each["who"] for each in engine.begun] == [0, 1, 2]
        await at.idle()
        assert at.ingress.counters.refused == 1


async def test_requests_that_wait_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    limit = 1 << 20
    async with both(tmp_path, ingress_pool=1, ingress_queue_bytes=limit) as (at, home):
        path = await at.engine(Held)
        first = await home.ask(path, {"before": 1})
        await home.until(Accept, first)
        large = {"pad": b"x" * (limit * 2)}
        waiting = [await home.ask(path, large)]  # alone it may
        for request in (large, {}):
            asked = await at.requester.ask(path, request)
            assert asked.reply is not None
            assert asked.reply.startswith(b"Server overloaded: ")
            assert b"ingress_queue_bytes" in asked.reply
            end = await home.ended(home.open(path, request))
            assert end.error is not None
            assert end.error[0] == "overloaded"
        for stream in waiting:
            home.send(Kill(home.incarnation, stream, "enough"))
        await wait_until(lambda: not at.ingress.admission.waiting)
        assert at.ingress.streams.unopened_bytes == 0
        half = {"pad": b"x" * (limit // 2 - 200)}
        metadata = {"k" * 50: "v" * 50}
        waiting = [await home.ask(path, half, metadata=metadata) for _ in range(2)]
        await home.ask(path, {}, metadata={"k": "v" * 1000}, reply=None)
        for stream in (*waiting, first):
            home.send(Kill(home.incarnation, stream, "enough"))
        await at.idle()
        assert at.ingress.streams.unopened_bytes == 0


async def test_what_needs_no_waiting_is_not_refused_for_its_bytes(tmp_path: Path) -> None:
    async with both(tmp_path, ingress_queue_bytes=1 << 16) as (at, home):
        path = await at.engine(Held)
        await home.connected_by(path)
        streams = [home.open(path, {"pad": b"x" * 100_000}) for _ in range(5)]
        for stream in streams:
            await home.until(Accept, stream)
        for stream in streams:
            home.send(Kill(home.incarnation, stream, "enough"))
        await at.idle()
        assert at.ingress.counters.refused == 0


@pytest.mark.parametrize("many", [False, True])
async def test_conformance_07_the_wrong_shape_for_the_endpoint(tmp_path: Path, many: bool) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo if many else Chat)
        asked = await at.requester.ask(path, {"n": 1}, many=many)
        assert asked.reply == b""
        answer = await asked.answer()
        assert "use " in answer.prologue["error"]
        assert answer.items == []
        assert not answer.final
        await at.idle()
        assert at.errors == {"invalid_message": 1}
        assert at.engines[0].counters.requests == 0


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("invalid_message", {"body": b""}),
        ("invalid_message", {"many": True, "body": b"x"}),
        ("invalid_message", {"many": True, "request_stream_connection_info": None}),
        ("invalid_message", {"many": True, "request_type": "single_in"}),
        ("invalid_message", {"request_type": "all_in"}),
        ("invalid_message", {"payload_codec": "pickle"}),
        ("invalid_message", {"connection_info": None}),
        ("invalid_message", {"connection_info": {"transport": "quic-response", "info": "{}"}}),
        ("invalid_message", {"id": "somebody-else"}),
    ],
)
async def test_conformance_07_an_envelope_of_the_wrong_shape(
    tmp_path: Path, kind: str, changed: dict[str, Any]
) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Chat if changed.get("many") else echo)
        asked = await at.requester.ask(path, {"n": 1}, **changed)
        assert asked.reply == b""
        assert at.errors == {kind: 1}
        assert at.carried() == 0
        assert not asked.dialled()
        again = await at.requester.ask(path, {"n": 0}, many=bool(changed.get("many")))
        half = await again.half()
        assert await half.frame() is not None
        half.close()
        await at.idle()


async def test_bad_json_counts_as_deserialization(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        _, whole = at.requester.envelope({"n": 1})
        at.requester.write(path, whole[:24] + b"!" + whole[25:])
        assert await at.requester.reply() == b""
        assert at.errors == {"deserialization": 1}


async def test_an_envelope_cut_at_every_byte(tmp_path: Path) -> None:
    """The two lengths of its head are then wrong: each is dropped, and the next request is fine."""
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        _, whole = at.requester.envelope({"n": 1})
        for size in range(len(whole)):
            at.requester.write(path, whole[:size])
        for _ in range(len(whole)):
            assert await at.requester.reply() == b""
        assert at.errors == {"invalid_message": len(whole)}
        assert (await (await at.requester.ask(path, {"n": 1, "text": ""})).answer()).final
        await at.idle()


async def test_b134_a_home_that_does_not_listen_any_more(tmp_path: Path) -> None:
    async with rig(tmp_path, connect_timeout=2 * LONG) as at:
        path = await at.engine(Held)
        await at.requester.stop_listening()
        asked = await at.requester.ask(path, {})
        assert asked.reply == b""
        # At once, and not when the limit of the dial is over.
        await wait_until(lambda: at.errors.get("response_stream") == 1)
        await at.idle()
        engine: Any = at.engines[0].handler.engine
        assert engine.begun == []
        assert at.ingress.net.counters["dial.failed"] == 1


async def test_b134_both_halves_of_a_stream_of_requests(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Chat)
        await at.requester.stop_listening()
        await at.requester.ask(path, many=True)
        await wait_until(lambda: at.errors == {"response_stream": 1})
        await at.idle()
        assert at.engines[0].counters.requests == 0


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:0", "0.0.0.0:80", "127.0.0.1:99999", ""])
async def test_an_address_that_cannot_be_dialled(tmp_path: Path, address: str) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        at.requester.address, kept = address, at.requester.address
        asked = await at.requester.ask(path, {"n": 1})
        assert asked.reply == b""
        assert at.errors == {"invalid_message": 1}
        at.requester.address = kept
        await at.idle()


async def test_b137_a_request_whose_connection_is_cut_runs_at_most_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(echo)
        runs = 0
        for _ in range(20):
            asked, payload = at.requester.envelope({"n": 1, "text": ""})
            at.requester.write(path, payload)
            await at.requester.reconnect(at.ingress.reached)
            if (await asked.half()).hello:
                answer = await asked.answer()
                assert len(answer.items) == 1
                runs += 1
        await at.idle()
        assert runs <= at.engines[0].counters.requests <= 20


async def test_an_ingress_that_stops_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Held)
        half = await (await at.requester.ask(path, {"before": 1})).half()
        await half.frame()
        await half.frame()
        at.ingress.shut()
        asked = await at.requester.ask(path, {})
        assert asked.reply is not None
        assert asked.reply.startswith(b"Server unavailable: ")
    frames = await half.rest()
    assert frames == []
    engine: Any = at.engines[0].handler.engine
    assert engine.ended == ["killed"]


async def test_a_wait_for_a_place_ends_with_the_deadline(tmp_path: Path, clock: Clock) -> None:
    async with rig(tmp_path, ingress_pool=1, call_timeout=LONG) as at:
        path = await at.engine(Held)
        first = await (await at.requester.ask(path, {})).half()
        await first.frame()
        waiting = await at.requester.ask(path, {})
        assert waiting.reply == b""
        clock.turn(LONG / 2)  # no other limit strikes before
        await asyncio.sleep(2 * TICK)
        assert not waiting.dialled()
        clock.turn(LONG / 2)
        prologue = (await waiting.answer()).prologue
        assert "its time was over" in prologue["error"]
        first.close()
        await at.idle()
        engine: Any = at.engines[0].handler.engine
        assert len(engine.begun) == 1


async def test_conformance_10_an_engine_that_refuses_is_an_error_prologue(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Held, capacity=1, queue=0)
        first = await (await at.requester.ask(path, {})).half()
        await first.frame()
        answer = await (await at.requester.ask(path, {})).answer()
        assert "0 queue places of engine-0 are taken" in answer.prologue["error"]
        assert answer.prologue["typed_error"]["class"] == "CapacityExhausted"
        assert not answer.items
        assert not answer.sentinel
        first.close()
        await at.idle()
        answer = await (await at.requester.ask(path, None, body=b"\xc1")).answer()
        assert answer.prologue["error"]
        await at.idle()
        assert at.errors == {"generate": 1, "deserialization": 1}


async def test_what_an_ingress_tells_of_itself(tmp_path: Path) -> None:
    async with rig(tmp_path) as at:
        path = await at.engine(Held)
        half = await (await at.requester.ask(path, {"before": 1})).half()
        await half.frame()
        await at.requester.ask("nothing/here", {})
        (found,) = [each async for each in at.ingress.inspect(Inspect())]
        assert found["in_flight"] == 1
        assert found["queued"] == 0
        assert found["capacity"] == 10_000
        assert found["endpoints"] == 1
        assert found["via"] == at.ingress.reached == at.ingress.facts()["via"]
        assert found["counters"]["requests"] == 2
        assert found["counters"]["refused"] == 1
        half.close()
        await at.idle()


@pytest.mark.parametrize(
    ("listen", "advertise", "told"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:"),
        ("0.0.0.0:0", "10.9.8.7", "10.9.8.7:"),
        ("127.0.0.1:0", "node.example:7400", "node.example:7400"),
        ("127.0.0.1:0", "node.example:0", "node.example:"),
        ("127.0.0.1:0", "[::1]:7400", "[::1]:7400"),
        ("127.0.0.1:0", "::1", "[::1]:"),
    ],
)
async def test_what_other_nodes_are_told(
    tmp_path: Path, listen: str, advertise: str, told: str
) -> None:
    spec = {"run": str(tmp_path), "name": "in", "role": "actor", "settings": Settings().to_dict()}
    async with running(spec, IngressActor(listen, advertise)) as (actor, _):
        assert isinstance(actor, IngressActor)
        assert actor.reached.startswith(told)
        assert not actor.reached.endswith(":0")


@pytest.mark.parametrize(
    ("listen", "advertise", "named"),
    [
        ("nowhere", "", "listen"),
        ("192.0.2.1:0", "", "listen"),
        ("127.0.0.1:0", "0.0.0.0", "advertise"),
        ("127.0.0.1:0", "no host", "advertise"),
    ],
)
async def test_a_setting_that_cannot_be(
    tmp_path: Path, listen: str, advertise: str, named: str
) -> None:
    spec = {"run": str(tmp_path), "name": "in", "role": "actor", "settings": Settings().to_dict()}
    with pytest.raises((SpecError, StageError)) as caught:
        async with running(spec, IngressActor(listen, advertise)):
            pass
    error: BaseException = caught.value
    error = error.cause if isinstance(error, StageError) else error
    assert isinstance(error, SpecError)
    assert named in str(error)
