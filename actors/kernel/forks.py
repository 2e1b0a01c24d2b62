"""The end of a fork that would go on with what its parent does.

A child of ``os.fork`` has the parent's event loop, and the very selector behind it: what it removes
there is removed for the parent, and what it reads the parent misses. It may do what it likes until
it comes back to that loop, or out of a block whose end is the parent's business; there it ends.
Used by the processes of actors, by ``Client`` and by ``Cluster``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import traceback
from typing import Final, NoReturn

from transport.bus import forked

log = logging.getLogger("callhome")

#: The exit code of one that has come back to the loop, or out of a block without SystemExit.
FAILED: Final = 1


class Fork:
    """Notices that this process has become a fork of the one that made it.

    ``returns``: a fork that comes back to this loop ends with its next turn. Kept by its maker.
    """

    def __init__(self, *, returns: bool = False) -> None:
        self._loop = asyncio.get_running_loop() if returns else None
        self._parent = os.getpid()
        self.happened = False
        forked.keep(self)

    def forked(self) -> None:
        """See ``transport.bus.forked``."""
        self.happened = True
        if self._loop is not None:
            self._loop.set_exception_handler(lambda loop, context: None)
            self._loop.call_soon(self.end, "came back to the event loop")

    def end(self, where: str, error: BaseException | None = None) -> NoReturn:
        """End this fork, which ``where`` has come to: with the code of SystemExit, else as failed;
        without any cleaning up, which would be of what the parent uses.
        """
        code = FAILED
        with contextlib.suppress(Exception):
            if isinstance(error, SystemExit):
                code = _code(error)
            else:
                if error is not None:
                    traceback.print_exception(error)
                log.error(
                    "process %d is a fork of %d, and ends: it %s, which is its parent's; a fork "
                    "ends with os._exit(), or runs another program", os.getpid(), self._parent,
                    where,
                )  # fmt: skip
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _code(error: SystemExit) -> int:
    """What ``sys.exit`` would have made of it."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return FAILED
