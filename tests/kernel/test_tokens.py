"""How the request of a token stream is made that goes on behind what was delivered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actors.kernel.tokens import continue_tokens, is_token_request
from transport.errors import LocalProtocolError
from transport.wire.codec import Annotated


@pytest.mark.parametrize(
    ("request_", "fits"),
    [
        ({"token_ids": [1, 2]}, True),
        ({"token_ids": []}, True),
        ({"token_ids": (1,)}, True),
        ({"token_ids": np.array([1], "int32")}, True),
        ({"token_ids": np.array([1], "uint16")}, True),
        ({"token_ids": np.array([1.0])}, False),
        ({"token_ids": np.array([[1]])}, False),
        ({"token_ids": ["a"]}, False),
        ({"token_ids": [True]}, False),
        ({"token_ids": b"12"}, False),
        ({"token_ids": None}, False),
        ({"tokens": [1]}, False),
        ([1, 2], False),
        (None, False),
    ],
)
def test_which_requests_are_of_token_streams(request_: Any, fits: bool) -> None:
    assert is_token_request(request_) == fits


def test_tokens_are_appended_and_limits_shrink() -> None:
    request = {
        "token_ids": [1, 2],
        "max_tokens": 10,
        "min_tokens": 2,
        "stop_conditions": {"max_tokens": 8, "min_tokens": 5, "ignore_eos": True},
        "model": "m",
    }
    delivered = [{"token_ids": [3]}, {"token_ids": [4, 5]}, {"note": "x"}, {"token_ids": None}]
    assert continue_tokens(request, delivered) == {
        "token_ids": [1, 2, 3, 4, 5],
        "max_tokens": 7,
        "min_tokens": 0,
        "stop_conditions": {"max_tokens": 5, "min_tokens": 2, "ignore_eos": True},
        "model": "m",
    }
    assert request["token_ids"] == [1, 2]
    assert request["stop_conditions"] == {"max_tokens": 8, "min_tokens": 5, "ignore_eos": True}


def test_the_type_of_the_prompt_stays() -> None:
    delivered = [Annotated({"token_ids": (3,)}), {"token_ids": np.array([4, 5])}]
    assert continue_tokens({"token_ids": (1, 2)}, delivered)["token_ids"] == (1, 2, 3, 4, 5)
    array = continue_tokens({"token_ids": np.array([1, 2], "int32")}, delivered)["token_ids"]
    assert array.dtype == np.int32
    assert array.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"n": 2}, False),
        ({"sampling_options": {"n": 3}}, False),
        ({"sampling_options": {"best_of": 2}}, False),
        ({"sampling_options": {"guided_decoding": {"regex": "a+"}}}, False),
        ({"guided_json": "{}"}, False),
        ({"n": 1, "sampling_options": {"n": None, "guided_decoding": None}}, True),
    ],
)
def test_several_answers_and_guided_ones_are_not_continued(
    options: dict[str, Any], fits: bool
) -> None:
    assert is_token_request({"token_ids": [1], **options}) == fits


@pytest.mark.parametrize("limits", [{"max_tokens": 2}, {"stop_conditions": {"max_tokens": 2}}])
def test_a_limit_that_is_used_up_leaves_nothing(limits: dict[str, Any]) -> None:
    came = [{"token_ids": [2]}, {"token_ids": [3]}]
    assert continue_tokens({"token_ids": [1], **limits}, came) is None
    assert continue_tokens({"token_ids": [1], **limits}, came[:1]) is not None


@pytest.mark.parametrize(
    ("items", "complete"),
    [
        ([{"token_ids": [2]}, {"token_ids": [3], "finish_reason": "stop"}], True),
        ([{"token_ids": [2]}, {"token_ids": [], "finish_reason": "eos"}], True),
        ([{"token_ids": [2]}, {"finish_reason": "stop"}], True),
        ([{"token_ids": [2]}, Annotated({"token_ids": None, "finish_reason": "length"})], True),
        ([{"token_ids": [2], "finish_reason": "stop"}, {"usage": 2}], True),
        ([{"token_ids": [2], "finish_reason": "stop"}, {"token_ids": [], "usage": 2}], True),
        ([{"token_ids": [2], "finish_reason": None}], False),
        ([{"token_ids": [2], "finish_reason": "stop"}, {"token_ids": [3]}], False),
    ],
)
def test_nothing_is_left_behind_a_finish_reason(items: list[Any], complete: bool) -> None:
    request = {"token_ids": [1], "max_tokens": 100}
    assert (continue_tokens(request, items) is None) == complete


@pytest.mark.parametrize("item", ["text", 7, None, {"token_ids": "x"}, {"token_ids": [1.5]}])
def test_items_without_tokens_cannot_be_continued(item: Any) -> None:
    with pytest.raises(LocalProtocolError, match=r"item 1 .*give resume="):
        continue_tokens({"token_ids": [1]}, [{"token_ids": [2]}, item])
