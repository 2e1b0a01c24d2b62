"""Whether a node and its actors are well: from what the node says of them to a verdict, its reasons
and what to do.

``live``: the node's process works, and nothing is gained by starting it anew. ``ready``: it can do
all that its spec promises: every actor is up, no engine is frozen, stalled or unready, and it does
not stop. A router that is up has had its first look at all that it reads; what it cannot reach now
(etcd, a directory, a peer) makes nobody unready and is a note. Busy is neither.

The node answers ``Health``; ``callhome health`` asks, and shows what ``judge`` makes of the answer.
Nothing here waits, reads or asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from actors.errors import SpecError
from actors.kernel.verdicts import FROZEN, STALLED, UNREADY

#: An actor serves; it is in the launcher's own process; it has come to the end that it was to have.
_FINE: Final = ("up", "here")
_OVER: Final = "ended"
#: It stands beside its successor, which counts.
_LEAVING: Final = "leaving"
_DRAINS: Final = ("draining", "drained")
_LATE: Final = 1.0
_PLACED: Final = "it runs in the launcher's own program: its log says more"


class Health(NamedTuple):
    """Ask a node, as a stream of one item, how it is. The item is a dict: ``stops`` (why it takes
    nothing new, "" if it does), ``lag`` (seconds that its own loop took to turn, None: unknown)
    and ``actors``, one dict each: ``name, role, endpoint, instance, pid, state, since, reason, lag,
    peers, discovery, advertised`` as in a row of ``Ps``, and ``placed`` of one that runs in the
    launcher's process; its state is ``here``, or ``missing``.
    """


class Finding(NamedTuple):
    """Something that is not as it should be. ``bad``: for it the node is not ready; else a note."""

    who: str
    text: str
    action: str
    bad: bool

    def line(self) -> str:
        """Cause and next step, as one line."""
        return f"{self.who}: {self.text}" + (f"; {self.action}" if self.action else "")


def judge(told: Mapping[str, Any], instance: str = "") -> list[Finding]:
    """What is wrong, the bad before the notes; ready is a node without a bad one.

    ``instance`` (name, or id in decimal or hex): only this engine counts. Raises SpecError for one
    that the node does not have.
    """
    actors = told.get("actors")
    rows = [row for row in actors if isinstance(row, Mapping)] if isinstance(actors, list) else []
    found = [] if instance else _of_node(told)
    for row in _chosen(rows, instance):
        found += _of_actor(row, rows, alone=bool(instance))
    return sorted(found, key=lambda each: not each.bad)


def _chosen(rows: list[Mapping[str, Any]], instance: str) -> Iterable[Mapping[str, Any]]:
    if not instance:
        return rows
    engines = [row for row in rows if row.get("role") == "engine"]
    for row in engines:
        number = row.get("instance")
        known = [] if not number else [str(number), f"{number:x}"]
        if instance in (row.get("name"), *known):
            return [row]
    names = ", ".join(str(row.get("name")) for row in engines) or "none"
    raise SpecError(f"no engine {instance[:100]!r} is on the node; its engines are: {names}")


def _of_node(told: Mapping[str, Any]) -> list[Finding]:
    found = []
    if why := told.get("stops"):
        found.append(Finding("node", f"takes nothing new: {why}", "", True))
    lag = told.get("lag")
    if isinstance(lag, float) and lag >= _LATE:
        text = f"its event loop was {lag:.1f} s late"
        found.append(Finding("node", text, "it is overloaded, or its machine is", False))
    return found


def _of_actor(
    row: Mapping[str, Any], rows: list[Mapping[str, Any]], *, alone: bool
) -> list[Finding]:
    name, state, pid = row.get("name"), str(row.get("state")), row.get("pid")
    who = f"{row.get('role')} {name}" + (f" (pid {pid})" if pid else "")
    found = [Finding(who, text, action, False) for text, action in _notes(row)]
    if state in _FINE or state == _LEAVING:
        return found
    reason = " ".join(str(row.get("reason") or "").split())
    text = f"{state}: {reason}" if reason else state
    if (since := row.get("since")) is not None:
        text = f"{state} for {since:.1f} s: {reason}"
    bad = True
    done = state == _OVER and row.get("role") == "actor"  # what it was there for
    if done:
        bad = False
    elif not alone and (state in _DRAINS or state == _OVER):
        bad = not _others(row, rows)
    apart = row.get("placed") and state not in _DRAINS
    action = _PLACED if apart else _action(state, name, pid)
    if done:
        action = ""
    return [Finding(who, text, action, bad), *found]


def _others(row: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> bool:
    """Whether another of its role, and endpoint, serves: to drain one is a wish, and no fault."""
    return any(
        each.get("state") in _FINE and each.get("endpoint") == row.get("endpoint")
        for each in rows
        if each.get("role") == row.get("role")
    )


def _action(state: str, name: object, pid: object) -> str:
    again = f"callhome restart {name}"
    return {
        FROZEN: f"kill -CONT {pid} lets a stopped process go on, '{again}' starts it anew",
        STALLED: f"kill -USR2 {pid} has it write where it is, '{again}' starts it anew",
        UNREADY: f"its log says more; '{again}' starts it anew",
        "draining": f"'{again}' makes it serve again",
        "drained": f"'{again}' makes it serve again",
        "starting": "wait for it",
        "restarting": "wait for it; the node's log says why it had ended",
        "ended": f"'{again}' starts it again",
        "failed": f"mend the cause, then '{again}'",
        "stopped": "the node stops, or its start has failed: its log says more",
    }.get(state, "")


def _notes(row: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What troubles one that serves all the same, and what to do."""
    for peer, why in (row.get("peers") or {}).items():
        if why:
            text = f"peer {peer} cannot be seen: {' '.join(str(why).split())}"
            yield text, "what was known of it holds until it is told otherwise"
    for why in (row.get("discovery") or {}).values():
        if why:  # it names the source
            yield " ".join(str(why).split()), "what was known from there holds until it is back"
    if warning := row.get("advertised"):
        yield " ".join(str(warning).split()), ""
    lag = row.get("lag")
    if isinstance(lag, float) and lag >= _LATE and row.get("state") in _FINE:
        yield f"its event loop was {lag:.1f} s late", "something blocks it for moments"
