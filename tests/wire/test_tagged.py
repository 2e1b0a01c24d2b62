"""JSON: strict text out, and foreign text in."""

from __future__ import annotations

import json

import pytest

from tests.wire.samples import (
    DOMAIN,
)
from transport.errors import DecodeError
from transport.wire.codec import (
    decode,
    encode,
)

FOREIGN_JSON = [
    b"",
    b"\xef\xbb\xbf1",
    b"\xff",
    b"1 2",
    b"NaN",
    b"[Infinity]",
    b"9" * 5000,
    b"9" * 2468,
    b'"\\ud800"',
    b'{"\\uDC00": 1}',
    b'{"$callhome": 1}',
    b'{"$callhome": "bytes", "v": "A"}',
    b'{"$callhome": "bytes", "v": "AA==", "x": 1}',
    b'{"$callhome": "bytes", "v": ["AA=="]}',
    b'{"$callhome": "tuple", "v": "x"}',
    b'{"$callhome": "dict", "v": [1]}',
    b'{"$callhome": "dict", "v": [[], 1]}',
    b'{"$callhome": "float", "v": "1.5"}',
    b'{"$callhome": "decimal", "v": "x"}',
    b'{"$callhome": "annotated", "v": [1]}',
    b'{"$callhome": "opaque", "kind": 1, "v": "AA=="}',
    b'{"$callhome": {"a": 1}, "v": 1}',
]


@pytest.mark.parametrize("data", FOREIGN_JSON, ids=lambda data: data[:40].decode("latin1"))
def test_foreign_json(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data, codec="json")


def test_json_is_strict_text() -> None:
    def refuse(text: str) -> object:
        raise AssertionError(text)

    json.loads(encode(DOMAIN, codec="json"), parse_constant=refuse)
    assert encode({"a": [1, "é"]}, codec="json") == '{"a":[1,"é"]}'.encode()
