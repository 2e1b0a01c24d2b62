"""What is written twice about the package says the same in both places."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_floors_that_are_tried_are_those_that_are_allowed() -> None:
    allowed = setup()["options"]["install_requires"].split("\n")
    tried = (ROOT / ".ci" / "floors.txt").read_text().splitlines()
    assert {line.replace(" >= ", "==") for line in allowed if line} == {
        line for line in tried if not line.startswith("#")
    }


def test_the_changelog_knows_this_version() -> None:
    version = setup()["metadata"]["version"]
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_both_packages_say_that_they_are_typed() -> None:
    assert (ROOT / "actors" / "py.typed").exists()
    assert (ROOT / "transport" / "py.typed").exists()
