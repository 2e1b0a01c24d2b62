"""Peers: a death is known at once, with its reason, and behind everything the dead had sent."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.kernel import peers
from actors.kernel.peers import Peers, alive, start_time
from actors.kernel.runtime import Runtime
from actors.messages import Down, Hello, Tell
from tests.waiting import LONG, TICK, wait_until
from transport.bus.address import Address, inbox_path, remove_inboxes
from transport.bus.port import Port

_SENDER = """
import asyncio, json, os, sys
from actors.kernel.runtime import Runtime
from actors.messages import Tell
from transport.bus.address import Address

async def main(run, to, count):
    runtime = Runtime(run=run, name="sender")
    print(json.dumps(list(runtime.address)), flush=True)
    sys.stdin.readline()
    for number in range(count):
        runtime.port.send(to, Tell("number", b"%d" % number))
        runtime.port.flush()
        await runtime.port.wait_drained(to)
    runtime.port.close(10)
    runtime.bus.close()  # what was sent is in the reader's hands, read or not
    print("sent", flush=True)
    sys.stdin.readline()

asyncio.run(main(sys.argv[1], Address(*json.loads(sys.argv[2])), int(sys.argv[3])))
"""


class Sender:
    """A process that introduces itself, sends when it is told to, and then waits to be killed."""

    def __init__(self, run: str, to: Address, count: int) -> None:
        command = [sys.executable, "-c", _SENDER, run, json.dumps(list(to)), str(count)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = Address(*json.loads(self.process.stdout.readline()))

    def send(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "sent\n"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Watcher:
    """A port whose messages and deaths stand in one list, in the order of their coming."""

    def __init__(self, run: str) -> None:
        self.runtime = Runtime(run=run, name="watcher")
        self.told: list[str | int] = []
        self.runtime.on(Tell, lambda sender, m: self.told.append(int(m.payload)))
        self.runtime.when_down.append(lambda address, why: self.told.append(why))

    @property
    def peers(self) -> Peers:
        return self.runtime.peers

    @property
    def port(self) -> Port:
        return self.runtime.port


@asynccontextmanager
async def watching(tmp_path: Path, count: int = 0) -> AsyncIterator[tuple[Watcher, Sender]]:
    watcher = Watcher(str(tmp_path))
    sender = await asyncio.to_thread(Sender, str(tmp_path), watcher.runtime.address, count)
    try:
        yield watcher, sender
    finally:
        sender.close()
        watcher.runtime.close()


async def test_a_death_is_known_at_once(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        assert watcher.peers.watch(sender.address)
        assert watcher.peers.watch(sender.address)  # twice is once
        assert alive(sender.address)
        os.kill(sender.address.pid, signal.SIGKILL)
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["its process is gone"]
        assert watcher.peers.death(sender.address) == "its process is gone"
        assert not watcher.peers.watch(sender.address)
        assert not alive(sender.address)
        assert watcher.told == ["its process is gone"]


async def test_nothing_is_sent_to_one_that_has_ended_while_its_last_words_are_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path) as (watcher, sender):
        assert watcher.peers.watch(sender.address)
        monkeypatch.setattr(peers, "_WAIT_REASON", LONG)  # nor is it told before we have looked
        os.kill(sender.address.pid, signal.SIGKILL)
        await wait_until(lambda: watcher.told or not watcher.peers.watch(sender.address))
        assert watcher.told == []
        assert watcher.peers.death(sender.address) is None
        monkeypatch.undo()
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["its process is gone"]


async def test_the_word_of_the_node_is_the_reason(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        watcher.peers.watch(sender.address)
        watcher.peers.reason(sender.address, "killed by SIGKILL")
        os.kill(sender.address.pid, signal.SIGKILL)
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["killed by SIGKILL"]


async def test_the_reason_may_come_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_WAIT_REASON", LONG)  # however late we are
    async with watching(tmp_path) as (watcher, sender):
        watcher.peers.watch(sender.address)
        os.kill(sender.address.pid, signal.SIGKILL)
        sender.process.wait()
        await asyncio.sleep(0.015)
        assert watcher.told == []  # it is waited for
        watcher.runtime._deliver(0, Down(sender.address, "exit code 9"))
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["exit code 9"]


async def test_who_is_not_reaped_yet_is_waited_for(tmp_path: Path) -> None:
    """Its parent, the node, has not come to it and cannot say how it ended."""
    async with watching(tmp_path) as (watcher, sender):
        watcher.peers.watch(sender.address)
        (watch,) = watcher.peers._watches.values()
        os.kill(sender.address.pid, signal.SIGKILL)
        await wait_until(lambda: watch.rounds > 2 * peers._WAIT_REASON / peers._SETTLE)
        assert watcher.told == []
        assert sender.process.wait() == -signal.SIGKILL
        watcher.peers.reason(sender.address, "killed by SIGKILL")
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["killed by SIGKILL"]


async def test_a_process_that_was_dead_before_is_told_too(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        sender.close()
        assert not watcher.peers.watch(sender.address)
        assert not watcher.peers.watch(sender.address)  # twice is once
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["its process is gone"]
        assert not watcher.peers.watch(sender.address)
        assert watcher.told == ["its process is gone"]


async def test_who_is_found_dead_is_told_behind_what_it_had_sent_too(tmp_path: Path) -> None:
    count = 1000
    async with watching(tmp_path, count) as (watcher, sender):
        sender.send()
        os.kill(sender.address.pid, signal.SIGKILL)
        sender.process.wait()
        assert not watcher.peers.watch(sender.address)  # its first message makes us look
        assert watcher.told == []
        await wait_until(lambda: "its process is gone" in watcher.told)
        assert watcher.told == [*range(count), "its process is gone"]


async def test_closing_forgets_who_was_found_dead(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        sender.close()
        assert not watcher.peers.watch(sender.address)
        watcher.runtime.close()
        await asyncio.sleep(TICK)
        assert watcher.told == []


async def test_a_pid_that_somebody_else_has_now_is_dead(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        before = sender.address._replace(started=sender.address.started - 1)
        assert not alive(before)
        assert not watcher.peers.watch(before)
        await wait_until(lambda: len(watcher.told) == 1)


async def test_a_death_is_told_behind_everything_the_dead_had_sent(tmp_path: Path) -> None:
    count = 1000  # more than ZeroMQ holds by itself: it dropped what its pipe had no room for
    async with watching(tmp_path, count) as (watcher, sender):
        watcher.peers.watch(sender.address)
        # Nothing is read while this thread waits: all of it stands in the inbox at the death.
        sender.send()
        assert watcher.told == []
        os.kill(sender.address.pid, signal.SIGKILL)
        sender.process.wait()
        await wait_until(lambda: "its process is gone" in watcher.told)
        assert watcher.told == [*range(count), "its process is gone"]


async def test_a_death_does_not_wait_for_an_inbox_that_is_held(tmp_path: Path) -> None:
    # The handler that keeps the mailbox full may be the one that must hear of it.
    count = 20
    async with watching(tmp_path, count) as (watcher, sender):
        watcher.peers.watch(sender.address)
        watcher.port.hold_data(True)
        sender.send()
        os.kill(sender.address.pid, signal.SIGKILL)
        sender.process.wait()
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["its process is gone"]
        watcher.port.hold_data(False)
        await wait_until(lambda: len(watcher.told) > count)
        assert watcher.told == ["its process is gone", *range(count)]


async def test_two_incarnations_of_one_process_die_together(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        other = sender.address._replace(name="other", incarnation=sender.address.incarnation + 1)
        watcher.peers.watch(sender.address)
        watcher.peers.watch(other)
        os.kill(sender.address.pid, signal.SIGKILL)
        await wait_until(lambda: len(watcher.told) == 2)
        assert watcher.peers.death(other) is not None


async def test_who_introduced_itself_is_found(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        assert watcher.peers.find(sender.address.incarnation) is None
        watcher.runtime._deliver(sender.address.incarnation, Hello(sender.address))
        assert watcher.peers.find(sender.address.incarnation) == sender.address
        watcher.peers.watch(sender.address)
        os.kill(sender.address.pid, signal.SIGKILL)
        await wait_until(lambda: watcher.told)
        assert watcher.peers.find(sender.address.incarnation) is None


async def test_b84_a_greeting_makes_it_look_how_many_descriptors_are_left(tmp_path: Path) -> None:
    """ZeroMQ may have taken the connections of whoever greets before the loop could see them."""
    async with watching(tmp_path) as (watcher, sender):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = len(os.listdir("/proc/self/fd")) + 10
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        try:
            crowd = watcher.runtime.belonging._crowd
            assert not crowd.hidden
            watcher.runtime._deliver(sender.address.incarnation, Hello(sender.address))
            assert crowd.hidden
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        crowd.check()
        assert not crowd.hidden


async def test_nobody_is_told_after_closing(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        watcher.peers.watch(sender.address)
        os.kill(sender.address.pid, signal.SIGKILL)
        watcher.runtime.close()
        sender.process.wait()
        await asyncio.sleep(TICK)
        assert watcher.told == []


def test_a_start_time_tells_a_process_from_none() -> None:
    assert start_time(os.getpid()) > 0
    assert start_time(2**22 + 1) == 0


def far(address: Address) -> Address:
    """The same incarnation as a process of another PID namespace knows it, under our own pid."""
    return address._replace(pid=os.getpid(), started=1, space=4242)


async def test_a_peer_of_another_pid_namespace_is_known_by_its_connection(tmp_path: Path) -> None:
    async with watching(tmp_path, 50) as (watcher, sender):
        address = far(sender.address)
        assert watcher.peers.watch(address)
        assert watcher.peers.watch(address)
        assert watcher.peers.alive(address)
        assert not alive(address)  # its pid is ours, and means nothing
        await asyncio.to_thread(sender.send)
        os.kill(sender.address.pid, signal.SIGKILL)
        await wait_until(lambda: watcher.told and watcher.told[-1] == "its process is gone")
        assert watcher.told == [*range(50), "its process is gone"]  # behind all that it had sent
        assert not watcher.peers.watch(address)
        assert not watcher.peers.alive(address)


async def test_one_of_another_pid_namespace_that_was_dead_before_is_told(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        sender.close()
        assert not watcher.peers.watch(far(sender.address))
        assert watcher.told == []
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["its process is gone"]


async def test_a_connection_that_ends_is_no_death_where_another_can_be_made(tmp_path: Path) -> None:
    watcher = Watcher(str(tmp_path))
    peer = far(Address("peer", 77, 0, 0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(inbox_path(str(tmp_path), peer, "c"))
    listener.listen(1)
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        assert watcher.peers.watch(peer)
        for _ in range(3):  # as ZeroMQ does with those who do not greet
            caller, _ = await asyncio.wait_for(loop.sock_accept(listener), LONG)
            caller.send(b"\xff\x00")
            caller.close()
        assert watcher.told == []
        assert watcher.peers.watch(peer)
        listener.close()
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["its process is gone"]
    finally:
        listener.close()
        watcher.runtime.close()


async def test_one_of_another_pid_namespace_may_leave(tmp_path: Path) -> None:
    async with watching(tmp_path) as (watcher, sender):
        before = len(os.listdir("/proc/self/fd"))
        address = far(sender.address)
        watcher.peers.note(address)
        assert watcher.peers.watch(address)
        watcher.peers.left(address.incarnation)
        assert watcher.told == ["it has closed"]
        assert len(os.listdir("/proc/self/fd")) == before


async def test_b58_an_inbox_that_is_gone_hides_no_cause_of_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has removed what the dead left before this loop has heard of the death."""
    monkeypatch.setattr(peers, "_WAIT_REASON", LONG)  # however late we are
    async with watching(tmp_path) as (watcher, sender):
        assert watcher.peers.watch(sender.address)
        sender.process.kill()
        sender.process.wait()
        remove_inboxes(str(tmp_path), sender.address)
        watcher.port.send(sender.address, Tell("number", b"1"), control=True)
        watcher.port.flush()  # before the loop can see that the process has ended
        await asyncio.sleep(0.02)  # the node's word comes when the inbox was missed long ago
        watcher.peers.reason(sender.address, "killed by SIGKILL")
        await wait_until(lambda: watcher.told)
        assert watcher.told == ["killed by SIGKILL"]
