"""How a token stream goes on at another worker: the tokens that came become part of the prompt.

The default ``resume`` of a stream with a ``migration_limit``. A request of a token stream is a map
with ``token_ids``; so are its items. Numbers come as a list, a tuple or an array of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from transport.errors import LocalProtocolError
from transport.wire.codec import Annotated

_LIMITS: Final = ("max_tokens", "min_tokens")
_NESTED: Final = "stop_conditions"
#: Where a request says that several answers are wanted, or that a grammar guides them. The tokens
#: of several answers are not told apart, and a new worker would begin its grammar anew.
_SAMPLING: Final = "sampling_options"
_SEVERAL: Final = ("n", "best_of")
_GUIDED: Final = "guided_"


def is_token_request(request: Any) -> bool:
    """Whether ``continue_tokens`` can make a request of what is left of this one's stream: not of
    several answers, and not of guided decoding.
    """
    if not isinstance(request, dict) or not _is_tokens(request.get("token_ids")):
        return False
    sampling = request.get(_SAMPLING)
    return not any(_is_tied(each) for each in (request, sampling) if isinstance(each, dict))


def _is_tied(options: dict[Any, Any]) -> bool:
    """Whether more than the tokens so far decides on what comes next."""
    return any(options.get(name) not in (None, 0, 1) for name in _SEVERAL) or any(
        isinstance(name, str) and name.startswith(_GUIDED) and bool(value)
        for name, value in options.items()
    )


def continue_tokens(request: Any, delivered: Sequence[Any]) -> Any:
    """The request whose answers are those that have not been delivered; None when none is left.

    What was delivered is appended to ``token_ids``; ``max_tokens`` and ``min_tokens``, there and in
    ``stop_conditions``, shrink by as much. None is left behind an item with a ``finish_reason``,
    unless others with tokens have come after it. Raises LocalProtocolError for items that are no
    maps with ``token_ids``.
    """
    came: list[int] = []
    finished = False
    for number, item in enumerate(delivered):
        data = item.data if type(item) is Annotated else item
        tokens = data.get("token_ids", ()) if isinstance(data, dict) else None
        if tokens is None and isinstance(data, dict):
            tokens = ()
        if not isinstance(tokens, tuple) and not _is_tokens(tokens):
            raise LocalProtocolError(
                f"item {number} is no map with token_ids, so nobody knows how to go on behind it; "
                "give resume=, a function of (request, delivered)"
            )
        listed = _listed(tokens)
        came += listed
        finished = data.get("finish_reason") is not None or (finished and not listed)
    if finished:
        return None
    new = {**request, "token_ids": _joined(request["token_ids"], came)}
    if not _shrink(new, len(came)):
        return None
    conditions = request.get(_NESTED)
    if isinstance(conditions, dict):
        new[_NESTED] = dict(conditions)
        if not _shrink(new[_NESTED], len(came)):
            return None
    return new


def _is_tokens(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return not value or type(value[0]) is int
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return kind in ("i", "u") and getattr(value, "ndim", 0) == 1


def _listed(tokens: Any) -> list[int]:
    return list(tokens) if isinstance(tokens, list | tuple) else tokens.tolist()


def _joined(tokens: Any, more: list[int]) -> Any:
    """What came behind what was there, in the same type."""
    if isinstance(tokens, list):
        return tokens + more
    if isinstance(tokens, tuple):
        return tokens + tuple(more)
    import numpy as np  # there is an array, so it is loaded

    return np.concatenate([tokens, np.array(more, tokens.dtype)])


def _shrink(limits: dict[str, Any], count: int) -> bool:
    """Lower the limits by what has come; False when the upper one is used up."""
    for name in _LIMITS:
        value = limits.get(name)
        if type(value) is int:
            limits[name] = max(value - count, 0)
    return limits.get("max_tokens") != 0 or not count
