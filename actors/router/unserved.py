"""What a router says of an endpoint that nobody serves: that nobody does, that nobody is known yet,
or what else there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from difflib import get_close_matches

from actors.errors import CallHomeError, NoWorkers
from actors.messages import Record
from actors.router.members import Members
from actors.router.peers import StaticPeers
from actors.router.reports import RemoteReports
from transport.bus.address import Address
from transport.errors import shown

#: Longest name, in characters, that a known endpoint could be meant by.
_LONGEST = 256
#: Characters of who left last, and why: two names and the end of a process, which comes last.
_LAST = 500


class Knowledge:
    """How much a router can know of who serves what. Made by it, filled in as it starts."""

    def __init__(self, members: Members, patience: float) -> None:
        self._members = members
        #: Until when streams wait for what is not known yet (monotonic).
        self.patient = time.monotonic() + patience
        #: Discovery has not told yet what there is.
        self.unread = False
        self.peers: StaticPeers
        self.reports: RemoteReports
        #: Why each directory or etcd cannot be read, by its name; "" while it can.
        self.sources: Callable[[], dict[str, str]] = dict

    def door(self, home: Address, target: str) -> Record | None:
        """The other node that is meant by a stream of this router's own."""
        return self.peers.find(home, target) or self.reports.find(home, target)

    def is_early(self) -> bool:
        """Whether others may still answer that have not been heard since this router started."""
        return time.monotonic() < self.patient and (self.unread or bool(self.peers.untried()))

    def _unseen(self) -> str:
        """Where workers may be that cannot be seen, and why; "" when all is seen."""
        return "; ".join(filter(None, (self.peers.unseen(), *self.sources().values())))

    def nobody(self, target: str) -> CallHomeError:
        """The error of a stream to an endpoint without workers."""
        known = self._members.served()
        served = f"served: {', '.join(known) or 'none'}"
        unseen = self._unseen()
        if unseen:
            served = f"{served}; {unseen}"
        untried = self.peers.untried()
        if self.unread or untried:
            who = (
                "what other nodes serve"
                if self.unread
                else f"peers ({', '.join(untried)[:_LONGEST]})"
            )
            verb = "has not been read" if self.unread else "have not answered"
            return NoWorkers(
                f"endpoint {shown(target)} is unknown here so far ({served}): {who} {verb} yet; "
                "try again"
            )
        pool = self._members.pools.get(target)
        if pool is not None:
            last = f"the last one was {shown(pool.left, _LAST)}" if pool.left else ""
            more = "; ".join(filter(None, (last, unseen)))
            more = f" ({more})" if more else ""
            return NoWorkers(
                f"no worker of endpoint {shown(target)} is alive{more}; "
                "wait for a restart (see callhome ps)"
            )
        near = get_close_matches(target[:_LONGEST], known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return NoWorkers(f"endpoint {shown(target)} is unknown here{hint} ({served})")
