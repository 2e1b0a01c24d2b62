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
    tried = (ROOT / ".ci" / "floors.txt").read_text().splitlines()
    assert floors("options", "install_requires") | floors("options.extras_require", "etcd") == {
        line for line in tried if not line.startswith("#")
    }


def floors(section: str, key: str) -> set[str]:
    lines = setup()[section][key].split("\n")
    return {line.replace(" >= ", "==") for line in lines if line and not line.startswith("#")}


def test_the_tests_have_what_the_extra_for_etcd_brings() -> None:
    extras = "options.extras_require"
    assert floors(extras, "etcd") <= floors(extras, "test")


def test_the_changelog_knows_this_version() -> None:
    version = setup()["metadata"]["version"]
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_both_packages_say_that_they_are_typed() -> None:
    assert (ROOT / "actors" / "py.typed").exists()
    assert (ROOT / "transport" / "py.typed").exists()
