"""What came of all streams: who said that they begin and end, and what nobody accounts for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from perf.chaos.plan import Play
from perf.figures import table

#: Seconds in which a stream may hear nothing while nobody is stopped: a process is started again, a
#: worker in quarantine is tried again, on a machine that has others to serve. Who waits longer for
#: his deadline waits for what is lost.
QUIET: Final = 25.0
#: Failures that are shown whole; of the others there is the number.
_SHOWN = 20


@dataclass
class Tally:
    """Totals and failures of a run; ``heard`` takes what the clients write."""

    plays: tuple[Play, ...]
    under_way: dict[int, tuple[int, float]] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    items: int = 0
    bytes: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[str, str] = field(default_factory=dict)
    statistics: Counter[str] = field(default_factory=Counter)
    #: When a client was last told to go, by a signal; its streams went with it.
    killed: dict[int, float] = field(default_factory=dict)
    #: From when to when somebody was stopped.
    stops: list[tuple[float, float]] = field(default_factory=list)

    def heard(self, client: int, record: dict[str, Any]) -> None:
        """A line of a client, or its exit."""
        if "begin" in record:
            self.under_way[record["begin"]] = (client, record["time"])
        elif "end" in record:
            self._ended(record["end"])
        elif "statistics" in record:
            self.statistics.update(record["statistics"])
        elif "failed" in record:
            self.fail(f"client {client} failed", log=record["failed"].splitlines())
        elif record.get("tasks"):
            self.fail(f"client {client} left tasks running: {record['tasks']}")
        elif "exit" in record:
            self._exited(client, record)

    def _ended(self, played: dict[str, Any]) -> None:
        _, since = self.under_way.pop(played["number"], (0, played["time"]))
        shape = self.plays[played["number"]].shape
        self.outcomes[shape, played["outcome"]] += 1
        self.items += played["items"]
        self.bytes += played["bytes"]
        if played["outcome"] == "FAILURE":
            self.fail(
                f"stream {played['number']} ({shape}): {played['text']}",
                played["log"],
                since,
                played["time"],
            )
            return
        if played["outcome"] == "error deadline":
            until, quiet = played["time"], played["quiet"]
            if quiet - self._stopped(until - quiet, until) > QUIET:
                words = f"its deadline came {quiet:.1f} s after anything else: {played['text']}"
                self.fail(f"stream {played['number']} ({shape}): {words}", [], until - quiet, until)
        if played["text"]:
            self.samples.setdefault(played["outcome"], played["text"][:300])

    def _stopped(self, since: float, until: float) -> float:
        """Seconds of a stretch in which somebody was stopped, who may have held it up."""
        spent = at = 0.0
        for begin, end in sorted(self.stops):
            low, high = max(begin, since, at), min(end, until)
            if high > low:
                spent, at = spent + high - low, high
        return spent

    def _exited(self, client: int, record: dict[str, Any]) -> None:
        code = record["exit"]
        # SIGTERM, too, when it comes before a client can heed it.
        if code in (-9, -15) and client in self.killed:
            for number in [key for key, (who, _) in self.under_way.items() if who == client]:
                del self.under_way[number]
                self.outcomes[self.plays[number].shape, "died with its client"] += 1
        elif code:
            words = record["words"].splitlines()[-20:]
            self.fail(f"client {client} ended with exit code {code}", log=words)

    def fail(
        self, text: str, log: list[str] | None = None, since: float = 0.0, until: float = 0.0
    ) -> None:
        """Something that must not be; ``log`` and the times say what went on around it."""
        self.failures.append({"text": text, "log": log or [], "since": since, "until": until})

    def close(self, interrupted: bool) -> None:
        """All clients have ended: whatever is still under way has no account."""
        for number, (client, _) in self.under_way.items():
            if interrupted:
                self.outcomes[self.plays[number].shape, "cut short"] += 1
            else:
                self.fail(f"stream {number} of client {client} began, and nobody knows its end")
        self.under_way.clear()

    def totals(self) -> str:
        """Streams by shape (rows) and outcome (columns), and what the errors said."""
        shapes = sorted({shape for shape, _ in self.outcomes})
        kinds = sorted({outcome for _, outcome in self.outcomes})
        rows = []
        for outcome in kinds:
            counts = [self.outcomes[shape, outcome] for shape in shapes]
            rows.append([outcome, "", *(str(count or "-") for count in counts)])
            rows[-1] += [str(sum(counts)), ""]
        text = table(["outcome", "", *shapes, "all", ""], rows)
        return text + "".join(f"  e.g. {key}: {text}\n" for key, text in self.samples.items())

    def told(self, signals: list[tuple[float, str]]) -> str:
        """The failures with their logs and the signals that were sent meanwhile."""
        text = ""
        for failure in self.failures[:_SHOWN]:
            text += f"FAILURE {failure['text']}\n"
            text += "".join(f"    {line}\n" for line in failure["log"])
            if failure["until"]:
                low, high = failure["since"] - 5.0, failure["until"]
                near = [f"{when:.3f} {what}" for when, what in signals if low <= when <= high]
                text += "".join(f"    signal {line}\n" for line in near[-30:])
        if len(self.failures) > _SHOWN:
            text += f"and {len(self.failures) - _SHOWN} failures more\n"
        return text
