"""Arrays in line: foreign bytes that are none, foreign objects that offer some."""

from __future__ import annotations

import pytest

from transport.errors import DecodeError, EncodeError
from transport.payload import encode_payload
from transport.shm.inline import array_from, array_of


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


class Tensor:
    """As a tensor of another library that numpy cannot read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *arguments: object, **options: object) -> object:
        raise self.error


class Far:
    """As a tensor on a device, offered by DLPack alone."""

    def __dlpack__(self, *arguments: object, **options: object) -> object:
        raise BufferError("device memory")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(TypeError("can't convert cuda:0 device type tensor to numpy")),
        Tensor(TypeError("Got unsupported ScalarType BFloat16")),
        Tensor(RuntimeError("Can't call numpy() on Tensor that requires grad")),
        Far(),
    ],
    ids=["device", "bfloat16", "gradient", "dlpack"],
)
def test_b14_a_tensor_that_is_no_array_is_refused_by_name(tensor: object) -> None:
    with pytest.raises(EncodeError, match=r"test_inline\.(Tensor|Far) cannot be read as an array"):
        array_of(tensor)
    with pytest.raises(EncodeError, match=r'item\["a"\]: .*send it detached, on the CPU'):
        encode_payload({"a": tensor})
