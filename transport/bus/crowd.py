"""Keeps descriptors in reserve: ZeroMQ takes every connection that comes, and ends the whole
process when it can take one no more.

So before there is none left an actor's inboxes are taken out of sight: their files get another
name, under which nobody connects. Who is connected stays so; who comes anew is told why he cannot,
until descriptors are free again. Used by a runtime, on its loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Sequence
from typing import Final

from transport.bus.claim import Claim

log = logging.getLogger("callhome.bus")

#: Descriptors that are kept: a part of those allowed, within bounds. What waits at a socket for
#: ZeroMQ to take it when the file goes is taken still, and what an actor opens itself counts, too.
_PART: Final = 4
_LEAST: Final = 24
_MOST: Final = 1024


class Crowd:
    """Watches the connections that come to ``claims``, the inboxes of the actor ``name``."""

    def __init__(self, name: str, claims: Sequence[Claim], loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._claims = claims
        self._loop = loop
        #: The inboxes are out of sight.
        self.hidden = False
        for claim in claims:
            # Readable while a connection waits to be taken.
            loop.add_reader(claim.watched, self.check)

    def check(self) -> None:
        """Look how many descriptors are left; who comes or goes makes us look, and a timer."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return
        try:
            free = limit - len(os.listdir("/proc/self/fd"))
        except OSError:
            free = 0
        reserve = min(max(limit // _PART, _LEAST), _MOST)
        if not self.hidden and free < reserve:
            self._set(True)
            log.error(
                "%s: %d of %d descriptors are left; it takes no new peers until there are more; "
                "raise ulimit -n",
                *(self._name, free, limit),
            )
        elif self.hidden and free > reserve + reserve // 8:
            self._set(False)
            log.warning("%s: it takes new peers again", self._name)

    def _set(self, hidden: bool) -> None:
        self.hidden = hidden
        for claim in self._claims:
            claim.hide(hidden)

    def close(self) -> None:
        """The inboxes close next; their files stand where they stood."""
        for claim in self._claims:
            if claim.watched >= 0:
                if not self._loop.is_closed():
                    self._loop.remove_reader(claim.watched)
                claim.unwatch()
        if self.hidden:
            self._set(False)
