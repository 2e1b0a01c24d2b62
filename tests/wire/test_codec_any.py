"""Any value of the domain, drawn at random, comes back under both codecs as it was."""

from __future__ import annotations

import math
from typing import Any

import hypothesis
import hypothesis.strategies as st

from tests.wire.samples import both, same
from transport.errors import DecodeError
from transport.wire.codec import Annotated, decode, encode

scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**200), max_value=2**200),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
)
keys = st.one_of(scalars, st.tuples(scalars, scalars)).filter(
    lambda key: not (isinstance(key, float) and math.isnan(key))
)
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.just("$callhome") | keys, inner),
        st.builds(Annotated, data=inner, id=texts, event=texts),
    ),
)
quick = hypothesis.settings(max_examples=80, deadline=None, derandomize=True, database=None)


@both
@quick
@hypothesis.given(value=values)
def test_any_value_comes_back(codec: str, value: Any) -> None:
    assert same(decode(encode(value, codec=codec), codec=codec), value)


@both
@quick
@hypothesis.given(value=values, at=st.integers(min_value=0), byte=st.integers(0, 255))
def test_any_damage_is_a_value_or_a_typed_error(codec: str, value: Any, at: int, byte: int) -> None:
    data = bytearray(encode(value, codec=codec))
    data[at % len(data)] = byte
    for damaged in (bytes(data), bytes(data[: at % len(data)])):
        try:
            decode(damaged, codec=codec)
        except DecodeError:
            continue
