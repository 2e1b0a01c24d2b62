"""Errors as Dynamo 1.6.1 writes and reads them; the shapes were taken from a running worker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actors.errors as errors
from transport.errors import CallHomeError, EngineError, RemoteProtocolError
from transport.wire.codec import Annotated
from transport.wire.failures import error_fields, error_from
from transport.wire.plain import (
    decode_item,
    encode_item,
    encode_value,
    error_item,
    error_of,
    is_error_item,
)

both = pytest.mark.parametrize("codec", ["plain.msgpack", "plain.json"])

#: Pairs that a 1.6.1 reader knows; any other becomes an internal error there.
KNOWN = {
    "InvalidRequest": {"request.invalid_argument", "backend.invalid_argument", "request.invalid"},
    "Unavailable": {
        "transport.cannot_connect",
        "transport.disconnected",
        "backend.unavailable",
        "backend.worker_unavailable",
        "backend.cannot_connect",
        "backend.disconnected",
        "backend.engine_shutdown",
        "backend.stream_incomplete",
    },
    "DeadlineExceeded": {
        "transport.connection_timeout",
        "backend.response_timeout",
        "backend.connection_timeout",
        "request.deadline_exceeded",
    },
    "Cancelled": {"request.cancelled", "backend.cancelled"},
    "CapacityExhausted": {
        "capacity.pool_exhausted",
        "capacity.worker_overloaded",
        "capacity.exhausted",
    },
    "Internal": {"backend.unknown", "runtime.unclassified", "runtime.invalid_error"},
    "PayloadTooLarge": {"request.payload_too_large"},
    "NotImplemented": {"runtime.not_implemented"},
}


def test_a_value_error_of_ours_is_byte_for_byte_that_of_a_dynamo_worker() -> None:
    text = (
        '{"event":"error","error":{"error_type":{"Backend":"InvalidArgument"},'
        '"class":"InvalidRequest","reason":"backend.invalid_argument",'
        '"message":"ValueError: boom","diagnostic":"ValueError: boom"}}'
    )
    assert error_item(EngineError("boom", type="ValueError"), "plain.json") == text.encode()


@pytest.mark.parametrize("name", sorted(errors.__all__))
@both
def test_every_error_of_ours_is_one_that_dynamo_knows(name: str, codec: str) -> None:
    error = getattr(errors, name)("what happened")
    item: Any = decode_item(error_item(error, codec), codec)
    assert item.event == "error"
    fields = item.error
    assert fields["reason"] in KNOWN[fields["class"]]
    assert fields["message"] == fields["diagnostic"] == "what happened"
    assert "what happened" in str(error_of(item))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.Cancelled("x"), errors.Cancelled),
        (errors.Overloaded("x"), errors.Overloaded),
        (errors.MemoryExhausted("x"), errors.Overloaded),
        (errors.WorkerUnavailable("x"), errors.WorkerUnavailable),
        (errors.TooLarge("x"), errors.TooLarge),
        (errors.Unsupported("x"), errors.Unsupported),
        (errors.EncodeError("x"), EngineError),
        (errors.DeadlineExceeded("x"), EngineError),
        (EngineError("x", type="KeyError"), EngineError),
    ],
)
def test_errors_of_ours_come_back_as(error: CallHomeError, kind: type[CallHomeError]) -> None:
    back = error_from(error_fields(error))
    assert type(back) is kind
    assert back.message == "x"


def test_the_class_of_what_a_handler_raised_is_kept() -> None:
    back = error_from(error_fields(EngineError("a: b", type="my.module.Error")))
    assert isinstance(back, EngineError)
    assert (back.remote_type, back.message) == ("my.module.Error", "a: b")
    assert error_fields(EngineError("x", type="error item"))["message"] == "x"


def test_a_handlers_connection_error_does_not_look_like_one_of_the_road() -> None:
    for name in ("ConnectionError", "ConnectionResetError", "TimeoutError"):
        fields = error_fields(EngineError("x", type=name))
        assert (fields["class"], fields["reason"]) == ("Internal", "backend.unknown")


SEEN: list[tuple[dict[str, Any], type[CallHomeError], str, str]] = [
    (
        {
            "error_type": {"Backend": "Unknown"},
            "class": "Internal",
            "reason": "backend.unknown",
            "message": "KeyError: 'boom'",
            "diagnostic": "KeyError: 'boom'",
        },
        EngineError,
        "'boom'",
        "KeyError",
    ),
    (
        {
            "error_type": {"Backend": "Disconnected"},
            "class": "Unavailable",
            "reason": "backend.disconnected",
            "message": "ConnectionError: x",
        },
        EngineError,
        "x",
        "ConnectionError",
    ),
    (
        {
            "error_type": {"Backend": "Cancelled"},
            "class": "Cancelled",
            "reason": "backend.cancelled",
            "message": "CancelledError: ",
        },
        errors.Cancelled,
        "CancelledError: ",
        "",
    ),
    (
        {
            "error_type": "Unknown",
            "class": "Internal",
            "reason": "runtime.unclassified",
            "message": "critical error: failed serializing Python response as json",
        },
        EngineError,
        "critical error: failed serializing Python response as json",
        "error item",
    ),
    ({"error_type": "ResourceExhausted", "message": "full"}, errors.Overloaded, "full", ""),
    (
        {"error_type": {"Backend": "EngineShutdown"}, "message": "m"},
        errors.WorkerUnavailable,
        "m",
        "",
    ),
    (
        {"error_type": {"Backend": "StreamIncomplete"}, "message": "m"},
        errors.ConnectionLost,
        "m",
        "",
    ),
    ({"error_type": "Novel", "message": "m"}, EngineError, "m", "error item"),
    ({"message": "m"}, EngineError, "m", "error item"),
    ({"class": "Novel", "message": "m"}, RemoteProtocolError, "unknown class 'Novel': m", ""),
]


@pytest.mark.parametrize(("fields", "kind", "text", "name"), SEEN)
@both
def test_what_a_dynamo_worker_tells(
    fields: dict[str, Any], kind: type[CallHomeError], text: str, name: str, codec: str
) -> None:
    item = decode_item(encode_item(Annotated(event="error", error=fields), codec), codec)
    error = error_of(item)
    assert type(error) is kind
    assert text in error.message
    if isinstance(error, EngineError):
        assert error.message == text
        assert error.remote_type == name


def test_items_with_less_in_them() -> None:
    assert str(error_from({"class": "Internal", "reason": "only.reason"})) == "only.reason"
    assert error_of(Annotated(1)) is None
    assert error_of(Annotated(1, event="ping")) is None
    assert str(error_of(Annotated(event="error", comment=["a", "b"]))) == "a, b"
    assert str(error_of(Annotated(event="error"))) == "the worker sent an error item"
    assert str(error_of(Annotated(error="words"))) == "words"
    assert str(error_of(Annotated(event="error", error={}))) == "the worker sent an error item"


@both
def test_an_error_item_of_an_engine_is_one_that_dynamo_sees(codec: str) -> None:
    for error in ("words", {"code": 4}, {"code": 4, "message": [1]}, {"message": "m", "code": 4}):
        item: Any = decode_item(encode_item(Annotated(7, error=error), codec), codec)
        assert item.event == "error"
        assert type(item.error["message"]) is str
        assert item.data == 7
        if isinstance(error, dict):
            assert item.error["code"] == 4
    told: Any = decode_item(encode_item(Annotated(error={"message": "m"}), codec), codec)
    assert told.error == {"message": "m"}


@both
def test_an_error_item_never_fails(codec: str) -> None:
    for text in ("\ud800", "x" * 1_000_000, "é" * 100_000, "\x00"):
        data = error_item(EngineError(text, type=text), codec)
        assert len(data) < 100_000
        assert decode_item(data, codec).is_error


@both
def test_an_error_item_is_seen_in_its_bytes_and_nothing_else_taken_for_one(codec: str) -> None:
    errors = [
        Annotated(event="error"), Annotated(3, error="words"), Annotated(3, "id", "error", ["c"]),
        Annotated(error={"message": "m"}),
    ]  # fmt: skip
    for item in errors:
        assert is_error_item(encode_item(item, codec), codec)
    others: list[object] = [
        1, "error", {"error": 1}, {"event": "error"}, ["error", None], {"error": None},
        Annotated("error", event="other"), Annotated({"error": 1}, "error", comment=["error"]),
    ]  # fmt: skip
    for other in others:
        assert not is_error_item(encode_item(other, codec), codec)
    nothing = dict.fromkeys(("data", "id", "event", "comment", "error"))
    assert not is_error_item(encode_value(nothing, codec), codec)
    assert is_error_item(encode_value({**nothing, "event": "error"}, codec), codec)
    for bad in (
        encode_value(["error"], codec),
        encode_value({"error": 5}, codec),
        b'\xa5error"error"',
    ):
        assert not is_error_item(bad, codec)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error_type", "class", "reason", "message", "caused_by", "Backend"]),
            inner,
        )
    ),
    max_leaves=8,
)


@given(JSON, st.text())
def test_any_error_is_read(fields: Any, otherwise: str) -> None:
    error = error_from(fields, otherwise)
    assert isinstance(error, CallHomeError)
    assert json.dumps(error.details)
    error.message.encode()
