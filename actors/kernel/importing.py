"""From where a child imports: the same places as its parent. Used by ``actors.kernel.spawn``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def import_path(env: Mapping[str, str] | None) -> list[str]:
    """Our sys.path for the child, absolute, with the folder that ``actors`` came from.

    A PYTHONPATH of the child's own stands before it, as it would for any program.
    """
    root = str(Path(__file__).resolve().parent.parent.parent)
    own = (env or {}).get("PYTHONPATH", "").split(os.pathsep)
    path = [os.path.abspath(entry) for entry in [*filter(None, own), *sys.path]]
    if root not in path:
        path.append(root)
    return list(dict.fromkeys(path))
