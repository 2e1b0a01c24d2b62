"""How values and tables are written for people and for other programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from actors.errors import CallHomeError

#: Bytes of a bytes value that are shown, in hexadecimal.
_SHOWN: Final = 16


def say(text: str) -> None:
    """A line for the person at the terminal, on stderr; who has closed it does not want it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"callhome: {text}\n")
        sys.stderr.flush()


def put(line: str) -> None:
    """A line of data on stdout, at once. Raises BrokenPipeError when nobody reads it, CallHomeError
    when it cannot be written.
    """
    if sys.stdout is None:
        raise CallHomeError("stdout is closed; this command writes what it finds there")
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise CallHomeError(f"stdout cannot be written: {error.strerror}") from error


def discard_stdout() -> None:
    """Nothing more can be written: Python would try once more as it leaves, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def to_line(value: Any) -> str:
    """A payload value as one line of JSON; what JSON does not have is shown as a short text."""
    return json.dumps(_json(value), ensure_ascii=False)


def _json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return (
            value
            if math.isfinite(value)
            else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        )
    if isinstance(value, dict):
        return {key if type(key) is str else _key(key): _json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # Annotated
        return {
            field.name: _json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"<{type(value).__name__} {dtype} {'x'.join(map(str, shape)) or 'scalar'}>"
    return str(value)


def _key(key: Any) -> str:
    found = _json(key)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _bytes(value: bytes | bytearray | memoryview) -> str:
    view = memoryview(value).cast("B")
    more = "..." if len(view) > _SHOWN else ""
    return f"<{type(value).__name__} {len(view)}: {view[:_SHOWN].hex()}{more}>"


def size(count: int | None) -> str:
    """Bytes as people read them, such as ``27.4 MiB``; ``-`` for None."""
    if count is None:
        return "-"
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, left-aligned, two spaces between them."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )
    return "\n".join(lines)
