"""The control message of a request: how it looks, what is ignored, what is refused and how."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import DecodeError, LocalProtocolError, RemoteProtocolError, TooLarge
from transport.wire.envelope import (
    MAX_ENVELOPE,
    MUX,
    TCP,
    Envelope,
    Info,
    pack_envelope,
    read_envelope,
)

INFO = Info(
    TCP,
    {"address": "127.0.0.1:41525", "subject": "s-1", "context": "r-1", "stream_type": "response"},
)
UNARY = Envelope("r-1", "single_in", "many_out", "msgpack", INFO)
MANY = UNARY._replace(
    request_type="many_in",
    request_connection=Info(MUX, {**INFO.info, "stream_type": "request", "stream": 7}),
    metadata={"b": "2", "a": 'é"\\\n', "😀": "😀"},
    frontend_send_ts_ns=2**64 - 1,
)


def fields(**changes: Any) -> dict[str, Any]:
    """The control message of ``UNARY`` with some fields changed; ``...`` drops one."""
    found = {**json.loads(pack_envelope(UNARY)), **changes}
    return {key: value for key, value in found.items() if value is not ...}


def read(**changes: Any) -> Envelope:
    return read_envelope(json.dumps(fields(**changes)).encode())


def test_the_fields_are_those_of_the_protocol() -> None:
    assert json.loads(pack_envelope(UNARY)) == {
        "id": "r-1",
        "request_type": "single_in",
        "response_type": "many_out",
        "payload_codec": "msgpack",
        "connection_info": {
            "transport": "tcp_server",
            "info": json.dumps(INFO.info).replace(" ", ""),
        },
    }
    many = json.loads(pack_envelope(MANY))
    assert [*many["metadata"]] == ["a", "b", "😀"]
    assert many["frontend_send_ts_ns"] == 2**64 - 1
    assert json.loads(many["request_stream_connection_info"]["info"])["stream"] == 7


@pytest.mark.parametrize("envelope", [UNARY, MANY])
def test_an_envelope_comes_back(envelope: Envelope) -> None:
    assert read_envelope(pack_envelope(envelope)) == envelope


def test_conformance_08_without_a_codec_it_is_json() -> None:
    assert read(payload_codec=...).codec == "json"
    assert read(payload_codec=None).codec == "json"
    assert read(payload_codec="msgpack").codec == "msgpack"


def test_unknown_fields_are_ignored_and_null_is_absent() -> None:
    more = read(
        later={"x": [1]},
        metadata=None,
        frontend_send_ts_ns=None,
        request_stream_connection_info=None,
    )
    assert more == UNARY


@pytest.mark.parametrize("sent", [-1, 2**64, 1.5, "now", [], True])
def test_a_malformed_timestamp_is_none(sent: object) -> None:
    assert read(frontend_send_ts_ns=sent).frontend_send_ts_ns is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xff", b"{}x", b"[" * 100_000, b'{"id":' + b"9" * 5000 + b"}"],
)
def test_what_is_no_json_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError, match="control message"):
        read_envelope(data)


def test_a_long_control_message_is_neither_sent_nor_read() -> None:
    with pytest.raises(TooLarge, match="less metadata"):
        pack_envelope(UNARY._replace(metadata={"k": "v" * MAX_ENVELOPE}))
    text = pack_envelope(UNARY)
    assert read_envelope(text + b" " * (MAX_ENVELOPE - len(text))) == UNARY
    with pytest.raises(DecodeError, match=f"{MAX_ENVELOPE} are allowed"):
        read_envelope(text + b" " * (MAX_ENVELOPE - len(text) + 1))


@pytest.mark.parametrize(
    "envelope", [UNARY._replace(id="\ud800"), UNARY._replace(metadata={"k": "\udfff"})]
)
def test_half_a_surrogate_pair_is_not_sent(envelope: Envelope) -> None:
    with pytest.raises(LocalProtocolError, match="lone surrogate"):
        pack_envelope(envelope)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"id": ...}, "id"),
        ({"id": 7}, "id"),
        ({"id": "\ud800"}, "Unicode"),
        ({"request_type": "one_in"}, "request_type is 'one_in'"),
        ({"request_type": []}, "request_type"),
        ({"response_type": ...}, "response_type"),
        ({"payload_codec": "cbor"}, "json or msgpack"),
        ({"payload_codec": 1}, "payload_codec"),
        ({"connection_info": ...}, "nobody to call home"),
        ({"connection_info": "x"}, "connection_info"),
        ({"connection_info": {}}, "connection_info.info"),
        ({"connection_info": {"info": "{}"}}, "connection_info.transport"),
        ({"connection_info": {"transport": "tcp_server", "info": "[]"}}, "connection_info.info"),
        ({"connection_info": {"transport": "tcp_server", "info": {}}}, "connection_info.info"),
        ({"request_type": "many_in"}, "request_stream_connection_info"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata 'k'"),
        ({"metadata": {"\ud800": ""}}, "metadata key"),
    ],
)
def test_json_of_a_wrong_shape_is_a_protocol_error(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        read(**changes)


@pytest.mark.parametrize("value", [None, 1, "x", [], True])
def test_json_that_is_no_object_is_a_protocol_error(value: object) -> None:
    with pytest.raises(RemoteProtocolError, match="no object"):
        read_envelope(json.dumps(value).encode())


def test_inner_json_that_is_none_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match=r"connection_info.info is no JSON"):
        read(connection_info={"transport": "tcp_server", "info": "{"})


def test_fields_of_connection_info() -> None:
    info = Info(TCP, {"address": "a:1", "stream": 3, "empty": "", "flag": True, "low": -1})
    assert info.text("address") == "a:1"
    assert info.number("stream") == 3
    for name in ("none", "empty", "stream"):
        with pytest.raises(RemoteProtocolError, match=name):
            info.text(name)
    for name in ("none", "address", "flag", "low"):
        with pytest.raises(RemoteProtocolError, match=name):
            info.number(name)


@given(st.binary(max_size=300))
def test_garbage_is_a_typed_error(data: bytes) -> None:
    with pytest.raises((DecodeError, RemoteProtocolError)):
        read_envelope(data)


def test_a_message_cut_at_every_byte_is_a_decode_error() -> None:
    data = pack_envelope(MANY)
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            read_envelope(data[:cut])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*fields(), "metadata", "x"]), JSON))
def test_any_json_is_read_or_refused_with_a_type(changes: dict[str, Any]) -> None:
    try:
        read(**changes)
    except (DecodeError, RemoteProtocolError) as error:
        assert error.message  # noqa: PT017


@given(st.text(), st.dictionaries(st.text(), st.text(), max_size=4))
def test_any_text_comes_back(id_: str, metadata: dict[str, str]) -> None:
    envelope = UNARY._replace(id=id_, metadata=metadata)
    assert read_envelope(pack_envelope(envelope)) == envelope
