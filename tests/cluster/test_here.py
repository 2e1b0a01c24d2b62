"""Actors in the launcher's process that call ``exit``: it is their end, not the program's."""

from __future__ import annotations

import os
from typing import Any

import pytest

from actors import ActorSpec, Cluster, EngineSpec, NodeSpec
from actors.cluster.folder import folders
from actors.cluster.node import Ps
from actors.errors import ActorDead, CallHomeError, NoWorkers, PeerLost, WorkerLost
from tests.cluster.workers import Leave, Total
from tests.waiting import wait_until

WORKERS = "tests.cluster.workers"
ECHO = EngineSpec("test.echo.one", engine=f"{WORKERS}:Echo", place="here")


def left() -> list[str]:
    return folders(os.environ["CALLHOME_RUN"])


async def test_an_actor_here_that_exits_takes_nobody_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leaver = ActorSpec("leaver", actor=f"{WORKERS}:Counter", place="here")
    other = ActorSpec("other", actor=f"{WORKERS}:Counter", place="here")
    async with Cluster(NodeSpec(engines=[ECHO], actors=[leaver, other])) as cluster:
        with pytest.raises(CallHomeError, match="leaver"):
            await cluster.ref("leaver").ask(Leave(5))
        gone = "actor 'leaver' (in this process) failed and is gone"
        await wait_until(lambda: gone in caplog.text)

        async def withdrawn() -> bool:
            try:
                await cluster.ref("leaver").ask(Total())
            except PeerLost:
                return False  # the registry has not heard of it yet
            except ActorDead:
                return True
            raise AssertionError("it answered")

        await wait_until(withdrawn)
        assert "SystemExit: 5" in caplog.text
        await cluster.ref("other").ask(Total())
        async with cluster.client() as client:
            assert await client.call("test.echo.one", 1) == 1
    assert left() == []


async def test_a_tell_that_exits_ends_its_actor_too(caplog: pytest.LogCaptureFixture) -> None:
    leaver = ActorSpec("leaver", actor=f"{WORKERS}:Counter", place="here")
    async with Cluster(NodeSpec(actors=[leaver])) as cluster:
        await cluster.ref("leaver").tell(Leave(5))
        await wait_until(lambda: "'leaver' (in this process) failed" in caplog.text)
    assert left() == []


@pytest.mark.parametrize("name", ["leaving", "leaving_thread"])
async def test_an_engine_here_that_exits_takes_nobody_along(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    leaver = EngineSpec("test.leaver.one", engine=f"{WORKERS}:{name}", place="here")
    async with Cluster(NodeSpec(engines=[ECHO, leaver])) as cluster, cluster.client() as client:
        with pytest.raises(CallHomeError):
            await client.call("test.leaver.one", 7)
        await wait_until(lambda: "SystemExit: 7" in caplog.text)
        await wait_until(lambda: all(r.endpoint != "test.leaver.one" for r in client.records()))
        with pytest.raises(CallHomeError) as caught:
            await client.call("test.leaver.one", 7)
        # The router may hear of it a moment after the client.
        assert isinstance(caught.value, (NoWorkers, WorkerLost))
        assert await client.call("test.echo.one", 1) == 1
    assert left() == []


async def test_an_exit_in_on_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    late = ActorSpec("late", actor=f"{WORKERS}:LeavesLate", place="here")
    async with Cluster(NodeSpec(actors=[late])):
        pass
    assert "actor 'late' (in this process) failed" in caplog.text
    assert left() == []


async def test_an_exit_in_a_process_of_its_own_is_told_as_what_it_was() -> None:
    mortal = ActorSpec("mortal", f"{WORKERS}:Counter", restart="never")
    async with Cluster(NodeSpec(actors=[mortal])) as cluster:
        with pytest.raises(CallHomeError, match="mortal"):
            await cluster.ref("mortal").ask(Leave(5))
        rows: list[dict[str, Any]] = []

        async def known() -> bool:
            rows[:] = [
                row for row in await cluster.ref("node").ask(Ps()) if row["name"] == "mortal"
            ]
            return bool(rows[0]["state"] == "failed")

        await wait_until(known)
        assert rows[0]["reason"].startswith("exit code 5 (actor 'mortal' (pid ")
        assert ") served, and then ended with an error: it called exit(5); " in rows[0]["reason"]
    assert left() == []
