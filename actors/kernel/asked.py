"""What a caller may ask for one request, checked: a worker, a priority, to be continued."""

from __future__ import annotations

import inspect
from typing import Any, Final

from actors.kernel.attempts import Attempts, Replay, Resume
from actors.kernel.sent import Request
from actors.kernel.tokens import continue_tokens, is_token_request
from transport.errors import LocalProtocolError

#: Of two requests with at most this distance from 0, the larger one goes first.
MAX_PRIORITY: Final = 1_000_000_000
_NEEDS_RESUME: Final = (
    "give resume=, a function of (request, delivered) that returns the request for what is left, "
    "or send a request with token_ids"
)
_NEEDS_REPLAY: Final = (
    "give replay=, a function of (sent, received) that returns the request items with which a new "
    "worker is to begin"
)


def asked(
    sent: Request,
    *,
    instance: int | None,
    priority: int,
    migrations: int | None,
    resume: Resume | None = None,
    replay: Replay | None = None,
    request: Any = None,
) -> Attempts:
    """The attempts of a request that asks for something. Raises LocalProtocolError for what
    makes no sense.
    """
    _check(instance, priority, migrations, resume, replay)
    if resume is None and not sent.many and not sent.whole and is_token_request(request):
        resume = continue_tokens
    if migrations and not (sent.whole or resume or replay):
        raise LocalProtocolError(
            f"{sent.target}: migration_limit={migrations}, but nobody knows how to continue it: "
            + (_NEEDS_REPLAY if sent.many else _NEEDS_RESUME)
        )
    return Attempts(
        sent,
        migrations=migrations,
        instance=instance or 0,
        priority=priority,
        resume=resume,
        replay=replay,
    )


def is_async(function: object) -> bool:
    """Whether a function, or an object that is called like one, gives something to be awaited;
    asked of what users hand in where nobody awaits it.
    """
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, getattr(type(function), "__call__", None))  # noqa: B004
    )


def _check(instance: object, priority: object, migrations: object, *functions: object) -> None:
    for function in functions:
        if function is not None and not callable(function):
            raise LocalProtocolError(f"resume and replay are functions; {function!r} is none")
        if is_async(function):
            raise LocalProtocolError(
                f"{function!r} is async; resume and replay are plain functions, for they are "
                "not awaited"
            )
    if instance is not None and (type(instance) is not int or not 0 < instance < 1 << 64):
        raise LocalProtocolError(
            f"instance is the id of a worker, a number as client.workers() has it; not {instance!r}"
        )
    if type(priority) is not int or abs(priority) > MAX_PRIORITY:
        raise LocalProtocolError(f"priority is a whole number from -1e9 to 1e9, not {priority!r}")
    if migrations is not None and (type(migrations) is not int or not 0 <= migrations <= 1000):
        raise LocalProtocolError(
            f"migration_limit is a whole number from 0 to 1000, not {migrations!r}"
        )
    if instance is not None and migrations:
        raise LocalProtocolError(
            "a stream for one instance is never continued elsewhere: leave out instance or "
            "migration_limit"
        )
