"""``compare --base``: two checkouts of a repository of their own, with suites that take no time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from perf import revisions
from perf.__main__ import main, parser
from perf.plan import PerfError
from perf.revisions import Wanted, compare
from tests.waiting import LONG, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
CORES = tuple(sorted(os.sched_getaffinity(0)))[:2]
#: The Plan of a revision of long ago: no field but these.
_PLAN = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Plan:
    job: str
    cores: tuple
    scale: float = 1.0
"""
_WORKER = """
import json, sys
from perf.plan import Plan
plan = Plan(**json.loads(sys.argv[1]))
with open({log!r}, "a") as log:
    log.write("{name}\\n")
print(json.dumps({{"samples": [[plan.job, "unary.c1", "p50_us", "us", {value}]]}}))
"""


class Repository:
    """A repository whose perf code only pretends to measure; ``runs`` says who ran, in order."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "repository"
        self.log = folder / "log"
        self.log.touch()
        for name in ("actors", "perf/suites"):
            (self.path / name).mkdir(parents=True)
        for name in ("actors/__init__.py", "perf/__init__.py", "perf/suites/unary.py"):
            (self.path / name).touch()
        (self.path / "perf/plan.py").write_text(_PLAN)
        self._git("init", "-q", "-b", "main")

    def _git(self, *arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=self.path, check=True)

    def write(self, name: str, value: float) -> None:
        """What a run of the tree gives from now on."""
        text = _WORKER.format(log=str(self.log), name=name, value=value)
        guarded = 'if __name__ == "__main__":' + textwrap.indent(text, "    ")
        (self.path / "perf/worker.py").write_text(guarded)

    def commit(self, name: str, value: float) -> None:
        """A revision with that name."""
        self.write(name, value)
        self._git("add", ".")
        self._git("commit", "-q", "-m", name)
        self._git("tag", name)

    @property
    def runs(self) -> list[str]:
        return self.log.read_text().split()

    def state(self) -> tuple[bytes, list[str]]:
        """What git says of the tree, and all files of it: to be the same afterwards."""
        said = subprocess.check_output(["git", "status", "--porcelain=v1"], cwd=self.path)
        return said, sorted(map(str, self.path.rglob("*")))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return Repository(tmp_path)


def left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").iterdir())


def test_two_revisions_are_measured_in_turns(repository: Repository, tmp_path: Path) -> None:
    repository.commit("old", 100.0)
    repository.commit("new", 50.0)
    repository.write("tree", 25.0)
    before = repository.state()
    said: list[str] = []
    wanted = Wanted("old", "new", ("unary",), CORES, pairs=2)
    result = compare(wanted, said.append, repository.path)
    assert result.failures == []
    assert repository.runs == ["old", "new", "new", "old"]
    assert [each.ratio for each in result.verdicts] == [2.0, 2.0]
    assert result.base.startswith("old (")
    assert [line.partition("]")[0] for line in said] == ["[pair 1/2", "[pair 2/2"]
    assert (repository.state(), left(tmp_path)) == (before, [])
    json.dumps(revisions.facts(wanted, result), allow_nan=False)


def test_the_head_is_the_tree_as_it_stands(repository: Repository, tmp_path: Path) -> None:
    repository.commit("old", 100.0)
    repository.write("tree", 400.0)
    (repository.path / "perf/suites/fresh.py").touch()  # not even added
    before = repository.state()
    wanted = Wanted("HEAD", revisions.WORKING_TREE, ("unary",), CORES, pairs=1)
    result = compare(wanted, lambda line: None, repository.path)
    assert (result.head, result.verdicts[0].ratio) == ("working tree", 0.25)
    assert (repository.state(), left(tmp_path)) == (before, [])
    with pytest.raises(PerfError, match=r"HEAD \(\w+\) has no suite 'fresh'"):
        compare(Wanted("HEAD", "", ("fresh",), CORES, pairs=1), lambda line: None, repository.path)
    assert left(tmp_path) == []


def test_what_fails_is_named_and_the_rest_goes_on(repository: Repository) -> None:
    repository.commit("old", 100.0)
    (repository.path / "perf/worker.py").write_text(
        'if __name__ == "__main__":\n    print(\'{"error": "no luck"}\')\n'
    )
    wanted = Wanted("old", "", ("unary",), CORES, pairs=2)
    result = compare(wanted, lambda line: None, repository.path)
    assert result.failures == ["unary, pair 1: no luck", "unary, pair 2: no luck"]
    assert result.verdicts == []
    assert repository.runs == ["old"]  # where the head comes first, the base has nothing to add


@pytest.mark.parametrize(
    ("revision", "why"), [("nowhere", "is no revision of"), ("empty", "no perf suites that can be")]
)
def test_a_revision_that_cannot_be_measured(
    repository: Repository, tmp_path: Path, revision: str, why: str
) -> None:
    repository.commit("old", 1.0)
    (repository.path / "perf/plan.py").unlink()
    repository.commit("empty", 1.0)
    with pytest.raises(PerfError, match=why):
        compare(Wanted("old", revision, ("unary",), CORES), lambda line: None, repository.path)
    assert left(tmp_path) == []


_PROGRAM = """
import sys, tempfile
from pathlib import Path
from perf.revisions import Wanted, compare
tempfile.tempdir = sys.argv[2]
result = compare(Wanted("old", "old", ("unary",), ({core},), 99), print, Path(sys.argv[1]))
print("interrupted", result.interrupted, len(result.failures))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_nothing_is_left_when_it_is_ended(
    repository: Repository, tmp_path: Path, number: int, code: int
) -> None:
    repository.commit("old", 1.0)
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(core=CORES[0]), repository.path, tmp_path / "tmp"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        wait_until_sync(lambda: repository.runs, LONG, "a first run")
        program.send_signal(number)
        said, _ = program.communicate(timeout=LONG)
    assert program.returncode == code
    assert ("interrupted True" in said) == (number == signal.SIGINT)
    assert left(tmp_path) == []


def test_compare_takes_files_or_revisions(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["a.json"], ["a.json", "b.json", "--base", "HEAD"], []):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *arguments])
        assert ended.value.code == 2
        assert "two files" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parser().parse_args(["compare", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(word in text for word in ("A/A", "--min-ratio", "working tree", "order statistics"))
