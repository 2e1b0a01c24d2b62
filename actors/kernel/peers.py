"""Watches the processes at the other ends and tells when one is gone, behind everything it had
sent.

A pidfd says at once that a process has ended, long before any time-out. But what it sent may still
stand in our inbox, and PULL sockets favour nobody: news of a death can overtake the dead peer's
last items. So a death is told only after the data inbox was found empty twice, ten milliseconds
apart. The node adds how the process ended; its word is waited for a short while. Used by a runtime,
on its loop.

Between PID namespaces a pid is somebody else, or nobody. There a connection to the peer's control
inbox, on which nothing is said, takes the place of the pidfd: the kernel ends it with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import OrderedDict
from collections.abc import Callable

from actors.kernel.space import knock
from transport.bus.address import Address, inbox_path
from transport.bus.port import Port
from transport.bus.socket import BURST
from transport.errors import LocalProtocolError
from transport.shm.segment import start_time as start_time

_SETTLE = 0.010
#: The node says at once how an actor of its own ended; on a busy machine that takes its time, and
#: "its process is gone" says less than "killed by SIGKILL". Nobody says it of a client.
_WAIT_REASON = 0.250
#: Rounds of the barrier in which a zombie still waits for its parent, who alone knows how it ended.
_UNREAPED = 100
#: A peer that sends without pause from several processes must not hold a verdict for ever.
_SETTLE_ROUNDS = 20
_KEPT = 4096
#: Of those known longest, who are looked at for one that can be forgotten.
_TRIES = 64
#: How a process ended when nobody knows better.
GONE = "its process is gone"
_CLOSED = "it has closed"

#: Seconds until an inbox that has just ended a connection, or has no place for one, is tried again.
_AGAIN = 0.03
_GREETING = 4096
#: Errors that say nothing of the peer: here is no descriptor, or no memory, left to look at it.
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
#: Seconds until it is tried again then.
_SCARCE_AGAIN = 0.25

#: A process: pid and start time; or an incarnation of another PID namespace and -1.
_Key = tuple[int, int]
OnDown = Callable[[Address, str], None]


def alive(address: Address) -> bool:
    """Whether the process of ``address``, which is of our own PID namespace, is still the one that
    had this name; see ``Peers.alive`` for all others.
    """
    return _runs(address.pid, address.started)


def _runs(pid: int, started: int) -> bool:
    """Whether process ``pid`` is the one that started then; without a descriptor to look at it,
    whether there is one.
    """
    if found := start_time(pid):
        return found == started
    try:
        os.close(os.open("/proc/self/stat", os.O_RDONLY))
    except OSError as error:
        return error.errno in _SCARCE and there(pid)
    return start_time(pid) == started  # there is one again, perhaps: this look counts


def there(pid: int) -> bool:
    """Whether a process has this number, a zombie too: asked without any descriptor."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


class _Watch:
    """One process; several incarnations may live in it (``place="here"``).

    ``fd`` is its pidfd, or a connection to it; -1 when it has ended (``gone``) and only the barrier
    is left, or when the next connection, or a descriptor for it, is waited for.
    """

    __slots__ = ("addresses", "fd", "gone", "made", "rounds", "seen", "since")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.gone = False
        self.made = 0.0
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
        #: Process, start time and namespace of whoever lives in this process.
        self._here = port.address[2:]
        self._watches: dict[_Key, _Watch] = {}
        self._reasons: OrderedDict[int, str] = OrderedDict()
        self._dead: OrderedDict[int, str] = OrderedDict()
        self._known: OrderedDict[int, Address] = OrderedDict()
        self._timers: set[asyncio.TimerHandle] = set()

    def note(self, address: Address) -> None:
        """A peer introduced itself; remember where its incarnation is reached."""
        self._known[address.incarnation] = address
        if len(self._known) > _KEPT:
            self._forget_one()

    def _forget_one(self) -> None:
        """Anybody can say hello: those that we have to do with are kept."""
        for _ in range(_TRIES):
            incarnation, address = next(iter(self._known.items()))
            watch = self._watches.get(self._key(address))
            if watch is None or incarnation not in watch.addresses:
                del self._known[incarnation]
                return
            self._known.move_to_end(incarnation)

    def find(self, incarnation: int) -> Address | None:
        """The address of a peer that introduced itself."""
        return self._known.get(incarnation)

    def may_be(self, address: Address) -> bool:
        """Whether nobody else is known by the address's incarnation."""
        return self._known.get(address.incarnation, address) == address

    def known(self) -> list[Address]:
        """Everybody who introduced himself and is not known to be dead."""
        return list(self._known.values())

    def death(self, address: Address) -> str | None:
        """How the incarnation ended; None before that is told, behind all that it had sent."""
        return self._dead.get(address.incarnation)

    def closed(self, address: Address) -> bool:
        """Whether the incarnation has said goodbye."""
        return self._dead.get(address.incarnation, "").startswith(_CLOSED)

    def watch(self, address: Address) -> bool:
        """Tell ``on_down`` when the process of ``address`` ends; False when it is gone already.

        One that is found gone is told behind the barrier like any other: the message that made us
        look may have its last items behind it. Watching twice is harmless; a watch lasts until the
        process ends or this runtime closes.
        """
        # For each stream, three times over: whoever is watched already is found in one step.
        watch = self._watches.get(address[2:4])
        if watch is not None and address.incarnation in watch.addresses:
            return not watch.gone
        if address.incarnation in self._dead:
            return False
        if address[2:] == self._here:
            return True
        key = self._key(address)
        watch = self._watches.get(key)
        if watch is not None:
            watch.addresses[address.incarnation] = address
            return not watch.gone
        watch = self._watches[key] = _Watch(-1)
        watch.addresses[address.incarnation] = address
        (self._connect if self._far(address) else self._open)(key)
        return not watch.gone

    def again(self, address: Address) -> bool:
        """Somebody who was taken for dead asks for something: whether he is there, and so is known
        as before. He could not be reached for a while, or another said goodbye in his name.
        """
        if address.incarnation not in self._dead or not self.alive(address):
            return False
        if not os.path.exists(inbox_path(self._port.run, address, "d")):
            return False  # he has closed, and this was under way
        del self._dead[address.incarnation]
        self._port.dead.pop(address.incarnation, None)
        self.note(address)
        return self.watch(address)

    def _open(self, key: _Key) -> None:
        """Open a process's pidfd, at the latest when there is a descriptor for it."""
        watch = self._watches.get(key)
        if watch is None or watch.gone or watch.fd >= 0:
            return
        try:
            watch.fd = os.pidfd_open(key[0])
        except OSError as error:
            if error.errno in _SCARCE:
                self.later(_SCARCE_AGAIN, self._open, key)
            else:
                self._gone(key, watch)
        except OverflowError:
            self._gone(key, watch)
        else:
            if _runs(*key):
                self._loop.add_reader(watch.fd, self._ended, key)
                return
            os.close(watch.fd)
            watch.fd = -1
            self._gone(key, watch)

    def _gone(self, key: _Key, watch: _Watch) -> None:
        watch.gone = True
        watch.since = self._loop.time()
        self.later(0.0, self._settle, key)

    def alive(self, address: Address) -> bool:
        """Whether the incarnation's process is there, in whatever PID namespace: asked now."""
        if not self._far(address):
            return alive(address)
        try:
            self._knock(address).close()
        except BlockingIOError:
            return True
        except OSError as error:
            return error.errno in _SCARCE
        except LocalProtocolError:
            return False
        return True

    def _far(self, address: Address) -> bool:
        return address.space != self._port.address.space

    def _key(self, address: Address) -> _Key:
        if self._far(address):
            return address.incarnation, -1  # its pid may be that of somebody here
        return address.pid, address.started

    def _knock(self, address: Address) -> socket.socket:
        return knock(inbox_path(self._port.run, address, "c"))

    def _connect(self, key: _Key) -> None:
        """Connect to a peer of another PID namespace, for the first time or again."""
        watch = self._watches.get(key)
        if watch is None or watch.gone or watch.fd >= 0:
            return
        try:
            caller = self._knock(next(iter(watch.addresses.values())))
        except BlockingIOError:
            self.later(_AGAIN, self._connect, key)  # there, and crowded
        except OSError as error:
            if error.errno in _SCARCE:
                self.later(_SCARCE_AGAIN, self._connect, key)
            else:
                self._gone(key, watch)
        except LocalProtocolError:
            self._gone(key, watch)
        else:
            watch.fd = caller.detach()
            watch.made = self._loop.time()
            self._loop.add_reader(watch.fd, self._heard, key)

    def _heard(self, key: _Key) -> None:
        """ZeroMQ's greeting, which is nothing to us, or the end of the connection."""
        watch = self._watches[key]
        with contextlib.suppress(OSError):
            if os.read(watch.fd, _GREETING):
                return
        self._loop.remove_reader(watch.fd)
        os.close(watch.fd)
        watch.fd = -1
        # The process is gone, or ZeroMQ has lost patience with us: the next one tells.
        soon = self._loop.time() - watch.made < _AGAIN
        self.later(_AGAIN if soon else 0.0, self._connect, key)

    def lost(self, address: Address, reason: str) -> None:
        """Nothing can be sent to a peer, dead or alive: for this side it is as good as dead, behind
        what it had sent.
        """
        if address.incarnation in self._dead or not self.watch(address):
            return
        if address.pid == self._pid and not self._far(address):
            self._lost(address, reason)
        else:
            self.later(_SETTLE, self._lost, address, reason)

    def _lost(self, address: Address, reason: str) -> None:
        self._port.poll_data()
        if address.incarnation in self._dead or not self.watch(address) or not self.alive(address):
            return  # it has died, which is why: how is told behind the barrier, with the reason
        self._unwatch(address)
        self._dead_now(address, reason)

    def left(self, incarnation: int) -> None:
        """A peer said goodbye: it is done with us, though its process may live on."""
        address = self._known.get(incarnation)
        if address is None or incarnation in self._dead:
            return
        self._unwatch(address)
        why = self._reasons.pop(incarnation, "")
        self._dead_now(address, f"{_CLOSED}: {why}" if why else _CLOSED)

    def reason(self, address: Address, reason: str) -> None:
        """The node says how a process ended."""
        self._reasons[address.incarnation] = reason
        if len(self._reasons) > _KEPT:
            self._reasons.popitem(last=False)

    def _unwatch(self, address: Address) -> None:
        key = self._key(address)
        watch = self._watches.get(key)
        if watch is not None:
            watch.addresses.pop(address.incarnation, None)
            if not watch.addresses and self._far(address):
                self._forget(key)  # a connection is to one incarnation, a pidfd to all of them

    def _forget(self, key: _Key) -> None:
        watch = self._watches.pop(key)
        if watch.fd >= 0:
            self._loop.remove_reader(watch.fd)
            os.close(watch.fd)

    def _ended(self, key: _Key) -> None:
        watch = self._watches[key]
        self._loop.remove_reader(watch.fd)
        os.close(watch.fd)
        watch.fd = -1
        watch.gone = True  # what it has sent may still come, but nobody will read what it is sent
        watch.since = self._loop.time()
        self._settle(key)

    def _settle(self, key: _Key) -> None:
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
        if watch.rounds <= _UNREAPED and key[1] >= 0 and there(key[0]):
            watch.since = self._loop.time()
        explained = all(each in self._reasons for each in watch.addresses)
        if quiet and (explained or self._loop.time() - watch.since >= _WAIT_REASON):
            del self._watches[key]
            for address in watch.addresses.values():
                self._dead_now(address, self._reasons.pop(address.incarnation, ""))
            return
        self.later(_SETTLE, self._settle, key)

    def later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
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
                if not self.alive(address):  # nobody will read: the port need not linger for it
                    self._port.forget(address.incarnation)
            if watch.fd >= 0:
                if not self._loop.is_closed():
                    self._loop.remove_reader(watch.fd)
                os.close(watch.fd)
        self._watches.clear()
