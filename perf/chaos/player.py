"""Plays one stream of the plan from a client, checks every item, and says how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Any, Final, NamedTuple

from actors import CallHomeError, Client, DuplexStream, ResponseStream
from perf.chaos.engines import Ask
from perf.chaos.items import Wrong, check_value, data, value
from perf.chaos.plan import Play

#: Codes that no death, stop or cancel explains: whoever meets one has met a bug.
SUSPECT: Final = frozenset(
    {
        "error",
        "protocol",
        "protocol.local",
        "protocol.remote",
        "payload",
        "payload.encode",
        "payload.decode",
        "payload.size",
        "frame.released",
        "spec",
        "policy",
        "unsupported",
        "spawn",
        "name_taken",
    }
)
#: Arrays that a reader keeps to the end, to see that they stay what they were.
_KEPT: Final = 3
_LINES: Final = 40


class Played(NamedTuple):
    """How a stream ended: ``outcome`` is ``complete``, ``left``, ``stopped``, ``killed``,
    ``cancelled``, ``error CODE`` or ``FAILURE``; ``log`` has the stream's events. ``quiet``: for so
    many seconds before its end nothing had come.
    """

    number: int
    outcome: str
    items: int
    bytes: int
    text: str
    log: list[str]
    quiet: float = 0.0


class Player:
    """One stream of the plan, from its opening to its verdict."""

    def __init__(self, client: Client, play: Play) -> None:
        self._client = client
        self._play = play
        self._items = 0
        self._bytes = 0
        self._heard = time.monotonic()
        self._log: deque[str] = deque(maxlen=_LINES)
        self._kept: deque[tuple[int, Any]] = deque(maxlen=_KEPT)
        #: What we have done to it: an Action, or "".
        self._did = ""
        self._id = f"chaos-{play.number}"

    def note(self, text: str) -> None:
        """A line of the stream's log, with the time that all processes share."""
        self._log.append(f"{time.monotonic():.3f} {text}")

    async def run(self) -> Played:
        """Play it to its end; never raises but for a cancellation from outside."""
        self.note(f"begins: {self._play}")
        canceller = self._plan_cancel()
        try:
            outcome, text = await self._ended()
        finally:
            if canceller is not None:
                canceller.cancel()
        return self._played(outcome, text)

    def _played(self, outcome: str, text: str) -> Played:
        self.note(f"{outcome} after {self._items} items {text}")
        quiet = round(time.monotonic() - self._heard, 3)
        return Played(
            self._play.number, outcome, self._items, self._bytes, text, list(self._log), quiet
        )

    def hung(self, seconds: float) -> Played:
        """Its verdict when it is still under way long after its deadline."""
        text = f"no end {seconds:.1f} s after it began; its deadline was {self._play.timeout} s"
        return self._played("FAILURE", text)

    def _plan_cancel(self) -> asyncio.TimerHandle | None:
        """Cancel from outside: the task that reads, or the request by its id."""
        play = self._play
        if play.action == "cancel":
            task = asyncio.current_task()
            assert task is not None
            return asyncio.get_running_loop().call_later(play.wait, self._cancel, task)
        if play.action == "by_id":
            return asyncio.get_running_loop().call_later(play.wait, self._by_id)
        return None

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        self._did = "cancel"
        self.note("its task is cancelled")
        task.cancel("by the plan")

    def _by_id(self) -> None:
        if self._client.cancel(self._id):
            self._did = "by_id"
            self.note("cancelled by its id")

    async def _ended(self) -> tuple[str, str]:
        try:
            outcome = await self._one()
            self._check_kept()
            return outcome, ""
        except Wrong as error:
            return "FAILURE", str(error)
        except asyncio.CancelledError as error:
            if self._did != "cancel" or error.args != ("by the plan",):
                raise
            return "cancelled", ""
        except CallHomeError as error:
            return self._judged(error)
        except Exception as error:
            return "FAILURE", f"an untyped exception: {type(error).__name__}: {error}"

    def _judged(self, error: CallHomeError) -> tuple[str, str]:
        """An error as outcome: some are a bug wherever they appear."""
        text = f"{type(error).__name__}: {error}"
        if error.code == "cancelled" and self._did in ("kill", "by_id"):
            return "killed", ""
        remote = error.details.get("type", "")
        if error.code == "engine":
            if not remote.startswith(("transport.errors.", "actors.errors.")):
                text += error.details.get("traceback", "")[-2_000:]
                return "FAILURE", f"the engine raised: {text}"
            return f"error engine/{remote.rpartition('.')[2]}", text
        if error.code in SUSPECT:
            return "FAILURE", f"an error that nothing here explains: {text} {error.details}"
        return f"error {error.code}", text

    async def _one(self) -> str:
        play = self._play
        if play.shape == "unary":
            return await self._unary()
        if play.shape == "ask":
            return await self._ask()
        if play.shape == "bidi":
            return await self._bidi()
        return await self._stream()

    async def _unary(self) -> str:
        play = self._play
        request = self._request()
        request["v"] = value(play.number, 0, play.size, play.kind, self._client.frames)
        answer = await self._client.call(
            "chaos.unary.generate",
            request,
            timeout=play.timeout,
            request_id=self._id,
            priority=play.priority,
        )
        self._take(answer)
        return "complete"

    async def _ask(self) -> str:
        play = self._play
        size = min(play.size, 8 << 10)
        answer = await self._client.ref("keeper").ask(Ask(play.number, size), timeout=play.timeout)
        if answer != data(play.number, 0, size):
            raise Wrong("the actor answered with what was not asked for")
        self._items += 1
        return "complete"

    def _request(self) -> dict[str, Any]:
        play = self._play
        return {
            "s": play.number,
            "items": play.items,
            "size": play.size,
            "kind": play.kind,
            "slow": play.slow,
        }

    async def _stream(self) -> str:
        play = self._play
        request = self._request()
        if play.shape == "tokens":
            request |= {"token_ids": list(range(play.number % 9)), "max_tokens": play.items}
        stream = self._client.stream(
            f"chaos.{play.shape}.generate",
            request,
            timeout=play.timeout,
            request_id=self._id,
            priority=play.priority,
            migration_limit=play.migrations or None,
        )
        async with stream:
            return await self._read(stream)

    async def _bidi(self) -> str:
        play = self._play
        stream = self._client.open(
            "chaos.bidi.generate", timeout=play.timeout, request_id=self._id, priority=play.priority
        )
        async with stream:
            feeding = asyncio.create_task(self._feed(stream))
            try:
                return await self._read(stream)
            finally:
                feeding.cancel()
                await asyncio.wait({feeding})
                if not feeding.cancelled() and feeding.exception() is not None:
                    self.note(f"its sender ended with {feeding.exception()!r}")

    async def _feed(self, stream: DuplexStream) -> None:
        """The request items; what ends the stream is the reader's to tell."""
        play = self._play
        with contextlib.suppress(CallHomeError):
            for number in range(play.items):
                content = value(play.number, number, play.size, play.kind, self._client.frames)
                await stream.send({**self._request(), "n": number, "v": content})
                content = None
            await stream.end()

    async def _read(self, stream: ResponseStream) -> str:
        """All items to the end, or to what the plan does before it."""
        play, ended = self._play, False
        async for item in stream:
            if ended:
                raise Wrong(f"an item behind the last one: {list(item)}")
            ended = self._take(item)
            if not ended and self._items == play.after + 1 and self._act(stream):
                return "left"
            if play.pace:
                await asyncio.sleep(play.pace)
        self._check_end(ended)
        return "stopped" if self._did == "stop" else "complete"

    def _act(self, stream: ResponseStream) -> bool:
        """What the plan says for this place; True: leave the stream."""
        action = self._play.action
        if action == "stop":
            self._did = "stop"
            self.note(f"stop() after {self._items} items")
            stream.stop("by the plan")
        elif action == "kill":
            self._did = "kill"
            self.note(f"kill() after {self._items} items")
            stream.kill("by the plan")
        return action == "leave"

    def _take(self, item: Any) -> bool:
        """Check one item; True: it was the last."""
        play, number = self._play, self._items
        self._heard = time.monotonic()
        if "wrong" in item:
            raise Wrong(f"the engine says: {item['wrong']}")
        if item.get("s") != play.number and (play.items or item.get("s") is not None):
            raise Wrong(f"item {number} belongs to stream {item.get('s')}")
        if "end" in item:
            if item["end"] != number:
                raise Wrong(f"{number} items came, the engine gave {item['end']}")
            return True
        if play.shape == "tokens":
            self._take_token(item)
        else:
            if item["n"] != number:
                raise Wrong(f"item {item['n']} came where {number} was due")
            array = check_value(item["v"], play.number, number, play.size, play.kind)
            if array is not None:
                self._kept.append((number, array))
        self._items += 1
        self._bytes += play.size
        return False

    def _take_token(self, item: dict[str, Any]) -> None:
        due = self._play.number % 9 + self._items
        if item["token_ids"] != [due]:
            raise Wrong(f"token {item['token_ids']} came where [{due}] was due")
        if item["v"] != data(self._play.number, due, self._play.size):
            raise Wrong(f"token {due} came with what belongs to another")

    def _check_end(self, ended: bool) -> None:
        """A clean end is one only when the engine has said so, and said how many there were."""
        play, stopped = self._play, self._did == "stop"
        if play.shape == "tokens":
            ended = self._items == play.items
        if not ended and not stopped:
            raise Wrong(f"a clean end after {self._items} of {play.items} items")
        if ended and self._items != play.items and not stopped:
            raise Wrong(f"the engine ended in order after {self._items} of {play.items} items")

    def _check_kept(self) -> None:
        """Arrays that are still held are still what they were."""
        import numpy as np

        for number, array in self._kept:
            due = np.frombuffer(data(self._play.number, number, self._play.size), np.uint8)
            if not np.array_equal(array, due):
                raise Wrong(f"the array of item {number} has changed while it was held")
        self._kept.clear()
