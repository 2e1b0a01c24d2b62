"""The etcd that tests are given: it starts, forgets, freezes, and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.etcd import Etcd, require_etcd, running_etcd


def test_keys_stay_over_a_restart_and_go_with_the_data(etcd: Etcd) -> None:
    etcd.put("a/1", "one")
    etcd.kill()
    etcd.start()
    assert etcd.get("a/")["a/1"].value == b"one"
    etcd.stop()
    etcd.start(fresh=True)
    assert etcd.get() == {}


def test_it_is_frozen_and_goes_on(etcd: Etcd) -> None:
    etcd.put("a", "x")
    etcd.freeze()
    assert not etcd.answers()
    etcd.thaw()
    assert list(etcd.get()) == ["a"]
    etcd.delete("a")
    assert etcd.get() == {}


def test_the_next_test_finds_it_empty(etcd: Etcd) -> None:
    assert etcd.get() == {}


def test_one_of_its_own_leaves_nothing() -> None:
    require_etcd()
    with running_etcd() as server:
        folder = Path(server._folder)
        assert folder.exists()
        pid = server.pid
    assert not folder.exists()
    assert not os.path.exists(f"/proc/{pid}")


def test_where_there_is_none_a_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.skip.Exception, match="needs etcd: no 'etcd' in PATH"):
        require_etcd()
