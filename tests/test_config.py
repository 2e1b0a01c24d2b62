"""Settings: where a value comes from, and what is refused with which words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from actors.config import GIB, KIB, MIB, Settings, host, host_port
from actors.errors import SpecError


def test_the_defaults() -> None:
    settings = Settings.load(environ={})
    assert (settings.window_items, settings.window_bytes) == (256, 16 * MIB)
    assert settings.inline_below == 32 * KIB
    assert (settings.arena_step, settings.arena_limit) == (64 * MIB, GIB)
    assert (settings.outbox_messages, settings.outbox_bytes) == (65_536, 256 * MIB)
    assert settings.mailbox == 1024
    assert (settings.connect_timeout, settings.first_item_timeout) == (5.0, 600.0)
    assert (settings.call_timeout, settings.gap_timeout) == (600.0, 600.0)
    assert (settings.stop_grace, settings.start_timeout) == (5.0, 10.0)
    assert (settings.max_restarts, settings.restart_period) == (5, 30.0)
    assert settings.codec == "msgpack"
    assert (settings.ack_timeout, settings.dial_in_timeout) == (5.0, 5.0)
    assert (settings.prologue_timeout, settings.max_message) == (30.0, 32 * MIB)
    assert (settings.request_pool, settings.request_depth) == (4, 1024)
    assert (settings.request_connects, settings.host_idle) == (64, 300.0)
    assert (settings.ingress_pool, settings.ingress_queue) == (10_000, 40_000)
    assert settings.ingress_queue_bytes == 256 * MIB
    assert (settings.call_home_host, settings.call_home_port) == ("", 0)
    assert (settings.call_home_advertise, settings.check_frames) == ("", False)


def test_keyword_above_environment_above_table_above_default() -> None:
    table = {"window_items": 1, "mailbox": 1, "codec": "json"}
    environ = {"CALLHOME_WINDOW_ITEMS": "2", "CALLHOME_MAILBOX": "2", "HOME": "/"}
    settings = Settings.load(table, environ=environ, window_items=3)
    assert settings.window_items == 3
    assert settings.mailbox == 2
    assert settings.codec == "json"
    assert settings.outbox_messages == 65_536


def test_the_environment_of_the_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLHOME_STOP_GRACE", "1.5")
    assert Settings.load().stop_grace == 1.5
    assert Settings().stop_grace == 5.0
    assert Settings.load().run == os.environ["CALLHOME_RUN"]


def test_the_run_folder_follows_the_session_or_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert Settings.load(environ={}).run == f"{tmp_path}/callhome"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert Settings.load(environ={}).run == f"/tmp/callhome-{os.getuid()}"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert Settings.load(environ={}).run == f"/tmp/callhome-{os.getuid()}"


def test_sizes_and_limits_are_read_as_people_write_them() -> None:
    environ = {"CALLHOME_WINDOW_BYTES": "8 MiB", "CALLHOME_CALL_TIMEOUT": "none"}
    settings = Settings.load({"arena_limit": "2GiB", "gap_timeout": 3}, environ=environ)
    assert settings.window_bytes == 8 * MIB
    flags = [Settings.load(environ={"CALLHOME_CHECK_FRAMES": text}) for text in ("1", "False")]
    assert [each.check_frames for each in flags] == [True, False]
    assert settings.call_timeout is None
    assert settings.arena_limit == 2 * GIB
    assert settings.gap_timeout == 3.0


def test_addresses_are_checked_as_text() -> None:
    for good in ("127.0.0.1:0", "[::1]:7400", "node-7.example:65535", "[fe80::1%eth0]:1"):
        assert host_port(good, "listen") == good
    for bad in (
        "7400",
        ":7400",
        "::1:7400",
        "a:b",
        "a:65536",
        "a:",
        "a b:1",
        "a:1/x",
        "[]:1",
        None,
    ):
        with pytest.raises(SpecError, match=r"^listen: .* expected 'host:port'"):
            host_port(bad, "listen")
    assert host(" 10.0.0.7 ", "call_home_host") == "10.0.0.7"
    assert host("::1", "call_home_host") == "::1"


def test_settings_reach_a_child_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(window_items=7, call_timeout=None, run="/tmp/x")
    text = json.dumps(settings.to_dict())
    monkeypatch.setenv("CALLHOME_WINDOW_ITEMS", "9")
    assert Settings.from_dict(json.loads(text)) == settings


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"window_items": 0}, ["settings.window_items", "0", "from 1"]),
        ({"window_items": True}, ["settings.window_items", "True", "whole number"]),
        ({"window_items": 1.5}, ["settings.window_items", "whole number"]),
        ({"window_bytes": "16 MB"}, ["settings.window_bytes", "'16 MB'", "64 KiB"]),
        ({"arena_limit": MIB}, ["settings.arena_limit", "arena_step"]),
        ({"stop_grace": 0}, ["settings.stop_grace", "seconds above 0"]),
        ({"stop_grace": float("nan")}, ["settings.stop_grace", "seconds above 0"]),
        ({"start_timeout": None}, ["settings.start_timeout", "seconds above 0"]),
        ({"gap_timeout": "soon"}, ["settings.gap_timeout", "'soon'", "'none'"]),
        ({"codec": "mesgpack"}, ["settings.codec", "'msgpack' or 'json'", "did you mean"]),
        ({"run": ""}, ["settings.run", "folder"]),
        ({"ack_timeout": "none"}, ["settings.ack_timeout", "seconds above 0"]),
        ({"request_pool": 0}, ["settings.request_pool", "from 1 to 4096"]),
        ({"call_home_host": "a b"}, ["settings.call_home_host", "without a port"]),
        ({"call_home_port": 65_536}, ["settings.call_home_port", "from 0 to 65535"]),
        ({"check_frames": "maybe"}, ["settings.check_frames", "true or false"]),
        ({"windw_items": 3}, ["settings.windw_items", "unknown", "'window_items'"]),
    ],
)
def test_what_is_wrong_is_named(keywords: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        Settings.load(environ={}, **keywords)
    for word in words:
        assert word in str(caught.value)


def test_the_source_of_a_wrong_value_is_named() -> None:
    with pytest.raises(SpecError, match=r"^CALLHOME_MAILBOX: 'many' is not allowed"):
        Settings.load(environ={"CALLHOME_MAILBOX": "many"})
    with pytest.raises(SpecError, match=r"CALLHOME_MAILBX: unknown key.*'CALLHOME_MAILBOX'"):
        Settings.load(environ={"CALLHOME_MAILBX": "5"})
    with pytest.raises(SpecError, match=r"^settings\.mailbox: 'x' is not allowed"):
        Settings.load({"mailbox": "x"}, environ={})
    with pytest.raises(SpecError, match=r"^settings: \[\] is not allowed; expected a table"):
        Settings.load([], environ={})  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"settings\.mailbix: unknown key"):
        Settings.from_dict({"mailbix": 1})


def test_variables_of_tests_and_perf_are_no_settings() -> None:
    environ = {"CALLHOME_TEST_TICK": "2", "CALLHOME_PERF_PROFILE": "x"}
    assert Settings.load(environ=environ) == Settings()
