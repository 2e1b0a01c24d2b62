"""Rules for the fields of a spec: names, endpoints, cores, arguments, and what a child imports.

Used by ``actors.cluster.spec``. Each takes a value and its key path and returns the value as it is
kept, or raises ``SpecError``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from actors.config import Rule, folder, host, mapping, nearest, whole, wrong
from actors.errors import SpecError
from actors.kernel.ref import Ref
from actors.router.policy import MODES
from transport.callhome.address import check_hostport

#: ``"module:attribute"``, ``"path/to/file.py:attribute"``, or the class or function itself.
Target: TypeAlias = str | Callable[..., object]

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}"
_ENDPOINT = re.compile(rf"{_WORD}\.{_WORD}\.{_WORD}")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_TARGET_FORM = "'module:attribute', 'file.py:attribute', or a class or function of a module"


def endpoint(value: Any, key: str) -> str:
    """``namespace.component.endpoint``."""
    if not isinstance(value, str) or not _ENDPOINT.fullmatch(value):
        raise wrong(key, value, "'namespace.component.endpoint', such as 'demo.shout.generate'")
    return value


def target(value: Any, key: str) -> str:
    """The text by which a child process imports a class or function."""
    if not isinstance(value, str):
        return _located(value, key)
    source, _, attribute = value.rpartition(":")
    if not _DOTTED.fullmatch(attribute):
        raise wrong(key, value, _TARGET_FORM)
    if source.endswith(".py"):
        path = os.path.abspath(source)
        if not os.path.isfile(path):
            raise SpecError(f"{key}: no such file: {path!r} (expected {_TARGET_FORM})")
        return f"{path}:{attribute}"
    if not _DOTTED.fullmatch(source):
        raise wrong(key, value, _TARGET_FORM)
    return value


def _located(value: Any, key: str) -> str:
    qualname = getattr(value, "__qualname__", None)
    module = getattr(value, "__module__", None)
    if not callable(value) or not isinstance(qualname, str) or not isinstance(module, str):
        raise wrong(key, value, _TARGET_FORM)
    if "<" in qualname:
        raise wrong(key, value, "something at the top of a module: a child imports it by its name")
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if spec is not None:  # __spec__ knows the name even under ``python -m``
        return f"{spec.name}:{qualname}"
    file = getattr(loaded, "__file__", None)
    if file is None or not os.path.isfile(file):  # it is "<stdin>" for a script on stdin
        kind = "class" if isinstance(value, type) else "function"
        raise SpecError(
            f"{key}: {qualname} was defined in no file (at a prompt, in a notebook, with -c or on "
            f"stdin), so a child process cannot import it; define the {kind} in a module, a file "
            "of its own that you import"
        )
    return f"{os.path.abspath(file)}:{qualname}"


def policy(value: Any, key: str) -> str:
    """A mode of the router, its words joined by ``_`` or ``-``, or a function of the user's own."""
    if isinstance(value, str) and ":" not in value:
        word = value.strip().lower().replace("-", "_")
        if word in MODES:
            return word
        allowed = ", ".join(map(repr, MODES)) + f" or a function of yours: {_TARGET_FORM}"
        raise wrong(key, value, allowed + nearest(word, MODES))
    return target(value, key)


def metadata_key(value: Any, key: str) -> str:
    """A key of a request's metadata."""
    if not isinstance(value, str) or not 0 < len(value) <= 256 or not value.isprintable():
        raise wrong(key, value, "a key of requests' metadata, such as 'session'")
    return value


def above_zero(value: Any, key: str) -> float:
    """A number above zero."""
    number = float(value) if type(value) in (int, float) else 0.0
    if not 0 < number <= 1e9:  # false for NaN, too
        raise wrong(key, value, "a number above 0")
    return number


def optional(rule: Rule) -> Rule:
    """A rule that lets None through."""
    return lambda value, key: None if value is None else rule(value, key)


def unless_empty(rule: Rule) -> Rule:
    """A rule that lets the empty text through."""
    return lambda value, key: "" if value == "" else rule(value, key)


def advertised(value: Any, key: str) -> str:
    """What peers are told to dial: a host, ``host:port``, or "" for what is found out."""
    if not isinstance(value, str):
        raise wrong(key, value, "a host, or 'host:port'")
    name, colon, port = value.rpartition(":")
    if colon and port.isdigit() and (":" not in name or name.endswith("]")):
        check_hostport(value, SpecError, key)
        return value
    return host(value, key)


def peer(value: Any, key: str) -> str:
    """Where another node listens: ``host:port``; ``tcp://`` may stand before it."""
    if not isinstance(value, str):
        raise wrong(key, value, "'host:port'")
    address = value.removeprefix("tcp://")
    check_hostport(address, SpecError, key)
    return address


def directory(value: Any, key: str) -> str:
    """The path of a folder, made absolute; it need not exist yet, and nothing else may be there."""
    path: str = folder(value, key)
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise SpecError(f"{key}: {there!r} is no folder; give the path of one that nodes share")
    return path


def etcd(value: Any, key: str) -> str:
    """Where etcd answers: ``etcd://host:port``, its members separated by commas."""
    if not isinstance(value, str) or not value.startswith("etcd://"):
        raise wrong(key, value, "'etcd://host:port', or several 'host:port' with commas")
    for member in value.removeprefix("etcd://").split(","):
        check_hostport(member, SpecError, key)
    return value


def namespace(value: Any, key: str) -> str:
    """The first word of endpoints."""
    if not isinstance(value, str) or not re.fullmatch(_WORD, value):
        raise wrong(key, value, "the first word of endpoints, such as 'demo'")
    return value


def peers(value: Any, key: str) -> tuple[str, ...]:
    """Where other nodes listen: ``host:port`` each, each once."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise wrong(key, value, "a list of 'host:port'")
    found = [peer(each, f"{key}[{i}]") for i, each in enumerate(value)]
    for i, address in enumerate(found):
        if address in found[:i]:
            raise SpecError(f"{key}[{i}]: {address!r} stands twice")
    return tuple(found)


def cpus(value: Any, key: str) -> tuple[int, ...]:
    """Core numbers, each once."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
        raise wrong(key, value, "a list of core numbers, such as [0, 1]")
    cores = tuple(whole(0, 65_535)(core, f"{key}[{i}]") for i, core in enumerate(value))
    if len(set(cores)) < len(cores):
        raise wrong(key, value, "each core once")
    return cores


def variables(value: Any, key: str) -> dict[str, str]:
    """Environment variables and their text."""
    table = mapping(value, key)
    for variable, text in table.items():
        if not variable or "=" in variable or "\0" in variable:
            raise wrong(key, variable, "names of environment variables")
        if not isinstance(text, str) or "\0" in text:
            raise wrong(f"{key}.{variable}", text, "text")
    return table


def arguments(value: Any, key: str) -> dict[str, Any]:
    """Keyword arguments of a constructor, as JSON values."""
    table = mapping(value, key)
    for keyword, argument in table.items():
        if not keyword.isidentifier():
            raise wrong(key, keyword, "keyword arguments of the constructor")
        _json(argument, f"{key}.{keyword}", 0)
    return table


def json_value(value: Any, key: str) -> Any:
    """A JSON value, None included."""
    _json(value, key, 0)
    return value


def _json(value: Any, key: str, depth: int) -> None:
    if depth > 64:
        raise SpecError(f"{key}: nested deeper than 64 levels")
    if isinstance(value, Mapping):
        for inner, part in mapping(value, key).items():
            _json(part, f"{key}.{inner}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            _json(part, f"{key}[{i}]", depth + 1)
    elif value is not None and not isinstance(value, (str, int, float, bool, Ref)):
        raise wrong(key, value, "text, a number, a bool, None, a Ref, or a list or table of these")
