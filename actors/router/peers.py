"""Other nodes that a router was told of by name, as a Discovery: follows what each of them serves.

A node's ingress tells its records at a reserved path, as a stream like any other: a snapshot, then
every change. The router opens it as its own client. While a node is away its records are withdrawn,
and it is asked again with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from actors.discovery.base import Listener
from actors.discovery.record import RESERVED, SPEAKS, BadRecord, read_record
from actors.discovery.registry import Registry, RegistrySubscription
from actors.errors import CallHomeError, ConnectionLost, Draining, RemoteProtocolError
from actors.kernel.calls import Caller
from actors.kernel.runtime import Runtime
from actors.messages import Record
from transport.bus.address import Address

log = logging.getLogger("callhome")

_Key: TypeAlias = tuple[int, str]

#: Pauses between two attempts to reach a node, in seconds: the first, and the longest, with which
#: one whose cable is plugged in again is seen within 5 s: a dial that is under way then may take
#: two to fail.
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 2.0
#: What lasts so long, in seconds, is told once: nodes that start or stop beside each other meet
#: before.
_WORTH_TELLING: Final = 1.0
#: Nodes that an error names.
_NAMED: Final = 3
#: Characters of a reason there.
_REASON: Final = 300
#: Records of one node; more than this are none that anybody runs.
_MOST: Final = 65_536


class _Peer:
    """What one node serves, as far as it is known."""

    def __init__(self, address: str, changed: Callable[[_Key, str], None]) -> None:
        self.address = address
        self._changed = changed
        self.records: dict[_Key, Record] = {}
        #: How often the node has told all of it.
        self.snapshots = 0
        #: What a snapshot of which more is to come has not named yet.
        self._unnamed: set[_Key] = set()

    def add(self, record: Record) -> None:
        key = record.instance, record.endpoint
        self._unnamed.discard(key)
        if key in self.records or len(self.records) < _MOST:
            self.records[key] = record
            self._changed(key, "")

    def remove(self, key: _Key, reason: str) -> None:
        if self.records.pop(key, None) is not None:
            self._changed(key, reason)

    def replace(self, records: list[Record], more: bool) -> None:
        """All that the node serves; ``more``: up to ``whole`` as single records."""
        self._unnamed = set(self.records)
        for record in records:
            self._unnamed.discard((record.instance, record.endpoint))
        if not more:
            self.whole()
        for record in records:
            self.add(record)

    def whole(self) -> None:
        unnamed, self._unnamed = self._unnamed, set()
        for key in unnamed:
            self.remove(key, "it is not served there any more")


class StaticPeers:
    """Follows the nodes at ``addresses`` (``host:port`` each) from ``start`` to ``stop``.

    A Discovery: of an instance that several of them tell of, two names of one node perhaps, the
    first one's record holds. ``answered`` is called when one has told what it serves, or cannot be
    reached. Used by a router, on its loop.
    """

    def __init__(
        self,
        runtime: Runtime,
        addresses: Sequence[str],
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._answered = answered
        self._registry = Registry()
        self._peers = [_Peer(each, self._settle) for each in addresses]
        self._tasks: list[asyncio.Task[None]] = []
        #: What the router is asked for, and the record of who answers.
        self._records = {_target(each): _door(each) for each in addresses}
        self._addresses = list(addresses)
        #: Nodes whose records are known now.
        self.connected: set[str] = set()
        #: Why each of the others could not be followed when it was last tried.
        self.failures: dict[str, CallHomeError] = {}

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to follow all of them."""
        name = self._runtime.address.name
        for peer in self._peers:
            follow = self._follow(peer)
            self._tasks.append(tasks.create_task(follow, name=f"{name} follows {peer.address}"))

    async def subscribe(self, listener: Listener) -> RegistrySubscription:
        """See ``Discovery.subscribe``: what is known now, without waiting for anybody."""
        return self._registry.subscribe(listener)

    def stop(self) -> None:
        """Follow them no longer."""
        for task in self._tasks:
            task.cancel()

    def states(self) -> dict[str, str]:
        """For each node "" while its records are known, else why they are not; as text that can be
        sent.
        """
        return {_sendable(each): _sendable(self._state(each)) for each in self._addresses}

    def _state(self, address: str) -> str:
        if address in self.connected:
            return ""
        error = self.failures.get(address)
        return "not tried yet" if error is None else _reason(address, error)

    def untried(self) -> list[str]:
        """The nodes that have neither answered nor failed yet; as text that can be sent."""
        return [
            _sendable(each)
            for each in self._addresses
            if each not in self.connected and each not in self.failures
        ]

    def unseen(self) -> str:
        """Which nodes cannot be seen and why, for an error; "" when none has failed."""
        failed = [each for each in self._addresses if each in self.failures]
        told = [
            _sendable(f"peer {each} cannot be seen: {_reason(each, self.failures[each])}")
            for each in failed[:_NAMED]
        ]
        if len(failed) > _NAMED:
            told.append(f"and {len(failed) - _NAMED} more peers cannot be seen")
        return "; ".join(told)

    def find(self, home: Address, target: str) -> Record | None:
        """The node that is meant by a stream of this router's own; None for all others."""
        return self._records.get(target) if home == self._runtime.address else None

    def _settle(self, key: _Key, reason: str) -> None:
        """Tell what holds for an instance now, if that has changed."""
        record = next((each.records[key] for each in self._peers if key in each.records), None)
        if record is None:
            self._registry.remove(*key, reason)
        else:
            self._registry.add(record)

    async def _follow(self, peer: _Peer) -> None:
        address = peer.address
        pause, told, since = _FIRST_PAUSE, False, time.monotonic()
        while True:
            try:
                await self._read_on(peer)
                error: CallHomeError = ConnectionLost(
                    f"{address} has ended the list of its records"
                )
            except CallHomeError as failure:
                error = failure
            except Exception as failure:  # costs what one node tells, and not the router
                self._runtime.complain(f"following {address}", failure)
                error = RemoteProtocolError(f"{address} cannot be followed: {failure}")
            self.failures[address] = error
            if address in self.connected:
                self.connected.discard(address)
                pause, told, since = _FIRST_PAUSE, False, time.monotonic()
            for key in list(peer.records):
                peer.remove(key, f"the connection with {address} is lost: {error}")
            self._answered()
            if not told and time.monotonic() - since >= _WORTH_TELLING:
                log.warning(
                    "%s: cannot see what %s serves, trying again: %s",
                    self._runtime.address.name, _sendable(address), _reason(address, error),
                )  # fmt: skip
                told = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _read_on(self, peer: _Peer) -> None:
        """Read, and go on with its successor where an ingress has made room for one: what was known
        holds until that one has told what it serves.
        """
        while True:
            before = peer.snapshots
            try:
                await self._read(peer)
            except Draining:
                if peer.snapshots == before:
                    raise
            else:
                return

    async def _read(self, peer: _Peer) -> None:
        own = self._runtime.address
        caller = Caller(self._runtime, lambda _: own)
        limit = self._runtime.settings.prologue_timeout
        async with caller.stream(
            _target(peer.address), first_item_timeout=limit, gap_timeout=None
        ) as items:
            async for item in items:
                self._take(peer, item)

    def _take(self, peer: _Peer, item: Any) -> None:
        address = peer.address
        if not isinstance(item, dict):
            raise RemoteProtocolError(f"{address}: a change of records is no map")
        if "snapshot" in item:
            found = item["snapshot"]
            if not isinstance(found, list) or len(found) > _MOST:
                raise RemoteProtocolError(f"{address}: a snapshot of records is no list of them")
            peer.snapshots += 1
            records = [record for each in found if (record := self._record(address, each))]
            peer.replace(records, item.get("more") is True)
            self.connected.add(address)
            self.failures.pop(address, None)
            self._answered()
        elif "added" in item:
            record = self._record(address, item["added"])
            if record is not None:
                peer.add(record)
        elif "removed" in item:
            record = self._record(address, item["removed"])
            if record is not None:
                key = record.instance, record.endpoint
                peer.remove(key, str(item.get("reason", ""))[:500])
        elif "whole" in item:
            peer.whole()
        # Words that a later version may say are no reason to stop listening.

    def _record(self, address: str, data: Any) -> Record | None:
        try:
            return read_record(data)
        except BadRecord as error:
            log.warning("a record of %s is left out: %s", address, error)
            return None


def _reason(address: str, error: CallHomeError) -> str:
    """Why a node cannot be seen, without the names that only a router has for the way to it."""
    text = str(error).removeprefix(f"{_target(address)}: ").removeprefix(f"{address}/{RESERVED}: ")
    return text.replace(f"{address}/{RESERVED}", "it")[:_REASON]


def _sendable(text: str) -> str:
    """The text, its lone surrogates (as in a command line that is no UTF-8) written out."""
    return text.encode(errors="backslashreplace").decode()


def _target(address: str) -> str:
    return f"callhome.records@{address}"


def _door(address: str) -> Record:
    """What answers at a node's reserved path, as the record of an engine there."""
    name = Address(f"records@{address}", 0, 0, 0)
    return Record(0, name, "engine", _target(address), via=f"{address}/{RESERVED}", speaks=SPEAKS)
