"""The house rules of the source tree, checked on the parsed modules; planted faults try the checks.

A module imports its own unit or one that stands lower in ``LAYERS``; units of one line never import
each other. Modules that only decide (``PURE``) import nothing that touches the world.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Lowest first; one tuple is one line, and siblings on a line never import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("transport.errors",),
    ("transport.wire",),
    ("transport.context",),
    ("transport.shm",),
    ("transport.payload", "transport.bus", "transport.callhome"),
    ("transport",),  # the bare packages: faces that may name what stands below them
    ("actors.errors", "actors.messages", "actors.notices", "actors.session", "actors.dynamo"),
    ("actors.config", "actors.metrics"),
    ("actors.kernel",),
    ("actors.discovery", "actors.health"),
    ("actors.engine", "actors.router", "actors.ingress", "actors.client"),
    ("actors.cluster",),
    ("actors.cli", "actors.testing", "actors.gateway"),
    ("actors.__main__",),  # the command without an installation
    ("actors",),
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}

PURE = (
    "transport.wire",
    "transport.shm.slab",
    "transport.shm.slots",
    "transport.callhome.pending",
    "actors.router.policy",
    "actors.router.loads",
    "actors.router.sticky",
    "actors.router.occupancy",
    "actors.router.faults",
    "actors.router.member",
    "actors.router.pool",
    "actors.router.words",
    "actors.router.waiting",
    "actors.router.lifecycle",
    "actors.kernel.restart",
    "actors.kernel.verdicts",
    "actors.messages",
    "actors.notices",
    "actors.session",
)
WORLD = frozenset(
    [
        "asyncio",
        "socket",
        "zmq",
        "mmap",
        "os",
        "time",
        "threading",
        "subprocess",
        "random",
        "logging",
    ]
)
MAX_LINES = 400
SOURCES = ("actors", "transport")
PACKAGES = ("actors", "transport", "tests", "perf")
TREES = (*PACKAGES, "examples")


def files(root: Path, trees: tuple[str, ...]) -> Iterator[Path]:
    """Every Python file below ``trees``."""
    for tree in trees:
        yield from sorted((root / tree).rglob("*.py"))


def module_name(root: Path, path: Path) -> str:
    """Dotted name of a file; a package is named without ``__init__``."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """The unit of ``LAYERS`` that a module belongs to: two levels, or the bare package."""
    return ".".join(module.split(".")[:2])


def imports(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Line, level (0 is absolute) and full name of all that a module imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.level, f"{node.module or ''}.{alias.name}".strip(".")
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", ""))
            in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, 0, str(node.args[0].value)


def import_faults(root: Path) -> Iterator[str]:
    """Imports that go up or sideways, are relative, or touch the world where it is forbidden."""
    for path in files(root, SOURCES):
        module = module_name(root, path)
        unit = unit_of(module)
        pure = any(module == name or module.startswith(name + ".") for name in PURE)
        if unit not in RANK:
            yield f"{module}: stands on no line of LAYERS"
            continue
        for line, level, target in imports(ast.parse(path.read_text(), str(path))):
            where = f"{path.relative_to(root)}:{line}"
            other = unit_of(target)
            if level:
                yield f"{where}: relative import of {target}"
            elif target.split(".")[0] in SOURCES:
                if other not in RANK:  # a name out of the public face
                    other = target.split(".")[0]
                if other != unit and RANK[other] >= RANK[unit]:
                    way = "sibling" if RANK[other] == RANK[unit] else "upward"
                    yield f"{where}: {way} import of {target}"
            elif pure and target.split(".")[0] in WORLD:
                yield f"{where}: a module that only decides imports {target}"


def size_faults(root: Path) -> Iterator[str]:
    """Files that are too long."""
    for path in files(root, TREES):
        lines = len(path.read_text().splitlines())
        if lines > MAX_LINES:
            yield f"{path.relative_to(root)}: {lines} lines, {MAX_LINES} are allowed"


def folder_faults(root: Path) -> Iterator[str]:
    """Folders that hold modules and would be dropped from the wheel without a word."""
    folders = {
        folder
        for path in files(root, PACKAGES)
        for folder in path.parents
        if folder != root and root in folder.parents
    }
    for folder in sorted(folders):
        if not (folder / "__init__.py").exists():
            yield f"{folder.relative_to(root)}: no __init__.py"


def names_used(root: Path) -> set[str]:
    """Names that the examples use, beyond importing them."""
    used: set[str] = set()
    for path in files(root, ("examples",)):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Name):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
    return used


def public_faults(names: dict[str, object], used: set[str]) -> Iterator[str]:
    """Public names without a docstring of their own, or that no example uses."""
    for name, value in names.items():
        own = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
        if not own:
            yield f"actors.{name}: no docstring"
        if name not in used:
            yield f"actors.{name}: used in no example"


def test_imports_go_downward_only() -> None:
    assert list(import_faults(ROOT)) == []


def test_no_file_is_too_long() -> None:
    assert list(size_faults(ROOT)) == []


def test_every_folder_is_a_package() -> None:
    assert list(folder_faults(ROOT)) == []


def test_public_names_are_documented_and_used() -> None:
    face = importlib.import_module("actors")
    names = {name: getattr(face, name) for name in face.__all__}
    assert names
    assert list(public_faults(names, names_used(ROOT))) == []


def plant(root: Path, **texts: str) -> None:
    """A tree of packages holding ``texts``, keyed by the path with ``__`` for a slash."""
    for key, text in texts.items():
        path = root / (key.replace("__", "/") + ".py")
        for folder in (path.parent, *path.parent.parents):
            if root in folder.parents:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "__init__.py").touch()
        path.write_text(text)


@pytest.mark.parametrize(
    ("place", "text", "fault"),
    [
        ("transport__wire__codec", "import transport.shm.arena", "upward"),
        ("transport__wire__codec", "def f():\n    from actors import errors", "upward"),
        ("transport__bus__port", "from transport.callhome import dialer", "sibling"),
        ("transport__bus__port", "from transport import payload", "sibling"),
        ("actors__router__local", "import actors.engine.actor", "sibling"),
        ("actors__kernel__ref", "import actors", "upward"),
        ("actors__kernel__ref", "from actors import Cluster", "upward"),
        ("actors__kernel__ref", "from importlib import import_module as i\n", ""),
        (
            "actors__kernel__ref",
            "importlib.import_module('actors.cli')",
            "upward",
        ),
        ("actors__client", "if TYPE_CHECKING:\n    from actors.cluster.spec import X", "upward"),
        ("actors__client", "from . import errors", "relative"),
        ("actors__stray", "x = 1", "stands on no line"),
        ("actors__router__policy", "from random import choice", "only decides"),
        ("transport__wire__message", "import os.path", "only decides"),
        ("actors__kernel__restart", "def f():\n    import time", "only decides"),
        ("actors__kernel__spawn", "import os, time, asyncio", ""),
        ("actors__cluster__node", "from transport.bus.address import Address", ""),
        ("actors__engine__actor", "from actors.engine.api import Engine", ""),
    ],
)
def test_planted_imports_are_found(tmp_path: Path, place: str, text: str, fault: str) -> None:
    plant(tmp_path, **{place: text})
    found = list(import_faults(tmp_path))
    if fault:
        assert len(found) == 1
        assert fault in found[0]
    else:
        assert found == []


def test_a_planted_long_file_is_found(tmp_path: Path) -> None:
    plant(tmp_path, actors__config="x = 1\n" * 400, perf__harness="x = 1\n" * 401)
    assert list(size_faults(tmp_path)) == ["perf/harness.py: 401 lines, 400 are allowed"]


def test_a_planted_folder_without_init_is_found(tmp_path: Path) -> None:
    plant(tmp_path, actors__kernel__ref="", tests__wire__test_codec="")
    assert list(folder_faults(tmp_path)) == []
    (tmp_path / "tests/wire/__init__.py").unlink()
    (tmp_path / "actors/__init__.py").unlink()
    assert list(folder_faults(tmp_path)) == ["actors: no __init__.py", "tests/wire: no __init__.py"]


def test_planted_public_names_are_found(tmp_path: Path) -> None:
    class Bare:
        pass

    class Heir(ValueError):
        pass

    class Told:
        """It is told."""

    plant(tmp_path, examples__launch="from actors import Told, Bare\nprint(Told)\n")
    names: dict[str, object] = {"Bare": Bare, "Heir": Heir, "Told": Told}
    assert list(public_faults(names, names_used(tmp_path))) == [
        "actors.Bare: no docstring",
        "actors.Bare: used in no example",
        "actors.Heir: no docstring",
        "actors.Heir: used in no example",
    ]
