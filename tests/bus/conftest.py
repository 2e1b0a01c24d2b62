"""A run folder of its own for each test of the bus, which must be empty at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def run() -> Iterator[str]:
    """The folder; its removal fails when a socket's file was left in it."""
    folder = tempfile.mkdtemp(prefix="b-", dir=os.environ["CALLHOME_RUN"])
    yield folder
    os.rmdir(folder)
