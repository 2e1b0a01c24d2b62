"""The kit of hosts does what tests build on: delay, loss, cut, mend, and nothing left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.hosts.kit import Host, Hosts, lay_hosts
from tests.waiting import LONG, TICK, wait_until_sync

#: Seconds for anything of these tests that ends by itself.
SLOW = LONG
PORT = 7000


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with lay_hosts("a", "b", "c", seed=7) as laid:
        yield laid


@pytest.fixture(autouse=True)
def _whole(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "hosts" in request.fixturenames:
        request.getfixturevalue("hosts").reset()


def datagrams(host: Host) -> socket.socket:
    """A UDP socket at the host's address, port PORT."""

    def bound() -> socket.socket:
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        found.bind((host.address, PORT))
        found.settimeout(SLOW)
        return found

    return host.call(bound)


def acquaint(hosts: Hosts, near: socket.socket, far: socket.socket, other: str = "b") -> None:
    """Let both hosts learn where the other is: one datagram from a to that one and one back."""
    near.sendto(b"first", (hosts[other].address, PORT))
    assert far.recv(10) == b"first"
    far.sendto(b"second", (hosts["a"].address, PORT))
    assert near.recv(10) == b"second"


@contextlib.contextmanager
def joined(hosts: Hosts, one: str, other: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection between two hosts."""
    to = (hosts[other].address, PORT)
    with hosts[other].call(socket.create_server, to) as server:
        near = hosts[one].call(socket.create_connection, to, SLOW)
        with near, server.accept()[0] as far:
            far.settimeout(SLOW)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield near, far


def round_trip(near: socket.socket, far: socket.socket) -> float:
    """Seconds of a word there and back."""
    began = time.monotonic()
    near.sendall(b"?")
    assert far.recv(1) == b"?"
    far.sendall(b"!")
    assert near.recv(1) == b"!"
    return time.monotonic() - began


def whole(near: socket.socket, far: socket.socket, size: int) -> None:
    """So many bytes pass from one to the other, each as it was."""
    data = os.urandom(size)
    sending = threading.Thread(target=near.sendall, args=(data,))
    sending.start()
    found = bytearray()
    while len(found) < size:
        found += far.recv(1 << 20)
    sending.join()
    assert found == data


def test_hosts_reach_each_other_and_nothing_else(hosts: Hosts) -> None:
    for one, other in (("a", "b"), ("b", "c"), ("c", "a")):
        with joined(hosts, one, other) as (near, far):
            assert near.getpeername() == (hosts[other].address, PORT)
            assert far.getpeername()[0] == hosts[one].address
            whole(near, far, 3_000_000)
    with pytest.raises(OSError, match=r"unreachable"):
        hosts["a"].call(socket.create_connection, ("192.0.2.1", 80), TICK)


def test_a_host_has_a_loopback_of_its_own(hosts: Hosts) -> None:
    listen = ("127.0.0.1", PORT)
    servers = [host.call(socket.create_server, listen) for host in hosts]
    try:
        for host in hosts:
            host.call(socket.create_connection, listen, SLOW).close()
    finally:
        for server in servers:
            server.close()


def test_a_program_in_a_host_is_as_if_started_here(hosts: Hosts) -> None:
    code = "import os, sys; print(os.getpid(), os.readlink('/proc/self/ns/net')); sys.exit(7)"
    process = hosts["b"].start([sys.executable, "-S", "-c", code])
    out, _ = process.communicate(timeout=SLOW)
    pid, network = out.split()
    assert int(pid) == process.pid
    assert network == hosts["b"].call(os.readlink, "/proc/thread-self/ns/net")
    assert network != os.readlink("/proc/self/ns/net")
    assert process.returncode == 7
    process = hosts["b"].start(["sleep", "60"])
    process.terminate()
    assert process.wait(SLOW) == -signal.SIGTERM
    assert process.stdout is not None
    process.stdout.close()


def test_delay_is_what_was_asked_for(hosts: Hosts) -> None:
    hosts.cable("a").delay(0.01)
    hosts.cable("b").delay(0.02)
    with joined(hosts, "a", "b") as (near, far):
        assert min(round_trip(near, far) for _ in range(5)) >= 2 * 0.03
        hosts.cable("b").delay(0.0).delay(0.05, "in")  # from now on, and one way only
        assert min(round_trip(near, far) for _ in range(5)) >= 2 * 0.01 + 0.05
        hosts.reset()
        # A way back is soon found that takes less than the one delay that there was.
        wait_until_sync(lambda: round_trip(near, far) < 0.05, SLOW, "nothing is delayed")
    with joined(hosts, "b", "c") as (near, far):  # others are not delayed
        hosts.cable("a").delay(1.0)
        wait_until_sync(lambda: round_trip(near, far) < 0.5, SLOW, "others are not")


def test_frames_keep_their_order_when_the_delay_falls(hosts: Hosts) -> None:
    with datagrams(hosts["a"]) as near, datagrams(hosts["b"]) as far:
        acquaint(hosts, near, far)
        hosts.cable("b").delay(0.1)
        for number in range(50):
            if number == 25:
                hosts.cable("b").delay(0.0)
            near.sendto(bytes([number]), (hosts["b"].address, PORT))
        assert [far.recv(10)[0] for _ in range(50)] == list(range(50))


def test_loss_is_what_was_asked_for(hosts: Hosts) -> None:
    count, chance = 4000, 0.1
    with datagrams(hosts["a"]) as near, datagrams(hosts["b"]) as far:
        to = (hosts["b"].address, PORT)
        acquaint(hosts, near, far)
        hosts.cable("b").loss(chance, "in")
        before = hosts.cable("b").counts()["in"]
        for number in range(count):
            near.sendto(number.to_bytes(2, "big"), to)
            if not number % 50:  # no faster than the switch of a busy machine
                wait_until_sync(partial(came, hosts, before, number + 1), SLOW)
        wait_until_sync(partial(came, hosts, before, count), SLOW, "the switch has seen all")
        found = []
        while select.select([far], [], [], 0)[0]:
            found.append(int.from_bytes(far.recv(2), "big"))
        assert found == sorted(set(found))
        lost = count - len(found)
        # Six standard deviations: 1 run of 500 million is beyond.
        assert abs(lost - count * chance) < 6 * (count * chance * (1 - chance)) ** 0.5
        assert hosts.cable("a").counts()["out"]["lost"] == 0


def came(hosts: Hosts, before: dict[str, int], count: int) -> bool:
    """Whether so many frames for b were let through or lost since."""
    found = hosts.cable("b").counts()["in"]
    return sum(found[each] - before[each] for each in ("passed", "lost")) >= count


def test_a_connection_bears_loss_and_delay(hosts: Hosts) -> None:
    for each in "ab":
        hosts.cable(each).delay(0.002).loss(0.01)
    with joined(hosts, "a", "b") as (near, far):
        whole(near, far, 1_000_000)
    assert hosts.cable("b").counts()["in"]["lost"]


def test_a_cut_stops_all_and_a_mend_lets_it_go_on(hosts: Hosts) -> None:
    with joined(hosts, "a", "b") as (near, far), joined(hosts, "a", "c") as others:
        hosts.cable("b").cut()
        near.sendall(b"late")
        far.sendall(b"too")
        assert not select.select([near, far], [], [], 5 * TICK)[0]
        round_trip(*others)
        hosts.cable("b").mend()
        assert (far.recv(4), near.recv(3)) == (b"late", b"too")


def test_a_cable_can_be_cut_one_way(hosts: Hosts) -> None:
    with datagrams(hosts["a"]) as near, datagrams(hosts["b"]) as far:
        acquaint(hosts, near, far)
        hosts.cable("b").cut("in")  # b is heard, and hears nothing
        far.sendto(b"!", (hosts["a"].address, PORT))
        assert near.recv(10) == b"!"
        near.sendto(b"?", (hosts["b"].address, PORT))
        assert not select.select([far], [], [], 2 * TICK)[0]


def test_what_is_on_its_way_is_cut_too(hosts: Hosts) -> None:
    with (
        datagrams(hosts["a"]) as near,
        datagrams(hosts["b"]) as far,
        datagrams(hosts["c"]) as other,
    ):
        acquaint(hosts, near, far)
        acquaint(hosts, near, other, "c")
        hosts.cable("a").delay(20 * TICK)
        near.sendto(b"never", (hosts["b"].address, PORT))
        near.sendto(b"behind it", (hosts["c"].address, PORT))
        hosts.cable("b").cut()
        assert other.recv(10) == b"behind it"
        hosts.cable("b").mend()
        near.sendto(b"after", (hosts["b"].address, PORT))
        assert far.recv(10) == b"after"


def test_too_many_bytes_on_their_way_are_dropped_and_counted(hosts: Hosts) -> None:
    with datagrams(hosts["a"]) as near, datagrams(hosts["b"]) as far:
        acquaint(hosts, near, far)
        hosts.cable("b").delay(60.0)

        def dropped() -> bool:
            for _ in range(20):
                near.sendto(bytes(65_000), (hosts["b"].address, PORT))
            return bool(hosts.cable("b").counts()["in"]["dropped"])

        wait_until_sync(dropped, SLOW, "the switch is full")


def test_nothing_is_left_of_hosts() -> None:
    with lay_hosts("a", "b") as laid:
        networks = {host.call(os.readlink, "/proc/thread-self/ns/net") for host in laid}
        folders = [host.run for host in laid]
        switch = laid[next(iter(laid)).name].network.split("/")[2]
        assert held(networks) == {switch}
    assert held(networks) == set()
    assert not any(os.path.exists(os.path.dirname(each)) for each in folders)


def test_nothing_is_left_when_the_test_is_killed() -> None:
    code = (
        "import os, sys, time\n"
        "from tests.hosts.kit import lay_hosts\n"
        "with lay_hosts('a', 'b') as hosts:\n"
        "    program = hosts['a'].start(['sleep', '600'])\n"
        "    network = hosts['a'].call(os.readlink, '/proc/thread-self/ns/net')\n"
        "    while os.readlink(f'/proc/{program.pid}/ns/net') != network:\n"
        "        time.sleep(0.01)\n"
        "    print(network, program.pid, hosts['a'].run, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with lay_hosts("a"):
        pass  # or the reason to skip
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        network, pid, run = process.stdout.readline().split()
    assert pid in held({network})
    process.kill()
    process.wait()
    wait_until_sync(lambda: not held({network}), SLOW, "the switch and the program are gone")
    assert not os.path.exists(os.path.dirname(run))


def held(networks: set[str]) -> set[str]:
    """Pids of the processes that are in one of these networks or hold a descriptor of it."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            paths = [f"/proc/{pid}/ns/net"]
            paths += [f"/proc/{pid}/fd/{each}" for each in os.listdir(f"/proc/{pid}/fd")]
            if any(_target(path) in networks for path in paths):
                found.add(pid)
    return found


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
