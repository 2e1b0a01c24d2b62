"""The roads by which tests call engines, and a cluster that many of them can share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.slow import SlowOnes, node
from tests.e2e.standing import ROADS, Standing, standing
from tests.e2e.watching import Trace


@pytest.fixture(params=ROADS)
def road(request: pytest.FixtureRequest) -> str:
    """Each of ``ROADS`` in turn."""
    found: str = request.param
    return found


@pytest.fixture(scope="module", params=ROADS)
def slow(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlowOnes]:
    """A slow engine that is called by each of ``ROADS``, for tests that leave it as it was."""
    trace = Trace(tmp_path_factory.mktemp("slow"))
    with standing(node(trace), request.param) as cluster:
        yield SlowOnes(cluster, trace)


@pytest.fixture
def cluster(slow: SlowOnes) -> Standing:
    """The cluster of ``slow``."""
    return slow.cluster


@pytest.fixture
def trace(slow: SlowOnes) -> Trace:
    """The trace of ``slow``, with nothing of earlier tests in it."""
    slow.trace.clear()
    return slow.trace
