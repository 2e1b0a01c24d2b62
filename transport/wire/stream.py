"""The life of one stream, in tables: two half-states, a cancel state, and the credit of each
direction.

The same machine runs at both ends and on every road; it does not know which side it is on. All
transitions stand in this file. An input that a table does not name is an error and changes nothing.
Joint transitions (``_JOINT``) are applied until nothing changes: a broken stream has no open half.
"""

from __future__ import annotations

from typing import Final

from transport.errors import ProtocolError

# Half-states. Small integers: hashing an Enum member costs as much as the rest of a step.
WAITING: Final = 0  # response only: nothing has come back yet
OPEN: Final = 1
ENDED: Final = 2
BROKEN: Final = 3

# Cancel states, never back.
NONE: Final = 0
STOPPED: Final = 1
KILLED: Final = 2

# Inputs.
FEED: Final = 0  # request items
FEED_END: Final = 1  # the home has said its last; no cancel
FEED_LOST: Final = 2  # the request half was cut
ACCEPT: Final = 3
DATA: Final = 4  # response items
END: Final = 5  # clean end of the response
FAIL: Final = 6  # the response ends with an error
LOST: Final = 7  # the peer or the road is gone
STOP: Final = 8
KILL: Final = 9

INPUT_NAMES: Final = (
    "feed", "feed_end", "feed_lost", "accept", "data", "end", "fail", "lost", "stop", "kill",
)  # fmt: skip
REQUEST_NAMES: Final = ("", "open", "ended", "broken")
RESPONSE_NAMES: Final = ("waiting", "open", "ended", "broken")
CANCEL_NAMES: Final = ("none", "stopped", "killed")

_REQUEST: Final = {
    (OPEN, FEED): OPEN,
    (OPEN, FEED_END): ENDED,
    (OPEN, FEED_LOST): BROKEN,
}
_RESPONSE: Final = {
    (WAITING, ACCEPT): OPEN,
    (WAITING, DATA): OPEN,  # a fast handler's first items need no Accept before them
    (WAITING, END): ENDED,
    (WAITING, FAIL): BROKEN,
    (WAITING, LOST): BROKEN,
    (OPEN, DATA): OPEN,
    (OPEN, END): ENDED,
    (OPEN, FAIL): BROKEN,
    (OPEN, LOST): BROKEN,
}
_CANCEL: Final = {
    (NONE, STOP): STOPPED,
    (NONE, KILL): KILLED,
    (STOPPED, STOP): STOPPED,
    (STOPPED, KILL): KILLED,
    (KILLED, STOP): KILLED,
    (KILLED, KILL): KILLED,
}
#: (request, response, cancel) as a condition, None meaning any; then the new (request, response).
_JOINT: Final = (
    ((None, WAITING, KILLED), (None, BROKEN)),
    ((None, OPEN, KILLED), (None, BROKEN)),
    ((OPEN, BROKEN, None), (BROKEN, None)),
    ((OPEN, ENDED, None), (ENDED, None)),  # the worker answered before the home had said its last
    ((BROKEN, WAITING, None), (None, BROKEN)),
    ((BROKEN, OPEN, None), (None, BROKEN)),
)

State = tuple[int, int, int]


def step(state: State, signal: int) -> State | None:
    """The state after ``signal``, or None when the tables have no such transition."""
    request, response, cancel = state
    if signal <= FEED_LOST:
        found = _REQUEST.get((request, signal))
        if found is None:
            return None
        request = found
    elif signal <= LOST:
        found = _RESPONSE.get((response, signal))
        if found is None:
            return None
        response = found
    else:
        cancel = _CANCEL[cancel, signal]
    return _settle(request, response, cancel)


def _settle(request: int, response: int, cancel: int) -> State:
    changed = True
    while changed:
        changed = False
        for (want_request, want_response, want_cancel), (new_request, new_response) in _JOINT:
            if (
                want_request in (None, request)
                and want_response in (None, response)
                and want_cancel in (None, cancel)
            ):
                request = request if new_request is None else new_request
                response = response if new_response is None else new_response
                changed = True
    return request, response, cancel


def _walk() -> dict[State, tuple[State | None, ...]]:
    """Every reachable state with its successor for each input: the machine as it is run."""
    table: dict[State, tuple[State | None, ...]] = {}
    todo: list[State] = [(OPEN, WAITING, NONE), (ENDED, WAITING, NONE)]
    while todo:
        state = todo.pop()
        if state not in table:
            table[state] = tuple(step(state, signal) for signal in range(len(INPUT_NAMES)))
            todo += [after for after in table[state] if after is not None]
    return table


TABLE: Final = _walk()


def describe(state: State) -> str:
    """A state in words, for errors and documents."""
    request, response, cancel = state
    return (
        f"request {REQUEST_NAMES[request]}, response {RESPONSE_NAMES[response]}, "
        f"cancel {CANCEL_NAMES[cancel]}"
    )


def table_as_markdown() -> str:
    """The whole machine as a table, for ``docs/protocol.md``; a test holds the two together."""

    def short(state: State) -> str:
        request, response, cancel = state
        return f"{REQUEST_NAMES[request]} {RESPONSE_NAMES[response]} {CANCEL_NAMES[cancel]}"

    rows = [f"| state | {' | '.join(INPUT_NAMES)} |", "|---" * (len(INPUT_NAMES) + 1) + "|"]
    for state in sorted(TABLE):
        cells = (
            "–" if after is None else "=" if after == state else short(after)  # noqa: RUF001
            for after in TABLE[state]
        )
        rows.append(f"| {short(state)} | {' | '.join(cells)} |")
    return "\n".join(rows)


class StreamState:
    """One stream's state; ``many`` says whether the request is a stream of items too."""

    __slots__ = ("state",)

    def __init__(self, many: bool) -> None:
        self.state: State = (OPEN if many else ENDED, WAITING, NONE)

    def feed(self, signal: int, error: type[ProtocolError]) -> bool:
        """Apply an input; True when the state changed. An illegal one raises ``error``, changing
        nothing.
        """
        after = TABLE[self.state][signal]
        if after is None:
            raise error(
                f"{INPUT_NAMES[signal]} has no place in a stream with {describe(self.state)}"
            )
        changed = after != self.state
        self.state = after
        return changed

    def accepts(self, signal: int) -> bool:
        """Whether the input is legal now."""
        return TABLE[self.state][signal] is not None

    @property
    def request_open(self) -> bool:
        return self.state[0] == OPEN

    @property
    def response_open(self) -> bool:
        """The response half may still bring items or an end."""
        return self.state[1] <= OPEN

    @property
    def waiting(self) -> bool:
        """Nothing has come back yet, not even an Accept."""
        return self.state[1] == WAITING

    @property
    def stopped(self) -> bool:
        """Stopped or killed."""
        return self.state[2] != NONE

    @property
    def killed(self) -> bool:
        return self.state[2] == KILLED

    @property
    def done(self) -> bool:
        """Neither half can move again."""
        return self.state[0] >= ENDED and self.state[1] >= ENDED


class SendCredit:
    """What the sender of a direction may still send: items, and bytes with one overdraft.

    An item larger than the whole byte window passes alone: sending needs a positive balance, not a
    sufficient one.
    """

    __slots__ = ("bytes", "items")

    def __init__(self, items: int, size: int) -> None:
        self.items = items
        self.bytes = size

    @property
    def open(self) -> bool:
        return self.items > 0 and self.bytes > 0

    def spend(self, items: int, size: int) -> None:
        self.items -= items
        self.bytes -= size

    def grant(self, items: int, size: int) -> None:
        self.items += items
        self.bytes += size


class ReceiveWindow:
    """What the receiver of a direction has allowed, what came, and what it owes as a grant."""

    __slots__ = ("_half_bytes", "_half_items", "bytes", "items", "taken_bytes", "taken_items")

    def __init__(self, items: int, size: int) -> None:
        self.items = items
        self.bytes = size
        self._half_items = max(items // 2, 1)
        self._half_bytes = max(size // 2, 1)
        self.taken_items = 0
        self.taken_bytes = 0

    def arrive(self, items: int, size: int) -> bool:
        """Count arrivals; False when the sender had no credit left for them."""
        allowed = self.items >= items and self.bytes > 0
        self.items -= items
        self.bytes -= size
        return allowed

    def take(self, size: int) -> bool:
        """The consumer has taken one item of ``size`` bytes; True when a grant is owed now."""
        self.taken_items += 1
        self.taken_bytes += size
        return self.taken_items >= self._half_items or self.taken_bytes >= self._half_bytes

    def owed(self) -> tuple[int, int]:
        """Items and bytes to grant; booked as granted."""
        items, size = self.taken_items, self.taken_bytes
        self.taken_items = self.taken_bytes = 0
        self.items += items
        self.bytes += size
        return items, size
