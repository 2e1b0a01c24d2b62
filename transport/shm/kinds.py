"""dtypes as text that another process reads, and shapes: what may be a frame is decided here.

numpy is imported when the first array is met.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transport.errors import EncodeError, LocalProtocolError, RemoteProtocolError, shown
from transport.wire.handle import MAX_DTYPE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike


def planned(
    shape: int | Sequence[int], dtype: DTypeLike
) -> tuple[np.dtype[Any], str, tuple[int, ...], int]:
    """dtype, its text, lengths and bytes of a frame that a user asks for.

    Raises LocalProtocolError for a shape or dtype that is none, EncodeError for a dtype that cannot
    be shared.
    """
    import numpy as np

    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise LocalProtocolError(
            f"a frame's dtype is one of numpy's, such as 'uint8', not {shown(str(dtype))}"
        ) from error
    text = dtype_text(kind)
    lengths = _lengths(shape)
    return kind, text, lengths, math.prod(lengths) * kind.itemsize


@functools.lru_cache(maxsize=256)
def dtype_text(kind: np.dtype[Any]) -> str:
    """The text of a dtype, byte order and fields included.

    Raises EncodeError for one that cannot be shared.
    """
    import numpy as np

    if kind.hasobject:
        raise EncodeError(
            f"dtype {kind} holds references to Python objects; convert the array to numbers or text"
        )
    if not kind.itemsize:
        raise EncodeError(f"dtype {kind} has items of no size; give it a length, as in 'U8'")
    if kind.names is None and kind.subdtype is None:
        text, same = kind.str, np.dtype(kind.str)
    else:
        bare = np.lib.format.drop_metadata(kind)
        text = repr(np.lib.format.dtype_to_descr(bare))
        same = np.lib.format.descr_to_dtype(ast.literal_eval(text))
    if same != kind or len(text) > MAX_DTYPE:
        raise EncodeError(
            f"dtype {str(kind)[:200]} has no description that another process could read"
        )
    return text


@functools.lru_cache(maxsize=256)
def dtype_of(text: str) -> np.dtype[Any]:
    """The dtype of ``dtype_text``, and bytes for ``""``.

    Raises RemoteProtocolError for any other text.
    """
    import numpy as np

    try:
        if text[:1] in ("[", "("):
            kind = np.lib.format.descr_to_dtype(ast.literal_eval(text))
        else:
            kind = np.dtype(text or "|u1")
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError, IndexError) as error:
        raise RemoteProtocolError(f"handle with a dtype that is none: {text[:100]!r}") from error
    if kind.hasobject or not kind.itemsize:
        raise RemoteProtocolError(f"handle with a dtype that cannot be shared: {text[:100]!r}")
    return kind


def _lengths(shape: int | Sequence[int]) -> tuple[int, ...]:
    if type(shape) is int:
        lengths: tuple[int, ...] = (shape,)
    else:
        import numpy as np

        try:
            if isinstance(shape, (int, np.integer)):
                lengths = (int(shape),)
            else:
                lengths = tuple(map(int, shape))
        except (TypeError, ValueError) as error:
            raise LocalProtocolError(
                f"a frame's shape is a length or a list of them, not {shape!r}"
            ) from error
    if len(lengths) > 32 or min(lengths, default=0) < 0:
        raise LocalProtocolError(
            f"a frame's shape has up to 32 lengths of 0 or more, not {shape!r}"
        )
    return lengths
