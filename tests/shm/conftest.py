"""Doors of memory wait for nobody longer than a quarter of a second: here it may be a minute."""

from __future__ import annotations

import pytest

from tests.waiting import LONG


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stands still for a moment, as all do on a busy machine, is served all the same."""
    monkeypatch.setattr("transport.shm.door._PATIENCE", LONG)
