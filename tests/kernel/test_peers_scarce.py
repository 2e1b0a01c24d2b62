"""Peers without descriptors, and peers of other namespaces: who lives is not taken for dead."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.kernel.peers import Peers, alive, start_time
from actors.kernel.runtime import Runtime
from tests.waiting import wait_until
from transport.bus.address import Address, inbox_path


@contextmanager
def no_descriptors() -> Iterator[None]:
    """There is not one to be had."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    held: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many"):
            _take_all(held)
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _take_all(held: list[int]) -> None:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that does nothing."""
    with subprocess.Popen(["sleep", "60"]) as made:
        yield made
        made.kill()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Dead, and not reaped."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@contextmanager
def knowing(run: Path) -> Iterator[tuple[Peers, list[str]]]:
    runtime = Runtime(run=str(run), name="watcher")
    down: list[str] = []
    runtime.when_down.append(lambda address, reason: down.append(address.name))
    try:
        yield runtime.peers, down
    finally:
        runtime.close()


async def test_b84_a_peer_that_lives_is_not_dead_for_want_of_a_descriptor(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    peer = Address("peer", 7, process.pid, start_time(process.pid))
    with knowing(tmp_path) as (peers, down):
        with no_descriptors():
            assert peers.watch(peer)
            assert alive(peer)
            await asyncio.sleep(0.1)
            assert peers.watch(peer)
        assert down == []
        await wait_until(lambda: peers._watches[peer.pid, peer.started].fd >= 0)
        kill(process)
        await wait_until(lambda: down == ["peer"])


async def test_who_ends_while_there_is_no_descriptor_is_told_dead_then(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    peer = Address("peer", 7, process.pid, start_time(process.pid))
    with knowing(tmp_path) as (peers, down):
        with no_descriptors():
            assert peers.watch(peer)
            kill(process)
        assert not alive(peer)
        await wait_until(lambda: down == ["peer"])


@contextmanager
def far_peer(run: Path, own: Address) -> Iterator[Address]:
    """A peer of another namespace: all that shows here is its inbox."""
    far = Address("far", 7, 4242, 1, own.space + 99)
    path = inbox_path(str(run), far, "c")
    with socket.socket(socket.AF_UNIX) as inbox:
        inbox.bind(path)
        inbox.listen(8)
        yield far
    os.unlink(path)


async def test_b84_a_far_peer_lives_without_descriptors_and_is_kept_among_many(
    tmp_path: Path,
) -> None:
    with knowing(tmp_path) as (peers, down):
        own = peers._port.address
        with far_peer(tmp_path, own) as far:
            with no_descriptors():
                assert peers.watch(far)
                assert peers.alive(far)
            await wait_until(lambda: peers._watches[far.incarnation, -1].fd >= 0)
            peers.note(far)
            for number in range(100, 5000):
                peers.note(Address("many", number, own.pid, own.started, own.space))
            assert peers.find(far.incarnation) == far
            peers.lost(far, "nothing can be sent to it")
            await wait_until(lambda: down == ["far"])
        await asyncio.sleep(0.2)  # its connection has ended
        assert down == ["far"]
