"""Calling: one answer, a stream of answers, or a stream each way; the objects that users hold.

``Caller`` is what ``Client`` and the context of an engine are made of. It encodes the request,
opens the stream and hands out ``ResponseStream`` or ``DuplexStream``. A stream that is left, closed
or dropped before its end is killed; one that its engine ended badly raises its error after the
items that came before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from actors.kernel.asked import asked
from actors.kernel.attempts import Replay, Resume
from actors.kernel.opened import Opened
from actors.kernel.responses import DuplexStream, ResponseStream, drop_queue, plain
from actors.kernel.runtime import Runtime
from actors.kernel.sent import Request
from actors.kernel.watchful import OnWarning, check_listener
from transport.bus.address import Address
from transport.context import Context
from transport.errors import (
    CallHomeError,
    Cancelled,
    EngineError,
    LocalProtocolError,
    RemoteProtocolError,
    shown,
)
from transport.payload import REQUEST, Encoded
from transport.shm.frames import Frames
from transport.wire.codec import check_codec
from transport.wire.plain import PLAIN

_MAX_ID = 256
#: Metadata that callhome's nodes tell each other beside the user's; never seen by a handler.
RESERVED: Final = "x-callhome-"


class Default(Enum):
    """Stands for "the limit of the settings" where None means "no limit"."""

    DEFAULT = "default"


DEFAULT: Final = Default.DEFAULT
Timeout = float | None | Default


class Caller:
    """Opens streams from one runtime; ``route`` says where a target's Opens go."""

    #: The one actor that is called, where it is one.
    actor: str = ""

    def __init__(
        self, runtime: Runtime, route: Callable[[str], Address], parent: Context | None = None
    ) -> None:
        self.runtime = runtime
        self.route = route
        self.parent = parent

    @property
    def frames(self) -> Frames:
        """Where frames to be written in place come from; MemoryExhausted when the arena is full."""
        return self.runtime.memory.frames

    async def call(
        self,
        endpoint: str,
        request: Any = None,
        *,
        timeout: Timeout = DEFAULT,
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
        codec: str | None = None,
        instance: int | None = None,
        priority: int = 0,
        migration_limit: int | None = None,
        on_warning: OnWarning | None = None,
    ) -> Any:
        """Exactly one answer, or an error.

        A request that no worker has begun, or whose worker has died without an answer, goes to
        another one by itself, up to ``retry_limit`` times (a setting). ``migration_limit``: how
        often that is also done when the first worker may still be at it, or has answered and died;
        a setting, too, and 0 by default. ``instance``: this worker (see ``client.workers``) and no
        other. ``priority``: of two that wait at a router the larger one goes first.

        ``on_warning`` is called with each ``StreamWarning``: that the worker's process is frozen or
        its event loop blocked, and that it goes on; the call goes on waiting.

        ``timeout`` is in seconds; None means no limit, the default is ``call_timeout`` of the
        settings. Raises Cancelled when it was stopped or killed, DeadlineExceeded, NoWorkers,
        Overloaded, EngineError, EncodeError, PeerLost and what else ``actors.errors`` lists;
        RemoteProtocolError when the engine gives no answer or several. A Frame in the request is
        handed on, whatever comes of it: another attempt, after an error with ``retry``, takes a new
        one.
        """
        limit = self.runtime.settings.call_timeout if timeout is DEFAULT else timeout
        sent = self._request(endpoint, False, limit, metadata, request_id, codec)
        sent.whole = True
        if on_warning is not None:
            sent.context.when_warned = check_listener(on_warning)
        if instance is not None or priority or migration_limit is not None:
            sent.attempts = asked(
                sent, instance=instance, priority=priority, migrations=migration_limit
            )
        sent.encoded = self.encode(request, sent)
        return await self._answered(sent)

    async def _answered(self, sent: Request) -> Any:
        """Send a request and read its one answer."""
        stream = sent.send()
        answers: list[Any] = []
        try:
            while True:
                while stream.state.response_open and stream.seq <= 1:
                    if stream.queue:
                        # Taken before the end: an answer as large as the window owes the credit
                        # without which the engine is not resumed to find its end.
                        answers.append(self._take(stream))
                    await stream.wait()
                if stream.error is None and stream.codec is not sent.codec:
                    self._look_for_error(stream, answers)
                if stream.error is None:
                    break
                retried = await sent.again(stream)
                if retried is None:
                    break
                # Nobody has seen what came: an answer without its end is none.
                drop_queue(self.runtime, stream)
                answers.clear()
                stream = retried
        except BaseException:
            sent.context.kill("the call was cancelled")
            sent.give_up(stream)
            raise
        return self._answer(sent, stream, answers)

    def _answer(self, sent: Request, stream: Opened, answers: list[Any]) -> Any:
        if stream.error is not None:
            drop_queue(self.runtime, stream)
            raise stream.failure()
        if stream.seq == 0 and sent.context.stopped:
            raise Cancelled(f"{sent.target}: {sent.context.reason}, before it gave an answer")
        if stream.seq != 1:
            sent.context.kill("more than one answer")
            drop_queue(self.runtime, stream)
            text = "no answer" if stream.seq == 0 else "more than one answer"
            raise RemoteProtocolError(
                f"{sent.target} gave {text}; call() wants exactly one, use stream() for others"
            )
        return plain(answers[0] if answers else self._take(stream), stream.codec)

    def _look_for_error(self, stream: Opened, answers: list[Any]) -> None:
        """An error item of a foreign worker that tells of its own state is its stream's error."""
        if stream.codec in PLAIN and stream.queue and not answers:
            answers.append(self._take(stream))
        if stream.codec in PLAIN and len(answers) == 1 and stream.seq == 1:
            try:
                plain(answers[0], stream.codec)
            except CallHomeError as error:
                if type(error) is not EngineError:
                    stream.error, stream.faulty = error, 1

    def _take(self, stream: Opened) -> Any:
        queued = stream.queue.popleft()
        if isinstance(queued, bytes):
            stream.taken(len(queued))
            return self.runtime.decode(queued, [], stream.codec, True)
        payload, handles, size = queued
        stream.taken(size)
        return self.runtime.decode(payload, handles, stream.codec, True)

    def stream(
        self,
        endpoint: str,
        request: Any = None,
        *,
        timeout: Timeout = None,
        first_item_timeout: Timeout = DEFAULT,
        gap_timeout: Timeout = DEFAULT,
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
        codec: str | None = None,
        annotated: bool = False,
        instance: int | None = None,
        priority: int = 0,
        migration_limit: int | None = None,
        resume: Resume | None = None,
        on_warning: OnWarning | None = None,
    ) -> ResponseStream:
        """A stream of answers: ``async with client.stream(...) as items: async for item in items:
        ...``.

        Times are in seconds: ``timeout`` for the whole stream, ``first_item_timeout``, and
        ``gap_timeout`` between items; None means no limit. Leaving the block early kills the
        stream. With ``annotated`` each item comes as ``Annotated``.

        ``instance`` and ``priority`` are as for ``call``, and so are the attempts before the first
        item. A stream that breaks behind it is continued elsewhere up to ``migration_limit`` times
        (default: the setting): ``resume(request, delivered)`` gets the request and all items so
        far, and returns the request for the rest, or None when there is none. A request with
        ``token_ids`` needs no such function. ``on_warning`` is as for ``call``; the stream keeps
        its newest ``warnings``. Raises LocalProtocolError for a ``migration_limit``
        with which nothing could be done.
        """
        sent = self._request(endpoint, False, _given(timeout, None), metadata, request_id, codec)
        self._limit(sent, first_item_timeout, gap_timeout)
        self._ask(sent, instance, priority, migration_limit, resume=resume, request=request)
        if on_warning is not None:
            sent.context.when_warned = check_listener(on_warning)
        return ResponseStream(self, sent, request, annotated)

    def open(
        self,
        endpoint: str,
        *,
        timeout: Timeout = None,
        first_item_timeout: Timeout = DEFAULT,
        gap_timeout: Timeout = DEFAULT,
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
        codec: str | None = None,
        annotated: bool = False,
        instance: int | None = None,
        priority: int = 0,
        migration_limit: int | None = None,
        replay: Replay | None = None,
        on_warning: OnWarning | None = None,
    ) -> DuplexStream:
        """A stream each way, to a bidirectional engine; the options are those of ``stream``.

        It is continued elsewhere only with ``replay(sent, received)``, which returns the request
        items with which the new worker is to begin; what is sent afterwards follows them.
        """
        sent = self._request(endpoint, True, _given(timeout, None), metadata, request_id, codec)
        self._limit(sent, first_item_timeout, gap_timeout)
        self._ask(sent, instance, priority, migration_limit, replay=replay)
        if on_warning is not None:
            sent.context.when_warned = check_listener(on_warning)
        return DuplexStream(self, sent, None, annotated)

    def cancel(
        self, request_id: str, *, kill: bool = True, reason: str = "cancelled by its caller"
    ) -> bool:
        """Stop or kill the request that was sent from here under ``request_id``, also between two
        of its attempts; False when none is in flight.

        Raises LocalProtocolError for an empty id: it would name nothing, or everything.
        """
        _check_id(request_id)
        self.runtime.check_loop()
        context = self.runtime.home.find(request_id)
        if context is None:
            return False
        if kill:
            context.kill(reason)
        else:
            context.stop(reason)
        return True

    def _ask(
        self,
        sent: Request,
        instance: int | None,
        priority: int,
        migrations: int | None,
        *,
        resume: Resume | None = None,
        replay: Replay | None = None,
        request: Any = None,
    ) -> None:
        """What a stream asks of its attempts; most ask nothing, and have none before they fail."""
        settings = self.runtime.settings
        continued = settings.migration_limit or resume or replay
        if continued or instance is not None or priority or migrations is not None:
            sent.attempts = asked(
                sent,
                instance=instance,
                priority=priority,
                migrations=migrations,
                resume=resume,
                replay=replay,
                request=request,
            )

    def _limit(self, sent: Request, first: Timeout, gap: Timeout) -> None:
        settings = self.runtime.settings
        sent.limits.first = _checked(_given(first, settings.first_item_timeout))
        sent.limits.gap = _checked(_given(gap, settings.gap_timeout))

    def _request(
        self,
        target: str,
        many: bool,
        timeout: float | Default | None,
        metadata: Mapping[str, str] | None,
        request_id: str | None,
        codec: str | None,
    ) -> Request:
        self.runtime.check_open()
        parent, now = self.parent, time.monotonic()
        limit = _checked(_given(timeout, None))
        deadline = None if limit is None else now + limit
        if (
            parent is not None
            and parent.deadline is not None
            and (deadline is None or parent.deadline < deadline)
        ):
            deadline, limit = parent.deadline, max(parent.deadline - now, 0.0)
        if request_id is not None:
            _check_id(request_id)
        if not _is_text(target):
            raise LocalProtocolError(f"an endpoint is named by text, not {target!r}")
        name = request_id or self.runtime.new_id()
        context = Context(name, _strings(metadata, parent), deadline)
        codec = codec or self.runtime.settings.codec
        check_codec(codec)
        sent = Request(self, target, many, codec, context, request_id is not None)
        sent.limits.total = limit
        return sent

    def encode(self, request: Any, sent: Request) -> Encoded:
        """The request's payload; from here on the parent's cancels reach the stream."""
        encoded = self.runtime.encode(request, sent.codec, True, REQUEST)
        if self.parent is not None:
            self.parent.link(sent.context)
        return encoded


def _given(value: Timeout, default: float | None) -> float | None:
    return default if isinstance(value, Default) else value


def _checked(limit: float | None) -> float | None:
    if limit is None or (
        isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0
    ):
        return limit
    raise LocalProtocolError(f"a time limit is seconds above 0, or None for none; not {limit!r}")


def _check_id(request_id: str) -> None:
    if not _is_text(request_id) or not 0 < len(request_id) <= _MAX_ID:
        raise LocalProtocolError(
            f"a request id is text of 1 to {_MAX_ID} characters, not {str(request_id)[:40]!r}"
        )


def _is_text(value: object) -> bool:
    """Whether a value is text that can travel: lone surrogates cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _strings(metadata: Mapping[str, str] | None, parent: Context | None) -> dict[str, str]:
    given = dict(parent.metadata) if parent is not None else {}
    if metadata:
        for key, value in metadata.items():
            if not _is_text(key) or not _is_text(value):
                raise LocalProtocolError(f"metadata maps text to text; {key!r}: {value!r} does not")
            if key.lower().startswith(RESERVED):
                raise LocalProtocolError(
                    f"metadata keys that begin with {RESERVED!r} are callhome's own; "
                    f"give {shown(key)} another name"
                )
            given[key] = value
    return given
