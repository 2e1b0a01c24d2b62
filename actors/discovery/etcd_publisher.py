"""Writes the records of a node into etcd, under a lease. Used by the ingress.

The lease is the ingress's, kept alive three times in its life from the thread of
``actors.discovery.etcd_link``: no busy loop lets it end, and the records go with the process. A
lease that was lost (this process stood still, or etcd lost its data) is followed by a new one and
by all records again, the same instances at the same keys. With each renewal etcd is asked which
keys hang on the lease; one that somebody has removed is written again.

Nobody's record but one's own is deleted. What is new is written over whatever stands there, an
ingress that starts again takes over; what was there and is missing is written again only where
nothing stands. Who sees another's lease at a key of his has a successor, and takes nothing over any
more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from actors.discovery.base import Change
from actors.discovery.etcd_connection import Connection, Gone, Lost, Refused, together
from actors.discovery.etcd_link import Link, Seat, join
from actors.discovery.etcd_records import record_key
from actors.discovery.record import is_own, pack_record
from actors.messages import Added, Record, Snapshot

log = logging.getLogger("callhome.etcd")

#: Seconds for the last words.
_PATIENCE: Final = 2.0
#: Writes that are under way at once.
_ABREAST: Final = 32
#: Seconds before what etcd has refused is tried again.
_PAUSE: Final = 1.0
#: Seconds before a new lease is asked for.
_MOMENT: Final = 0.1
#: Stands for a value of which nobody has said that it was written: due again, or to be deleted.
_UNSURE: Final = b""
#: Leases that are remembered as one's own.
_LEASES: Final = 64


class _Partly(Refused):
    """Some records are refused; all others are written."""


class EtcdPublisher:
    """Keeps the records of one node's engines in the etcd at ``address`` (``etcd://host:port,…``)
    as long as its ingress lives; see ``actors.discovery.base.Publisher``.

    ``reached`` is the ``host:port`` at which other nodes reach the ingress, ``ingress`` its
    incarnation, ``ttl`` the life of its lease in seconds. Engines outside ``namespace`` are left.
    """

    def __init__(
        self, address: str, *, reached: str, ingress: int, ttl: float = 10.0, namespace: str = ""
    ) -> None:
        self._address = address
        self._reached = reached
        self._ingress = ingress
        self._ttl = ttl
        #: Seconds between two renewals, and for each answer.
        self._pause = ttl / 3
        self._namespace = namespace
        self._seat: Seat | None = None
        self._closed = False
        self._orders = 0
        #: What etcd has refused, since when; "" when nothing.
        self._refusal = ""
        self._refused_at = 0.0
        # Of the thread alone.
        self._wanted: dict[bytes, bytes] = {}
        #: What stands there, under the lease that there is.
        self._written: dict[bytes, bytes] = {}
        #: What was written last, now it may belong to somebody else; and whether it does.
        self._known: dict[bytes, bytes] = {}
        self._succeeded = False
        self._lease = 0
        self._leases: list[int] = []
        self._ordered = 0
        self._done = 0
        self._settling: list[tuple[int, Callable[[], None]]] = []
        self._changed = asyncio.Event()

    def start(self) -> None:
        """An etcd that is away is no failure: records come there when it answers.

        Raises SpecError where the extra is not installed.
        """
        self._seat = join(self._address)
        self._seat.begin(self._serve, "publisher", self._release)

    def changed(self, change: Change) -> None:
        """See ``Publisher.changed``."""
        if isinstance(change, Snapshot):
            wanted = dict(filter(None, map(self._pair, change.records)))
            self._order(lambda: self._replace(wanted))
        elif (pair := self._pair(change.record)) is not None:
            key, value = pair
            if isinstance(change, Added):
                self._order(lambda: self._wanted.__setitem__(key, value))
            else:
                self._order(lambda: self._wanted.pop(key, None))

    async def settle(self, limit: float) -> None:
        """See ``Publisher.settle``."""
        seat = self._seat
        if seat is None:
            return
        loop, settled, number = asyncio.get_running_loop(), asyncio.Event(), self._orders

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop did not wait
                loop.call_soon_threadsafe(settled.set)

        def ask() -> None:
            if self._done >= number or seat.link.away:
                tell()
            else:
                self._settling.append((number, tell))

        seat.post(ask)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await settled.wait()

    async def close(self) -> None:
        """Withdraw everything that was written; waits at most two seconds for etcd."""
        seat = self._seat
        if seat is None or self._closed:
            return
        self._closed = True
        if not await seat.finish(self._last, _PATIENCE):
            log.warning(
                "%s does not answer; records of this node stay there until their lease ends, "
                "within %g s",
                self._address,
                self._ttl,
            )
        seat.leave()

    def state(self) -> str:
        """Why records cannot be written, and since when; "" while they can."""
        if self._seat is None or self._closed:
            return ""
        if refusal := self._refusal:
            return (
                f"{self._address} refuses to take records, for "
                f"{time.monotonic() - self._refused_at:.0f} s: {refusal}"
            )
        return self._seat.link.state()

    def _pair(self, record: Record) -> tuple[bytes, bytes] | None:
        """Key and value of a record; None for what is not published."""
        if not is_own(record, self._namespace):
            return None
        value = json.dumps(pack_record(record, self._reached, self._ingress))
        return record_key(record.endpoint, record.instance), value.encode()

    def _order(self, step: Callable[[], object]) -> None:
        if self._seat is None or self._closed:
            return
        self._orders += 1
        number = self._orders

        def order() -> None:
            step()
            self._ordered = number
            self._changed.set()

        self._seat.post(order)

    # In the thread.

    def _replace(self, wanted: dict[bytes, bytes]) -> None:
        self._wanted = wanted

    def _release(self, done: int | None = None) -> None:
        """Those who wait for what is done now; for all (None), nothing can be written."""
        waiting, self._settling = self._settling, []
        for number, tell in waiting:
            if done is None or number <= done:
                tell()
            else:
                self._settling.append((number, tell))

    @property
    def _link(self) -> Link:
        assert self._seat is not None
        return self._seat.link

    async def _serve(self) -> None:
        link = self._link
        while True:
            connection = await link.wait_connected()
            try:
                await self._keep(link, connection)
            except Lost as error:
                connection.give_up(str(error))
                self._release()
            except Refused as error:
                self._refuse(str(error))
                if not isinstance(error, _Partly):
                    self._release()
                await asyncio.sleep(_PAUSE)

    def _refuse(self, why: str) -> None:
        if not self._refusal:
            self._refused_at = time.monotonic()
            log.warning(
                "%s refuses to take records of this node: %s; it is tried again",
                self._address,
                why,
            )
        self._refusal = why

    async def _keep(self, link: Link, connection: Connection) -> None:
        """Renew the lease and write what has changed, until that is not possible any more."""
        while True:
            try:
                await self._renew(connection)
                due = time.monotonic() + self._pause
                link.well(connection)
                while (left := due - time.monotonic()) > 0:
                    if not await self._write_all(connection, due):
                        break
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await self._changed.wait()
            except Gone:  # the lease has ended a moment ago
                await asyncio.sleep(_MOMENT)

    async def _write_all(self, connection: Connection, due: float) -> bool:
        """Whether all is written; what is not when the lease is ``due`` comes after that."""
        ordered = self._ordered
        self._changed.clear()
        for key in [key for key in self._known if key not in self._wanted]:
            del self._known[key]
        steps: list[Callable[[], Coroutine[Any, Any, None]]] = [
            *(partial(self._put, connection, *pair) for pair in self._due()),
            *(partial(self._delete, connection, key) for key in self._unwanted()),
        ]
        refused: list[Refused] = []
        for start in range(0, len(steps), _ABREAST):
            part = steps[start : start + _ABREAST]
            await together(*(partial(_tried, step, refused) for step in part))
            if time.monotonic() > due:
                return False
        if refused:
            self._release(ordered)  # for no other one there is anything left to wait for
            raise _Partly(str(refused[0]))
        self._done = ordered
        self._release(ordered)
        if self._refusal:
            self._refusal = ""
            log.warning("%s takes records of this node again", self._address)
        return True

    async def _renew(self, connection: Connection) -> None:
        """Afterwards there is a lease, and what hangs on it no more is to be written again."""
        if self._lease and await connection.renew(self._lease, self._pause) > 0:
            request = connection.rpc.LeaseTimeToLiveRequest(ID=self._lease, keys=True)
            told = await connection.call("LeaseTimeToLive", request, self._pause)
            if told.TTL >= 0:  # whole seconds, rounded down
                # A write whose answer was lost hangs there, too: nobody may forget it.
                self._written = {key: self._written.get(key, _UNSURE) for key in told.keys}
                return
        await self._take_lease(connection)

    async def _take_lease(self, connection: Connection) -> None:
        if self._lease:
            log.warning(
                "the lease of this node at %s was lost: one of them stood still for %g s, or etcd "
                "has lost its data; all records are written again",
                self._address,
                self._ttl,
            )
        request = connection.rpc.LeaseGrantRequest(TTL=max(1, math.ceil(self._ttl)))
        granted = await connection.call("LeaseGrant", request, self._pause)
        self._lease = granted.ID
        self._leases = [*self._leases[1 - _LEASES :], granted.ID]
        self._written.clear()

    def _unwanted(self) -> set[bytes]:
        return self._written.keys() - self._wanted.keys()

    def _due(self) -> list[tuple[bytes, bytes]]:
        return [pair for pair in self._wanted.items() if self._written.get(pair[0]) != pair[1]]

    async def _put(self, connection: Connection, key: bytes, value: bytes) -> None:
        rpc = connection.rpc
        put = rpc.PutRequest(key=key, value=value, lease=self._lease)
        # Where etcd refuses, the renewal that follows each refusal tells what stands there.
        self._written[key] = _UNSURE
        if self._known.get(key) != value and not self._succeeded:
            await connection.call("Put", put, self._pause)
        elif not await self._put_again(connection, put):
            del self._written[key]
            return
        self._known[key] = value
        self._written[key] = value

    async def _put_again(self, connection: Connection, put: Any) -> bool:
        """Write where nothing stands, or what is one's own; whether that was so."""
        rpc = connection.rpc
        found = await connection.call("Range", rpc.RangeRequest(key=put.key), self._pause)
        revision = 0
        if found.kvs:
            lease, revision = found.kvs[0].lease, found.kvs[0].mod_revision
            if lease and lease not in self._leases:
                self._succeeded = True
                return False
        same = rpc.Compare(
            result=rpc.Compare.EQUAL,
            target=rpc.Compare.MOD,
            key=put.key,
            mod_revision=revision,
        )
        request = rpc.TxnRequest(compare=[same], success=[rpc.RequestOp(request_put=put)])
        return bool((await connection.call("Txn", request, self._pause)).succeeded)

    async def _delete(self, connection: Connection, key: bytes) -> None:
        rpc = connection.rpc
        ours = rpc.Compare(
            result=rpc.Compare.EQUAL, target=rpc.Compare.LEASE, key=key, lease=self._lease
        )
        delete = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        look = rpc.RequestOp(request_range=rpc.RangeRequest(key=key, count_only=True))
        request = rpc.TxnRequest(compare=[ours], success=[delete], failure=[look])
        answer = await connection.call("Txn", request, self._pause)
        if not answer.succeeded and answer.responses[0].response_range.count:
            self._succeeded = True
        self._written.pop(key, None)

    async def _last(self) -> None:
        """The lease goes, and with it what hangs on it."""
        self._release()
        lease, self._lease = self._lease, 0
        if not lease:
            return
        connection = self._link.connection
        if connection is None:
            raise Lost("etcd is away")
        request = connection.rpc.LeaseRevokeRequest(ID=lease)
        with contextlib.suppress(Gone):
            await connection.call("LeaseRevoke", request, _PATIENCE)


async def _tried(step: Callable[[], Coroutine[Any, Any, None]], refused: list[Refused]) -> None:
    """Do it; what is refused to one record must not end the writing of others. Raises Gone: the
    lease has ended, and with it all that was written.
    """
    try:
        await step()
    except Gone:
        raise
    except Refused as error:
        refused.append(error)
