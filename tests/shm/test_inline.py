"""Arrays in line: foreign bytes that are none."""

from __future__ import annotations

import pytest

from transport.errors import (
    DecodeError,
)
from transport.shm.inline import array_from


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\3\1",
        b"\0\3\1" + bytes(7),
        b"\0\3\1" + (2).to_bytes(8, "big") + b"<f4" + bytes(2) + bytes(7),
        b"\0\3\1" + (2**63).to_bytes(8, "big") + b"<f4" + bytes(2),
        b"\0\2\0|O" + bytes(11),
        b"\0\2\0\xff\xff" + bytes(11),
        b"\0\2\0[(" + bytes(11),
        b"\0\3\xff" + bytes(3000),
    ],
)
def test_foreign_arrays(data: bytes) -> None:
    with pytest.raises(DecodeError):
        array_from(data)
