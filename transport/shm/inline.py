"""Arrays as bytes in line: for peers that read no shared memory, and for arrays too small for it.

What is made here lies in memory of this process alone. Called by ``transport.payload``. numpy is
imported when the first array is met.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from transport.errors import DecodeError, EncodeError, RemoteProtocolError, qualified_name
from transport.shm.kinds import dtype_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Length of the dtype's text and number of dimensions; then the lengths, the text, and padding.
_HEAD: Final = struct.Struct(">HB")
_ALIGNED: Final = 16


def array_of(value: object) -> NDArray[Any] | None:
    """The array that an object is or offers to be, or None.

    Raises EncodeError for a class derived from ndarray, whose nature would be lost, and for an
    object that offers an array and then has none.
    """
    numpy = sys.modules.get("numpy")
    kind = type(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        if kind is numpy.ndarray:
            array: NDArray[Any] = value
            return array
        raise EncodeError(f"{qualified_name(kind)} is derived from ndarray; send numpy.asarray(x)")
    if not (hasattr(kind, "__array__") or hasattr(kind, "__dlpack__")):
        return None
    import numpy as np

    offered: Any = value
    try:
        made: Any = np.asarray(offered) if hasattr(kind, "__array__") else np.from_dlpack(offered)
    except Exception as error:  # whatever another library raises: a tensor on a device, with a
        # gradient, or of a dtype that numpy does not have
        raise EncodeError(
            f"{qualified_name(kind)} cannot be read as an array ({type(error).__name__}: {error}); "
            "send it detached, on the CPU, and in a dtype of numpy's"
        ) from error
    if type(made) is not np.ndarray:
        raise EncodeError(f"{qualified_name(kind)} offers {type(made).__name__}; send an ndarray")
    return made


def array_bytes(array: NDArray[Any], text: str) -> bytes:
    """Dtype and shape, padded so that the items behind them are aligned, then the items."""
    import numpy as np

    name = text.encode()
    head = _HEAD.pack(len(name), array.ndim) + struct.pack(f">{array.ndim}Q", *array.shape) + name
    head += bytes(-len(head) % _ALIGNED)
    if not array.nbytes:
        return head
    return b"".join((head, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data))


def array_from(data: bytes) -> NDArray[Any]:
    """The read-only array of ``array_bytes``. Raises DecodeError."""
    try:
        length, dimensions = _HEAD.unpack_from(data)
        shape = struct.unpack_from(f">{dimensions}Q", data, _HEAD.size)
        start = _HEAD.size + 8 * dimensions
        text = data[start : start + length].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise DecodeError(f"array whose head is cut or malformed: {error}") from error
    start += length
    return array_over(data, start + -start % _ALIGNED, text, shape)


def array_over(data: bytes, start: int, text: str, shape: Sequence[Any]) -> NDArray[Any]:
    """A read-only array over bytes of this process. Raises DecodeError when they do not fill it."""
    import numpy as np

    try:
        kind = dtype_of(text)
        count = math.prod(shape)
        if count * kind.itemsize != len(data) - start:
            raise DecodeError(f"array of {text[:100]!r} and shape {shape} is not {len(data)} bytes")
        flat = np.frombuffer(data, kind, count, start) if count else np.empty(0, kind)
        array = flat.reshape(shape)
    except (RemoteProtocolError, TypeError, ValueError, OverflowError) as error:
        raise DecodeError(f"array that is none: {error}") from error
    array.setflags(write=False)
    return array
