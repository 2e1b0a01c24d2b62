"""Records in etcd, as Dynamo lays them out there, as a Discovery. Used by routers.

A list of all records, then a watch from the revision of that list on: nothing falls between. The
watch is not trusted: several times within the life of a lease etcd is asked how many keys there are
and how new the newest is, which also tells a connection that was cut in silence, and a member that
has lost the others. What does not agree twice, a watch that is cancelled or whose past is
compacted, and a connection that had to be made anew: each is followed by another list, and the
difference is told. What is held back then, and why, says ``actors.discovery.etcd_records``.

All of it, reading records too, happens in the thread of ``actors.discovery.etcd_link``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

from actors.discovery.base import Listener
from actors.discovery.etcd_connection import (
    Connection,
    Failed,
    Lost,
    Past,
    Refused,
    Watch,
    together,
)
from actors.discovery.etcd_link import Link, Seat, join
from actors.discovery.etcd_records import MOST, Pair, Table, Told, prefix_of
from actors.discovery.registry import Registry, RegistrySubscription
from actors.messages import Added, Record, Removed

log = logging.getLogger("callhome.etcd")

#: Seconds that the first subscriber waits for etcd, and for a whole list.
_PATIENCE: Final = 5.0
#: Rounds over all members that fail before he is not kept waiting any longer.
_ROUNDS: Final = 2
#: Keys that are asked for at once; and where values are so large that this is too much.
_PAGE: Final = 1024
_SMALL_PAGE: Final = 32
#: Changes that are told in one turn of the loop, and that may wait for it.
_TURN: Final = 256
_WAITING: Final = 65_536
#: Seconds before what etcd has refused is tried again.
_PAUSE: Final = 1.0
#: Seconds before all is listed again that a watch has not told.
_MOMENT: Final = 0.1


_Key: TypeAlias = tuple[int, str]


class _Stale(Failed):
    """Changes were missed, or may have been: list again."""


class EtcdDiscovery:
    """The records of ``namespace`` (all for "") in the etcd at ``address``
    (``etcd://host:port,…``) as a Discovery.

    ``ttl`` is the life of a lease, in seconds: etcd is looked at three times in it. Belongs to the
    loop in which it is first subscribed to, and ends with ``stop``.
    """

    def __init__(self, address: str, *, namespace: str = "", ttl: float = 10.0) -> None:
        self._address = address
        self._prefix = prefix_of(namespace)
        self._ttl = ttl
        self._registry = Registry()
        self._looked = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seat: Seat | None = None
        self._stopped = False
        #: Why etcd lets us connect, and tells us nothing.
        self._refusal = ""
        self._refused_at = 0.0
        # Shared with the thread, under the lock: what is to be told yet.
        self._lock = threading.Lock()
        self._waiting: list[Told] = []
        self._taking = False
        #: What the registry holds once all that was taken is told.
        self._held: set[_Key] = set()
        # Of the thread alone.
        self._table = Table(address, ttl)

    @property
    def records(self) -> list[Record]:
        """The records as last heard; empty before the first list."""
        return self._registry.records

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        """See ``Discovery.subscribe``. An etcd that does not answer within 5 s, or refuses
        connections, gives an empty Snapshot, and what it holds later; ``state`` says so.

        Raises SpecError where the extra is not installed.
        """
        if self._seat is None and not self._stopped:
            self._loop = asyncio.get_running_loop()
            self._seat = join(self._address)
            self._seat.begin(self._serve, "discovery", self._failed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._looked.wait()
        return self._registry.subscribe(listener)

    def state(self) -> str:
        """Why etcd tells nothing now, and since when; "" while it does."""
        if self._seat is None:
            return "" if self._stopped else f"{self._address} was not asked yet"
        if refusal := self._refusal:
            return (
                f"{self._address} refuses to tell records, for "
                f"{time.monotonic() - self._refused_at:.0f} s: {refusal}"
            )
        return self._seat.link.state()

    def stop(self) -> None:
        """Let go of etcd; subscribers hear nothing more. A second call does nothing."""
        self._stopped = True
        if self._seat is not None:
            self._seat.leave()

    # On the loop of the actor.

    def _take(self) -> None:
        """Tell some of what waits, and let others have their turn before the rest."""
        with self._lock:
            changes, self._waiting = self._waiting[:_TURN], self._waiting[_TURN:]
            self._taking = more = bool(self._waiting)
            for change in changes:
                if isinstance(change, Added):
                    self._held.add(_key(change))
                else:
                    self._held.discard(_key(change))
        if self._stopped:
            return
        for change in changes:
            self._registry.change(change)
        if more:
            asyncio.get_running_loop().call_soon(self._take)

    def _first(self) -> None:
        """There was a list, or there will be none soon."""
        with self._lock:
            waits = bool(self._waiting)
        if waits:  # told in turns, which come before this one
            asyncio.get_running_loop().call_soon(self._first)
        else:
            self._looked.set()

    # In the thread.

    @property
    def _link(self) -> Link:
        assert self._seat is not None
        return self._seat.link

    def _post(self, step: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(step)
        except RuntimeError:  # the loop of the actor is closed
            self.stop()

    def _tell(self, changes: list[Told]) -> None:
        if not changes:
            return
        with self._lock:
            self._waiting += changes
            if len(self._waiting) > _WAITING:
                # Two for each that is held, one for each that is new: half of the bound.
                self._waiting = shortened(self._waiting, self._held)
            idle, self._taking = not self._taking, True
        if idle:
            self._post(self._take)

    def _failed(self) -> None:
        if self._link.failed_rounds >= _ROUNDS:
            self._post(self._first)

    async def _serve(self) -> None:
        while True:
            connection = await self._link.wait_connected()
            try:
                await self._follow(connection)
            except Lost as error:
                self._table.lost(time.monotonic())
                connection.give_up(str(error))
            except Refused as error:
                self._table.lost(time.monotonic())
                self._refuse(str(error))
                await asyncio.sleep(_PAUSE)
            except _Stale as error:
                log.warning("%s: %s; all records are listed again", self._address, str(error))
                await asyncio.sleep(_MOMENT)

    def _refuse(self, why: str) -> None:
        if not self._refusal:
            self._refused_at = time.monotonic()
            log.warning(
                "%s refuses to tell records: %s; it is tried again, and what was known holds "
                "until then",
                self._address,
                why,
            )
        self._refusal = why
        self._post(self._first)

    async def _follow(self, connection: Connection) -> None:
        """List and watch until that is not possible any more. Raises Lost, Refused, _Stale."""
        pairs, revision = await self._list(connection)
        self._link.well(connection)
        if self._refusal:
            self._refusal = ""
            log.warning("%s tells records again", self._address)
        self._tell(self._table.listed(pairs, time.monotonic()))
        self._post(self._first)
        rpc = connection.rpc
        create = rpc.WatchCreateRequest(
            key=self._prefix, range_end=_end(self._prefix), start_revision=revision + 1
        )
        watch = await connection.watch(rpc.WatchRequest(create_request=create))
        try:
            await together(partial(self._read, watch), partial(self._check, connection))
        finally:
            watch.end()

    async def _list(self, connection: Connection) -> tuple[list[Pair], int]:
        """All keys, as far as they are looked at, at one revision."""
        rpc, pairs, revision, start = connection.rpc, list[Pair](), 0, self._prefix
        page = _PAGE
        while True:
            request = rpc.RangeRequest(
                key=start, range_end=_end(self._prefix), limit=page, revision=revision
            )
            try:
                answer = await connection.call("Range", request, _PATIENCE)
            except Past as error:
                raise _Stale(f"a list was not told to its end ({error})") from None
            except Refused:
                if page == _SMALL_PAGE:
                    raise
                page = _SMALL_PAGE
                continue
            revision = revision or answer.header.revision
            pairs += [Pair(each.key, each.value, each.mod_revision) for each in answer.kvs]
            if not answer.more or len(pairs) > MOST:
                return pairs, revision
            start = pairs[-1].key + b"\0"

    async def _read(self, watch: Watch) -> None:
        while True:
            answer = await watch.read()
            if answer.compact_revision:
                raise _Stale("changes that were not told yet are compacted")
            if answer.canceled:
                raise _Stale(f"the watch was cancelled ({answer.cancel_reason or 'no reason'})")
            self._tell(list(self._events(answer.events, time.monotonic())))

    def _events(self, events: Iterable[Any], now: float) -> Iterable[Told]:
        for event in events:
            pair = Pair(event.kv.key, event.kv.value, event.kv.mod_revision)
            if event.type:  # DELETE
                yield from self._table.deleted(pair.key, now)
            else:
                yield from self._table.put(pair)

    async def _check(self, connection: Connection) -> None:
        """Look at etcd again and again, and at what was held."""
        rpc, pause = connection.rpc, self._ttl / 3
        request = rpc.RangeRequest(
            key=self._prefix,
            range_end=_end(self._prefix),
            limit=1,
            keys_only=True,
            sort_order=rpc.RangeRequest.SortOrder.DESCEND,
            sort_target=rpc.RangeRequest.SortTarget.MOD,
        )
        doubt, due = None, time.monotonic() + pause
        while True:
            now = time.monotonic()
            held = self._table.next_due
            await asyncio.sleep(max(0.0, min(due, due if held is None else held) - now))
            now = time.monotonic()
            self._tell(self._table.due(now))
            if now < due:
                continue
            answer = await connection.call("Range", request, pause)
            asked, now = now, time.monotonic()
            if now - asked > pause * 3 / 4:  # stood still nearly long enough for leases to end
                self._table.shaken(now)
            due = now + pause
            newest = answer.kvs[0].mod_revision if answer.kvs else 0
            if self._table.agrees(answer.count, newest):
                doubt = None
                continue
            # A change may be on its way. If nothing has come a whole look later, none is.
            facts = answer.count, newest, self._table.changes
            if doubt == facts:
                raise _Stale("its watch has missed a change")
            doubt = facts


def shortened(changes: Iterable[Told], held: Container[_Key]) -> list[Told]:
    """Changes with the same end, of which none is told that two others undo: for a loop that has
    stood still while workers came and went thousands of times. Whoever is ``held`` before them and
    went at all is told as Removed once; who came and went meanwhile is not told.
    """
    last: dict[_Key, list[Told]] = {}
    for change in changes:
        key = _key(change)
        kept = last.setdefault(key, [])
        if isinstance(change, Removed):
            went = [each for each in kept if isinstance(each, Removed)][:1] or [change]
            kept[:] = went if key in held else []
        else:
            kept[:] = [*(each for each in kept if isinstance(each, Removed)), change]
    return [change for kept in last.values() for change in kept]


def _key(change: Told) -> _Key:
    return change.record.instance, change.record.endpoint


def _end(prefix: bytes) -> bytes:
    """Behind the last key that begins so; prefixes end with a slash."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
