"""B125: two nodes in two networks of their own, joined by a cable, and what they tell each other
of their addresses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors import Cluster, NodeSpec, Settings
from actors.errors import CallBackFailed
from tests.e2e.test_two_nodes import SLOW, Cable, cable, far_node
from tests.e2e.watching import Trace, inspect, wait_idle
from tests.waiting import DEADLINE, LONG, wait_until

__all__ = ["cable"]  # the fixture


@contextmanager
def far(cable: Cable, folder: Path, trace: Trace, host: str) -> Iterator[Path]:
    """A node at the other end; the folder in which it publishes its records."""
    records = folder / "records"
    with far_node(cable, folder, trace, host, f'directory = "{records}"\n'):
        yield records


def told(records: Path) -> list[str]:
    """The addresses in the records that are published."""
    files = [each for each in records.rglob("*") if each.is_file()]
    return [json.loads(each.read_text())["transport"]["tcp"] for each in files]


@pytest.mark.parametrize("listen", ["the address", "0.0.0.0"])
async def test_b125_the_default_works_between_two_networks(
    tmp_path: Path, cable: Cable, listen: str
) -> None:
    """Neither node has been told an address at which it is to be called home."""
    trace = Trace(tmp_path)
    host = cable.there if listen == "the address" else listen
    with far(cable, tmp_path, trace, host) as records:
        near = NodeSpec(name="a", directory=str(records))
        async with Cluster(near) as cluster, cluster.client() as client:
            await wait_until(lambda: told(records), LONG, "records are published")
            for address in told(records):
                assert address.startswith(f"{cable.there}:7400/"), address

            async def known() -> bool:
                return bool((await inspect(client, "router"))["workers"])

            await wait_until(known, LONG)
            assert await client.call(SLOW, {"wait": 0.0}, timeout=DEADLINE) == "late"
            await wait_idle(client)


async def test_b125_a_home_that_cannot_be_reached_is_named_in_time(
    tmp_path: Path, cable: Cable
) -> None:
    trace = Trace(tmp_path)
    settings = Settings.load(call_home_advertise="203.0.113.5", dial_in_timeout=2.0)
    with far(cable, tmp_path, trace, cable.there) as records:
        near = NodeSpec(name="a", directory=str(records), settings=settings)
        async with Cluster(near) as cluster, cluster.client() as client:

            async def known() -> bool:
                return bool((await inspect(client, "router"))["workers"])

            await wait_until(known, LONG)
            began = time.monotonic()
            with pytest.raises(CallBackFailed, match=r"203\.0\.113\.5:\d+"):
                await client.call(SLOW, {"wait": 0.0}, timeout=LONG)
            assert time.monotonic() - began < 2.0 + DEADLINE
            await wait_idle(client)
    assert trace.count("started") == 0
