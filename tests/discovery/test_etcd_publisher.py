"""Records written into a real etcd: as long as their ingress lives, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from actors.discovery import etcd_publisher
from actors.discovery.etcd import EtcdDiscovery
from actors.discovery.etcd_connection import Connection, Refused
from actors.discovery.etcd_publisher import EtcdPublisher
from actors.discovery.record import pack_record
from actors.errors import SpecError
from actors.messages import Added, Removed, Snapshot
from tests.discovery.etcd_rig import (
    LEASE,
    PATIENCE,
    ROOT,
    TTL,
    Cable,
    key,
    node,
    publisher,
    reader,
    standing,
)
from tests.discovery.samples import door, engine, far
from tests.etcd import Etcd, running_etcd
from tests.ports import free_address
from tests.waiting import TICK, wait_until, wait_until_sync

SOURCES = Path(etcd_publisher.__file__).parent


async def test_keys_and_values_are_dynamos_under_one_lease(etcd: Etcd) -> None:
    async with publisher(etcd.address) as writer:
        writer.changed(Added(far(7)))  # of another node
        writer.changed(Added(door(5, "10.0.0.7:7400")))
        writer.changed(Snapshot([engine(0x2040A22A83B43905, "bench.worker.generate"), engine(2)]))
        await writer.settle(PATIENCE)
        found = etcd.get()
        assert set(found) == {"v1/instances/bench/worker/generate/2040a22a83b43905", key(2)}
        assert json.loads(found[key(2)].value) == pack_record(engine(2), "10.0.0.7:7400", 9)
        leases = {each.lease for each in found.values()}
        assert len(leases) == 1
        assert leases != {0}
        (lease,) = leases
        told = etcd.ctl("lease", "timetolive", f"{lease:x}")
        assert f"granted with TTL({LEASE:g}s)" in told  # who dies is not listed for longer
        writer.changed(Snapshot([engine(2), engine(3)]))
        writer.changed(Removed(engine(2), "ended"))
        await writer.settle(PATIENCE)
        assert set(etcd.get()) == {key(3)}
        assert writer.state() == ""
    assert etcd.get() == {}
    await writer.close()
    writer.changed(Added(engine(9)))
    await writer.settle(TICK)
    assert writer.state() == ""


async def test_a_record_whose_answer_was_lost_is_withdrawn_all_the_same(etcd: Etcd) -> None:
    cable = Cable(etcd)
    async with cable.laid() as address, publisher(address, 1, ttl=4.0) as writer:
        cable.answers = False
        writer.changed(Added(engine(2)))
        await wait_until(lambda: key(2) in etcd.get(), PATIENCE)
        writer.changed(Removed(engine(2), "ended"))
        cable.answers = True
        await wait_until(lambda: set(etcd.get()) == {key(1)}, PATIENCE)


async def test_what_comes_and_goes_quickly_ends_in_what_is_true(etcd: Etcd) -> None:
    async with publisher(etcd.address, 1, 2) as writer:
        for _ in range(500):
            writer.changed(Removed(engine(1), "hidden"))
            writer.changed(Added(engine(1)))
            writer.changed(Added(engine(3)))
            writer.changed(Removed(engine(3), "gone"))
        await writer.settle(PATIENCE)
        assert set(etcd.get()) == {key(1), key(2)}


async def test_etcd_may_come_later(etcd: Etcd) -> None:
    etcd.kill()
    writer = EtcdPublisher(etcd.address, reached="10.0.0.7:7400", ingress=9, ttl=LEASE)
    writer.start()
    writer.changed(Added(engine(1)))
    await wait_until(lambda: "onnection refused" in writer.state())
    async with asyncio.timeout(PATIENCE):
        await writer.settle(10 * PATIENCE)  # nothing can be written: nobody is kept waiting
    etcd.start()
    await wait_until(lambda: standing(etcd, 1), PATIENCE)
    await writer.close()
    assert etcd.get() == {}


async def test_b141_a_key_that_somebody_has_removed_is_written_again(etcd: Etcd) -> None:
    async with publisher(etcd.address, 1, 2, ttl=2 * TTL):
        etcd.delete(key(1))
        await wait_until(lambda: standing(etcd, 1), PATIENCE)
        for lease in {each.lease for each in etcd.get().values()}:
            etcd.ctl("lease", "revoke", f"{lease:x}")
        await wait_until(lambda: set(etcd.get()) == {key(1), key(2)}, PATIENCE)


async def test_b141_a_node_that_stood_still_is_back_when_it_goes_on(etcd: Etcd) -> None:
    """It is out of the list meanwhile; after SIGCONT it is back by itself."""
    with node(etcd, 1, 2) as process:
        async with reader(etcd.address) as (_, heard):
            os.kill(process.pid, signal.SIGSTOP)
            await wait_until(lambda: heard.instances == set(), PATIENCE)
            os.kill(process.pid, signal.SIGCONT)
            await wait_until(lambda: heard.instances == {1, 2}, PATIENCE)
            assert set(heard.removed) == {1, 2}


async def test_b148_the_end_of_an_old_lease_leaves_the_successor(etcd: Etcd) -> None:
    """A worker is killed and starts again; and an ingress, whose engines stay who they are."""
    async with reader(etcd.address) as (_, heard):
        with node(etcd, 1, 2, ttl=3 * TTL) as process:
            process.kill()
            process.wait()
            async with publisher(etcd.address, 1, 22, ingress=10):
                await wait_until(lambda: heard.instances == {1, 22}, PATIENCE)  # it has ended
                assert set(etcd.get(ROOT)) == {key(1), key(22)}
                assert heard.removed == [2]


@pytest.mark.parametrize("looks", [True, False], ids=["has looked", "has not looked"])
async def test_b148_a_late_end_withdraws_nothing_of_the_successor(etcd: Etcd, looks: bool) -> None:
    async with (
        publisher(etcd.address, 1, 2, ingress=9, ttl=TTL if looks else LEASE) as old,
        publisher(etcd.address, 1, ingress=10) as new,
    ):
        taken = etcd.get()[key(1)]
        if looks:
            await asyncio.sleep(TTL)  # and leaves what is not his any more
        assert etcd.get()[key(1)] == taken
        old.changed(Removed(engine(1), "late"))
        await old.settle(PATIENCE)
        old.changed(Added(engine(1)))
        await old.settle(PATIENCE)
        assert etcd.get()[key(1)] == taken
        new.changed(Added(engine(1, capacity=9)))
        await new.settle(PATIENCE)
        await old.close()
        assert set(etcd.get()) == {key(1)}
        assert b'"capacity": 9' in etcd.get()[key(1)].value


async def test_b144_a_loop_that_stands_still_loses_no_lease(etcd: Etcd) -> None:
    ttl = 3 * TTL  # the process itself may stand still for a moment
    async with publisher(etcd.address, 1, ttl=ttl):
        before = etcd.get()
        time.sleep(1.2 * ttl)  # noqa: ASYNC251 - that is the point
        assert etcd.get() == before


class Slow(EtcdPublisher):
    """Writing takes longer than its lease lives."""

    async def _put(self, connection: Connection, key: bytes, value: bytes) -> None:
        await asyncio.sleep(TTL / 5)
        await super()._put(connection, key, value)


async def test_a_lease_is_renewed_while_much_is_written(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(etcd_publisher, "_ABREAST", 1)
    writer = Slow(etcd.address, reached="10.0.0.7:7400", ingress=9, ttl=2 * TTL)
    writer.start()
    writer.changed(Snapshot([engine(each) for each in range(14)]))
    await writer.settle(PATIENCE)
    assert len(etcd.get(ROOT)) == 14
    assert "was lost" not in caplog.text
    await writer.close()


async def test_to_end_takes_no_longer_for_an_etcd_that_hangs(
    etcd: Etcd, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_publisher, "_PATIENCE", 3 * TICK)
    caplog.set_level(logging.WARNING)
    async with publisher(etcd.address, 1, ttl=10 * PATIENCE) as writer:
        etcd.freeze()
        async with asyncio.timeout(PATIENCE):
            await writer.close()
    etcd.thaw()
    assert f"stay there until their lease ends, within {10 * PATIENCE:g} s" in caplog.text


async def test_the_users_of_one_process_share_a_thread_and_it_ends(etcd: Etcd) -> None:
    def names() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == "callhome-etcd"]

    async with publisher(etcd.address, 1), reader(etcd.address) as (found, _):
        async with publisher(f"etcd://{free_address()},{etcd.endpoint}", 2):
            assert names() == ["callhome-etcd"]
        found.stop()
        assert names() == ["callhome-etcd"]
    await wait_until(lambda: names() == [])


async def test_a_user_and_a_password_are_used_where_etcd_asks_for_them(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running_etcd() as server:
        for name in ("root", "node"):
            server.ctl("user", "add", f"{name}:word", "--interactive=false")
        server.ctl("role", "add", "records")
        server.ctl("role", "grant-permission", "records", "--prefix=true", "readwrite", ROOT)
        server.ctl("user", "grant-role", "node", "records")
        server.ctl("auth", "enable")
        found = EtcdDiscovery(server.address, ttl=TTL)
        await found.subscribe(lambda change: None)
        await wait_until(lambda: "user name is empty; give ETCD_AUTH_USERNAME" in found.state())
        found.stop()
        monkeypatch.setenv("ETCD_AUTH_USERNAME", "node")
        monkeypatch.setenv("ETCD_AUTH_PASSWORD", "wrong")
        async with reader(server.address) as (found, _):
            words = "it does not let us in: etcdserver: authentication failed"
            await wait_until(lambda: words in found.state())
        monkeypatch.setenv("ETCD_AUTH_PASSWORD", "word")
        async with (
            reader(server.address, ttl=TTL) as (found, heard),
            publisher(server.address, 1, ttl=TTL) as writer,
        ):
            await wait_until(lambda: heard.instances == {1}, PATIENCE)
            await asyncio.sleep(TTL / 2)  # the lease is renewed, and its keys are asked for
            await wait_until(lambda: found.state() == writer.state() == "")
            await writer.close()
            await wait_until(lambda: not heard.known, PATIENCE)
    assert "word" not in caplog.text.replace("password", "")


async def test_who_withdraws_is_waited_for_while_another_record_is_refused(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_publisher, "_PAUSE", 0.3)
    call = Connection.call

    async def choosy(self: Connection, name: str, request: Any, limit: float) -> Any:
        if name == "Put" and request.key.decode() == key(2):
            raise Refused("permission denied")
        return await call(self, name, request, limit)

    monkeypatch.setattr(Connection, "call", choosy)
    async with publisher(etcd.address, 1) as writer:
        writer.changed(Added(engine(2)))
        await wait_until(lambda: "permission denied" in writer.state())
        writer.changed(Removed(engine(1), "drains"))
        await writer.settle(PATIENCE)
        assert not etcd.get(ROOT)


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aetcd", None)
    writer = EtcdPublisher("etcd://h:1", reached="h:2", ingress=1)
    with pytest.raises(SpecError, match=r"^etcd: .*pip install 'callhome\[etcd\]'"):
        writer.start()
    assert threading.active_count() == 1


async def test_closing_what_never_started_is_nothing() -> None:
    writer = EtcdPublisher("etcd://h:1", reached="h:2", ingress=1)
    writer.changed(Added(engine(1)))
    await writer.settle(TICK)
    await writer.close()
    assert writer.state() == ""


_FORGETS = """
import asyncio, sys
from tests.discovery.etcd_rig import EtcdDiscovery, EtcdPublisher, Added, engine
async def main():
    writer = EtcdPublisher(sys.argv[1], reached="10.0.0.7:7400", ingress=9, ttl=3.0)
    writer.start()
    writer.changed(Added(engine(1)))
    await writer.settle(60.0)
    await EtcdDiscovery(sys.argv[1]).subscribe(lambda change: None)
asyncio.run(main())
print("up", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_forgets_to_end_it_ends_nonetheless(etcd: Etcd) -> None:
    command = [sys.executable, "-c", _FORGETS, etcd.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert standing(etcd, 1)
        etcd.freeze()
        process.communicate(b"\n", PATIENCE)
    etcd.thaw()
    assert process.returncode == 0
    wait_until_sync(lambda: not standing(etcd, 1), PATIENCE)


_JUMP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *jump(void) {
    static volatile long *at;
    if (!at) {
        const char *path = getenv("CALLHOME_TEST_JUMP");
        at = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
    }
    return at;
}
int clock_gettime(clockid_t clock, struct timespec *into) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, into);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) into->tv_sec += *jump();
    return done;
}
int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    into->tv_sec = now.tv_sec;
    into->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
"""


def test_b151_a_wall_clock_that_jumps_ends_no_lease(etcd: Etcd, tmp_path: Path) -> None:
    """That of the whole process jumps, gRPC's too, by an hour in either direction."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: a library that turns the clock of one process")
    source, library, jump = tmp_path / "jump.c", tmp_path / "jump.so", tmp_path / "by"
    source.write_text(_JUMP)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    jump.write_bytes((0).to_bytes(8, sys.byteorder))
    ttl = 2 * TTL
    with node(
        etcd, 1, ttl=ttl, environ={"LD_PRELOAD": str(library), "CALLHOME_TEST_JUMP": str(jump)}
    ) as process:
        assert process.stdout is not None
        before = etcd.get()
        hours = []
        for by in (3600, -3600):
            with jump.open("r+b") as file:
                file.write(by.to_bytes(8, sys.byteorder, signed=True))
            time.sleep(1.1 * ttl)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            told = json.loads(process.stdout.readline())
            assert told["known"] == [1]
            assert told["removed"] == []
            hours.append(round((told["wall"] - time.time()) / 3600))
        assert hours == [1, -1]
        assert etcd.get() == before


@pytest.mark.parametrize("path", sorted(SOURCES.glob("*.py")), ids=lambda path: path.stem)
def test_b151_no_lease_is_reckoned_by_the_wall_clock(path: Path) -> None:
    """A directory's reader is given it, for how old a file is that it has not seen before."""
    lines = [line for line in path.read_text().splitlines() if re.search(r"\btime\.time\b", line)]
    allowed = ["changes = self._reader.look(time.monotonic(), time.time())"]
    assert [line.strip() for line in lines] == (allowed if path.stem == "directory" else [])
