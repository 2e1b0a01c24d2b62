"""Encoding leaves nothing for the garbage collector: frames go when the last reference goes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from transport.payload import encode_payload
from transport.shm.frames import private_frame


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_a_frame_that_was_encoded_goes_with_its_last_reference(codec: str) -> None:
    frame = private_frame(np.arange(1000))
    gone = weakref.ref(frame)
    encode_payload({"picture": [frame]}, codec=codec)
    del frame
    assert gone() is None
