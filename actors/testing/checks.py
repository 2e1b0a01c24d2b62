"""What every dispatch must do, one check each; ``actors.testing.dispatch`` says how to run them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

from actors.errors import CallHomeError, Cancelled, EngineError, Overloaded
from actors.kernel.responses import ResponseStream
from actors.messages import Record
from actors.testing.dispatch import PATIENCE, DispatchCase, Heard, fail
from actors.testing.engines import CRASH, ECHO, SLOW, TALK

#: Codes of errors that tell of a broken road or a dead worker; nothing else may be told of one.
FAULTS: Final = (
    "connection.lost",
    "connection.peer",
    "connection.callback",
    "worker.lost",
    "worker.unavailable",
)


async def unary(case: DispatchCase) -> None:
    """One request, one answer; through both routers."""
    for number in range(2 * len(case.watched)):
        answer = await case.client.call(ECHO, {"items": [number]}, timeout=PATIENCE)
        if answer != number:
            fail(f"a call that should answer {number} answered {answer!r}")
    if not all(each.sent for each in case.watched):
        fail("the streams of a router did not pass through its dispatch")


async def in_order(case: DispatchCase) -> None:
    """A stream of many items: each once, in order, and a clean end."""
    sent = list(range(2000))
    async with case.client.stream(ECHO, {"items": sent}, timeout=PATIENCE) as items:
        got = [item async for item in items]
    if got != sent:
        fail(f"{len(sent)} items were sent in order, {len(got)} came: {got[:20]} …")


async def large(case: DispatchCase) -> None:
    """A large request, and a large item back."""
    sent = [bytes(1 << 20), "x" * (1 << 16)]
    async with case.client.stream(ECHO, {"items": sent}, timeout=PATIENCE) as items:
        got = [item async for item in items]
    if got != sent:
        fail("a large request or item did not arrive as it was sent")


async def both_ways(case: DispatchCase) -> None:
    """A stream of requests: answered while it goes on; its end is no cancel."""
    async with case.client.open(TALK, timeout=PATIENCE) as talk:
        for number in range(100):
            await talk.send(number)
            if (answer := await talk.recv()) != number:
                fail(f"request item {number} came back as {answer!r}")
        await talk.end()
        rest = [item async for item in talk]
    if rest != ["end"]:
        fail(f"behind the end of the request came {rest!r}, not the handler's last word")


async def error_of_handler(case: DispatchCase) -> None:
    """What a handler raises comes behind its items, as its own error and as no fault of the
    worker: the next call goes there all the same.
    """
    for _ in case.watched:
        got: list[object] = []
        error = None
        try:
            async with case.client.stream(
                ECHO, {"items": [1, 2], "error": "no such luck"}, timeout=PATIENCE
            ) as items:
                async for item in items:
                    got.append(item)
        except CallHomeError as raised:
            error = raised
        if not isinstance(error, EngineError) or "no such luck" not in str(error):
            fail(f"a handler's ValueError came as {error!r}, not as EngineError with its words")
        if got != [1, 2]:
            fail(f"the items before a handler's error came as {got!r}")
    await unary(case)


@asynccontextmanager
async def _begun(case: DispatchCase, endpoint: str, first: str) -> AsyncIterator[ResponseStream]:
    """A stream whose handler has said its first item; tried again while a place is taken."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        async with case.client.stream(endpoint, None, timeout=PATIENCE) as items:
            try:
                if (item := await anext(items)) != first:
                    fail(f"{endpoint} began with {item!r}, not {first!r}")
            except Overloaded as error:
                if asyncio.get_running_loop().time() > deadline:
                    fail(f"the place of a stream that has ended is not free: {error}")
            else:
                yield items
                return
        await asyncio.sleep(0.01)


async def stop(case: DispatchCase) -> None:
    """A stop reaches the handler with its reason; what it still says arrives; a clean end."""
    async with _begun(case, SLOW, "begun") as items:
        items.stop("enough")
        rest = [item async for item in items]
    if rest != ["stopped: enough"]:
        fail(f"a handler that was asked to stop because 'enough' said {rest!r}")


async def kill(case: DispatchCase) -> None:
    """A kill ends the stream on both sides; the place of the handler is free again."""
    async with _begun(case, SLOW, "begun") as items:
        items.kill("now")
        with suppress(Cancelled):
            fail(f"a stream that was killed yields {await anext(items)!r}")
    async with _begun(case, SLOW, "begun"):
        pass  # leaving it kills it, too


async def caller_leaves(case: DispatchCase) -> None:
    """Who leaves a bidirectional stream in the middle kills it."""
    for _ in case.watched:
        async with case.client.open(TALK, timeout=PATIENCE) as talk:
            await talk.send("hello")
            await talk.recv()


async def overload(case: DispatchCase) -> None:
    """What a worker refuses for want of room is Overloaded, and room is seen when it is there."""
    async with _begun(case, SLOW, "begun"):
        for _ in case.watched:
            try:
                answer = await case.client.call(SLOW, None, timeout=PATIENCE)
            except Overloaded:
                continue
            except CallHomeError as error:
                fail(f"a full worker was told of as {type(error).__name__}: {error}")
            fail(f"a worker with one place took two streams, and answered {answer!r}")
    async with _begun(case, SLOW, "begun"):
        pass


async def worker_killed(case: DispatchCase) -> None:
    """A worker that dies in the middle: a typed error, removed and added again for each dispatch,
    and its successor answers.
    """
    async with _begun(case, CRASH, "alive") as items:
        items.stop("crash")
        try:
            async for item in items:
                fail(f"a worker that is dead said {item!r}")
        except CallHomeError as error:
            if error.code not in FAULTS:
                fail(f"the death of a worker was told of as {type(error).__name__}: {error}")
        else:
            fail("a stream whose worker died has ended cleanly")
    for each in case.watched:
        heard = each.heard

        def came_back(heard: list[Heard] = heard) -> bool:
            words = [one.what for one in heard if one.endpoint == CRASH]
            return words[-2:] == ["removed", "added"]

        await case.until(came_back, "a dispatch did not hear of a worker's death and its successor")
    async with _begun(case, CRASH, "alive"):
        pass


async def snapshot(case: DispatchCase) -> None:
    """Who subscribes late hears of everything that is known before it returns; nothing twice."""
    for each in case.watched:
        late = _Ear()
        hearing = each.seat.subscribe(late)
        if sorted(late.heard) != sorted(_known(each.heard)):
            fail(f"a snapshot of {_known(each.heard)} was told as {late.heard}")
        if each.seat.subscribe(late) is not hearing:
            fail("who subscribes twice must not hear twice")
        hearing.cancel()


async def two_hear(case: DispatchCase) -> None:
    """Conformance 30: two dispatches on one endpoint, in one router and in two, both hear."""
    first, second = _Ear(), _Ear()
    for each in case.watched:
        hearings = [each.seat.subscribe(first), each.seat.subscribe(second)]
        first.heard.clear()
        second.heard.clear()
        record = each.seat.record(ECHO)
        each.seat.publish(record)
        each.seat.withdraw(record, "a check has published it")
        for hearing in hearings:
            hearing.cancel()
        wanted = [("added", record.instance), ("removed", record.instance)]
        for name, heard in (("first", first.heard), ("second", second.heard)):
            if [(one.what, one.instance) for one in heard] != wanted:
                fail(f"of two dispatches on {ECHO} the {name} heard {heard}")
        if [(one.what, one.instance) for one in each.heard[-2:]] != wanted:
            fail(f"the router's own dispatch heard {each.heard[-2:]}")
    if case.road != "own":
        known = [{one.endpoint for one in each.heard} for each in case.watched]
        if any(not {ECHO, SLOW, TALK, CRASH} <= endpoints for endpoints in known):
            fail(f"the dispatches of two routers heard of {known}")


async def at_once(case: DispatchCase) -> None:
    """Conformance 31: removed and added again inside a millisecond, both are told, in order."""
    for each in case.watched:
        record = each.seat.record(ECHO)
        each.seat.publish(record)
        begin = len(each.heard)
        for _ in range(3):
            each.seat.withdraw(record, "a check has published it")
            each.seat.publish(record)
        each.seat.withdraw(record, "a check has published it")
        await asyncio.sleep(0)
        told = [one.what for one in each.heard[begin:] if one.instance == record.instance]
        if told != ["removed", "added"] * 3 + ["removed"]:
            fail(f"an instance that went and came three times was told of as {told}")


async def callbacks_that_raise(case: DispatchCase) -> None:
    """A part that raises in its callbacks costs neither the dispatch nor the streams."""
    for each in case.watched:
        begin = len(each.heard)
        with _untold():
            hearing = each.seat.subscribe(_Raising())
            record = each.seat.record(ECHO)
            each.seat.publish(record)
            each.seat.withdraw(record, "a check has published it")
            hearing.cancel()
        if [one.what for one in each.heard[begin:]] != ["added", "removed"]:
            fail("a callback that raised took the events from another dispatch")
    await unary(case)


async def callbacks_that_repeat(case: DispatchCase) -> None:
    """The same event again, and one of an instance that it has never heard of: no harm."""
    for each in case.watched:
        unknown = each.seat.record(ECHO)
        each.inner.on_instance_removed(unknown, "nobody knew it")
        keeper = _Keeper()
        each.seat.subscribe(keeper).cancel()
        for record in keeper.records:
            each.inner.on_instance_added(record)
            each.inner.on_instance_added(record)
    await unary(case)
    await both_ways(case)


def _known(heard: list[Heard]) -> list[Heard]:
    """What is there after these events, as a snapshot would tell it."""
    found: dict[tuple[int, str], Heard] = {}
    for one in heard:
        if one.what == "added":
            found[one.instance, one.endpoint] = one
        else:
            found.pop((one.instance, one.endpoint), None)
    return list(found.values())


class _Ear:
    """Hears, and never dispatches."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []

    def generate(self, open: object, worker: object, home: object) -> None:
        """It has no road."""

    generate_bidirectional = generate

    def on_instance_added(self, record: Record) -> None:
        """See ``StreamingDispatch``."""
        self.heard.append(Heard("added", record.instance, record.endpoint))

    def on_instance_removed(self, record: Record, reason: str) -> None:
        """See ``StreamingDispatch``."""
        self.heard.append(Heard("removed", record.instance, record.endpoint))


class _Keeper(_Ear):
    """Keeps the records of a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []

    def on_instance_added(self, record: Record) -> None:
        self.records.append(record)


class _OnPurpose(ValueError):
    """What a check raises where a dispatch must stand it."""


class _Raising(_Ear):
    """Raises whatever it hears."""

    def on_instance_added(self, record: Record) -> None:
        raise _OnPurpose

    def on_instance_removed(self, record: Record, reason: str) -> None:
        raise _OnPurpose


@contextmanager
def _untold() -> Iterator[None]:
    """The router logs what callbacks raise; what is raised here would look like a mistake."""

    def is_none_of_ours(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], _OnPurpose))

    log = logging.getLogger("callhome")
    log.addFilter(is_none_of_ours)
    try:
        yield
    finally:
        log.removeFilter(is_none_of_ours)


Check = Callable[[DispatchCase], Awaitable[None]]

#: By name, in an order in which the one that takes longest to recover from comes last.
CHECKS: Final[dict[str, Check]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        unary,
        in_order,
        large,
        both_ways,
        error_of_handler,
        stop,
        kill,
        caller_leaves,
        overload,
        snapshot,
        two_hear,
        at_once,
        callbacks_that_raise,
        callbacks_that_repeat,
        worker_killed,
    )
}
#: Why a check has nothing to hold a road against.
SKIPPED: Final[dict[tuple[str, str], str]] = {
    ("own", "overload"): "the dispatch says itself how much it takes",
    ("own", "worker-killed"): "its workers live in the router",
}
