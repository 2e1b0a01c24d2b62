"""Where a runtime may be used: in the process and on the event loop that made it, while its inboxes
are its own.

Whatever is used elsewhere would wait for ever, or take the process down: ZeroMQ's sockets are no
one else's. So it is an error that says what to do instead. Used by a runtime.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final

from transport.bus import forked
from transport.bus.crowd import Crowd
from transport.errors import CallHomeError, ConnectionLost, LocalProtocolError
from transport.wire import stream as machine

if TYPE_CHECKING:
    from actors.kernel.runtime import Runtime

log = logging.getLogger("callhome")

#: Seconds between two looks at the inboxes' files. Two looks in a row must find the same fault: a
#: node that ends takes its folder away file by file.
_LOOK: Final = 1.0


class Belonging:
    """Tells why a runtime cannot be used, and notices that it can be reached no longer."""

    def __init__(self, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self._runtime = runtime
        self._loop = loop
        self._pid = os.getpid()
        #: Whether this process is a fork of the one that made the runtime.
        self.inherited = False
        self._fault = ""
        #: Why nothing more comes in here, once that is so.
        self.broken: CallHomeError | None = None
        self._timer: asyncio.TimerHandle | None = loop.call_later(_LOOK, self._look)
        self._crowd = Crowd(runtime.address.name, runtime.port.claims, loop)
        forked.keep(self)

    def misuse(self) -> CallHomeError:
        """The error for a use that ``Runtime.check_open`` has found to be none."""
        name = self._runtime.address.name
        if self.inherited:
            return LocalProtocolError(
                f"{name} belongs to process {self._pid}, of which this one is a fork: it has no "
                "part in its sockets and memory; open a client of its own here, or start programs "
                "with subprocess, or multiprocessing's method 'spawn'"
            )
        if asyncio._get_running_loop() is not self._loop:
            ended = ", which has ended" if self._loop.is_closed() else ""
            return LocalProtocolError(
                f"{name} belongs to another event loop{ended}; open a client on the loop that uses "
                "it, or send the call there: "
                "asyncio.run_coroutine_threadsafe(client.call(...), loop).result()"
            )
        if self.broken is not None:
            return type(self.broken)(self.broken.message, **self.broken.details)
        return LocalProtocolError(f"{name} is closed; use a client inside its 'async with' block")

    def forked(self) -> None:
        """This process is a fork: nothing here is to be used."""
        self.inherited = True
        self._runtime.shut = True
        self._runtime.memory.forked()

    def _look(self) -> None:
        """See whether others still reach our inboxes."""
        fault = self._runtime.port.fault()
        if fault and fault == self._fault:
            self._timer = None
            self._lost(fault)
            return
        self._fault = fault
        self._crowd.check()
        self._timer = self._loop.call_later(_LOOK, self._look)

    def greeted(self) -> None:
        """Somebody is new here. ZeroMQ may have taken his connections before the loop saw them."""
        self._crowd.check()

    def _lost(self, fault: str) -> None:
        name = self._runtime.address.name
        error = ConnectionLost(
            f"{name} can be reached no longer: {fault}; nothing but callhome may touch the files "
            f"in {self._runtime.run}"
        )
        log.error("%s", error)
        self.broken = error
        self._runtime.shut = True
        home = self._runtime.home
        for stream in list(home.streams.values()):
            home.finish(stream, machine.LOST, self.misuse())
        self._runtime.when_broken(error)

    def close(self) -> None:
        """Look no more."""
        self._crowd.close()
        if self._timer is not None:
            self._timer.cancel()
