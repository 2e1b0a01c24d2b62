"""Streams that an ingress serves itself, to routers of other nodes that follow it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from actors.ingress.arrival import Arrival
from actors.ingress.connections import HomeConnection
from actors.kernel.runtime import Runtime
from actors.messages import Accept, Credit, End, Items, Kill, Stop
from transport.errors import CallHomeError, to_wire
from transport.wire.codec import encode
from transport.wire.message import Message
from transport.wire.stream import SendCredit


class OwnStream(ABC):
    """One router that follows something of this ingress; a relay on its connection like the streams
    of engines.

    Raises RemoteProtocolError for a number that is in use.
    """

    def __init__(
        self, runtime: Runtime, arrival: Arrival, connection: HomeConnection, remote: int
    ) -> None:
        self.connection = connection
        self.credit = SendCredit(
            arrival.window_items + arrival.more_items, arrival.window_bytes + arrival.more_bytes
        )
        #: Accepted, and not over.
        self.running = False
        self._runtime = runtime
        self._codec = arrival.codec
        self._remote = remote
        self._seq = 0
        connection.enter(remote, self)

    @abstractmethod
    def begin(self) -> None:
        """The reader is there: tell it the first."""

    @abstractmethod
    def more(self) -> None:
        """The reader has room for more."""

    @abstractmethod
    def left(self) -> None:
        """The reader is gone."""

    def ready(self) -> None:
        """The connection is up."""
        connection = self.connection
        if self.running or connection.mux is None:
            return
        if connection.cancelled(self._remote) is not None:
            self._finish(End(self._remote, 0, None))
            return
        self.running = True
        connection.mux.send(Accept(self._remote, self._runtime.address, 0, 0))
        self.begin()

    def send(self, item: Any) -> None:
        """Tell one item; the caller minds the credit."""
        mux = self.connection.mux
        if mux is not None:
            payload = encode(item, codec=self._codec)
            self.credit.spend(1, len(payload))
            mux.send(Items(self._remote, self._seq, [payload]), len(payload))
            self._seq += 1

    def heard(self, message: Message) -> None:
        """Credit, or the wish to end."""
        if type(message) is Credit:
            self.credit.grant(message.items, message.bytes)
            if self.running:
                self.more()
        elif type(message) is Stop:
            self._finish(End(self._remote, self._seq, None))
        elif type(message) is Kill:
            self._finish(None)

    def cut(self, error: CallHomeError) -> None:
        """The connection is gone."""
        self._finish(None)

    def fail(self, error: CallHomeError) -> None:
        """This node stops."""
        self._finish(End(self._remote, self._seq, to_wire(error)))

    def _finish(self, end: End | None) -> None:
        self.running = False
        self.left()
        self.connection.leave(self._remote, self)
        if end is not None and self.connection.mux is not None:
            self.connection.mux.send(end)
