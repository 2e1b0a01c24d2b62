"""What the fuzzer asks of a decoder, and how one input is judged.

An input passes when the decoder returns, or raises one of the errors that its documentation names;
within a bound of CPU time, and of memory for the bytes that there are and not for those that are
claimed. A target says more than that itself, by raising ``Broken``: cut into pieces it reads the
same, written again it reads the same.
"""

from __future__ import annotations

import signal
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Any, Final, NamedTuple

from transport.errors import DecodeError, RemoteProtocolError

TYPED: Final = (RemoteProtocolError, DecodeError)
"""What a decoder may say about foreign bytes, unless its target names more."""
MOST_SECONDS: Final = 0.5
"""CPU seconds that one input may take."""
HANGS: Final = 10.0
"""CPU seconds after which an input is given up, where it runs in Python."""
MOST_BYTES: Final = 4 << 20
"""Memory that any input may take for a moment: an unpacker has a buffer of 1 MiB by itself, and one
that met a fault is made anew. What a claimed length would take is far beyond it."""
BYTES_EACH: Final = 400
"""Memory for each byte of an input: an empty map of one byte is an object of 64, and one in a
tuple in an odd key is several."""


class Broken(Exception):
    """A decoder read something that it must not read so."""


class Hang(BaseException):
    """An input ran into ``HANGS``; no decoder can catch it by mistake."""


class Target(NamedTuple):
    """A decoder, and right inputs to begin with."""

    name: str
    samples: Callable[[Random], list[bytes]]
    run: Callable[[bytes], object]
    """Decodes; may also raise Broken."""
    typed: tuple[type[Exception], ...] = TYPED
    most: int = MOST_BYTES
    """Memory that an input may take for a moment, beside what there is for each of its bytes."""


class Fault(NamedTuple):
    """What is wrong with an input."""

    kind: str
    """``exception``, ``broken``, ``hang``, ``slow`` or ``memory``."""
    where: str
    """What tells one fault from another: class and line, or the words."""
    text: str


#: How many decoders have read the input that is tried, and how many have refused it.
_told: Final = {True: 0, False: 0}


def tell(read: bool) -> None:
    """One decoder of a target that has several has read the input, or refused it."""
    _told[read] += 1


def quiet(
    call: Callable[..., Any],
    *arguments: Any,
    typed: tuple[type[Exception], ...] = TYPED,
    more: bool = False,
) -> Any:
    """What a call returns, or its typed error: for targets that call several decoders; ``more``:
    what is done with an input that was read.
    """
    try:
        found = call(*arguments)
    except typed as error:
        found = error
    if not more:
        tell(not isinstance(found, typed))
    return found


def random_of(data: bytes) -> Random:
    """Chance that an input brings with it, so that it fails again when it is tried again."""
    return Random(zlib.crc32(data))


@contextmanager
def watched() -> Iterator[None]:
    """Within it an input that hangs in Python is ended by ``Hang``; main thread only."""

    def over(_: int, __: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, over)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        tracemalloc.stop()


def judge(target: Target, data: bytes, weigh: bool) -> tuple[Fault | None, float, bool]:
    """The fault, the CPU seconds and whether the input was refused; within ``watched``.

    ``weigh``: look at the memory that it takes, too, which makes it several times slower. Inputs
    that are weighed come in a row: each time that it stops, tracemalloc loses what it has noted of
    each place that allocates, some 700 bytes here.
    """
    held = _begin_to_weigh() if weigh else _end_weighing()
    signal.setitimer(signal.ITIMER_PROF, HANGS)
    start = time.thread_time()
    fault, refused = _tried(target, data)
    spent = time.thread_time() - start
    signal.setitimer(signal.ITIMER_PROF, 0)
    if weigh:
        peak = tracemalloc.get_traced_memory()[1] - held
        allowed = target.most + BYTES_EACH * len(data)
        if fault is None and peak > allowed:
            text = f"{peak:,} bytes for {len(data):,} of input; {allowed:,} are allowed"
            fault = Fault("memory", target.name, text)
    elif fault is None and spent > MOST_SECONDS:
        fault = Fault("slow", target.name, f"{spent:.2f} s of CPU; {MOST_SECONDS:g} are allowed")
    return fault, spent, refused


def _begin_to_weigh() -> int:
    """Bytes that count for nothing: inputs before this one have left them."""
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    tracemalloc.reset_peak()
    return tracemalloc.get_traced_memory()[0]


def _end_weighing() -> int:
    if tracemalloc.is_tracing():
        tracemalloc.stop()
    return 0


def _tried(target: Target, data: bytes) -> tuple[Fault | None, bool]:
    _told.update({True: 0, False: 0})
    try:
        target.run(data)
    except target.typed:
        return None, True
    except Broken as error:
        return Fault("broken", str(error)[:60], str(error)), False
    except Hang as error:
        return Fault("hang", _place(error), f"no end within {HANGS:g} s of CPU"), False
    except Exception as error:
        place = _place(error)
        if isinstance(error, RecursionError) and "/perf/fuzz" in f"/{place}":
            return None, False  # ours: two values that are nested too deep are compared
        where = f"{type(error).__name__} {place}"
        return Fault("exception", where, f"{where}: {str(error)[:300]}"), False
    return None, bool(_told[False]) and not _told[True]


def _place(error: BaseException) -> str:
    """File and line that an exception comes from, the innermost in code of ours."""
    found, trace = "?", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/transport/" in name or "/actors/" in name or found == "?":
            found = f"{'/'.join(name.rsplit('/', 3)[1:])}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
