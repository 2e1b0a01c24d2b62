"""Reads a node's spec out of what the command line was given: a launcher script or a TOML file."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from typing import Any

from actors.cluster.spec import NodeSpec
from actors.config import nearest
from actors.errors import SpecError

#: ``__name__`` of a script that is read for its spec: not ``__main__``, so that it starts nothing.
SCRIPT_NAME = "__callhome__"

_FORMS = "expected SCRIPT.py, SCRIPT.py:NAME or FILE.toml"


def load_spec(reference: str) -> NodeSpec:
    """The spec that ``"script.py"`` (its ``NODE``), ``"script.py:NAME"`` or ``"file.toml"`` holds.

    Called by the command line. The file's folder and the working folder become importable here and,
    by the ``sys.path`` that is handed on, in the children. Raises SpecError, for a failing script
    with file and line whatever it raised.
    """
    path, name = reference, "NODE"
    if ":" in os.path.basename(reference):
        path, _, name = reference.rpartition(":")
    if not path.endswith((".py", ".toml")) or (path.endswith(".toml") and path != reference):
        raise SpecError(f"{reference!r} is no spec; {_FORMS}")
    if not os.path.isfile(path):
        raise SpecError(f"no such file: {path!r} (seen from {os.getcwd()!r}); {_FORMS}")
    _make_importable(os.path.dirname(os.path.abspath(path)))
    if path.endswith(".toml"):
        return NodeSpec.from_toml(path)
    names = _run(path)
    node = names.get(name)
    if isinstance(node, NodeSpec):
        return node
    nodes = [key for key, value in names.items() if isinstance(value, NodeSpec)]
    if name in names:
        trouble = f"{name} is {type(node).__name__}, not NodeSpec"
    else:
        trouble = f"defines no {name}{nearest(name, nodes)}"
    found = f"it defines {', '.join(nodes)}" if nodes else "it defines no NodeSpec at all"
    raise SpecError(f"{path}: {trouble}; {found}")


def _make_importable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def _run(path: str) -> dict[str, Any]:
    try:
        return runpy.run_path(path, run_name=SCRIPT_NAME)
    except SyntaxError as error:
        raise SpecError(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except SpecError as error:
        raise SpecError(f"{path}:{_line(error, path)}: {error}") from error
    except SystemExit as error:
        raise SpecError(
            f"{path}:{_line(error, path)}: it called exit({error.code!r}) when read; "
            'what it does when run belongs under if __name__ == "__main__"'
        ) from error
    except Exception as error:
        raise SpecError(f"{path}:{_line(error, path)}: {type(error).__name__}: {error}") from error


def _line(error: BaseException, path: str) -> int:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path and frame.lineno is not None
    ]
    return lines[-1] if lines else 1
