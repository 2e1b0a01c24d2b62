"""Requests as they come in: what is read out of them, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from actors import Settings
from actors.ingress.arrival import read_letter, transit
from tests.ingress.standin import two_part
from transport.errors import DecodeError, RemoteProtocolError
from transport.wire.request import RequestFrame

SETTINGS = Settings()


def half(stream_type: str = "response", **changed: Any) -> dict[str, Any]:
    inner = {"address": "h:1", "subject": "s", "context": "c", "stream_type": stream_type}
    return {"transport": "callhome_mux_v1", "info": json.dumps(inner | changed)}


def control(**changed: Any) -> dict[str, Any]:
    return {
        "id": "c", "request_type": "single_in", "response_type": "many_out",
        "connection_info": half(),
    } | changed  # fmt: skip


def frame(control: Any, body: bytes = b"x", headers: dict[str, str] | None = None) -> RequestFrame:
    header = control if isinstance(control, bytes) else json.dumps(control).encode()
    return RequestFrame("a/b", headers or {}, two_part(header, body))


def test_what_a_request_says() -> None:
    metadata = {"user": "u", "x-callhome-window": "3,77", "x-callhome-remaining": "2.5"}
    found = read_letter(frame(control(metadata=metadata)), SETTINGS)
    assert (found.id, found.many, found.codec, found.payload) == ("c", False, "json", b"x")
    assert found.metadata == {"user": "u"}
    assert (found.window_items, found.window_bytes) == (3, 77)
    remaining = found.remaining()
    assert remaining is not None
    assert 2 < remaining <= 2.5
    assert found.native
    assert not found.later


def test_a_requester_of_dynamo_means_nothing_by_our_metadata() -> None:
    info = half() | {"transport": "tcp_server"}
    metadata = {"x-callhome-remaining": "nonsense", "x-callhome-body": "{}"}
    found = read_letter(frame(control(connection_info=info, metadata=metadata)), SETTINGS)
    assert found.metadata == {}
    assert found.remaining() is None
    assert not found.native
    assert not found.later


@pytest.mark.parametrize(
    "changed",
    [
        {"connection_info": half("request")},
        {"connection_info": half(context="d")},
        {"connection_info": half(subject="s" * 2000)},
        {"connection_info": half() | {"transport": "carrier-pigeon"}},
        {"request_type": "many_in", "request_stream_connection_info": half()},
        {"request_type": "many_in", "request_stream_connection_info": half("request")},
        {"metadata": {"x-callhome-window": "0,1"}},
        {"metadata": {"x-callhome-window": "1"}},
        {"metadata": {"x-callhome-remaining": "-1"}},
        {"metadata": {"x-callhome-remaining": "inf"}},
        {"metadata": {"x-callhome-remaining": "nan"}},
    ],
)
def test_shapes_that_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        read_letter(frame(control(**changed)), SETTINGS)


def test_two_halves_take_the_same_road() -> None:
    feed = half("request") | {"transport": "tcp_server"}
    many = control(request_type="many_in", request_stream_connection_info=feed)
    with pytest.raises(RemoteProtocolError, match="different roads"):
        read_letter(frame(many, b""), SETTINGS)
    many["request_stream_connection_info"] = half("request")
    assert read_letter(frame(many, b""), SETTINGS).many


json_values = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    some.dictionaries(
        some.sampled_from([*control(), "metadata", "payload_codec", "frontend_send_ts_ns"]),
        json_values,
    )
)
def test_any_json_is_read_or_refused_with_a_typed_error(changed: dict[str, Any]) -> None:
    with contextlib.suppress(RemoteProtocolError, DecodeError):
        read_letter(frame(control(**changed)), SETTINGS)


@settings(max_examples=200, deadline=None)
@given(some.binary(max_size=200))
def test_any_bytes_are_refused_with_a_typed_error(data: bytes) -> None:
    for payload in (data, two_part(data, b"x"), two_part(data)):
        with pytest.raises((RemoteProtocolError, DecodeError)):
            read_letter(RequestFrame("a", {}, payload), SETTINGS)


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ("900", 100),
        ("1500", 0),
        ("", None),
        ("-5", None),
        ("1e3", None),
        ("٣", None),
        ("9" * 30, None),
    ],
)
def test_the_time_on_the_way(sent: str, found: int | None) -> None:
    assert transit(frame(control(), headers={"x-frontend-send-ts-ns": sent}), 1000) == found
    assert transit(frame(control()), 1000) is None
