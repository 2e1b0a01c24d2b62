"""Where workers call home: the requester's listeners, the handshake, and who waits for whom.

One object per event loop and requester. It listens only when something is awaited, on the address
of this machine from which the worker is reached, and tells the worker exactly that address.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple

from transport.callhome.address import (
    advertised,
    check_hostport,
    hostport,
    local_address_toward,
    numeric,
    wildcard,
)
from transport.callhome.framed import FramedLink
from transport.callhome.link import Link
from transport.callhome.listener import Listener
from transport.callhome.net import Net
from transport.callhome.pending import Entry, Pending
from transport.errors import (
    CallBackFailed,
    CallHomeError,
    ConnectionLost,
    RemoteProtocolError,
    SpecError,
    shown,
)
from transport.wire.control import MAX_CONTROL, Handshake, read_handshake
from transport.wire.framing import HEADER, LIMIT, kind

Arrived = Callable[[FramedLink], None]
ArrivedMux = Callable[[Link, bytes, Handshake], None]
Failed = Callable[[CallHomeError], None]

#: Connections that have not named a subject yet; beyond them the oldest is closed.
_STRANGERS: Final = 1024
#: Seconds for which the address toward a host is taken for granted.
_ROUTE: Final = 5.0
_ROUTES: Final = 1024


class Expected(NamedTuple):
    """A half that is awaited."""

    subject: str
    """128 random bits: whoever names them is let in, once."""
    info: dict[str, str]
    """What the worker is told, as in the connection info of an envelope."""


class _Waiter(NamedTuple):
    arrived: Arrived | None
    arrived_mux: ArrivedMux | None
    failed: Failed
    toward: str
    address: str
    since: float


class Reception:
    """``host`` and ``port``: where to listen; with an empty host on the address toward each worker.
    ``advertise``: a host to tell workers instead. ``limit``: bytes of a frame on a stream's socket.
    ``handshake``: seconds for a connection to say what it is.

    Deadlines are times of ``clock``. Whoever owns it calls ``check`` about every 50 ms,
    while that returns True.
    """

    def __init__(
        self,
        net: Net,
        host: str = "",
        port: int = 0,
        advertise: str = "",
        *,
        limit: int = LIMIT,
        check: bool = False,
        handshake: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        woken: Callable[[], object] = lambda: None,
    ) -> None:
        """``woken`` is called when somebody comes, from when on ``check`` is due again, whatever it
        returned last.

        Raises SpecError when ``advertise`` is nothing that a worker can dial.
        """
        self._net = net
        self._host, self._port = host, port
        if advertise and wildcard(advertise):
            raise SpecError(
                f"call_home_advertise is {advertise!r}, which no worker can dial; name one address"
            )
        try:
            self._advertise = advertised(advertise) if advertise else ""
        except SpecError as error:
            raise SpecError(f"call_home_advertise: {error}") from error
        named = [name for name, given in (("_host", host), ("_port", port)) if given]
        self._setting = " and ".join(f"call_home{name}" for name in named) or "call_home_host"
        self._limit, self._check = limit, check
        self._handshake = handshake
        self._clock = clock
        self._woken = woken
        self._pending: Pending[_Waiter] = Pending()
        self._listeners: dict[str, Listener] = {}
        self._strangers: OrderedDict[FramedLink, float] = OrderedDict()
        self._routes: dict[str, tuple[str, float]] = {}
        self._closed = False

    @property
    def awaited(self) -> int:
        """Halves that are awaited now."""
        return len(self._pending)

    @property
    def strangers(self) -> int:
        """Connections that have not said yet what they are."""
        return len(self._strangers)

    def expect(
        self,
        stream_type: str,
        context: str,
        instance: Hashable | None,
        arrived: Arrived,
        failed: Failed,
        deadline: float,
        toward: str,
    ) -> Expected:
        """Await one half of a stream, before the envelope leaves for ``toward`` (``host:port``).

        Exactly one of ``arrived`` and ``failed`` is called, later, unless it is cancelled before:
        ``arrived`` with a connection that nobody reads yet and that is the caller's from then on.
        ``failed`` gets CallBackFailed after ``deadline`` and ConnectionLost when the instance is
        removed or this object is closed.

        Raises ConnectionLost when the instance was removed less than 5 s ago, when there is no road
        to ``toward`` and when that is a name which ``Net.names`` does not know, RemoteProtocolError
        when it is no address, OutboxFull when too many are awaited, SpecError when the setting of
        where to listen does not work.
        """
        address = self._address(toward)
        subject = self._register(
            stream_type, instance, deadline, _Waiter(arrived, None, failed, toward, address, 0.0)
        )
        return Expected(
            subject,
            {
                "address": address,
                "subject": subject,
                "context": context,
                "stream_type": stream_type,
            },
        )

    def expect_mux(
        self, toward: str, arrived: ArrivedMux, failed: Failed, deadline: float
    ) -> Expected:
        """Await the one connection of all streams with the node at ``toward``; as ``expect``.

        ``arrived`` gets the link, the bytes read beyond the handshake, and the handshake.
        """
        address = self._address(toward)
        waiter = _Waiter(None, arrived, failed, toward, address, 0.0)
        subject = self._register("mux", None, deadline, waiter)
        return Expected(subject, {"address": address, "subject": subject})

    def _register(
        self, stream_type: str, instance: Hashable | None, deadline: float, waiter: _Waiter
    ) -> str:
        now = self._clock()
        # In the shape of a UUID, as peers expect, but all of its 128 bits are random.
        subject = str(uuid.UUID(int=secrets.randbits(128)))
        waiter = waiter._replace(since=now)
        self._pending.register(subject, stream_type, instance, deadline, waiter, now)
        return subject

    # Where to listen

    def open(self, toward: Iterable[str], anywhere: bool) -> None:
        """Listen now where the settings say so, instead of when somebody is awaited: ``toward`` are
        peers (``host:port``) that are known, ``anywhere`` if others may come.

        Raises SpecError when that cannot be done.
        """
        if self._host:
            self._listener(self._host)
        elif self._port:
            hosts = {check_hostport(each)[0] for each in toward}
            for host in filter(numeric, hosts):
                with contextlib.suppress(ConnectionLost):  # no road there now
                    self._listener(local_address_toward(host))
            if anywhere:
                self._listener(advertised(""))

    def _address(self, toward: str) -> str:
        if self._closed:
            raise ConnectionLost("nobody can call home here any more: it is being closed")
        route = self._route(toward) if wildcard(self._host) else ""
        listener = self._listener(self._host or route)
        host, port = check_hostport(listener.address)
        return hostport(self._advertise or route or host, port)

    def _route(self, toward: str) -> str:
        host, _ = check_hostport(toward)
        now = self._clock()
        known = self._routes.get(host)
        if known is not None and now - known[1] < _ROUTE:
            return known[0]
        address = self._net.names.address(host)
        if not address:
            text = f"host {shown(host)} has not been looked up yet"
            raise ConnectionLost(text, peer=host, sent="no")
        found = local_address_toward(address)
        if len(self._routes) >= _ROUTES:
            self._routes.clear()
        self._routes[host] = found, now
        return found

    def _listener(self, host: str) -> Listener:
        found = self._listeners.get(host)
        if found is None:
            found = Listener(self._net, host, self._port, self._accepted, self._setting)
            found.open()
            self._listeners[host] = found
        return found

    # Who comes

    def _accepted(self, link: Link) -> None:
        if len(self._strangers) >= _STRANGERS:
            oldest, _ = self._strangers.popitem(last=False)
            self._turn_away(oldest, "crowd", "more connections than can wait for a handshake")
        self._woken()
        framed = FramedLink(link, HEADER + MAX_CONTROL, self._check, single=True)
        self._strangers[framed] = self._clock() + self._handshake
        framed.start(
            lambda header, body: self._greeted(framed, header, body),
            lambda error: self._left(framed, error),
        )

    def _turn_away(self, framed: FramedLink, what: str, why: str) -> None:
        self._net.complain(
            f"handshake.{what}", f"a connection of {framed.peer} is turned away: {why}"
        )
        framed.close(abort=True)

    def _left(self, framed: FramedLink, error: CallHomeError | None) -> None:
        del self._strangers[framed]
        if isinstance(error, RemoteProtocolError):
            self._net.count("handshake.garbage")  # the link has logged it
        else:
            self._net.count("handshake.left")
        framed.close(abort=True)

    def _greeted(self, framed: FramedLink, header: bytes, body: bytes) -> None:
        del self._strangers[framed]
        try:
            if kind(header, body) != "header_only":
                raise RemoteProtocolError("its first frame is no handshake: it has to be a header")
            handshake = read_handshake(header)
        except RemoteProtocolError as error:
            self._turn_away(framed, "garbage", str(error))
            return
        try:
            entry = self._pending.match(handshake.subject, handshake.stream_type)
        except RemoteProtocolError as error:
            self._turn_away(framed, "subject", str(error))
            return
        self._net.count("called_home")
        link, rest = framed.detach()
        waiter = entry.waiter
        try:
            if waiter.arrived_mux is not None:
                waiter.arrived_mux(link, rest, handshake)
            elif waiter.arrived is not None:
                waiter.arrived(FramedLink(link, self._limit, self._check, first=rest))
        except Exception as error:
            self._net.complain("handshake.failed", f"failed on the call of {link.peer}", error)
            link.close(abort=True)

    # Who does not come

    def cancel(self, subject: str) -> None:
        """Await it no longer; its callbacks are not called. Nothing happens if it has arrived."""
        self._pending.cancel(subject)

    def removed(self, instance: Hashable, reason: str) -> None:
        """An instance is gone: fail what it was awaited for, and what is asked of it for 5 s."""
        for entry in self._pending.removed(instance, self._clock()):
            text = f"the worker at {entry.waiter.toward} is gone before it called home: {reason}"
            self._fail(entry, ConnectionLost(text, peer=entry.waiter.toward))

    def added(self, instance: Hashable) -> None:
        """An instance is there, again or for the first time."""
        self._pending.added(instance)

    def check(self, now: float) -> bool:
        """Fail what is overdue and close who stays silent; whether anything is left to wait for."""
        for entry in self._pending.expired(now):
            waiter = entry.waiter
            self._net.count("callback.late")
            text = (
                f"call-back failed: the worker at {waiter.toward} has not connected to "
                f"{waiter.address} within {entry.deadline - waiter.since:.3g} s"
            )
            self._fail(entry, CallBackFailed(text, peer=waiter.toward, address=waiter.address))
        while self._strangers:
            framed, deadline = next(iter(self._strangers.items()))
            if deadline > now:
                break
            del self._strangers[framed]
            self._turn_away(framed, "silent", f"no handshake within {self._handshake:g} s")
        return bool(self._pending or self._strangers)

    def _fail(self, entry: Entry[_Waiter], error: CallHomeError) -> None:
        try:
            entry.waiter.failed(error)
        except Exception as trouble:
            self._net.complain("handshake.failed", "failed on a call that did not come", trouble)

    def close(self) -> None:
        """Stop listening and fail what is awaited; connections handed out stay."""
        if self._closed:
            return
        self._closed = True
        for listener in self._listeners.values():
            listener.close()
        for framed in list(self._strangers):
            framed.close(abort=True)
        self._strangers.clear()
        for entry in self._pending.clear():
            self._fail(entry, ConnectionLost("nobody waits for this call any more: closed"))
