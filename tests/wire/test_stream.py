"""The stream machine, walked exhaustively; and the credit of a direction."""

from __future__ import annotations

from pathlib import Path

import pytest

from transport.errors import LocalProtocolError, RemoteProtocolError
from transport.wire import stream as s


def test_every_state_can_reach_done_and_done_is_absorbing() -> None:
    def done(state: s.State) -> bool:
        return state[0] >= s.ENDED and state[1] >= s.ENDED

    reach = {state for state in s.TABLE if done(state)}
    grown = True
    while grown:
        more = {
            state
            for state, after in s.TABLE.items()
            if state not in reach and any(each in reach for each in after)
        }
        grown = bool(more)
        reach |= more
    assert reach == set(s.TABLE)
    for state in s.TABLE:
        if done(state):
            for after in s.TABLE[state]:
                assert after is None or (after[:2] == state[:2])


@pytest.mark.parametrize("state", list(s.TABLE), ids=s.describe)
def test_walk_each_state_and_input(state: s.State) -> None:
    for signal in range(len(s.INPUT_NAMES)):
        machine = s.StreamState(many=True)
        machine.state = state
        after = s.TABLE[state][signal]
        assert machine.accepts(signal) == (after is not None)
        if after is None:
            with pytest.raises(RemoteProtocolError, match=s.INPUT_NAMES[signal]):
                machine.feed(signal, RemoteProtocolError)
            assert machine.state == state, "an illegal input changes nothing"
        else:
            assert machine.feed(signal, LocalProtocolError) == (after != state)
            assert machine.state == after
            # Cancel never goes back, halves never reopen.
            assert after[2] >= state[2]
            assert after[0] >= state[0]
            assert after[1] >= state[1]


def test_counts_of_the_walk() -> None:
    legal = sum(after is not None for row in s.TABLE.values() for after in row)
    illegal = sum(after is None for row in s.TABLE.values() for after in row)
    assert legal + illegal == len(s.TABLE) * len(s.INPUT_NAMES)
    assert (len(s.TABLE), legal, illegal) == (17, 82, 88)


def test_the_document_shows_the_table_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    assert s.table_as_markdown() in text, "paste table_as_markdown() into docs/protocol.md"


def test_no_joint_state_is_left_unsettled() -> None:
    for request, response, cancel in s.TABLE:
        assert s._settle(request, response, cancel) == (request, response, cancel)


def test_end_of_input_is_no_cancel_and_kill_breaks_both_halves() -> None:
    machine = s.StreamState(many=True)
    machine.feed(s.FEED, LocalProtocolError)
    machine.feed(s.FEED_END, LocalProtocolError)
    assert not machine.stopped
    assert machine.response_open
    machine.feed(s.STOP, LocalProtocolError)
    assert machine.stopped
    assert not machine.killed
    assert machine.response_open, "a stop lets what is under way arrive"
    machine.feed(s.KILL, LocalProtocolError)
    assert machine.done


def test_response_end_closes_an_open_request() -> None:
    machine = s.StreamState(many=True)
    machine.feed(s.END, RemoteProtocolError)
    assert machine.done


def test_credit_lets_one_larger_item_pass_alone() -> None:
    credit = s.SendCredit(10, 100)
    assert credit.open
    credit.spend(1, 1000)
    assert not credit.open
    credit.grant(1, 1000)
    assert credit.open


@pytest.mark.parametrize(("items", "size"), [(1, 1), (2, 10), (256, 1 << 24), (5, 7)])
def test_grants_are_owed_at_half_and_nothing_is_lost(items: int, size: int) -> None:
    sender, window = s.SendCredit(items, size), s.ReceiveWindow(items, size)
    sent = taken = 0
    queue: list[int] = []
    while taken < 2000:
        while sender.open:
            each = 1 + sent % 5
            sender.spend(1, each)
            assert window.arrive(1, each)
            queue.append(each)
            sent += 1
        # The consumer takes until a grant is owed; before its queue is empty one must be.
        while queue:
            taken += 1
            if window.take(queue.pop(0)):
                sender.grant(*window.owed())
                break
        else:
            sender.grant(*window.owed())
        assert sender.open or queue
    assert sender.items + len(queue) + window.taken_items == items


def test_arrival_without_credit_is_seen() -> None:
    window = s.ReceiveWindow(2, 100)
    assert window.arrive(2, 10)
    assert not window.arrive(1, 1)
