"""``python -m perf fuzz``: wrong bytes for every decoder, made from right ones.

The inputs of one decoder follow from the seed alone, whatever else runs; how many there are depends
on the time given.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from perf import fuzz_frames, fuzz_values
from perf.fuzz_check import MOST_SECONDS, Fault, Target, judge, watched
from perf.fuzz_mutate import mutate, smaller
from perf.plan import PerfError

TARGETS: Final[dict[str, Target]] = {
    each.name: each for each in (*fuzz_frames.TARGETS, *fuzz_values.TARGETS)
}
"""Every decoder by its name."""

_HELP: Final = """\
Gives every decoder of callhome bytes that are nearly right: what our own encoders have made, with
bits turned over, parts cut out, sewn together or nested, lengths that claim too much, types and
words exchanged. A decoder must read an input or refuse it with one of its documented errors, within
half a second of CPU time and with memory for the bytes that there are. Those that take pieces read
each input cut at chance places, too, and must find the same. What can be read is written and read
again.

Prints the inputs of each decoder and every finding, made as short as it gets, with the command that
tries it again. Exit code 1 when there is a finding.
"""
_END: Final = f"""\
decoders: {", ".join(TARGETS)}

examples:
  python -m perf fuzz --seconds 120
  python -m perf fuzz --seconds 20 --seed 7 --decoder batch
  python -m perf fuzz --decoder json --input 5b5b   # try one input again; the error is shown
"""
#: One input in so many has its memory looked at, which makes it several times slower.
_WEIGHED: Final = 50
#: Inputs that are weighed come in rows of so many; see ``judge``.
_ROW: Final = 25
#: CPU or not, a decoder's turn: short, so that a run that is ended early has tried all of them.
_TURN: Final = 1.0
#: Findings of one decoder that are shown; more of them have the same few causes.
_SHOWN: Final = 10
#: Growth of the process, from after the warm-up to the end, that is no finding, in bytes.
_GROWTH: Final = 24 << 20
#: Interesting inputs that a decoder keeps beside its samples: it had read them whole.
_KEPT: Final = 300


class Finding(NamedTuple):
    """An input that a decoder does not do well with."""

    decoder: str
    fault: Fault
    data: bytes


class Course:
    """One decoder under way: its inputs so far and what was found."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self._random = Random(f"{seed} {target.name}")
        self._samples = target.samples(self._random)
        self._fresh = list(self._samples)
        self._weigh = False
        self.inputs = 0
        self.refused = 0
        self.slowest = 0.0
        self.found: dict[tuple[str, str], Finding] = {}

    def go_on(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Try inputs for about so long; within ``watched``."""
        until = clock() + seconds
        while clock() < until:
            for _ in range(50):
                self.step()

    def step(self) -> None:
        """One input: a sample as it is at first, then changed ones."""
        random = self._random
        if self.inputs % _ROW == 0:
            self._weigh = not self.inputs or random.randrange(_WEIGHED) == 0
        self.inputs += 1
        if self._fresh:
            data = self._fresh.pop()
        else:
            data = mutate(random.choice(self._samples), random.choice(self._samples), random)
        weigh = self._weigh
        fault, spent, refused = judge(self.target, data, weigh)
        self.refused += refused
        if not weigh:
            self.slowest = max(self.slowest, spent)
        if fault is None:
            if not refused and len(self._samples) < _KEPT and len(data) < 2_000:
                self._samples.append(data)
        elif len(self.found) < _SHOWN and (fault.kind, fault.where) not in self.found:
            self.found[fault.kind, fault.where] = self._shortened(data, fault)

    def _shortened(self, data: bytes, fault: Fault) -> Finding:
        def fails(less: bytes) -> bool:
            other = judge(self.target, less, fault.kind == "memory")[0]
            return other is not None and (other.kind, other.where) == (fault.kind, fault.where)

        tries = 30 if fault.kind in ("slow", "hang") else 1500
        return Finding(self.target.name, fault, smaller(data, fails, tries))


def add_fuzz(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's arguments; called by ``perf.__main__``."""
    command = commands.add_parser(
        "fuzz",
        help="wrong bytes for every decoder",
        description=_HELP,
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--seconds", type=float, default=20.0, help="for all together (20)")
    command.add_argument("--seed", type=int, default=1, help="other inputs for another number (1)")
    command.add_argument(
        "--decoder", choices=tuple(TARGETS), action="append", help="may be repeated (all)"
    )
    command.add_argument("--input", metavar="HEX", help="try this one input, of one --decoder")


def fuzz(arguments: argparse.Namespace, say: Callable[[str], None]) -> tuple[int, str]:
    """Exit code and report. Raises PerfError for arguments that do not go together."""
    names: Sequence[str] = tuple(dict.fromkeys(arguments.decoder or TARGETS))
    try:
        with watched():
            if arguments.input is not None:
                return _again(names, arguments.input)
            return _all(names, arguments.seconds, arguments.seed, say)
    finally:
        fuzz_values.close()


def _again(names: Sequence[str], text: str) -> tuple[int, str]:
    if len(names) != 1:
        raise PerfError("--input needs one --decoder")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise PerfError(f"--input: {error}; give hexadecimal digits") from None
    target = TARGETS[names[0]]
    fault, spent, refused = judge(target, data, weigh=False)
    if fault is None:
        fault = judge(target, data, weigh=True)[0]
    if fault is None:
        return 0, f"{'refused' if refused else 'read'} in {spent * 1e3:.3f} ms of CPU\n"
    return 1, f"{fault.kind}: {fault.text}\n"


def _all(
    names: Sequence[str], seconds: float, seed: int, say: Callable[[str], None]
) -> tuple[int, str]:
    courses = [Course(TARGETS[name], seed) for name in names]
    start = time.monotonic()
    before = told = 0.0
    turn = min(_TURN, seconds / (2 * len(courses)))
    try:
        while (gone := time.monotonic() - start) < seconds:
            for course in courses:
                course.go_on(min(turn, max(0.05, seconds - gone)))
            if not before:
                before = _rss()
            if gone - told >= 5:
                told = gone
                findings = sum(len(each.found) for each in courses)
                inputs = sum(each.inputs for each in courses)
                say(f"{gone:.0f} s: {inputs:,} inputs, {findings} findings")
    except KeyboardInterrupt:
        say("stopped; this is what was seen so far")
    grown = int(_rss() - (before or _rss()))
    text = _report(courses, seed, time.monotonic() - start, grown)
    return int(grown > _GROWTH or any(each.found for each in courses)), text


def _rss() -> int:
    """Bytes that the process needs: what the allocator merely keeps, some MB between others, goes
    back to the system first, where the C library can do that.
    """
    import psutil

    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def _report(courses: Sequence[Course], seed: int, spent: float, grown: int) -> str:
    lines = [f"{'decoder':<16}{'inputs':>12}{'refused':>10}{'slowest, ms CPU':>18}{'findings':>10}"]
    for each in courses:
        part = each.refused / each.inputs if each.inputs else 0.0
        lines.append(
            f"{each.target.name:<16}{each.inputs:>12,}{part:>10.0%}{each.slowest * 1e3:>18.2f}"
            f"{len(each.found):>10}"
        )
    total = sum(each.inputs for each in courses)
    lines += [
        "",
        f"{total:,} inputs in {spent:.0f} s, seed {seed}; the process grew by {grown >> 10:,} KiB "
        f"after its first round ({_GROWTH >> 10:,} are allowed); {MOST_SECONDS:g} s of CPU are "
        "allowed an input",
    ]
    for each in courses:
        for found in each.found.values():
            lines += [
                "",
                f"{found.decoder}: {found.fault.kind}: {found.fault.text}",
                f"  python -m perf fuzz --decoder {found.decoder} --input {found.data.hex()}",
            ]
    return "\n".join(lines) + "\n"
