"""What becomes of a home's streams when the process at their other end is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.errors import WorkerLost
from actors.kernel.opened import Opened
from actors.messages import Lost
from transport.bus.address import Address
from transport.errors import PeerLost
from transport.wire import stream as machine

if TYPE_CHECKING:
    from actors.kernel.home import Home


class Deaths:
    """Fails the streams of those who are gone, with errors that name the worker where it was one.

    Of a router that is gone no worker is named: what it had sent on may be running still.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._runtime = home.runtime
        #: Streams of which a router has said so, until that is settled.
        self._told: dict[int, Lost] = {}
        home.runtime.on(Lost, self._lost)

    def down(self, address: Address, reason: str) -> None:
        """A process is gone, behind everything that it had sent."""
        for stream in list(self._home.streams.values()):
            if stream.peer is not None:
                if stream.peer.incarnation == address.incarnation:
                    text = f"{stream.target}: {address} died after {stream.seq} items: {reason}"
                    error = PeerLost(text, **stream.worker(address))
                    self._home.finish(stream, machine.LOST, error)
            elif stream.via.incarnation == address.incarnation:
                if (told := self._told.get(stream.number)) is not None:
                    self._lost_settled(told)  # its last word was of the worker
                    continue
                text = f"{stream.target}: {address} died before the stream was accepted: {reason}"
                self._home.finish(stream, machine.LOST, PeerLost(text))

    def _lost(self, sender: int, m: Lost) -> None:
        """A router says that the worker it chose died; its Accept may still stand in our inbox."""
        stream = self._home.streams.get(m.stream)
        if stream is None:
            self._runtime.links.refused(m.stream)
        elif stream.peer is None and stream.via.incarnation == sender:
            self._runtime.peers.reason(m.peer, m.reason)
            self._told[m.stream] = m
            self._runtime.port.poll_data()
            self._runtime.peers.later(0.010, self._lost_settled, m)

    def _lost_settled(self, m: Lost) -> None:
        self._told.pop(m.stream, None)
        self._runtime.port.poll_data()
        stream = self._home.streams.get(m.stream)
        if stream is not None and stream.peer is None:
            text = f"{stream.target}: {m.peer} died before it accepted the stream: {m.reason}"
            self.came_back(m.stream, stream)
            error = WorkerLost(text, **stream.worker(m.peer))
            self._home.finish(stream, machine.LOST, error)

    def came_back(self, number: int, stream: Opened | None) -> None:
        """Whoever had the stream's Open is dead and has not accepted it: its frames are ours."""
        if stream is not None and stream.keep:
            self._runtime.links.came_back(number)
        else:
            self._runtime.links.refused(number)
