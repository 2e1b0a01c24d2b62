"""Two ends of a stream and a wire between them that is as slow as it likes: both directions, the
cancel and the credit. What arrives is in order and whole, or the stream has ended for a reason that
both know; and it always can come to an end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transport.errors import LocalProtocolError, RemoteProtocolError
from transport.wire import stream as s

ITEMS, BYTES = 4, 100
#: What ends a stream comes late enough for something to have happened on it.
RARELY = st.sampled_from([False, False, False, True])


class Direction:
    """Items one way: the credit of their sender, the window of who takes them."""

    def __init__(self) -> None:
        self.credit = s.SendCredit(ITEMS, BYTES)
        self.window = s.ReceiveWindow(ITEMS, BYTES)
        self.grants: deque[tuple[int, int]] = deque()
        self.sent: list[int] = []
        self.come: deque[int] = deque()
        self.taken: list[int] = []

    def send(self, size: int) -> int:
        self.credit.spend(1, size)
        self.sent.append(size)
        return size

    def arrive(self, size: int) -> None:
        assert self.window.arrive(1, size), "within the credit, and beyond the window"
        self.come.append(size)

    def take(self) -> None:
        size = self.come.popleft()
        self.taken.append(size)
        if self.window.take(size):
            self.grants.append(self.window.owed())

    def check(self, under_way: list[int]) -> None:
        assert [*self.taken, *self.come] == self.sent[: len(self.taken) + len(self.come)]
        if not under_way and not self.come and not self.grants:
            assert self.credit.open, "all has been taken, and the sender may not go on"
        left = self.credit.items + len(under_way) + len(self.come) + self.window.taken_items
        assert left + sum(items for items, _ in self.grants) == ITEMS
        left = self.credit.bytes + sum(under_way) + sum(self.come) + self.window.taken_bytes
        assert left + sum(size for _, size in self.grants) == BYTES


class StreamMachine(RuleBasedStateMachine):
    @initialize(many=st.booleans(), fed_first=st.booleans())
    def begin(self, many: bool, fed_first: bool) -> None:
        self.fed_first = fed_first
        self.home, self.peer = s.StreamState(many), s.StreamState(many)
        #: What is under way: an input, and the size of an item.
        self.to_peer: deque[tuple[int, int]] = deque()
        self.to_home: deque[tuple[int, int]] = deque()
        self.request, self.response = Direction(), Direction()
        self.cut = self.ended = self.fed = False

    # Either end does something of its own: what it may not do raises, and changes nothing.

    def act(
        self, end: s.StreamState, wire: deque[tuple[int, int]], signal: int, size: int = 0
    ) -> bool:
        before = end.state
        if not end.accepts(signal):
            try:
                end.feed(signal, LocalProtocolError)
            except LocalProtocolError:
                assert end.state == before
                return False
            raise AssertionError("an illegal input was taken")
        end.feed(signal, LocalProtocolError)
        if not self.cut:
            wire.append((signal, size))
        return True

    @rule(size=st.integers(0, 2 * BYTES))
    def feed(self, size: int) -> None:
        if self.request.credit.open and self.home.request_open and not self.cut:
            assert self.act(self.home, self.to_peer, s.FEED, size)
            self.request.send(size)

    @rule(request=st.booleans(), sizes=st.lists(st.integers(0, BYTES), min_size=1, max_size=8))
    def flow(self, request: bool, sizes: list[int]) -> None:
        """Some items go all the way, and so do the grants for them."""
        for size in sizes:
            if request:
                self.feed(size)
            else:
                self.data(size)
            while self.to_peer:
                self.to_peer_comes()
            while self.to_home:
                self.to_home_comes()
            for _ in range(2):
                self.take(request)
                self.grant_comes(request)

    @rule(now=RARELY)
    def feed_end_now(self, now: bool) -> None:
        if now:
            self.feed_end()

    def feed_end(self) -> None:
        self.fed |= self.act(self.home, self.to_peer, s.FEED_END)

    @rule(size=st.integers(0, 2 * BYTES))
    def data(self, size: int) -> None:
        if self.response.credit.open and self.peer.response_open and not self.cut:
            assert self.act(self.peer, self.to_home, s.DATA, size)
            self.response.send(size)

    @rule()
    def accept(self) -> None:
        self.act(self.peer, self.to_home, s.ACCEPT)

    @rule(now=RARELY, fails=st.booleans())
    def end_now(self, now: bool, fails: bool) -> None:
        if now:
            self.end(fails)

    def end(self, fails: bool) -> None:
        self.ended |= self.act(self.peer, self.to_home, s.FAIL if fails else s.END) and not fails

    @rule()
    def stop(self) -> None:
        if not self.home.done:
            self.act(self.home, self.to_peer, s.STOP)
            assert self.home.stopped

    @rule(now=RARELY)
    def kill(self, now: bool) -> None:
        if now and not self.home.done:
            self.act(self.home, self.to_peer, s.KILL)
            assert self.home.done

    @precondition(lambda self: not self.cut)
    @rule(now=RARELY, feed_first=st.booleans())
    def lose(self, now: bool, feed_first: bool) -> None:
        """The road is cut: what is under way is gone, and both ends are told."""
        if not now:
            return
        self.cut = True
        self.to_peer.clear()
        self.to_home.clear()
        if feed_first and self.peer.accepts(s.FEED_LOST):
            self.peer.feed(s.FEED_LOST, LocalProtocolError)
            assert self.peer.done, "what a request half has lost cannot be answered"
        for end in (self.home, self.peer):
            if end.accepts(s.LOST):
                end.feed(s.LOST, LocalProtocolError)
            assert end.done or not end.response_open

    # What is under way arrives.

    def come(
        self,
        end: s.StreamState,
        wire: deque[tuple[int, int]],
        take: Callable[[int], None],
        item: int,
    ) -> None:
        signal, size = wire.popleft()
        before = end.state
        if end.accepts(signal):
            end.feed(signal, RemoteProtocolError)
            if signal == item:
                take(size)
            return
        # It has crossed with something that closed this half here.
        assert signal in (s.ACCEPT, item, s.END, s.FAIL, s.FEED_END), s.INPUT_NAMES[signal]
        half = before[1] if s.ACCEPT <= signal <= s.FAIL else before[0]
        early = signal == s.ACCEPT and before[1] == s.OPEN
        assert half >= s.ENDED or early, f"{s.INPUT_NAMES[signal]} in {s.describe(before)}"

    @precondition(lambda self: self.to_peer)
    @rule()
    def to_peer_comes(self) -> None:
        self.come(self.peer, self.to_peer, self.request.arrive, s.FEED)

    @precondition(lambda self: self.to_home)
    @rule()
    def to_home_comes(self) -> None:
        self.come(self.home, self.to_home, self.response.arrive, s.DATA)

    @rule(request=st.booleans())
    def take(self, request: bool) -> None:
        way = self.request if request else self.response
        if way.come:
            way.take()

    @rule(request=st.booleans())
    def grant_comes(self, request: bool) -> None:
        way = self.request if request else self.response
        if way.grants:
            way.credit.grant(*way.grants.popleft())

    @invariant()
    def items_and_credit_agree(self) -> None:
        if not hasattr(self, "home") or self.cut:
            return
        if not self.peer.done and not self.home.done:
            self.request.check([size for signal, size in self.to_peer if signal == s.FEED])
            self.response.check([size for signal, size in self.to_home if signal == s.DATA])

    @invariant()
    def what_ends_a_stream_leaves_nothing_open_whatever_it_meets(self) -> None:
        for each in (self.home, self.peer) if hasattr(self, "home") else ():
            for signal in (s.KILL, s.FEED_LOST, s.LOST, s.FAIL):
                end = s.StreamState(many=True)
                end.state = each.state
                if end.accepts(signal):
                    end.feed(signal, LocalProtocolError)
                    assert end.done, s.INPUT_NAMES[signal]

    @invariant()
    def no_open_half_beside_a_broken_one(self) -> None:
        for end in (self.home, self.peer) if hasattr(self, "home") else ():
            request, response, cancel = end.state
            assert not (s.BROKEN in (request, response) and (end.request_open or end.response_open))
            assert not (cancel == s.KILLED and end.response_open)
            assert end.done == (request >= s.ENDED and response >= s.ENDED)

    def teardown(self) -> None:
        if not hasattr(self, "home"):
            return
        if self.fed_first:
            self.feed_end()
        self.end(False)
        while self.to_peer or self.to_home:
            if self.to_peer:
                self.to_peer_comes()
            if self.to_home:
                self.to_home_comes()
        assert self.home.done, s.describe(self.home.state)
        assert self.peer.done, s.describe(self.peer.state)
        if self.ended and not self.cut and not self.home.killed:
            assert self.home.state[1] == s.ENDED, "a clean end is one here, too"
            assert [*self.response.taken, *self.response.come] == self.response.sent


StreamMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=40, derandomize=True, deadline=None, database=None
)
TestStream = StreamMachine.TestCase
