"""What a forked child must not touch: sockets, and whatever else belongs to its parent.

ZeroMQ's threads do not exist in a child of ``os.fork``, but its descriptors do: what it reads is
lost for the parent, and what it sends goes nowhere. So all that is kept here is told of the fork,
in the child, before any of its code runs; it costs nothing until then.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

_kept: WeakSet[Inherited] = WeakSet()


class Inherited(Protocol):
    """What has no use in a forked child."""

    def forked(self) -> None:
        """This process is a fork of the one that made it: touch nothing that both have."""


def keep(each: Inherited) -> None:
    """Tell ``each`` of a fork, as long as it lives."""
    _kept.add(each)


def _forked() -> None:
    for each in list(_kept):
        each.forked()
    _kept.clear()


os.register_at_fork(after_in_child=_forked)
