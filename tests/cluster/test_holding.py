"""A run folder that somebody else takes away, or fills up, while its node lives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors import Cluster, EngineSpec, NodeSpec, Settings
from actors.cluster.folder import INFO, LOCK, locked, read_info
from actors.errors import NameTaken, SpawnError
from actors.kernel.peers import start_time
from tests.waiting import LONG, require_root, wait_until

ECHO = EngineSpec(endpoint="test.echo.one", engine="tests.cluster.workers:Echo")


async def test_files_that_were_removed_are_put_back() -> None:
    async with Cluster(NodeSpec(engines=[ECHO]), cluster="held") as cluster:
        (info,) = cluster.nodes
        before = os.stat(os.path.join(info.folder, LOCK)).st_ino
        for name in (LOCK, INFO):
            os.unlink(os.path.join(info.folder, name))
        await wait_until(lambda: read_info(info.folder) == info, LONG, "node.json is back")
        await wait_until(lambda: locked(info.folder), LONG, "and the lock")
        assert os.stat(os.path.join(info.folder, LOCK)).st_ino != before
        with pytest.raises(NameTaken):
            await Cluster(NodeSpec(engines=[ECHO]), cluster="held").__aenter__()
        async with cluster.client() as client:
            assert await client.call("test.echo.one", 1, timeout=LONG) == 1
    assert not Path(info.folder).exists()  # noqa: ASYNC240


async def test_a_node_without_its_folder_ends_and_harms_no_other_of_its_name() -> None:
    spec = NodeSpec(engines=[ECHO])
    async with Cluster(spec, cluster="held") as first:
        (info,) = first.nodes
        shutil.rmtree(info.folder)
        async with Cluster(spec, cluster="held") as second, second.client() as client:
            _, how = await first.wait_ended()
            assert not how.clean
            await wait_until(
                lambda: not any(start_time(each.pid) == each.started for each in info.children)
            )
            assert [node.address.pid != info.address.pid for node in second.nodes] == [True]
            assert await client.call("test.echo.one", 1, timeout=LONG) == 1
            await first.__aexit__(None, None, None)
            assert read_info(info.folder) is not None
            assert await client.call("test.echo.one", 2, timeout=LONG) == 2


async def test_a_node_whose_folder_is_gone_ends(capfd: pytest.CaptureFixture[str]) -> None:
    async with Cluster(NodeSpec(engines=[ECHO])) as cluster:
        (info,) = cluster.nodes
        shutil.rmtree(info.folder)
        _, how = await cluster.wait_ended()
        assert not how.clean
    said = capfd.readouterr().err
    assert "was removed; nothing but callhome may touch the files" in said
    assert "Traceback" not in said, said


@contextmanager
def small(path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, in which a file fills all but one page."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(path)], check=True)
    try:
        full = path / "full"
        full.write_bytes(bytes(60 << 10))
        yield full
    finally:
        subprocess.run(["umount", str(path)], check=True)


async def test_a_full_run_folder_is_told_and_written_when_there_is_room() -> None:
    require_root("mounts a file system")
    with tempfile.TemporaryDirectory() as run, small(Path(run)) as full:
        settings = Settings.load(run=run)
        spec = NodeSpec(engines=[ECHO], settings=settings)
        with pytest.raises(SpawnError, match=r"node\.json cannot be written: .*No space left"):
            await Cluster(spec).__aenter__()
        full.unlink()
        async with Cluster(spec) as cluster, cluster.client() as client:
            with full.open("wb") as file, pytest.raises(OSError, match="No space"):
                os.posix_fallocate(file.fileno(), 0, 64 << 10)
            full.write_bytes(bytes(os.statvfs(full).f_bavail * os.statvfs(full).f_bsize))
            (old,) = [each.address for each in client.records() if each.kind == "engine"]
            os.kill(old.pid, signal.SIGKILL)

            def again() -> list[int]:
                found = [each.address for each in client.records() if each.kind == "engine"]
                return [each.pid for each in found if each != old]

            await wait_until(again, LONG)
            # What the dead one had in the folder may have left room for one file more, or not.
            assert read_info(cluster.nodes[0].folder) is not None
            full.unlink()
            await wait_until(
                lambda: again()[0] in [each.pid for each in cluster.nodes[0].children],
                LONG,
                "node.json is up to date",
            )
