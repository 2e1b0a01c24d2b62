"""The roads by which tests call engines."""

from __future__ import annotations

import pytest

from tests.e2e.standing import ROADS


@pytest.fixture(params=ROADS)
def road(request: pytest.FixtureRequest) -> str:
    """Each of ``ROADS`` in turn."""
    found: str = request.param
    return found
