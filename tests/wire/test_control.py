"""Handshake, prologue and control frames: vectors, what is refused, errors through a prologue."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Overloaded, WorkerUnavailable
from transport.errors import (
    CallHomeError,
    Cancelled,
    EngineError,
    PeerLost,
    RemoteProtocolError,
)
from transport.wire.control import (
    KILL,
    SENTINEL,
    STOP,
    Handshake,
    pack_handshake,
    pack_prologue,
    read_control,
    read_handshake,
    read_prologue,
)
from transport.wire.framing import read_frame


def header_of(frame: bytes) -> bytes:
    header, body = read_frame(frame)
    assert body == b""
    return header


def prologue(error: object, typed: object = None) -> CallHomeError | None:
    return read_prologue(json.dumps({"error": error, "typed_error": typed}).encode())


def test_control_frames() -> None:
    for frame, text in ((STOP, "stop"), (KILL, "kill"), (SENTINEL, "sentinel")):
        assert header_of(frame) == json.dumps(text).encode()
        assert read_control(header_of(frame)) == text
    assert read_control(b' "stop" ') == "stop"


@pytest.mark.parametrize("header", [b"", b"stop", b'"halt"', b"1", b"{}", b"\xff", b"[" * 100_000])
def test_other_control_frames_are_the_peers_fault(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="control frame"):
        read_control(header)


def test_a_handshake_has_the_keys_of_dynamo() -> None:
    frame = pack_handshake("uuid", "response")
    assert header_of(frame) == b'{"subject":"uuid","stream_type":"response"}'
    assert read_handshake(header_of(frame)) == Handshake("uuid", "response", {})
    more = pack_handshake("s", "mux", incarnation="00ff")
    assert read_handshake(header_of(more)) == Handshake("s", "mux", {"incarnation": "00ff"})
    assert read_handshake(b'{"subject":"s","stream_type":"t","later":[1]}').extra == {}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"subject":"s"}',
        b'{"stream_type":"response"}',
        b'{"subject":"","stream_type":"response"}',
        b'{"subject":1,"stream_type":"response"}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_other_handshakes_are_the_peers_fault(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="handshake"):
        read_handshake(header)


def test_a_stream_that_has_started() -> None:
    assert header_of(pack_prologue()) == b'{"error":null}'
    assert prologue(None) is None
    assert read_prologue(b"{}") is None
    assert read_prologue(b'{"later":1,"error":null}') is None


def test_conformance_10_a_prologue_in_words_is_a_worker_that_was_not_reached() -> None:
    found = prologue("no model")
    assert type(found) is WorkerUnavailable
    assert found.retry
    assert str(found) == "the worker has not started the stream: no model"


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        (
            {"class": "Unavailable", "reason": "transport.disconnected", "message": "m"},
            WorkerUnavailable,
        ),
        ({"class": "Internal", "reason": "backend.unknown", "message": "m"}, WorkerUnavailable),
        ({"error_type": "Unknown", "message": "m"}, WorkerUnavailable),
        ({"class": "InvalidRequest", "message": "m"}, EngineError),
        ({"error_type": {"Backend": "InvalidArgument"}, "message": "m"}, EngineError),
        ({"class": "Cancelled", "reason": "request.cancelled", "message": "m"}, Cancelled),
        ({"class": "Cancelled", "reason": "backend.cancelled", "message": "m"}, Cancelled),
        ({"error_type": "Cancelled", "message": "m"}, Cancelled),
        ({"error_type": {"Backend": "Cancelled"}, "message": "m"}, Cancelled),
        (
            {"class": "CapacityExhausted", "reason": "capacity.exhausted", "message": "m"},
            Overloaded,
        ),
        (
            {"class": "CapacityExhausted", "reason": "capacity.pool_exhausted", "message": "m"},
            Overloaded,
        ),
        ({"class": "Brand", "reason": "brand.new", "message": "m"}, RemoteProtocolError),
    ],
)
def test_conformance_10_a_typed_prologue(typed: dict[str, Any], kind: type[CallHomeError]) -> None:
    found = prologue("words", typed)
    assert type(found) is kind
    assert "m" in found.message
    if kind is WorkerUnavailable:
        assert "words" in found.message
        assert found.details["cause"] == "m"


@pytest.mark.parametrize(
    "typed", [{"error_type": "Novel", "message": "m"}, {}, [], "x", 1, {"message": 7}]
)
def test_conformance_10_an_unknown_legacy_type_is_no_typed_error(typed: object) -> None:
    found = prologue("words", typed)
    assert type(found) is WorkerUnavailable
    assert found.details == {}


def test_a_reason_deep_in_the_chain_is_kept() -> None:
    chain = {"class": "Cancelled", "reason": "request.cancelled", "message": "the caller left"}
    for _ in range(3):
        chain = {"class": "Internal", "message": "outer", "caused_by": chain}  # type: ignore[dict-item]
    found = prologue("words", chain)
    assert type(found) is Cancelled
    assert str(found) == "the caller left"


def test_errors_of_ours_through_a_prologue() -> None:
    frame = pack_prologue(EngineError("boom", type="ValueError"))
    words = json.loads(header_of(frame))
    assert words["error"] == "ValueError: boom"
    assert [*words["typed_error"]] == ["error_type", "class", "reason", "message", "diagnostic"]
    found = read_prologue(header_of(frame))
    assert type(found) is EngineError
    assert (found.message, found.remote_type) == ("boom", "ValueError")
    for error, kind in (
        (Overloaded("full"), Overloaded),
        (Cancelled("left"), Cancelled),
        (PeerLost("signal 9"), WorkerUnavailable),
        (EngineError("x", type="KeyError"), WorkerUnavailable),
    ):
        found = read_prologue(header_of(pack_prologue(error)))
        assert type(found) is kind
        assert error.message in found.message
    assert json.loads(header_of(pack_prologue("w", {"class": "Internal"}))) == {
        "error": "w",
        "typed_error": {"class": "Internal"},
    }
    assert "\\ud800" in str(read_prologue(header_of(pack_prologue("\ud800" + "x" * 100_000))))


@pytest.mark.parametrize(
    "header", [b"", b"{", b"[]", b'"x"', b'{"error":1}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_prologue_is_the_peers_fault(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="prologue"):
        read_prologue(header)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error_type", "class", "reason", "message", "caused_by", "Backend"]),
            inner,
        )
    ),
    max_leaves=8,
)


@given(st.text(), JSON)
def test_any_typed_error_is_read(words: str, typed: object) -> None:
    assert isinstance(prologue(words, typed), CallHomeError)


@given(st.binary(max_size=200))
def test_garbage_is_a_typed_error(data: bytes) -> None:
    for read in (read_control, read_handshake, read_prologue):
        with contextlib.suppress(RemoteProtocolError):
            read(data)
