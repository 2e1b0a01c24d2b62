"""Where nodes find each other, by what their specs say; namespaces keep two fleets apart there."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from actors.discovery.base import Change
from actors.discovery.directory import TTL
from actors.discovery.sources import Sources
from actors.messages import Added, Removed
from tests.discovery.samples import engine
from tests.discovery.test_contract import Heard
from tests.discovery.test_contract import any_etcd as any_etcd
from tests.etcd import Etcd
from tests.waiting import wait_until


@pytest.fixture(params=["directory", "etcd"])
def beyond(request: pytest.FixtureRequest, any_etcd: Etcd | str, tmp_path: Path) -> dict[str, str]:
    """Both places in turn, empty."""
    if request.param == "directory":
        return {"directory": str(tmp_path)}
    if isinstance(any_etcd, str):
        pytest.skip(any_etcd)
    any_etcd.start()
    any_etcd.delete("", prefix=True)
    return {"etcd": any_etcd.address}


async def heard_by(stack: AsyncExitStack, sources: Sources) -> Heard:
    (found,) = sources.discoveries().values()
    stack.callback(found.stop)
    heard = Heard()
    await found.subscribe(heard)
    assert found.state() == ""
    return heard


async def test_records_of_other_namespaces_are_neither_written_nor_read(
    beyond: dict[str, str],
) -> None:
    async with AsyncExitStack() as stack:
        read = {
            namespace: await heard_by(stack, Sources(**beyond, namespace=namespace, ttl=5.0))
            for namespace in ("", "red", "re", "blue")
        }
        given = [("red", 1), ("red", 2), ("blue", 3), ("redder", 4), ("re", 5)]
        tellers: dict[str, Any] = {}
        for namespace in ("", "blue"):
            sources = Sources(**beyond, namespace=namespace, ttl=5.0)
            (publisher,) = sources.publishers("127.0.0.1:7400", 1 if namespace else 2).values()
            publisher.start()
            stack.push_async_callback(publisher.close)
            tellers[namespace] = publisher
        everything: list[Change] = [
            Added(engine(instance, f"{namespace}.shout.go")) for namespace, instance in given
        ]
        for change in everything:
            tellers["blue"].changed(change)  # of them it writes one
        await tellers["blue"].settle(5.0)
        await wait_until(lambda: read["blue"].known == {(3, "blue.shout.go")})
        await wait_until(lambda: read[""].known == {(3, "blue.shout.go")})
        tellers["blue"].changed(Removed(engine(3, "blue.shout.go"), "gone"))
        await tellers["blue"].settle(5.0)
        for change in everything:
            tellers[""].changed(change)
        await wait_until(lambda: len(read[""].known) == len(given))
        await wait_until(lambda: read["red"].known == {(1, "red.shout.go"), (2, "red.shout.go")})
        await wait_until(lambda: read["re"].known == {(5, "re.shout.go")})
        await wait_until(lambda: read["blue"].known == {(3, "blue.shout.go")})
        assert [each.wrong for each in read.values()] == [[]] * 4
        assert all(teller.state() == "" for teller in tellers.values())


def test_what_a_child_spec_says() -> None:
    bare = Sources.of({"settings": {}})
    assert bare == Sources()
    assert not bare.any
    assert bare.discoveries() == {}
    assert bare.publishers("a:1", 1) == {}
    full = Sources.of(
        {
            "directory": "/kv",
            "etcd": "etcd://h:1",
            "namespace": "red",
            "settings": {"lease_ttl": 30.0},
        }
    )
    assert full == Sources("/kv", "etcd://h:1", "red", 30.0)
    assert full.any
    # What a followed node withdraws is doubted until it has expired everywhere.
    assert full.doubt > 30.0
    assert full._replace(etcd="").doubt == Sources().doubt > TTL
