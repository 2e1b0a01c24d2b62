"""Nodes of ours at the door: who is let in, and what the others are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import actors.ingress.connections as connections
from actors.messages import Accept, Kill
from tests.ingress.engines import Held, echo
from tests.ingress.muxhome import mux_home
from tests.ingress.test_relay import both

REFUSED = b"Server unavailable: "


@pytest.mark.parametrize(
    "changed",
    [
        {"incarnation": "zz"},
        {"incarnation": None},
        {"stream": -1},
        {"stream": "7"},
        {"subject": ""},
        {"subject": "s" * 5000},
        {"address": "0.0.0.0:1"},
        {"address": 5},
        {"stream_type": "request"},
    ],
)
async def test_connection_info_of_the_wrong_shape(tmp_path: Path, changed: dict[str, Any]) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(echo)
        await home.ask(path, {"n": 1}, info=changed, reply=REFUSED)
        assert at.errors == {"invalid_message": 1}
        stream = await home.ask(path, {"n": 1, "text": ""})
        assert (await home.ended(stream)).total == 1
        await at.idle()


async def test_a_subject_of_somebody_else_and_a_number_in_use(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home), mux_home(at.requester) as other:
        path = await at.engine(Held)
        stream = await home.ask(path, {"after": 1})
        await home.until(Accept, stream)
        other.subject = home.subject
        await other.ask(path, {}, reply=REFUSED)
        await home.ask(path, {}, number=stream, reply=REFUSED)
        assert at.errors == {"invalid_message": 2}
        engine: Any = at.engines[0].handler.engine
        engine.gate.set()
        assert (await home.ended(stream)).total == 1
        assert other.hellos == []
        await at.idle()


async def test_a_node_that_cannot_be_let_in_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        stream = await home.ask(path, {})
        await home.until(Accept, stream)
        for change, words in (
            ({"number": stream}, "opened twice"),
            ({"info": {"address": "127.0.0.1:1"}}, "is named by '127.0.0.1:1'"),
            ({"info": {"subject": "other", "incarnation": "x"}}, "is no incarnation"),
            ({"info": {"subject": "other", "address": "nowhere"}}, "host:port"),
            ({"info": {"stream_type": "request"}}, "for the response half"),
            ({"metadata": {"x-callhome-window": "0"}}, "x-callhome-window is '0'"),
            ({"many": True, "body": b"x"}, "many_in request with a body"),
        ):
            await home.ask(path, {}, reply=REFUSED, **change)
            assert words in home.replies[-1]
        assert at.errors == {"invalid_message": 7}
        monkeypatch.setattr(connections, "MOST", 1)
        await home.ask(path, {}, info={"subject": "other"}, reply=None)
        assert "1 nodes are connected already" in home.replies[-1]
        home.send(Kill(home.incarnation, stream, "enough"))
        await at.idle()


async def test_what_a_node_says_of_itself_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with both(tmp_path) as (at, home):
        path = await at.engine(Held)
        await home.connected_by(path)
        bad = "x\nCRITICAL all is lost\x1b[2J"
        for info in (
            {"address": bad},
            {"address": bad, "subject": "new"},
            {"incarnation": bad, "subject": "new"},
            {"stream": bad},
            {"stream_type": bad},
            {"context": bad},
        ):
            at.ingress.net._told.clear()
            await home.ask(path, {}, info=info, reply=REFUSED)
        await home.ask(path, {}, info={"address": "127.0.0.1:1", "subject": bad})
        await at.idle()
        for change in ({"payload_codec": bad}, {"request_type": bad}, {"metadata": {bad: 1}}):
            at.ingress.net._told.clear()
            await home.ask(path, {}, **change)
        await home.ask(bad, {}, reply=REFUSED)
        assert len(caplog.records) >= 10
        for record in caplog.records:
            assert record.getMessage().isprintable()
        await at.idle()
