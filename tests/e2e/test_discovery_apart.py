"""Deployments that share a machine and do not meet; a node that nobody reaches where it says."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

from actors import Cluster, IngressSpec, NodeSpec
from actors.cluster.node import Ps
from tests.e2e.launchers import ROOT
from tests.e2e.watching import inspect
from tests.waiting import LONG, wait_until

#: A launcher with defaults throughout; it makes 100 calls for each line that it reads.
LAUNCHER = """
import asyncio, json, os, sys
from actors import Cluster, EngineSpec, IngressSpec, NodeSpec

async def main():
    who = EngineSpec("t.who.go", "tests.e2e.discovery_engines:Who", args={"name": sys.argv[1]})
    node = NodeSpec(engines=[who], ingress=IngressSpec())
    async with Cluster(node) as cluster, cluster.client() as client:
        async def names():
            calls = [client.call("t.who.go", None, timeout=20.0) for _ in range(100)]
            return sorted({each["name"] for each in await asyncio.gather(*calls)})
        print(json.dumps([cluster.name, cluster.nodes[0].listen]), flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps([await names(), len(await client.workers())]), flush=True)

asyncio.run(main())
"""


class Launcher:
    """One of them."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def told(self) -> list[object]:
        assert self.process.stdout is not None
        found: list[object] = json.loads(self.process.stdout.readline())
        return found

    def begin(self) -> None:
        """Have it make its calls; ``told`` says who has answered, and how many it knows."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def leave(self) -> int:
        self.process.communicate(timeout=LONG)
        return self.process.returncode


@contextlib.contextmanager
def launched(*names: str) -> Iterator[list[Launcher]]:
    found = [Launcher(name) for name in names]
    try:
        yield found
    finally:
        for each in found:
            each.process.kill()
            each.process.communicate()


def test_b145_two_launchers_with_defaults_do_not_meet() -> None:
    with launched("red", "blue") as (red, blue):
        (first, door), (second, other_door) = red.told(), blue.told()
        assert first != second
        assert door != other_door
        red.begin()
        blue.begin()
        assert red.told() == [["red"], 1]
        assert blue.told() == [["blue"], 1]
        assert red.leave() == 0
        blue.begin()
        assert blue.told() == [["blue"], 1]
        assert blue.leave() == 0


async def test_an_address_that_leads_nowhere_is_told_at_start_and_by_ps() -> None:
    spec = NodeSpec(ingress=IngressSpec(advertise="127.0.0.1:1"))
    async with Cluster(spec) as cluster, cluster.client() as client:

        async def told() -> bool:
            return bool((await inspect(client, "ingress")).get("advertised"))

        await wait_until(told)
        rows = {row["name"]: row for row in await client.ref("node").ask(Ps())}
        assert rows["ingress"]["advertised"].startswith(
            "this node advertises 127.0.0.1:1, and it cannot be dialled: Connection refused; "
        )
        assert rows["router"]["advertised"] is None
