"""Records in a directory that several nodes share, in Dynamo's layout.

    DIRECTORY/v1/instances/demo%2Fshout%2Fgenerate%2F591daf1894a66ff

One file a record; its modification time is the heartbeat, renewed by whoever wrote it, and a file
that is not renewed for ten seconds counts for nothing. Routers read (``DirectoryDiscovery``), an
ingress writes what its node serves (``DirectoryPublisher``). Each does so in a thread of its own: a
slow file system holds up no stream, and a busy loop lets no heartbeat fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from actors.discovery.base import Change, Listener
from actors.discovery.files import Reader, file_name, instances_folder
from actors.discovery.record import is_own, pack_record
from actors.discovery.registry import Registry, RegistrySubscription
from actors.errors import DeadlineExceeded, SpecError
from actors.messages import Added, Record, Removed, Snapshot

log = logging.getLogger("callhome.directory")

#: Seconds after which a file that nobody renews counts for nothing.
TTL: Final = 10.0
#: Seconds between two looks, and between two heartbeats.
LOOK: Final = 0.25
BEAT: Final = 2.0
#: Seconds for the first look, and for the last write.
_PATIENCE: Final = 5.0


class DirectoryDiscovery:
    """The records in ``directory`` as a Discovery; its thread looks every quarter of a second.

    Belongs to the loop in which it is first subscribed to, and ends with ``stop``. The directory
    need not exist yet. With a ``namespace`` there are no others for it.
    """

    def __init__(
        self, directory: str, *, namespace: str = "", ttl: float = TTL, look: float = LOOK
    ) -> None:
        self._directory = directory
        self._pause = look
        self._reader = Reader(directory, ttl, namespace)
        self._registry = Registry()
        self._looked = asyncio.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def records(self) -> list[Record]:
        """The records as last seen; empty before the first look."""
        return self._registry.records

    def state(self) -> str:
        """See ``Source.state``."""
        return self._reader.state(time.monotonic())

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        """See ``Discovery.subscribe``. Raises DeadlineExceeded when the file system hangs."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._run, args=(loop,), name="callhome-directory", daemon=True
            )
            self._thread.start()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._looked.wait()
        except TimeoutError:
            raise DeadlineExceeded(
                f"directory {self._directory!r} was not read within {_PATIENCE:g} s; "
                "see whether its file system hangs"
            ) from None
        return self._registry.subscribe(listener)

    def stop(self) -> None:
        """End the thread; a second call does nothing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._pause)  # longer only when the file system hangs: a daemon

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        first = True
        while not self._stopping.is_set():
            changes = self._reader.look(time.monotonic(), time.time())
            if changes or first:
                first = False
                try:
                    loop.call_soon_threadsafe(self._tell, changes)
                except RuntimeError:
                    return  # the loop is closed
            self._stopping.wait(self._pause)

    def _tell(self, changes: list[Added | Removed]) -> None:
        if self._stopping.is_set():
            return
        for change in changes:
            self._registry.change(change)
        self._looked.set()


class DirectoryPublisher:
    """Keeps the records of one node's engines in a directory, as long as its ingress lives.

    Made by the ingress once it listens: ``start``, then every ``Change`` of the node's registry to
    ``changed``, then ``close``. A file that somebody removes is written again with the next
    heartbeat. Trouble with a file is logged once and tried again; it keeps no other file waiting.
    With a ``namespace`` engines of others are not written.
    """

    def __init__(
        self,
        directory: str,
        *,
        reached: str,
        ingress: int,
        namespace: str = "",
        beat: float = BEAT,
    ) -> None:
        self._directory = directory
        self._folder = instances_folder(directory)
        self._reached = reached
        self._ingress = ingress
        self._namespace = namespace
        self._beat = beat
        self._wanted: dict[str, bytes] = {}
        self._written: dict[str, bytes] = {}
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: What cannot be done now, by file, and the texts of it that have been told.
        self._troubles: dict[str, str] = {}
        self._told: set[str] = set()
        self._since = 0.0
        # One at a time, by a name that is short however long the record's is.
        self._temporary = os.path.join(directory, f".{ingress:x}-new")

    def start(self) -> None:
        """Raises SpecError when nothing can be written there."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            os.close(os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            os.unlink(self._temporary)
        except OSError as error:
            raise SpecError(
                f"directory: {self._directory!r} cannot be written: {error.strerror}; "
                "records of this node would be found by nobody"
            ) from error
        self._thread = threading.Thread(target=self._run, name="callhome-publisher", daemon=True)
        self._thread.start()

    def changed(self, change: Change) -> None:
        """What the node's registry tells; engines on this node's bus are taken, all else is left.

        Call it on the loop only.
        """
        if isinstance(change, Snapshot):
            wanted = dict(filter(None, map(self._file, change.records)))
            self._orders.put(lambda: self._replace(wanted))
        elif (file := self._file(change.record)) is not None:
            name, content = file
            if isinstance(change, Added):
                self._orders.put(lambda: self._put(name, content))
            else:
                self._orders.put(lambda: self._drop(name))

    def state(self) -> str:
        """See ``Publisher.state``."""
        told = sorted(self._told)
        lasts = time.monotonic() - self._since
        why = "; ".join(told[:3])
        return why and f"{self._folder} cannot be written for {lasts:.0f} s: {why}"

    async def settle(self, limit: float) -> None:
        """See ``Publisher.settle``."""
        if self._thread is not None:
            with contextlib.suppress(TimeoutError):
                await self._behind(lambda: None, limit)

    async def close(self) -> None:
        """Withdraw everything that was written; waits at most five seconds for the file system."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            await self._behind(lambda: self._replace({}), _PATIENCE)
        except TimeoutError:
            log.warning("%s hangs; records of this node stay there until they expire", self._folder)
            self._orders.put(None)
        else:
            self._orders.put(None)
            thread.join(_PATIENCE)

    async def _behind(self, step: Callable[[], None], limit: float) -> None:
        """Have the thread do ``step`` behind all that it was told. Raises TimeoutError."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def last() -> None:
            step()
            with contextlib.suppress(RuntimeError):  # the loop did not wait
                loop.call_soon_threadsafe(done.set)

        self._orders.put(last)
        async with asyncio.timeout(limit):
            await done.wait()

    def _file(self, record: Record) -> tuple[str, bytes] | None:
        """Name and content of a record's file; None for what is not published."""
        if not is_own(record, self._namespace):
            return None
        content = json.dumps(pack_record(record, self._reached, self._ingress))
        return file_name(record.endpoint, record.instance), content.encode()

    # In the thread.

    def _run(self) -> None:
        due = time.monotonic() + self._beat
        while True:
            try:
                order = self._orders.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                self._renew()
                self._report()
                due = time.monotonic() + self._beat
                continue
            if order is None:
                return
            order()
            self._report()

    def _try(self, name: str, step: Callable[[], None]) -> None:
        """One step for one file: what fails there is no matter for the others."""
        try:
            step()
        except OSError as error:
            self._troubles[name] = error.strerror or str(error)
        else:
            self._troubles.pop(name, None)

    def _report(self) -> None:
        """One line for each trouble and one when all are over, not one for each heartbeat."""
        told, self._told = self._told, set(self._troubles.values())
        if not told:
            self._since = time.monotonic()
        for name, trouble in self._troubles.items():
            if trouble not in told:
                told.add(trouble)
                log.warning(
                    "the record %s (of %d such) cannot be written or removed: %s; "
                    "tried again every %g s",
                    name,
                    len(self._troubles),
                    trouble,
                    self._beat,
                )
        if told and not self._troubles:
            log.warning("records of this node can be written again")

    def _replace(self, wanted: dict[str, bytes]) -> None:
        for name in [name for name in self._wanted if name not in wanted]:
            self._drop(name)
        for name, content in wanted.items():
            self._put(name, content)

    def _put(self, name: str, content: bytes) -> None:
        self._wanted[name] = content
        self._try(name, partial(self._write, name, content))

    def _drop(self, name: str) -> None:
        self._wanted.pop(name, None)
        self._try(name, partial(self._remove, name))

    def _renew(self) -> None:
        for name in self._written.keys() - self._wanted.keys():
            self._drop(name)  # as it could not be removed before
        for name, content in self._wanted.items():
            self._try(name, partial(self._touch, name, content))

    def _touch(self, name: str, content: bytes) -> None:
        try:
            if name not in self._written:
                raise FileNotFoundError(name)
            os.utime(os.path.join(self._folder, name))
        except FileNotFoundError:
            self._write(name, content)

    def _write(self, name: str, content: bytes) -> None:
        os.makedirs(self._folder, exist_ok=True)
        # In the directory itself: nobody looks for records there, and a rename can end it.
        try:
            with open(self._temporary, "wb") as file:
                file.write(content)
            os.replace(self._temporary, os.path.join(self._folder, name))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            raise
        self._written[name] = content

    def _remove(self, name: str) -> None:
        if name in self._written:
            path = os.path.join(self._folder, name)
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                # What the successor of our ingress has written there meanwhile is not ours.
                if file.read(len(self._written[name]) + 1) == self._written[name]:
                    os.unlink(path)
            del self._written[name]
