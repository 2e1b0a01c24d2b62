"""One stream to a Dynamo worker: a socket for its response, and one for its request if that is a
stream.

The worker dials both. What it sends is cut out of its wrappers and goes home as it is; without
credit the socket is not read. The end is clean only behind the terminal wrapper; everything else is
a cut, unless it was asked for.
"""

from __future__ import annotations

import math
from typing import Final

from actors.errors import CallBackFailed, DeadlineExceeded
from actors.messages import Accept, Credit, Feed, FeedCredit, FeedEnd, FeedItem, Items, Open, Record
from actors.router.relay import Plane, Relay, refusal, undelivered
from transport.callhome.framed import FramedLink
from transport.callhome.reception import Expected
from transport.errors import (
    CallHomeError,
    ConnectionLost,
    EncodeError,
    RemoteProtocolError,
)
from transport.wire.control import KILL, SENTINEL, STOP, read_control, read_prologue
from transport.wire.plain import is_error_item, plain_of, unwrap

#: Request items that may wait for a worker's socket.
_FEED_ITEMS: Final = 64
#: Seconds between the terminal wrapper and the end of the socket, after which the end is accepted.
_LINGER: Final = 1.0
#: How the system says that the peer has closed a socket without reading all that was sent to it.
_RESET: Final = frozenset({"ECONNRESET", "EPIPE"})


class SocketRelay(Relay):
    """One stream on sockets of its own."""

    __slots__ = (
        "_accepted",
        "_batch",
        "_begun",
        "_codec",
        "_credit_bytes",
        "_credit_items",
        "_fed",
        "_fed_bytes",
        "_feed_total",
        "_finished",
        "_many",
        "_paused",
        "_request",
        "_request_done",
        "_response",
        "_stopped",
        "halves",
    )

    def __init__(self, plane: Plane, message: Open, worker: Record) -> None:
        super().__init__(plane, message, worker)
        self._codec = plain_of(worker.codec)
        self._many = message.many
        #: The halves that the worker has not dialled yet.
        self.halves: list[Expected] = []
        self._response: FramedLink | None = None
        self._request: FramedLink | None = None
        self._credit_items = message.window_items
        self._credit_bytes = message.window_bytes
        self._paused = False
        #: The home has its Accept.
        self._accepted = False
        #: Items of this tick; they go home together.
        self._batch: list[bytes] = []
        #: The prologue has come.
        self._begun = False
        #: The terminal wrapper has come.
        self._finished = False
        self._stopped = False
        #: The request's closing frame is out, or its socket is of no use any more.
        self._request_done = not message.many
        self._feed_total = 0
        #: Request items and bytes sent since the last grant.
        self._fed = self._fed_bytes = 0

    # The way to the worker and home.

    @property
    def runs(self) -> bool:
        return self._begun

    def answered(self, reply: bytes | CallHomeError) -> None:
        """The request was acknowledged, refused, or nobody knows."""
        if self.over or self._begun:
            return
        called = self._response is not None or self._request is not None
        if isinstance(reply, CallHomeError) and not called:
            self.fail(undelivered(self.target, self.worker.via, reply))
        elif isinstance(reply, bytes) and reply:
            self.fail(refusal(self.target, self.worker.via, reply))
        else:  # who has called home has the request, whatever became of the reply
            self._await_next()

    def _await_next(self) -> None:
        """The worker has the request, as its reply or a call of it has told."""
        settings = self.plane.runtime.settings
        if self._begun:
            self.await_until(math.inf)
        elif self._response is not None:
            self.await_until(settings.prologue_timeout)
        elif self.deadline == math.inf:  # half a call is no reason to wait longer
            self.await_until(settings.dial_in_timeout)

    def expired(self) -> CallHomeError:
        settings, via = self.plane.runtime.settings, self.worker.via
        if self._response is None:
            where = self.halves[0].info.get("address") if self.halves else ""
            what = "" if self._request is None else " for the response, only for the request,"
            return CallBackFailed(
                f"{self.target}: {via} took the request and did not call back{what} to {where} in "
                f"{settings.dial_in_timeout:g} s; see that this address can be reached from there "
                "(call_home_host, call_home_advertise), or that it takes this kind of request: "
                "call()/stream() or open()"
            )
        return DeadlineExceeded(
            f"{self.target}: {via} called back and did not begin within "
            f"{settings.prologue_timeout:g} s (prologue_timeout)",
            sent="maybe",
        )

    def overdue(self) -> None:
        if self._finished:  # the application's word counts, not the socket's
            self._close_links()
            self.finish()
        else:
            super().overdue()

    def lost(self, error: CallHomeError) -> None:
        """A half will never come: its worker was removed, or nobody listens any more."""
        self.fail(type(error)(f"{self.target}: {self.worker.via}: {error}", **error.details))

    def response_came(self, link: FramedLink) -> None:
        """The worker has dialled the response half."""
        self._drop_half("response")
        self._response = link
        link.start(self._frame, self._response_ended)
        if self._stopped:
            link.write(STOP)
        self._await_next()

    def request_came(self, link: FramedLink) -> None:
        """The worker has dialled the request half: items may go, before it says that it has
        begun.
        """
        self._drop_half("request")
        self._request = link
        link.start(self._nothing_back, self._request_ended)
        if self._stopped:
            self._close_request(STOP)
        self.accept()
        if not self.over:
            self._await_next()

    def forget_halves(self) -> None:
        """Await nothing more; who dials in is turned away."""
        for half in self.halves:
            self.plane.reception.cancel(half.subject)
        self.halves = []

    def _drop_half(self, stream_type: str) -> None:
        self.halves = [each for each in self.halves if each.info["stream_type"] != stream_type]

    def accept(self) -> None:
        """Towards the home it is this router that serves the stream; told once."""
        if self._accepted:
            return
        self._accepted = True
        feed = (_FEED_ITEMS, self.plane.runtime.settings.window_bytes) if self._many else (0, 0)
        peer = self.plane.runtime.address
        self.to_home(Accept(self.stream, peer, *feed, self._codec))

    # What the worker sends.

    def _frame(self, header: bytes, body: bytes) -> None:
        try:
            if not self._begun:
                self._prologue(header, body)
            elif header:
                self._control(header, body)
            elif body:
                self._data(body)
            # An empty frame means nothing; Dynamo ignores it too.
        except CallHomeError as error:
            self._violated(error)

    def _violated(self, error: CallHomeError) -> None:
        text = f"{self.target}: {self.worker.via}, after {self.items} items: {error}"
        self.plane.net.complain("foreign.garbage", text)
        self.fail(type(error)(text, **error.details))

    def _prologue(self, header: bytes, body: bytes) -> None:
        if body or not header:
            raise RemoteProtocolError("a malformed prologue: it is no frame of a header alone")
        error = read_prologue(header)
        self._begun = True
        self.await_until(math.inf)
        if error is not None:
            self._close_links()
            text = f"{self.target}: {self.worker.via} failed before its first item: {error}"
            details = error.details | {"origin": "worker"}  # it answered: no fault of the road
            self.finish(type(error)(text, **details))
        elif not self._many:
            self.accept()

    def _control(self, header: bytes, body: bytes) -> None:
        if body:
            raise RemoteProtocolError("a control frame with a body")
        word = read_control(header)
        if word != "sentinel":
            raise RemoteProtocolError(f"a worker sends no {word!r}")
        self._ended_there("it said so without having finished")

    def _data(self, body: bytes) -> None:
        if self._finished:
            raise RemoteProtocolError("a frame behind the end of the stream")
        item = unwrap(body, self._codec)
        if item is None:
            self._finished = True
            self.await_until(_LINGER)
            return
        if is_error_item(item, self._codec):
            self.plane.faulted(self)
        if not self._batch:
            self.plane.mark(self)
        self._batch.append(item)
        self._credit_items -= 1
        self._credit_bytes -= len(item)
        if self._credit_items <= 0 or self._credit_bytes <= 0:
            self._paused = True
            assert self._response is not None
            self._response.pause()

    def collect(self) -> None:
        batch, self._batch = self._batch, []
        if batch and not self.over:
            self.to_home(Items(self.stream, self.items, batch), sum(map(len, batch)))
            self.items += len(batch)

    def _response_ended(self, error: CallHomeError | None) -> None:
        if isinstance(error, RemoteProtocolError) and not self._finished:
            self._violated(error)
        elif error is None:
            self._ended_there("it closed the connection", self._stopped)
        else:
            self._ended_there(str(error), self._hung_up(error))

    def _hung_up(self, error: CallHomeError) -> bool:
        """Whether a worker ends so that does what it was asked.

        A stopped one closes behind a whole frame. That of a stream each way hears the stop on both
        sockets and closes at the first: the system resets the one on which the other waits.
        """
        return self._stopped and self._many and error.details.get("errno") in _RESET

    def _ended_there(self, how: str, asked: bool = False) -> None:
        """The socket has come to its end; what that means depends on what came before, and on
        whether it was ``asked`` for.
        """
        self.collect()
        if self._finished or asked:
            self._close_links()
            self.finish()
        else:
            self._close_links(kill_request=True)
            self.finish(
                ConnectionLost(
                    f"{self.target}: the stream from {self.worker.via} was cut after {self.items} "
                    f"items: {how}"
                )
            )

    def finish(self, error: CallHomeError | None = None, total: int | None = None) -> None:
        self.collect()
        super().finish(error, total)

    # What the home sends.

    def cancel(self, reason: str) -> None:
        self.collect()
        if self._response is not None:
            self._response.write(KILL)
        self._close_links(kill_request=True)

    def stop(self, reason: str) -> None:
        if self._stopped:
            return
        self._stopped = True
        if self._response is not None:
            self._response.write(STOP)
        self._close_request(STOP)

    def credit(self, m: Credit) -> None:
        self._credit_items += m.items
        self._credit_bytes += m.bytes
        if self._paused and self._credit_items > 0 and self._credit_bytes > 0:
            self._paused = False
            if self._response is not None:
                self._response.resume()

    def feed(self, m: Feed) -> None:
        if m.first != self._feed_total:
            self.fail(RemoteProtocolError(f"{self.target}: request item {m.first} is out of order"))
            return
        self._feed_total += len(m.payloads)
        self._fed += len(m.payloads)
        self._fed_bytes += sum(map(len, m.payloads))
        if self._request is None or self._request_done:
            self._grant()  # nobody takes it any more; the response goes on
            return
        for payload in m.payloads:
            self._request.send(b"", payload)
        self._request.when_drained(self._grant)

    def feed_item(self, m: FeedItem) -> None:
        self.plane.runtime.expect(m.handles)
        self.plane.runtime.drop(m.handles)
        self.fail(
            EncodeError(
                f"{self.target}: request item {m.seq} holds an array, a frame or a buffer; a "
                "Dynamo worker cannot take it: send lists, or bytes under msgpack"
            )
        )

    def feed_end(self, m: FeedEnd) -> None:
        if m.total != self._feed_total:
            text = f"{self._feed_total} of {m.total} request items arrived"
            self.fail(ConnectionLost(f"{self.target}: the request was cut, {text}"))
        else:
            self._close_request(SENTINEL)

    def _grant(self) -> None:
        """The worker's socket has room: so has the home."""
        if (self._fed or self._fed_bytes) and not self.over:
            self.to_home(FeedCredit(self.stream, self._fed, self._fed_bytes), control=True)
            self._fed = self._fed_bytes = 0

    # The request's socket.

    def _close_request(self, frame: bytes) -> None:
        """Exactly one closing frame, then nothing."""
        if self._request is not None and not self._request_done:
            self._request_done = True
            self._request.write(frame)
            self._request.close()

    def _nothing_back(self, header: bytes, body: bytes) -> None:
        self._violated(RemoteProtocolError("a frame on the socket of the request"))

    def _request_ended(self, error: CallHomeError | None) -> None:
        # The worker's own half ends at once. A failure means that it takes no more: whether it
        # minds is for its response to say.
        if error is not None:
            self._request_done = True
            self._grant()

    def _close_links(self, kill_request: bool = False) -> None:
        self._close_request(KILL if kill_request else STOP)
        self.forget_halves()
        if self._response is not None:
            self._response.close()
