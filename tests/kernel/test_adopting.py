"""A frame that a lender has handed on: what its reader asks of its owner, and what waits for that.

Three runtimes in this process, joined by real sockets; the lender says by hand what engines would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.kernel.calls import Caller
from actors.kernel.responses import ResponseStream
from actors.kernel.runtime import Runtime
from actors.messages import Accept, End, Item, Items, Kill, Open, Release
from actors.notices import Adopt, Adopted
from tests.waiting import wait_until
from transport.errors import StaleHandle
from transport.payload import Encoded, decode_payload, encode_payload
from transport.wire.codec import encode

SIZE = 300 << 10


class Three:
    """Owner, lender and reader, and one stream that the reader has opened at the lender."""

    def __init__(self, run: Path) -> None:
        self.owner, self.lender, self.reader = (
            Runtime(run=str(run), name=name) for name in ("owner", "lender", "reader")
        )
        self.opens: list[Open] = []
        self.killed: list[int] = []
        self.lender.on(Open, lambda sender, m: self.opens.append(m))
        self.lender.on(Kill, lambda sender, m: self.killed.append(m.stream))
        #: What owners are asked, while ``hold`` keeps the questions.
        self.questions: list[tuple[int, Adopt]] = []
        self._answer: Callable[[int, Adopt], None] = self.owner.handler(Adopt)
        self.seq = 0

    def hold(self) -> None:
        """The owner answers only when it is told to."""
        self.owner.on(Adopt, lambda sender, m: self.questions.append((sender, m)))

    def answer(self) -> None:
        questions, self.questions = self.questions, []
        for sender, m in questions:
            self._answer(sender, m)

    def meet(self) -> None:
        for one in (self.owner, self.lender, self.reader):
            for other in (self.owner, self.lender, self.reader):
                one.peers.note(other.address)

    def frame(self, number: int) -> np.ndarray[Any, Any]:
        """A frame of the owner's, as the lender has received it."""
        encoded = encode_payload(np.full(SIZE, number, "u1"), memory=self.owner.memory, native=True)
        handle = encoded.handles[0]
        for announcement in self.owner.memory.needs(self.lender.address.incarnation, [handle]):
            self.lender.memory.attach(announcement)
        self.owner.memory.lend(handle, self.lender.address.incarnation, 1)
        found: np.ndarray[Any, Any] = decode_payload(
            encoded.data, [list(handle)], memory=self.lender.memory
        )
        return found

    async def open(self) -> ResponseStream:
        caller = Caller(self.reader, lambda target: self.lender.address)
        stream, before = caller.stream("f.x.go", {}), len(self.opens)
        await stream.__aenter__()
        await wait_until(lambda: len(self.opens) > before, what="the Open came")
        self.lender.port.send(
            self.reader.address, Accept(self.opens[-1].stream, self.lender.address, 0, 0)
        )
        return stream

    async def yields(self, value: Any) -> Encoded:
        """The lender yields a value with handles on the newest stream."""
        number = self.opens[-1].stream
        encoded = encode_payload(value, memory=self.lender.memory, native=True)
        encoded = await self.lender.lend(encoded, self.reader.address, number)
        message = Item(number, self.seq, encoded.data, encoded.handles, encoded.size)
        self.lender.port.send(self.reader.address, message)
        self.seq += 1
        return encoded

    def says(self, *values: Any, end: bool = False) -> None:
        """Plain items, and perhaps the end."""
        number = self.opens[-1].stream
        if values:
            payloads = [encode(each) for each in values]
            self.lender.port.send(self.reader.address, Items(number, self.seq, payloads))
            self.seq += len(values)
        if end:
            self.lender.port.send(self.reader.address, End(number, self.seq, None))

    async def wait_all_back(self) -> None:
        def back() -> bool:
            for each in (self.owner, self.lender, self.reader):
                each.links.send_releases()
            return not (
                self.owner.memory.statistics().slots
                or len(self.lender.memory.passing)
                or len(self.reader._parking)
                or self.reader.memory.reading._expected
                or self.reader.memory.reading._spoilt
            )

        await wait_until(back, what="every lease is back")


@asynccontextmanager
async def three(run: Path) -> AsyncIterator[Three]:
    made = Three(run)
    made.meet()
    try:
        yield made
    finally:
        for each in (made.reader, made.lender, made.owner):
            each.close()


async def test_what_follows_a_frame_waits_for_its_lease_and_other_streams_do_not(
    tmp_path: Path,
) -> None:
    async with three(tmp_path) as t:
        t.hold()
        stream = await t.open()
        t.says("before")
        await t.yields(t.frame(7))
        t.says("behind")
        await t.yields(t.frame(8))
        t.says("last", end=True)
        assert await stream.__anext__() == "before"
        await wait_until(lambda: len(t.questions) == 2, what="the owner was asked for both")
        assert stream.received == 1
        first, t.seq = t.opens[-1], 0
        other = await t.open()
        t.says("quick", end=True)
        assert [each async for each in other] == ["quick"]
        t.opens.append(first)
        t.questions.reverse()  # answers in whatever order
        t.answer()
        items = [each if isinstance(each, str) else int(each[5]) async for each in stream]
        assert items == [7, "behind", 8, "last"]
        await t.wait_all_back()


async def test_a_frame_that_was_taken_back_ends_its_stream_with_the_cause(tmp_path: Path) -> None:
    async with three(tmp_path) as t:
        t.hold()
        stream = await t.open()
        t.says("before")
        await t.yields(t.frame(7))
        t.says("behind", end=True)
        await wait_until(lambda: t.questions, what="the owner was asked")
        t.owner.memory.take_back(t.lender.address.incarnation)  # as at the lender's death
        t.answer()
        assert await stream.__anext__() == "before"
        with pytest.raises(StaleHandle, match=r"handed on is not there any more.*freed"):
            await stream.__anext__()
        await t.wait_all_back()


async def test_b23_a_frozen_owner_costs_a_second_and_a_copy(tmp_path: Path) -> None:
    async with three(tmp_path) as t:
        t.hold()
        stream = await t.open()
        await t.yields([t.frame(7), t.frame(8).data])
        t.says("behind", end=True)
        array, view = await stream.__anext__()
        assert [int(array[0]), view[0], len(view)] == [7, 8, SIZE]
        assert await stream.__anext__() == "behind"
        assert len(t.questions) == 2
        t.answer()  # too late: the leases that it grants come back by themselves
        del array, view
        await t.wait_all_back()


async def test_a_killed_stream_that_waits_gives_everything_back(tmp_path: Path) -> None:
    async with three(tmp_path) as t:
        t.hold()
        stream = await t.open()
        for number in range(3):
            await t.yields([t.frame(number), np.full(SIZE, 1, "u1")])
        t.says("behind")
        await wait_until(lambda: len(t.questions) == 3, what="the owner was asked")
        await stream.aclose()
        t.answer()
        await t.wait_all_back()
        await wait_until(lambda: not t.lender.memory.statistics().slots, what="its own, too")


async def test_the_last_words_of_a_lender_that_closes_are_heard(tmp_path: Path) -> None:
    async with three(tmp_path) as t:
        t.hold()
        stream = await t.open()
        await t.yields(t.frame(7))
        t.says("behind", end=True)
        await wait_until(lambda: t.questions, what="the owner was asked")
        downs: list[str] = []
        t.reader.when_down.append(lambda address, reason: downs.append(address.name))
        t.lender.port.flush()
        t.reader.peers.left(t.lender.address.incarnation)
        assert not downs
        t.answer()
        assert [each if isinstance(each, str) else int(each[5]) async for each in stream] == [
            7,
            "behind",
        ]
        assert downs == ["lender"]


async def test_b02_frames_of_an_owner_that_dies_meanwhile_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.kernel.links._LATE_FRAMES", 0.3)
    async with three(tmp_path) as t:
        t.hold()
        stream = await t.open()
        await t.yields(t.frame(7))
        t.says("behind", end=True)
        await wait_until(lambda: t.questions, what="the owner was asked")
        t.owner.close()
        items = [each async for each in stream]
        assert int(items[0][5]) == 7
        assert items[1] == "behind"
        del items
        await wait_until(lambda: not len(t.lender.memory.passing), what="nothing is held")
        await wait_until(lambda: not t.reader.memory.reading.mapped, what="and nothing mapped")


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    async with three(tmp_path) as t:
        t.hold()
        await t.open()
        await t.yields(t.frame(7))
        for number in range(600):
            t.says(number)
            if not number % 50:
                await asyncio.sleep(0)
        await wait_until(lambda: t.lender.port.statistics().messages_out > 600, what="all left")
        await wait_until(lambda: len(t.reader._parking) >= 300, what="they came")
        assert len(t.reader._parking) <= t.reader.settings.window_items + 64
        t.answer()
        await wait_until(lambda: not len(t.reader._parking), what="they went")


async def test_hostile_questions_change_nothing(tmp_path: Path) -> None:
    async with three(tmp_path) as t:
        array = t.frame(7)
        answers: list[Adopted] = []
        t.reader.on(Adopted, lambda sender, m: answers.append(m))
        (handle,) = encode_payload(array, memory=t.lender.memory, native=True).handles
        lender = t.lender.address.incarnation
        before = t.owner.memory.statistics()
        huge = 1 << 63
        wrong = [
            Adopt(lender + 1, handle.segment, handle.offset, handle.generation, 1),
            Adopt(-1, handle.segment, handle.offset, handle.generation, 1),
            Adopt(lender, handle.segment + 1, handle.offset, handle.generation, 1),
            Adopt(lender, handle.segment, handle.offset + 4096, handle.generation, 1),
            Adopt(lender, handle.segment, handle.offset, handle.generation + 1, 1),
            Adopt(-huge, -huge, -huge, -huge, -huge),
            Adopt(huge, huge, huge, huge, huge),
        ]
        for each in wrong:
            t.reader.port.send(t.owner.address, each, control=True)
        await wait_until(lambda: len(answers) == len(wrong), what="all are answered")
        assert not any(each.ok for each in answers)
        assert all(each.reason for each in answers)
        assert t.owner.memory.statistics() == before
        for _ in range(1000):
            right = Adopt(lender, handle.segment, handle.offset, handle.generation, -huge)
            t.reader.port.send(t.owner.address, right, control=True)
        await wait_until(lambda: len(answers) == len(wrong) + 1000, what="all are answered")
        assert t.owner.memory.statistics().borrowers == 2
        # Answers that nobody asked for, and leases of others that are none.
        for stray in (Adopted(1, 1, 1, True, ""), Adopted(huge, -1, 0, False, "x" * 10_000)):
            t.owner.port.send(t.lender.address, stray, control=True)
        nonsense = [[1, 2, 3, 4], [huge, huge, huge, huge], [handle.segment, 0, 0, lender]]
        t.reader.port.send(t.lender.address, Release(nonsense), control=True)
        t.reader.port.send(t.lender.address, Release([[1, 2, "3", 4]]), control=True)
        t.reader.port.send(t.lender.address, Release([[1, 2]]), control=True)
        t.owner.memory.take_back(t.reader.address.incarnation)
        assert t.owner.memory.statistics().borrowers == 1
        t.lender.memory.unexport(handle)
        del array
        await t.wait_all_back()


async def test_an_owner_that_answers_nothing_is_not_asked_for_ever(tmp_path: Path) -> None:
    async with three(tmp_path) as t:
        t.hold()
        stream = await t.open()
        t.reader.adopting.most = 1
        begun = time.monotonic()
        for number in range(3):
            await t.yields(t.frame(number))
        t.says(end=True)
        assert [int(each[0]) async for each in stream] == [0, 1, 2]
        assert len(t.questions) == 1
        assert time.monotonic() - begun > 0.5
        t.answer()
        await t.wait_all_back()
