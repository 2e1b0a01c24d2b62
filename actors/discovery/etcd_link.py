"""The way of one process to etcd: a thread with a loop of its own, and connections that last.

Used by ``actors.discovery.etcd`` (routers) and ``actors.discovery.etcd_publisher`` (the ingress).
All that a process says to etcd is said in one thread, since gRPC for asyncio bears one loop in a
process: a loop of an actor that is busy lets no lease expire, and an etcd that hangs holds up no
stream. ``join`` gives the ``Link`` of an address; who uses the same one shares its connection, and
the thread ends with its last user.

A connection that fails is given up, and another member of etcd is tried, after a pause that grows.
etcd is told as lost, in one line, when a connection fails, and as back when somebody has used one
with success.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from actors.config import etcd_members
from actors.discovery.etcd_connection import Connection, Lost, Refused, load_aetcd

log = logging.getLogger("callhome.etcd")

#: Seconds between two rounds over all members: at first, and at most.
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
#: Seconds that ending the thread may take, and half of what ending a link may.
_HANG_UP: Final = 1.0

Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Link:
    """One etcd as this process reaches it; got by ``join``, given back by ``leave``.

    What is not said to be for any thread is for the thread of the link alone.
    """

    def __init__(self, address: str, aetcd: Any, thread: _Thread) -> None:
        self.address = address
        self.users = 0
        self.thread = thread
        self._aetcd = aetcd
        self._members = etcd_members(address)
        self._connection: Connection | None = None
        self._up = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._trouble = "it has not answered yet"
        self._since = time.monotonic()
        self._told = False
        #: Rounds over all members that have failed, one after the other.
        self.failed_rounds = 0
        #: Called when a round has failed.
        self.when_failed: list[Callable[[], None]] = []

    def state(self) -> str:
        """Why etcd cannot be used, and since when; "" while it can. For any thread."""
        trouble, since = self._trouble, self._since
        if not trouble:
            return ""
        return (
            f"{self.address} cannot be used, for {time.monotonic() - since:.0f} s: {trouble}; "
            "see whether it runs there"
        )

    def work(self, work: Work, name: str) -> asyncio.Task[None]:
        """Run ``work`` in the group of the thread; it begins anew when it fails unforeseen."""
        if self._keeping is None:
            self._keeping = self.thread.group.create_task(_lasting(self._keep, "link"))
        return self.thread.group.create_task(_lasting(work, name), name=name)

    async def wait_connected(self) -> Connection:
        """A connection, new or proved; has no deadline of its own: etcd may be away for hours."""
        while self._connection is None:
            await self._up.wait()
        return self._connection

    @property
    def away(self) -> bool:
        """Whether etcd was tried, and could not be used."""
        return self._told

    @property
    def connection(self) -> Connection | None:
        """The connection that there is now."""
        return self._connection

    def well(self, connection: Connection) -> None:
        """Somebody has used ``connection`` with success."""
        if connection.proved or connection is not self._connection:
            return
        connection.proved = True
        self.failed_rounds = 0
        self._trouble = ""
        if self._told:
            self._told = False
            away = time.monotonic() - self._since
            log.warning("%s answers again, after %.1f s", self.address, away)

    async def hang_up(self) -> None:
        """Nobody uses it any more."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping], timeout=2 * _HANG_UP)

    async def _keep(self) -> None:
        """Always one connection, as far as that can be had."""
        turn = 0
        while True:
            member = self._members[turn % len(self._members)]
            connection = Connection(self._aetcd, member, self._down)
            began = time.monotonic()
            try:
                await connection.open()
                self._connection = connection
                self._up.set()
                await connection.wait_lost()
                trouble = connection.why
            except (Lost, Refused) as error:
                trouble = str(error)
            finally:
                self._down()
                await connection.close()
            self._note(f"{member}: {trouble}")
            turn += 1
            if turn % len(self._members) == 0 and not connection.proved:
                self.failed_rounds += 1
                for hear in self.when_failed:
                    hear()
                longest = min(_LONGEST_PAUSE, _PAUSE * 2 ** min(self.failed_rounds, 10))
                await asyncio.sleep(longest * random.uniform(0.5, 1.0))
            elif connection.proved:  # one that ends each at once is not asked as fast as it goes
                await asyncio.sleep(max(0.0, _LONGEST_PAUSE - (time.monotonic() - began)))

    def _down(self) -> None:
        self._connection = None
        self._up.clear()

    def _note(self, trouble: str) -> None:
        if not self._trouble:
            self._since = time.monotonic()
        self._trouble = trouble
        if not self._told:
            self._told = True
            log.warning(
                "%s cannot be used: %s; it is tried again, and what was known holds until then",
                self.address,
                trouble,
            )


class Seat:
    """One user's place at a link; got by ``join``. For the user's own thread."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._when_failed: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None
        self._left = False

    def begin(self, work: Work, name: str, when_failed: Callable[[], None]) -> None:
        """Run ``work`` in the thread until the place is left; ``when_failed`` is called there when
        no member of etcd lets us in.
        """

        def begin() -> None:
            self._when_failed = when_failed
            self.link.when_failed.append(when_failed)
            self._task = self.link.work(work, name)

        self.post(begin)

    def _end(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self.link.when_failed.remove(self._when_failed)
            task.cancel()

    def post(self, step: Callable[[], None]) -> None:
        """Have ``step`` called in the thread, behind all that was posted before."""
        with contextlib.suppress(RuntimeError):  # the thread has ended
            self.link.thread.loop.call_soon_threadsafe(step)

    async def finish(self, last: Work, limit: float) -> bool:
        """End the work, then run ``last``; whether that succeeded within ``limit`` seconds. The
        seat is to be left nonetheless.
        """

        async def finish() -> None:
            if (task := self._task) is not None:
                self._end()
                await asyncio.wait([task])
            await last()

        future = asyncio.run_coroutine_threadsafe(finish(), self.link.thread.loop)
        try:
            async with asyncio.timeout(limit):
                await asyncio.wrap_future(future)
        except (TimeoutError, Lost, Refused):
            return False
        return True

    def leave(self) -> None:
        """End the work; the last user's leaving ends connection and thread, and waits for that one
        second at most. A second call does nothing.
        """
        if self._left:
            return
        self._left = True
        self.post(self._end)
        _give_back(self.link)


def join(address: str) -> Seat:
    """A place at the link of ``address`` (``etcd://host:port,…``); ``leave`` it in the end.

    Raises SpecError where the extra is not installed.
    """
    global _thread  # gRPC wants one loop in the process, whoever uses it
    aetcd = load_aetcd(address)
    with _guard:
        if _thread is None:
            _thread = _Thread()
        link = _thread.links.get(address)
        if link is None:
            link = _thread.links[address] = Link(address, aetcd, _thread)
        link.users += 1
        return Seat(link)


def _give_back(link: Link) -> None:
    global _thread
    with _guard:
        link.users -= 1
        if link.users:
            return
        thread = link.thread
        del thread.links[link.address]
        last = not thread.links
        if last:
            _thread = None
    thread.forget(link, last)


class _Thread:
    """The thread of this process in which etcd is talked with."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.loop = asyncio.new_event_loop()
        self.group = asyncio.TaskGroup()
        self._stopping = asyncio.Event()
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name="callhome-etcd", daemon=True)
        self._thread.start()
        self._running.wait()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        async with self.group:
            self._running.set()
            await self._stopping.wait()

    def forget(self, link: Link, last: bool) -> None:
        """Close a link; with the last one the thread ends. For any thread; waits for nothing that
        hangs."""

        async def close() -> None:
            await link.hang_up()
            if last:
                self._stopping.set()

        asyncio.run_coroutine_threadsafe(close(), self.loop)
        if last and threading.current_thread() is not self._thread:
            self._thread.join(_HANG_UP)


_guard = threading.Lock()
#: The one of this process; None while nobody talks with etcd.
_thread: _Thread | None = None


async def _lasting(work: Work, name: str) -> None:
    """``work``, begun anew when it fails in a way that nobody has foreseen."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("the %s of etcd failed; it begins anew", name)
            await asyncio.sleep(_LONGEST_PAUSE)
