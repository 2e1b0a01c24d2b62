"""What an ingress tells beyond its node: the records of its engines, in a directory and in etcd.

Dynamo's clients read nothing else: of an engine that is frozen or not ready the record is withdrawn
there for as long as it is so. One that is stalled stays: it is busy, and its streams go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Final

from actors.discovery.base import Change, Discovery, Publisher, Subscription
from actors.discovery.sources import Sources
from actors.kernel.verdicts import FROZEN, UNREADY
from actors.messages import Added, Record, Removed, Snapshot

#: Codes of verdicts for which a record is withdrawn.
HIDES: Final = (FROZEN, UNREADY)


class Publishing:
    """Made by an ingress; ``start`` once it listens, ``close`` when it stops. Without sources it
    does nothing.
    """

    def __init__(self) -> None:
        self._publishers: dict[str, Publisher] = {}
        self._records: dict[tuple[int, str], Record] = {}
        #: Instances whose records are withdrawn, and why.
        self._hidden: dict[int, str] = {}
        self._subscription: Subscription | None = None

    @property
    def active(self) -> bool:
        """Whether anything is told to anybody."""
        return bool(self._publishers)

    async def start(
        self, sources: Sources, discovery: Discovery, reached: str, ingress: int
    ) -> None:
        """Publish what ``discovery``, the node's registry, tells. Raises SpecError."""
        for name, publisher in sources.publishers(reached, ingress).items():
            publisher.start()
            self._publishers[name] = publisher
        if self._publishers:
            self._subscription = await discovery.subscribe(self._changed)

    def _changed(self, change: Change) -> None:
        if isinstance(change, Snapshot):
            self._records = {(each.instance, each.endpoint): each for each in change.records}
            self._keep_hidden()
            self._tell(Snapshot([each for each in change.records if self._shows(each)]))
        elif isinstance(change, Added):
            self._records[change.record.instance, change.record.endpoint] = change.record
            if self._shows(change.record):
                self._tell(change)
        else:
            self._records.pop((change.record.instance, change.record.endpoint), None)
            if self._shows(change.record):
                self._tell(change)
            self._keep_hidden()

    def judge(self, unwell: Iterable[tuple[int, str]]) -> None:
        """Who is not well now, with the code of the verdict: all others are."""
        hidden = {instance: code for instance, code in unwell if code in HIDES}
        if hidden.keys() == self._hidden.keys():
            return
        before, self._hidden = self._hidden, hidden
        for record in list(self._records.values()):
            was, code = record.instance in before, hidden.get(record.instance)
            if code is not None and not was:
                self._tell(Removed(record, f"it is {code}"))
            elif code is None and was:
                self._tell(Added(record))

    def withdraw(self) -> None:
        """Hear of no more changes: what comes next is the end."""
        if self._subscription is not None:
            self._subscription.cancel()

    async def settle(self, limit: float) -> None:
        """Wait until what was told so far stands there, at most ``limit`` seconds."""
        await self._all(each.settle(limit) for each in self._publishers.values())

    async def close(self) -> None:
        """Withdraw everything, within some seconds. A second call does nothing."""
        self.withdraw()
        publishers, self._publishers = self._publishers, {}
        await self._all(each.close() for each in publishers.values())

    def states(self) -> dict[str, str]:
        """Why records cannot be written, and since when, for each place; "" while they can."""
        return {name: each.state() for name, each in self._publishers.items()}

    def _shows(self, record: Record) -> bool:
        return record.instance not in self._hidden

    def _keep_hidden(self) -> None:
        """Of an engine that is gone nothing is hidden any more."""
        known = {instance for instance, _ in self._records}
        self._hidden = {each: why for each, why in self._hidden.items() if each in known}

    def _tell(self, change: Change) -> None:
        for publisher in self._publishers.values():
            publisher.changed(change)

    @staticmethod
    async def _all(waits: Iterable[Coroutine[object, object, None]]) -> None:
        await asyncio.gather(*waits)
