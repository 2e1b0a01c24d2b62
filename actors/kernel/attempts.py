"""The attempts of one request: what is kept to go on elsewhere, and how that is done.

``Attempts`` comes into being with the first failure, or where the caller asks for something
(``instance``, ``priority``, a migration limit). What is to be done is decided by
``actors.session``; here it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from actors.kernel.kept import Kept
from actors.kernel.opened import Opened, Prelude
from actors.kernel.tokens import continue_tokens
from actors.messages import Route
from actors.session import (
    BROKEN,
    MIGRATE,
    PATIENCE,
    RAISE,
    RETRY,
    WAIT,
    Decision,
    Session,
    kind_of,
)
from transport.errors import CallHomeError, Cancelled, LocalProtocolError, text_of
from transport.payload import REQUEST, Encoded, inline_kept

if TYPE_CHECKING:
    from actors.kernel.sent import Request

#: ``resume(request, delivered)``: the request for what is left of a stream; None: nothing is.
Resume = Callable[[Any, list[Any]], Any]
#: ``replay(sent, received)``: the request items with which a new worker is to begin.
Replay = Callable[[list[Any], list[Any]], Iterable[Any]]
#: Stands for the request of what is left when nothing is.
_COMPLETE: Final = Encoded(b"", [], 0)


class Attempts:
    """The attempts of one request: its session, and what is kept to go on elsewhere."""

    __slots__ = (
        "_moving",
        "_pending",
        "_prelude",
        "count",
        "delivered",
        "first",
        "instance",
        "priority",
        "replay",
        "resume",
        "sent",
        "session",
        "spoken",
    )

    def __init__(
        self,
        sent: Request,
        *,
        migrations: int | None = None,
        instance: int = 0,
        priority: int = 0,
        resume: Resume | None = None,
        replay: Replay | None = None,
    ) -> None:
        self.sent = sent
        runtime = sent.caller.runtime
        settings = runtime.settings
        self.instance = instance
        self.priority = priority
        self.resume = resume
        self.replay = replay
        #: Attempts so far.
        self.count = 1
        if migrations is None:
            migrations = settings.migration_limit
        patience = PATIENCE if sent.limits.first is None else min(PATIENCE, sent.limits.first)
        self.session = Session(
            0 if instance else settings.retry_limit,
            0 if instance else migrations,
            resumable=sent.whole or resume is not None or replay is not None,
            patience=patience,
        )
        keeps = self.session.migrations > 0 and not sent.whole and self.session.resumable
        self.delivered = Kept(runtime) if keeps else None
        self.spoken = Kept(runtime) if keeps and replay is not None else None
        #: The request as it was at first, once it has been continued.
        self.first: Encoded | None = None
        self._pending: Decision | None = None
        #: What ``replay`` has given, for a worker that has begun with it, or has not yet.
        self._prelude: Prelude | None = None
        #: A migration has been decided upon, and nothing has been sent for it yet.
        self._moving = False

    def route(self) -> Route | None:
        """What the router is asked for the next attempt."""
        avoid = self.session.avoid
        if not (self.instance or self.priority or avoid):
            return None
        return Route(self.instance, [[each, avoid[each]] for each in avoid], self.priority)

    async def next(self, stream: Opened, behind: Iterable[Opened]) -> Opened | None:
        """The attempt after ``stream``; see ``Request.again``."""
        error = stream.error
        assert error is not None
        decision = self._pending or self._decide(stream, error)
        while True:
            if decision.step == WAIT:
                self._pending = decision  # whoever is cancelled meanwhile leaves it to the next
                decision = await self._paused(decision)
                self._pending = None
            if decision.step == RAISE:
                stream.error = decision.error
                stream.settle()
                return None
            self._moving = self._moving or decision.step == MIGRATE
            try:
                if self._has_begun() and self._is_to_be_made(stream, decision):
                    self._continue(stream, behind)
                    if self.sent.encoded is _COMPLETE:
                        stream.error = None
                        stream.settle()
                        return None
                return self._send(stream)
            except CallHomeError as failure:
                # Its traceback would tie the stream to this frame and the user's.
                failure.with_traceback(None)
                decision = self.session.ended(failure, 0, stopped=self._stopped())

    def _has_begun(self) -> bool:
        session = self.session
        return not self.sent.whole and (session.delivered > 0 or session.spoken)

    def _is_to_be_made(self, stream: Opened, decision: Decision) -> bool:
        """Whether what is left has to be asked of the user's function: once for each break."""
        if self.replay is None:
            return decision.step == MIGRATE
        return self._prelude is None or stream.fed or stream.seq > 0

    def _too_much(self) -> bool:
        """Whether more was delivered or said than is kept."""
        return any(kept is not None and kept.full for kept in (self.delivered, self.spoken))

    def _decide(self, stream: Opened, error: CallHomeError) -> Decision:
        session = self.session
        if self._too_much():
            session.resumable = False
        decision = session.ended(
            error,
            stream.seq - stream.faulty,
            spoken=stream.fed,
            stopped=self._stopped(),
        )
        if decision.step != RAISE and not self.sent.bring_in_line(stream):
            return Decision(RAISE, error)
        if decision.step == RAISE and decision.error is not None and kind_of(error) <= BROKEN:
            return Decision(RAISE, self._with_reason(decision.error))
        return decision

    def _with_reason(self, error: CallHomeError) -> CallHomeError:
        """The error, with the reason for which nothing else was tried where that is not plain."""
        if self.instance and error.code != "worker.unavailable":
            why = f"it was for instance {self.instance} and no other"
        elif self._too_much():
            limit = self.sent.caller.runtime.settings.migration_bytes
            why = f"its items are over migration_bytes ({limit}), so it could not be continued"
        elif self.session.used_up:
            why = f"migration_limit ({self.session.migrations}) is used up"
            if not self.sent.whole:
                why += f", after {self.session.delivered} items in all"
        else:
            return error
        told = type(error)(f"{error.message}; {why}", **error.details)
        told.__cause__ = error.__cause__
        return told

    def _stopped(self) -> str:
        context = self.sent.context
        return f"{self.sent.target}: {context.reason or 'stopped'}" if context.stopped else ""

    async def _paused(self, decision: Decision) -> Decision:
        """Wait until the request may be tried again, or give up."""
        sent, original = self.sent, self.session.original
        context = sent.context
        left = context.remaining()
        if left is not None and left <= decision.pause:
            return Decision(RAISE, original)
        home = sent.caller.runtime.home
        sent.link()
        home.between.pause(context, sent.named)
        try:
            async with asyncio.timeout(decision.pause):
                await context.wait_stopped()
        except TimeoutError:
            return Decision(RETRY)
        finally:
            home.between.resume(context)
            context.unlink()
        cancelled = Cancelled(self._stopped())
        cancelled.__cause__ = original
        return Decision(RAISE, cancelled)

    def _continue(self, stream: Opened, behind: Iterable[Opened]) -> None:
        """Make the request of what is left; for a stream each way, the items to begin with.

        Raises LocalProtocolError for a function of the user's that does not do its part.
        """
        assert self.delivered is not None
        delivered = self.delivered.beside(behind)
        if delivered.full or self._too_much():
            raise LocalProtocolError(f"{self.sent.target}: its items are over migration_bytes")
        try:
            if self.replay is not None:
                assert self.spoken is not None
                items = self.replay(self.spoken.values(item=False), delivered.values(item=True))
                self._prelude = Prelude(iter(items), partial(self._unable, stream.failure()))
            else:
                assert self.resume is not None
                self._resume(self.resume, delivered.values(item=True))
        except (Exception, SystemExit) as error:  # it is the user's: it ends no program either
            raise self._unable(stream.failure(), error) from error

    def _resume(self, resume: Resume, delivered: list[Any]) -> None:
        sent, runtime = self.sent, self.sent.caller.runtime
        if self.first is None:
            self.first = sent.encoded
        first = self.first
        request = runtime.decode(first.data, first.handles, sent.codec)
        new = resume(request, delivered)
        if new is None:
            sent.encoded = _COMPLETE
        else:
            encoded = runtime.encode(new, sent.codec, True, REQUEST)
            sent.encoded = inline_kept(encoded, runtime.memory)

    def _unable(self, broke: CallHomeError, error: BaseException) -> LocalProtocolError:
        """What the caller is told when his function has not said how to go on behind ``broke``."""
        function = self.replay or self.resume
        name = getattr(function, "__qualname__", None) or repr(function)[:100]
        kind = "replay" if self.replay is not None else "resume"
        if function is continue_tokens and isinstance(error, CallHomeError):
            how = str(error)
        else:
            how = f"{kind} function {name} failed: {type(error).__name__}: {text_of(error)}"
        if error.__cause__ is None and error.__context__ is None:
            error.__cause__ = broke
        failure = LocalProtocolError(
            f"{self.sent.target}: {how}; the stream had ended with: {broke}"
        )
        failure.__cause__ = error
        return failure

    def _send(self, stream: Opened) -> Opened:
        sent = self.sent
        sent.link()
        new = sent.send()
        self.count += 1
        sent.caller.runtime.home.between.count(self._moving, self._has_begun())
        self._moving = False
        if self._prelude is not None:
            new.replay = self._prelude
            new.replay.ends = sent.said_last
        elif sent.many and sent.said_last:
            new.feed_end()
        stream.after = new
        return new
