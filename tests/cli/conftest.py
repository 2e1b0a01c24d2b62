"""A short run folder for each module of these tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.cli.tool import Tool


@pytest.fixture(scope="module")
def tool() -> Iterator[Tool]:
    """The command with a run folder that no other module uses."""
    run = tempfile.mkdtemp(prefix="chc-", dir="/tmp")
    yield Tool(run)
    shutil.rmtree(run)
