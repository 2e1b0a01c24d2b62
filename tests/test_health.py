"""What is made of what a node says of itself: live is not asked here, ready is."""

from __future__ import annotations

from typing import Any

import pytest

from actors.errors import SpecError
from actors.health import judge


def row(name: str = "e-0", role: str = "engine", state: str = "up", **more: Any) -> dict[str, Any]:
    return {
        "name": name, "role": role, "endpoint": "d.e.go" if role == "engine" else None,
        "instance": 255, "pid": 7, "state": state, "reason": "", "since": None, "lag": 0.001,
        "peers": None, "discovery": None, "advertised": None,
    } | more  # fmt: skip


def bad(*rows: dict[str, Any], **told: Any) -> list[str]:
    found = judge({"stops": "", "lag": 0.0, "actors": list(rows)} | told)
    return [each.line() for each in found if each.bad]


def notes(*rows: dict[str, Any], **told: Any) -> list[str]:
    found = judge({"stops": "", "lag": 0.0, "actors": list(rows)} | told)
    return [each.line() for each in found if not each.bad]


def test_all_up_here_over_or_leaving_is_ready_and_busy_is_no_matter() -> None:
    rows = [
        row(),
        row("router", "router"),
        row("mine", "actor", "here"),
        row("job", "actor", "ended", reason="it ended with exit code 0"),
        row("e-1 (old)", state="leaving"),
    ]
    assert not bad(*rows)
    assert notes(*rows) == ["actor job (pid 7): ended: it ended with exit code 0"]


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("frozen", "its process is stopped", "for 4.0 s: its process is stopped; kill -CONT 7"),
        (
            "stalled",
            "its event loop is blocked",
            "for 4.0 s: its event loop is blocked; kill -USR2",
        ),
        ("unready", "its canary raised X", "for 4.0 s: its canary raised X; its log says more"),
    ],
)
def test_c36_who_is_not_well_makes_its_node_unready(state: str, reason: str, words: str) -> None:
    (line,) = bad(row(), row("e-1", state=state, reason=reason, since=4.0))
    assert line.startswith(f"engine e-1 (pid 7): {state} {words}")
    assert "'callhome restart e-1' starts it anew" in line


@pytest.mark.parametrize("state", ["starting", "restarting", "failed", "stopped"])
def test_who_is_not_up_makes_its_node_unready_and_it_says_what_to_do(state: str) -> None:
    (line,) = bad(row(), row("e-1", state=state, reason="it was\nkilled", pid=None))
    assert line.startswith(f"engine e-1: {state}: it was killed; ")


def test_who_runs_in_the_launchers_program_is_not_to_be_restarted() -> None:
    for state in ("missing", "unready"):
        (line,) = bad(row("e-1", state=state, placed=True))
        assert line.endswith("; it runs in the launcher's own program: its log says more")


def test_a_node_that_takes_nothing_new_is_not_ready() -> None:
    assert bad(row(), stops="it stops") == ["node: takes nothing new: it stops"]


def test_a_drained_engine_is_a_note_as_long_as_another_serves_its_endpoint() -> None:
    drained = row("e-1", state="drained")
    assert not bad(row(), drained)
    assert notes(row(), drained) == [
        "engine e-1 (pid 7): drained; 'callhome restart e-1' makes it serve again"
    ]
    assert len(bad(row(state="draining"), drained)) == 2
    assert len(bad(row(endpoint="d.other.go"), drained)) == 1
    assert len(bad(row("router", "router", "drained"))) == 1


def test_what_cannot_be_reached_elsewhere_makes_nobody_unready() -> None:
    far = row(
        "router", "router", peers={"10.0.0.8:7400": "refused", "10.0.0.9:7400": ""},
        discovery={"etcd://h:1": "etcd://h:1 cannot be used, for 4 s", "/kv": ""},
        advertised="nobody",
    )  # fmt: skip
    assert not bad(far)
    assert [each.partition(";")[0] for each in notes(far)] == [
        "router router (pid 7): peer 10.0.0.8:7400 cannot be seen: refused",
        "router router (pid 7): etcd://h:1 cannot be used, for 4 s",
        "router router (pid 7): nobody",
    ]


def test_a_loop_that_is_late_is_a_note() -> None:
    assert not bad(row(lag=2.0), lag=3.0)
    assert [each.partition(";")[0] for each in notes(row(lag=2.0), lag=3.0)] == [
        "node: its event loop was 3.0 s late",
        "engine e-0 (pid 7): its event loop was 2.0 s late",
    ]


@pytest.mark.parametrize("instance", ["e-1", "255", "ff"])
def test_one_engine_is_named_by_name_or_instance(instance: str) -> None:
    told = {"stops": "", "actors": [row(instance=1, state="failed"), row("e-1", state="drained")]}
    (found,) = judge(told, instance)
    assert (found.who, found.bad) == ("engine e-1 (pid 7)", True)


def test_an_engine_that_is_not_there_is_wrong_usage_that_names_those_that_are() -> None:
    with pytest.raises(SpecError, match=r"no engine 'router' .*its engines are: e-0"):
        judge({"actors": [row(), row("router", "router")]}, "router")


@pytest.mark.parametrize("told", [{}, {"actors": 5}, {"actors": ["x"]}, {"actors": None}])
def test_an_answer_of_another_version_raises_nothing(told: dict[str, Any]) -> None:
    assert judge(told) == []


def test_an_engine_or_a_door_that_has_ended_is_missing_unless_another_serves() -> None:
    gone = row("e-0", state="ended", reason="exit code 0")
    assert bad(gone) == [
        "engine e-0 (pid 7): ended: exit code 0; 'callhome restart e-0' starts it again"
    ]
    assert not bad(gone, row("e-1"))
    assert notes(gone, row("e-1")) == [
        "engine e-0 (pid 7): ended: exit code 0; 'callhome restart e-0' starts it again"
    ]
    assert bad(row(), row("router", "router", "ended"))


def test_an_engine_that_was_asked_for_and_has_ended_is_not_ready_whoever_else_serves() -> None:
    told = {"stops": "", "actors": [row(), row("e-1", state="ended")]}
    (found,) = judge(told, "e-1")
    assert found.bad
    assert found.action == "'callhome restart e-1' starts it again"


def test_one_in_the_launchers_program_that_was_drained_can_be_had_to_serve_again() -> None:
    (found,) = judge({"stops": "", "actors": [row(), row("e-1", state="drained", placed=True)]})
    assert not found.bad
    assert found.action == "'callhome restart e-1' makes it serve again"
