"""Shows which wheel the tests run against."""

from __future__ import annotations

import pytest

from tests.interop.wheel import PYTHON, WHY, version


def pytest_report_header(config: pytest.Config) -> str:
    """One line in pytest's header."""
    return f"ai-dynamo-runtime: {version()} ({PYTHON})" if PYTHON else f"tests/interop: {WHY}"
