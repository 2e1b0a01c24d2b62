"""Who waits for whom: the handlers that stand behind an ask, so that a circle is told and not
waited for.

A mailbox handles one message at a time. A handler that asks its own actor, directly or by way of
others, waits for a message that waits for the handler. So asks carry the handlings that they come
from, and an actor refuses one that comes from the handling that it is at. The tasks that a handler
starts come from it, too: nobody can tell whether it waits for them. A call to an engine carries
nothing, so a circle by way of one ends with its deadline.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from transport.errors import LocalProtocolError

#: Where it travels among an Open's metadata; no handler of an actor sees those.
KEY: Final = "x-callhome-chain"
#: Handlings in one chain at most.
_LONGEST: Final = 64

#: The handlings behind the running code, ``name:incarnation:number`` each, the newest last.
CHAIN: ContextVar[str] = ContextVar("callhome_chain", default="")


class Handlings:
    """The handlings of one actor's mailbox, of which one runs at a time."""

    def __init__(self, name: str, incarnation: int) -> None:
        self._name = name
        self._mark = f"{incarnation:x}"
        self._number = 0
        self._running = ""

    def begin(self, behind: str = "") -> None:
        """The next one begins, in the task that calls this, on behalf of those ``behind`` it."""
        self._number += 1
        self._running = f"{self._name}:{self._mark}:{self._number}"
        if behind.count(" ") >= _LONGEST:
            behind = ""  # begins anew: a circle of that length is seen in its next round
        CHAIN.set(f"{behind} {self._running}" if behind else self._running)

    def end(self) -> None:
        """It has ended: what it has left behind may ask again."""
        self._running = ""

    def circle(self, behind: object) -> LocalProtocolError | None:
        """The error for an ask from ``behind`` that could never be handled, or None."""
        if not self._running or type(behind) is not str or self._running not in behind.split():
            return None
        names = [each.partition(":")[0] for each in behind.split()]
        way = " -> ".join([*names[-8:], self._name])
        return LocalProtocolError(
            f"re-entrant ask ({way}): {self._name} is at the message that this one comes from, and "
            "handles one at a time; let the handler return first, use tell, or a handler that "
            "yields, which runs beside the mailbox"
        )
