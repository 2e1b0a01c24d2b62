"""What ``test_health`` runs: an engine that answers, and one that fails while a file is there."""

from __future__ import annotations

import os
from typing import Any


async def well(request: Any) -> Any:
    return request


async def checks(request: dict[str, Any]) -> str:
    if os.path.exists(request["fault"]):  # noqa: ASYNC240 - a look at one file
        raise ValueError("out of order")
    return "well"
