"""Messages: every one that is registered goes there and back, and nothing foreign comes through."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgpack
import pytest

import actors.messages as known
from transport.bus.address import Address
from transport.errors import LocalProtocolError, RemoteProtocolError
from transport.wire import message as wire
from transport.wire.message import BatchReader, BatchWriter, Message, message

SENDER = 2**62 - 1
WRONG: list[Any] = [None, True, 7, 0.5, "x", b"x", [], [[]], {}]
REGISTERED: list[type[Any]] = sorted(wire._tags, key=wire._tags.__getitem__)
VALUES: dict[Any, list[Any]] = {
    int: [0, -1, 2**63 - 1, 2**64 - 1],
    float: [0.5, 3],
    str: ["", "text", "\U0001f600"],
    bytes: [b"", b"\x00\xff" * 40],
    bool: [True, False],
    dict: [{}, {"key": "value", "n": [1, None]}],
    Any: [None],
    type(None): [None],
}


def samples(hint: Any) -> list[Any]:
    """Values of a field's type; the first is the plainest."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return [value for member in inner for value in samples(member)]
    if origin is list:
        return (
            [[], samples(inner[0])[:3]] if inner and inner[0] is not Any else [[], [1, "a", b"b"]]
        )
    if isinstance(origin, type) and issubclass(origin, tuple) and hasattr(origin, "_fields"):
        return [record(origin, 0)]
    return VALUES[dict if origin is dict else origin]


def record(cls: Any, turn: int) -> Any:
    """An instance whose fields are the ``turn``-th samples of their types."""
    hints = get_type_hints(cls)
    found = [samples(hints[name]) for name in cls._fields]
    return cls(*(each[turn % len(each)] for each in found))


def pack(*messages: Message) -> bytes:
    return BatchWriter(SENDER).pack(messages)


def raw(*objects: object) -> bytes:
    """A batch of any objects behind the sender."""
    return b"".join(msgpack.packb(each, use_bin_type=True) for each in (SENDER, *objects))


def plain(value: Any) -> Any:
    """A message as the fields that travel."""
    return [plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def test_all_of_the_nodes_messages_are_here() -> None:
    assert {known.Open, known.Items, known.End, known.Report, known.Added} <= set(REGISTERED)
    assert len(set(wire._tags.values())) == len(REGISTERED) >= 28


@pytest.mark.parametrize("cls", REGISTERED, ids=lambda cls: cls.__name__)
def test_every_message_comes_back_equal_and_typed(cls: Any) -> None:
    reader = BatchReader()
    names: tuple[str, ...] = cls._fields
    for turn in range(6):
        sent = record(cls, turn)
        sender, (got,) = reader.unpack(pack(sent))
        assert sender == SENDER
        assert type(got) is cls
        assert got == sent
        for name, value in zip(names, got, strict=True):
            assert type(value) is type(getattr(sent, name)), name


@pytest.mark.parametrize("cls", REGISTERED, ids=lambda cls: cls.__name__)
def test_every_message_is_checked_for_its_number_of_fields(cls: type[Any]) -> None:
    fields = [wire._tags[cls], *plain(record(cls, 0))]
    least = len(cls._fields) - len(cls._field_defaults)
    reader = BatchReader()
    for count in range(len(fields) + 1):
        batch = raw(fields[:count] if count < len(fields) else [*fields, 1])
        if count - 1 >= least and count < len(fields):
            (got,) = reader.unpack(batch)[
                1
            ]  # a field that is newer than the sender has its default
            defaults: dict[str, Any] = cls._field_defaults
            for name in list(defaults)[count - 1 - least :]:
                assert getattr(got, name) == defaults[name]
        else:
            with pytest.raises(RemoteProtocolError, match=r"fields|not an array"):
                reader.unpack(batch)


@pytest.mark.parametrize("cls", REGISTERED, ids=lambda cls: cls.__name__)
def test_every_field_is_checked_for_its_type(cls: type[Any]) -> None:
    hints = get_type_hints(cls)
    fields = [wire._tags[cls], *plain(record(cls, 0))]
    reader = BatchReader()
    reader.unpack(raw(fields))  # what has passed once must not make the rest pass
    names: tuple[str, ...] = cls._fields
    for place, name in enumerate(names, 1):
        allowed = wire._plain_types(hints[name])
        for wrong in WRONG:
            if type(wrong) in allowed and wrong != [[]]:
                continue
            if wrong == [[]] and not strict_list(hints[name]):
                continue
            with pytest.raises(RemoteProtocolError):
                reader.unpack(raw([*fields[:place], wrong, *fields[place + 1 :]]))
    assert reader.unpack(raw(fields))[0] == SENDER


def strict_list(hint: Any) -> bool:
    """Whether a list of an empty list has no place in a field of this type."""
    lists = [each for each in wire._members(hint) if get_origin(each) is list]
    return not any(get_args(each)[0] is Any or get_args(each)[0] == list[Any] for each in lists)


def test_payloads_among_several_are_bytes() -> None:
    tag = wire._tags[known.Items]
    for wrong in ([b"x", "y"], [1], [b"", None], [[b"x"]]):
        with pytest.raises(RemoteProtocolError):
            BatchReader().unpack(raw([tag, 1, 0, wrong]))


def test_a_batch_keeps_the_order_of_its_messages() -> None:
    sent: list[Message] = [known.Credit(number, 1, 2) for number in range(100)]
    sent.insert(50, known.Hello(Address("a", 1, 2, 3)))
    assert BatchReader().unpack(pack(*sent)) == (SENDER, sent)
    assert BatchReader().unpack(pack()) == (SENDER, [])


@pytest.mark.parametrize(
    "tag", [0, 15, 99, -1, 2**63, "1", None, [1], True, 1.0, b"\x01", {"a": 1}]
)
def test_an_unknown_tag_is_refused(tag: object) -> None:
    with pytest.raises(RemoteProtocolError, match="tag"):
        BatchReader().unpack(raw([tag, 1, 2, 3]))


@pytest.mark.parametrize("thing", [7, "x", None, {}, [], {"a": 1}, b"x", True])
def test_what_is_no_array_is_refused(thing: object) -> None:
    with pytest.raises(RemoteProtocolError):
        BatchReader().unpack(raw(thing))


@pytest.mark.parametrize("batch", [b"", b"\xc0", b"\xa1x", b"\xc3", b"\x90", b"\xcb" + b"\0" * 8])
def test_a_batch_begins_with_its_sender(batch: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        BatchReader().unpack(batch)


def test_a_batch_cut_at_any_byte_is_refused_and_the_next_one_is_read() -> None:
    whole = [record(cls, turn) for turn in (0, 1) for cls in REGISTERED]
    ends = {len(pack(*whole[:count])) for count in range(len(whole) + 1)}
    batch = pack(*whole)
    reader = BatchReader()
    for size in range(len(batch)):
        if size in ends:
            assert len(reader.unpack(batch[:size])[1]) < len(whole)  # cut between two messages
            continue
        with pytest.raises(RemoteProtocolError):
            reader.unpack(batch[:size])
        if size % 97 == 0:
            assert reader.unpack(batch) == (SENDER, whole)


def test_a_bad_message_does_not_stay_in_the_reader() -> None:
    reader = BatchReader()
    good = pack(known.FeedEnd(1, 2))
    for bad in (b"\xc1", raw([1]), b"\x92", good + b"\xc1", good + b"\xd9", b"\xff" * 50):
        with pytest.raises(RemoteProtocolError):
            reader.unpack(bad)
        assert reader.unpack(good) == (SENDER, [known.FeedEnd(1, 2)])


def test_noise_is_refused_or_read_but_never_anything_else() -> None:
    draw = random.Random(11)
    reader = BatchReader()
    valid = pack(*(record(cls, 1) for cls in REGISTERED))
    for _ in range(3000):
        if draw.random() < 0.3:
            batch = draw.randbytes(draw.randrange(200))
        else:
            mutated = bytearray(valid)
            for _ in range(draw.randrange(1, 4)):
                mutated[draw.randrange(len(mutated))] = draw.randrange(256)
            batch = bytes(mutated)
        try:
            _, found = reader.unpack(batch)
        except RemoteProtocolError:
            continue
        assert all(type(each) in wire._tags for each in found)
    assert len(reader.unpack(valid)[1]) == len(REGISTERED)


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\x7f\xff\xff\xff",  # an array
        b"\xdf\x7f\xff\xff\xff",  # a map
        b"\xc6\x7f\xff\xff\xff",  # bytes
        b"\xdb\x7f\xff\xff\xff",  # text
        b"\xc9\x7f\xff\xff\xff\x01",  # an extension
        b"\x91" * 100_000,  # depth
        b"\x81\x01" * 100_000,
    ],
)
def test_claims_cost_no_memory(claim: bytes, peak_rss: Callable[[], int]) -> None:
    reader = BatchReader()
    before = peak_rss()
    for _ in range(5):
        with pytest.raises(RemoteProtocolError):
            reader.unpack(raw() + claim)
    assert peak_rss() - before < 32 << 20


def test_a_tag_is_given_once() -> None:
    with pytest.raises(LocalProtocolError, match=r"tag 1 is taken; give Again another"):

        @message(1)
        class Again(NamedTuple):
            field: int


def test_a_field_that_cannot_travel_is_refused_at_the_first_use() -> None:
    class Odd(NamedTuple):
        field: complex

    with pytest.raises(LocalProtocolError, match="complex"):
        wire._builder(Odd)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (("no", "message"), "no registered message"),
        (known.FeedEnd(1, object()), "cannot be packed"),  # type: ignore[arg-type]
        (known.FeedEnd(2**70, 1), "cannot be packed"),
        (known.Tell("\ud800", b""), "cannot be packed"),
    ],
)
def test_what_cannot_be_packed_is_our_own_fault_and_leaves_nothing(bad: Any, text: str) -> None:
    writer = BatchWriter(SENDER)
    with pytest.raises(LocalProtocolError, match=text):
        writer.pack([known.FeedEnd(1, 2), bad])
    assert writer.pack([known.FeedEnd(1, 2)]) == pack(known.FeedEnd(1, 2))


def test_what_can_be_saved_of_a_batch_is_sent() -> None:
    writer = BatchWriter(SENDER)
    before, after = known.FeedEnd(1, 2), known.FeedEnd(3, 4)
    reason = known.Kill(1, 2, "broken \ud800 text")
    batch = [before, known.FeedEnd(1, object()), reason, ("no", "message"), after]  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError):
        writer.pack(batch)
    saved = known.Kill(1, 2, "broken ? text")
    assert BatchReader().unpack(writer.salvage(batch)) == (SENDER, [before, saved, after])
    assert BatchReader().unpack(writer.salvage(batch[1:2])) == (SENDER, [])


def test_messages_of_an_older_sender_keep_their_meaning() -> None:
    """A report without its last field, as an older engine would send it."""
    tag = wire._tags[known.Report]
    (got,) = BatchReader().unpack(raw([tag, 1, 2, 3, 4, 5, 6, 7]))[1]
    assert got == known.Report(1, 2, 3, 4, 5, 6, 7)


def test_one_bad_message_does_not_take_the_others_with_it() -> None:
    good, late = known.Credit(1, 2, 3), known.Credit(4, 5, 6)
    batch = BatchWriter(7).pack([good, late])
    middle = msgpack.packb([16, 1, "two", 3]) + msgpack.packb([9999]) + msgpack.packb("no message")
    at = len(BatchWriter(7).pack([good]))
    sender, messages, faults = BatchReader().read(batch[:at] + middle + batch[at:])
    assert (sender, messages) == (7, [good, late])
    assert len(faults) == 3
    assert BatchReader().read(batch[:-1])[1] == []
