"""A mailbox against a plain list: any order of putting, taking, waiting and giving up the wait."""

from __future__ import annotations

import asyncio
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.kernel.mailbox import GO, HOLD, HOLD_ALL, Mailbox


class MailboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model: deque[tuple[int, int]] = deque()
        self.number = 0
        self.level = GO
        self.reader: asyncio.Task[int] | None = None

    @initialize(bound=st.integers(1, 4), size=st.sampled_from([8, 1 << 62]))
    def begin(self, bound: int, size: int) -> None:
        self.bound, self.size = bound, size
        self.box: Mailbox[int] = Mailbox(bound, self.hold, size)

    def hold(self, level: int) -> None:
        assert level != self.level, "the inbox is told of changes only"
        if level == GO:
            assert 2 * len(self.model) <= self.bound + 1, "it goes on at half, not before"
        self.level = level

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.model)

    def spin(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule(size=st.integers(0, 5))
    def put(self, size: int) -> None:
        self.number += 1
        self.model.append((self.number, size))
        self.box.put(self.number, size)
        self.spin()
        self.spin()
        if self.reader is not None:
            self.took(self.reader)
            self.reader = None

    def took(self, task: asyncio.Task[int]) -> None:
        assert task.done(), "somebody waits while there is a message"
        assert task.result() == self.model.popleft()[0], "in the order of arrival"

    @precondition(lambda self: self.reader is None)
    @rule()
    def get(self) -> None:
        number = self.model[0][0] if self.model else 0
        if self.model:
            self.model.popleft()  # before the inbox is told to go on
        task = self.loop.create_task(self.box.get())
        self.spin()
        if number:
            assert task.result() == number
        else:
            assert not task.done()
            self.reader = task

    @precondition(lambda self: self.reader is not None)
    @rule()
    def give_up(self) -> None:
        assert self.reader is not None
        self.reader.cancel()
        self.spin()
        assert self.reader.cancelled()
        self.reader = None

    @precondition(lambda self: self.reader is None)
    @rule(count=st.sampled_from([20, 70]))
    def burst(self, count: int) -> None:
        """What was read already is taken in beyond the bound."""
        for _ in range(count):
            self.put(1)

    @invariant()
    def nothing_is_lost_and_the_inbox_is_held_in_time(self) -> None:
        assert len(self.box) == len(self.model)
        full = len(self.model) >= self.bound or self.bytes >= self.size
        assert self.box.room is not full
        if full:
            assert self.level != GO
        if not self.model:
            assert self.level == GO, "nobody would ever let it go on"
        if len(self.model) >= 64 * self.bound or self.bytes >= 4 * self.size:
            assert self.level == HOLD_ALL
        elif self.level == HOLD_ALL:
            assert 2 * len(self.model) > self.bound or 2 * self.bytes > self.size
        if self.level == HOLD:
            assert 2 * len(self.model) > self.bound or 2 * self.bytes > self.size

    def teardown(self) -> None:
        while self.model:
            self.get()
        if self.reader is not None:
            self.give_up()
        if hasattr(self, "box"):
            assert self.level == GO
        self.loop.close()


MailboxMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, derandomize=True, deadline=None, database=None
)
TestMailbox = MailboxMachine.TestCase
