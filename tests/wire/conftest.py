"""What tests of bytes measure by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def peak_rss() -> Callable[[], int]:
    """Peak resident memory of this process since the fixture was set up, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of earlier tests

    def peak() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel gives no VmHWM")

    return peak
