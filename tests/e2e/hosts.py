"""Three hosts, etcd on one of them, and what networks and machines do to a cluster:
``python -m tests.e2e.hosts [--delay 0.02] [--loss 0.01] [--cut 30] [--ttl 10] [--peers]``.

Needs root, /dev/net/tun and etcd. It prints a timeline and ends with 1 at the first thing that is
not as it must be. ``tests.e2e.test_hosts`` does the same with shorter times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pytest

from actors.errors import ConnectionLost, DeadlineExceeded
from tests.e2e.host_load import LIMIT, Broken, Load, Talks, each_to_each, wait_known, where
from tests.etcd import Etcd, require_etcd, running_etcd
from tests.hosts.fleet import Fleet, fleet
from tests.hosts.kit import lay_hosts
from tests.waiting import wait_until

NAMES: Final = ("a", "b", "c")
#: The host with etcd, and the one whose cable is cut.
ETCD, CUT = "a", "c"
OTHERS: Final = tuple(each for each in NAMES if each != CUT)
#: Seconds after which all must know all again when a cable is mended or etcd is back.
AGAIN: Final = 5.0
#: What is served on the host whose cable is cut, under a record such as Dynamo's workers write.
THEIRS: Final = "t.theirs.go"
#: Seconds after which nothing may wait for what was sent over a cut cable, or will never be.
SILENT: Final = 12.0


@dataclass
class World:
    """The nodes, their etcd, how much later than it should a thing may come, and who is told."""

    fleet: Fleet
    etcd: Etcd
    ttl: float
    slack: float
    say: Callable[[str], None]
    rate: float = 20.0

    @property
    def gone(self) -> float:
        """Seconds after which a host that has fallen silent is sent nothing any more."""
        return self.ttl + 1.0 + self.slack

    async def unknown(self, instance: int, names: Sequence[str], within: float) -> float:
        """Wait until the routers of these hosts know an instance no more; how long it took."""
        began = time.monotonic()

        async def forgotten() -> bool:
            for name in names:
                async with self.fleet[name].client() as client:
                    if instance in (await where(client)).values():
                        return False
            return True

        await wait_until(forgotten, within, "the instance is not known any more")
        return time.monotonic() - began

    async def known(self, names: Sequence[str], within: float = LIMIT) -> float:
        """Wait until all of these hosts know all of them, each once; how long it took."""
        return await wait_known(self.fleet, names, within, f"{', '.join(names)} know all of them")

    async def instance(self, name: str) -> int:
        """The instance on a host."""
        async with self.fleet[name].client() as client:
            return (await where(client))[""]

    def check(self, load: Load, since: float = 0.0) -> None:
        """Raises Broken if a call of the load has failed."""
        failed = load.failed(since)
        if failed:
            found = Counter(f"{each.source}: {each.error}" for each in failed)
            raise Broken(f"{len(failed)} of {len(load.calls)} calls failed: {found}")
        calls = len([each for each in load.calls if each.began >= since])
        longest = max(each.ended - each.began for each in load.calls if each.began >= since)
        self.say(f"{calls} calls, none failed, the longest took {longest:.2f} s")


@contextlib.contextmanager
def world(
    ttl: float,
    slack: float,
    say: Callable[[str], None],
    *,
    delay: float,
    loss: float,
    peers: bool = False,
) -> Iterator[World]:
    """Three hosts, etcd on the first, a node on each that has joined it; with ``peers`` they are
    told each other's addresses and leave etcd alone.

    From host to host it takes ``delay`` seconds and ``loss`` of the segments are lost, until
    ``streams`` is over. So it is from the first connection on: BBR, where a machine has that, takes
    the quickest answer of the last ten seconds for the length of the way, and sends next to
    nothing by one that has grown longer.
    """
    require_etcd()
    with lay_hosts(*NAMES) as hosts:
        for name in NAMES:  # a way goes over two cables
            hosts.cable(name).delay(delay / 2).loss(1 - (1 - loss) ** 0.5)
        with (
            running_etcd(hosts[ETCD].address, 2379, tuple(hosts[ETCD].prefix)) as etcd,
            fleet(hosts, "" if peers else etcd.address, ttl) as nodes,
        ):
            what = "were told each other's addresses" if peers else f"have joined etcd on {ETCD}"
            say(
                f"three nodes are up and {what}, {delay * 1000:g} ms and {loss:.1%} loss "
                f"one way, lease_ttl {ttl:g} s"
            )
            yield World(nodes, etcd, ttl, slack, say)


async def streams(at: World, items: int = 200, frames: int = 3) -> None:
    """From each to each, in all shapes, by the slow and lossy cables; then they are good ones."""
    hosts = at.fleet.hosts
    await at.known(NAMES)
    began = time.monotonic()
    count = await each_to_each(at.fleet, NAMES, items=items, frames=frames)
    took = time.monotonic() - began
    lost = sum(hosts.cable(name).counts()[way]["lost"] for name in NAMES for way in ("out", "in"))
    hosts.reset()
    at.say(
        f"{count} streams from each to each: whole and in order, {took:.1f} s; {lost} segments "
        "were lost till now; the cables are good from now on"
    )


async def cut_cable(at: World, seconds: float) -> None:
    """The cable of one host is cut and plugged in again."""
    cable = at.fleet.hosts.cable(CUT)
    await at.known(NAMES)
    away = await at.instance(CUT)
    pairs = [(one, other) for one in NAMES for other in NAMES if one != other]
    pace = 0.05
    async with (
        Load(at.fleet, OTHERS, at.rate) as load,
        Talks(at.fleet, pairs, int((seconds + 4.0) / pace), pace) as talks,
    ):
        await asyncio.sleep(1.0)
        cable.cut()
        cut = time.monotonic()
        at.say(f"the cable of {CUT} is cut")
        took = await at.unknown(away, OTHERS, at.gone)
        at.say(f"nobody is sent to {CUT} any more, {took:.1f} s after the cut")
        alone = time.monotonic()
        await asyncio.sleep(max(0.0, cut + seconds - time.monotonic()))
        at.check(load, alone)
        if seconds >= SILENT and (waiting := [each for each in talks.waiting() if CUT in each]):
            raise Broken(f"streams over the cut cable wait still: {waiting}")
        cable.mend()
        at.say(f"mended after {time.monotonic() - cut:.1f} s")
        took = await at.known(NAMES, AGAIN + at.slack)
        at.say(f"all know all again, each once, {took:.1f} s after the mend")
        ends = list(await talks.ends(seconds + LIMIT))
    for pair, end in ends:
        if end and CUT not in pair:
            raise Broken(f"a stream between the others, {pair}, has failed: {end}")
    failed = sum(bool(end) for _, end in ends)
    at.say(
        f"{len(ends)} long streams: {len(ends) - failed} whole, {failed} of the cut host ended "
        "with a typed error, none short"
    )
    at.check(load)
    count = await each_to_each(at.fleet, NAMES, items=5, frames=1)
    at.say(f"{count} streams from each to each: whole and in order")


async def cut_off_etcd(at: World, seconds: float) -> None:
    """The cable of the host with etcd is cut: who is beyond it goes on, and so do its own."""
    cable = at.fleet.hosts.cable(ETCD)
    others = [each for each in NAMES if each != ETCD]
    await at.known(NAMES)
    async with Load(at.fleet, others, at.rate) as load, Load(at.fleet, [ETCD], at.rate) as own:
        cable.cut()
        cut = time.monotonic()
        at.say(f"the cable of {ETCD}, where etcd is, is cut")
        await asyncio.sleep(seconds)
        cable.mend()
        at.say(f"mended after {time.monotonic() - cut:.1f} s")
        took = await at.known(NAMES, AGAIN + at.slack)
        at.say(f"all know all, each once, {took:.1f} s after the mend")
    at.check(load)
    at.check(own)
    count = await each_to_each(at.fleet, NAMES, items=5, frames=1)
    at.say(f"{count} streams from each to each: whole and in order")


async def cut_dynamos_road(at: World) -> None:
    """Streams as between nodes of Dynamo, a socket each on which nobody pings, over a cable that
    is cut for good: one that gives items, one that is silent, one that is asked for afterwards.
    """
    cable = at.fleet.hosts.cable(CUT)
    await at.known(NAMES)
    path = f"{at.fleet[CUT].info.listen}/{await at.instance(CUT):x}/t/there/go"
    words = {"namespace": "t", "component": "theirs", "endpoint": "go", "instance_id": 1}
    told = {"type": "Endpoint", **words, "transport": {"tcp": path}}
    at.etcd.put(
        "v1/instances/t/theirs/go/1", json.dumps({**told, "request_plane_codec": "msgpack"})
    )
    async with at.fleet["a"].client() as client:

        async def end_of(pause: float) -> float:
            """When a stream has ended with a typed error."""
            request = {"n": 10_000, "size": 0, "pause": pause}
            try:
                async with client.stream(THEIRS, request, timeout=None) as items:
                    async for _ in items:
                        given.add(pause)
            except (ConnectionLost, DeadlineExceeded):  # the first of two limits of one length
                return time.monotonic()
            raise Broken("a stream over a cut cable has ended as if it were whole")

        async def known() -> bool:
            return bool(await client.workers(THEIRS))

        given: set[float] = set()
        await wait_until(known, LIMIT, "the record is read")
        ends = [asyncio.create_task(end_of(pause)) for pause in (0.05, 600.0)]
        await wait_until(lambda: len(given) == 2, LIMIT, "both have begun")
        cable.cut()
        cut = time.monotonic()
        ends.append(asyncio.create_task(end_of(1.0)))
        async with asyncio.timeout(SILENT + at.slack):
            busy, idle, late = [end - cut for end in await asyncio.gather(*ends)]
        at.say(
            f"streams of Dynamo's kind over a cable that was cut ended {busy:.1f} s after (it gave "
            f"items), {idle:.1f} s (it was silent), {late:.1f} s (asked for after the cut)"
        )
    at.etcd.delete("v1/instances/t/theirs/go/1")
    cable.mend()
    await at.known(NAMES)


async def kill_worker(at: World) -> None:
    """A worker is killed on a host that lives; it is started again by its node. To be played
    before an outage, after which withdrawals, too, are not believed for one ``lease_ttl``.
    """
    await at.known(NAMES)
    dead = await at.instance("b")
    async with Load(at.fleet, ("a",), at.rate) as load:
        os.kill(at.fleet["b"].pid("there"), signal.SIGKILL)
        took = await at.unknown(dead, ("a", CUT), 2.0 + at.slack)
        at.say(f"a worker of b was killed; nobody is sent to it any more, {took:.2f} s after")
        took = await at.known(NAMES)
        at.say(f"its successor is known to all {took:.1f} s later")
    at.check(load)


async def lose_host(at: World) -> None:
    """A host is gone without a word: no reset, no good-bye."""
    await at.known(NAMES)
    dead = await at.instance(CUT)
    async with Load(at.fleet, OTHERS, at.rate) as load:
        at.fleet.hosts.cable(CUT).cut()
        at.fleet[CUT].kill()
        took = await at.unknown(dead, OTHERS, at.gone)
        at.say(f"host {CUT} is gone without a word; nobody is sent to it {took:.1f} s after")
        await at.known(OTHERS)
    at.check(load)
    at.fleet.hosts.cable(CUT).mend()


async def lose_etcd(at: World, seconds: float) -> None:
    """etcd is killed under load, a node that was away is started meanwhile, etcd comes back."""
    await at.known(OTHERS)
    async with Load(at.fleet, OTHERS, at.rate, migrations=0) as load:
        at.etcd.kill()
        killed = time.monotonic()
        at.say("etcd is killed")
        at.fleet[CUT].start()
        await asyncio.to_thread(at.fleet[CUT].wait)
        at.say(f"the node of {CUT} is up, {time.monotonic() - killed:.1f} s after")
        await asyncio.sleep(max(0.0, killed + seconds - time.monotonic()))
        answers = load.answers(killed + seconds / 2)
        if not all(answers[each, other] for each in OTHERS for other in OTHERS):
            raise Broken(f"not all hosts have served each other without etcd: {answers}")
        at.etcd.start()
        back = time.monotonic()
        at.say(f"etcd is back after {back - killed:.1f} s")
        took = await at.known(NAMES, AGAIN + at.slack)
        at.say(f"all know all, the one that was started meanwhile, too, {took:.1f} s after")
    at.check(load)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.hosts",
        description="Three hosts, etcd on one: slow cables, a cut one, a host gone, etcd gone.",
    )
    parser.add_argument("--delay", type=float, default=0.02, help="seconds one way (0.02)")
    parser.add_argument("--loss", type=float, default=0.01, help="chance of a segment (0.01)")
    parser.add_argument("--cut", type=float, default=30.0, help="seconds of each outage (30)")
    parser.add_argument("--ttl", type=float, default=10.0, help="lease_ttl (10)")
    parser.add_argument("--rate", type=float, default=20.0, help="calls a second and host (20)")
    parser.add_argument("--slack", type=float, default=0.0, help="seconds that all may be late (0)")
    parser.add_argument("--peers", action="store_true", help="addresses in place of etcd")
    options = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:7.2f}  {text}\n")
        sys.stdout.flush()

    async def play(at: World) -> None:
        await streams(at)
        await kill_worker(at)
        await cut_cable(at, options.cut)
        if not options.peers:
            await cut_dynamos_road(at)
            await cut_off_etcd(at, options.cut)
            await lose_host(at)
            await lose_etcd(at, options.cut)

    try:
        with world(
            options.ttl,
            options.slack,
            say,
            delay=options.delay,
            loss=options.loss,
            peers=options.peers,
        ) as at:
            at.rate = options.rate
            asyncio.run(play(at))
    except pytest.skip.Exception as why:
        say(f"cannot run here: {why}")
        return 1
    except (Broken, AssertionError, TimeoutError) as error:
        say(f"FAILURE: {error!r}")
        return 1
    say("all as it must be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
