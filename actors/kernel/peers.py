"""Watches the processes at the other ends and tells when one is gone, behind everything it had
sent.

A pidfd says at once that a process has ended, long before any time-out. But what it sent may still
stand in our inbox, and PULL sockets favour nobody: news of a death can overtake the dead peer's
last items. So a death is told only after the data inbox was found empty twice, ten milliseconds
apart. The node adds how the process ended; its word is waited for a short while. Used by a runtime,
on its loop.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable

from transport.bus.address import Address
from transport.bus.port import Port
from transport.bus.socket import BURST
from transport.shm.segment import start_time as start_time

_SETTLE = 0.010
_WAIT_REASON = 0.050
#: A peer that sends without pause from several processes must not hold a verdict for ever.
_SETTLE_ROUNDS = 20
_KEPT = 4096
#: How a process ended when nobody knows better.
GONE = "its process is gone"

OnDown = Callable[[Address, str], None]


def alive(address: Address) -> bool:
    """Whether the process of ``address`` is still the one that had this name."""
    return start_time(address.pid) == address.started


class _Watch:
    """One process; several incarnations may live in it (``place="here"``).

    ``fd`` is its pidfd, or -1 when it has ended and only the barrier is left.
    """

    __slots__ = ("addresses", "fd", "rounds", "seen", "since")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.addresses: dict[int, Address] = {}
        self.rounds = 0
        self.seen = -1
        self.since = 0.0


class Peers:
    """Who we have to do with, and who of them is dead."""

    def __init__(self, port: Port, on_down: OnDown) -> None:
        self._port = port
        self._on_down = on_down
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._watches: dict[tuple[int, int], _Watch] = {}
        self._reasons: OrderedDict[int, str] = OrderedDict()
        self._dead: OrderedDict[int, str] = OrderedDict()
        self._known: OrderedDict[int, Address] = OrderedDict()
        self._timers: set[asyncio.TimerHandle] = set()

    def note(self, address: Address) -> None:
        """A peer introduced itself; remember where its incarnation is reached."""
        self._known[address.incarnation] = address
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)

    def find(self, incarnation: int) -> Address | None:
        """The address of a peer that introduced itself."""
        return self._known.get(incarnation)

    def known(self) -> list[Address]:
        """Everybody who introduced himself and is not known to be dead."""
        return list(self._known.values())

    def death(self, address: Address) -> str | None:
        """How the incarnation ended; None before that is told, behind all that it had sent."""
        return self._dead.get(address.incarnation)

    def watch(self, address: Address) -> bool:
        """Tell ``on_down`` when the process of ``address`` ends; False when it is gone already.

        One that is found gone is told behind the barrier like any other: the message that made us
        look may have its last items behind it. Watching twice is harmless; a watch lasts until the
        process ends or this runtime closes.
        """
        if address.incarnation in self._dead:
            return False
        key = (address.pid, address.started)
        watch = self._watches.get(key)
        if watch is not None:
            watch.addresses[address.incarnation] = address
            return watch.fd >= 0
        if address.pid == self._pid:
            return True
        try:
            fd = os.pidfd_open(address.pid)
        except OSError:
            return self._gone(key, address)
        if not alive(address):
            os.close(fd)
            return self._gone(key, address)
        watch = self._watches[key] = _Watch(fd)
        watch.addresses[address.incarnation] = address
        self._loop.add_reader(fd, self._ended, key)
        return True

    def _gone(self, key: tuple[int, int], address: Address) -> bool:
        watch = self._watches[key] = _Watch(-1)
        watch.addresses[address.incarnation] = address
        watch.since = self._loop.time()
        self.later(0.0, self._settle, key)
        return False

    def lost(self, address: Address, reason: str) -> None:
        """Nothing can be sent to a living peer: for this side it is as good as dead."""
        if address.incarnation not in self._dead:
            self._dead_now(address, reason)

    def left(self, incarnation: int) -> None:
        """A peer said goodbye: it is done with us, though its process may live on."""
        address = self._known.get(incarnation)
        if address is None or incarnation in self._dead:
            return
        watch = self._watches.get((address.pid, address.started))
        if watch is not None:
            watch.addresses.pop(incarnation, None)
        self._dead_now(address, "it has closed")

    def reason(self, address: Address, reason: str) -> None:
        """The node says how a process ended."""
        self._reasons[address.incarnation] = reason
        if len(self._reasons) > _KEPT:
            self._reasons.popitem(last=False)

    def _ended(self, key: tuple[int, int]) -> None:
        watch = self._watches[key]
        self._loop.remove_reader(watch.fd)
        os.close(watch.fd)
        watch.fd = -1  # what it has sent may still come, but nobody will read what it is sent
        watch.since = self._loop.time()
        self._settle(key)

    def _settle(self, key: tuple[int, int]) -> None:
        """One round of the barrier: empty twice, and the reason known or waited for long enough."""
        watch = self._watches.get(key)
        if watch is None:
            return
        self._port.poll_control()
        drained = self._port.poll_data() < BURST
        # Of this process only: others may go on sending all the time.
        before, came = watch.seen, self._port.came
        watch.seen = sum(came.get(each, 0) for each in watch.addresses)
        watch.rounds += 1
        quiet = (drained and before == watch.seen) or watch.rounds > _SETTLE_ROUNDS
        explained = all(each in self._reasons for each in watch.addresses)
        if quiet and (explained or self._loop.time() - watch.since >= _WAIT_REASON):
            del self._watches[key]
            for address in watch.addresses.values():
                self._dead_now(address, self._reasons.pop(address.incarnation, ""))
            return
        self.later(_SETTLE, self._settle, key)

    def later(self, delay: float, callback: Callable[..., None], *args: object) -> None:
        """Call back after ``delay`` seconds, unless this runtime has closed by then."""

        def run() -> None:
            self._timers.discard(handle)
            callback(*args)

        handle = self._loop.call_later(delay, run)
        self._timers.add(handle)

    def _dead_now(self, address: Address, reason: str) -> None:
        text = reason or GONE
        self._dead[address.incarnation] = text
        if len(self._dead) > _KEPT:
            self._dead.popitem(last=False)
        self._known.pop(address.incarnation, None)
        self._port.forget(address.incarnation)
        self._on_down(address, text)

    def close(self) -> None:
        """Watch nobody any more."""
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()
        for watch in self._watches.values():
            for address in watch.addresses.values():
                if not alive(address):  # nobody will read: the port need not linger for it
                    self._port.forget(address.incarnation)
            if watch.fd >= 0:
                self._loop.remove_reader(watch.fd)
                os.close(watch.fd)
        self._watches.clear()
