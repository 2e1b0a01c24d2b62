"""What clients, routers, engines and nodes say to each other: plain data, tagged, by field.

A *home* is where a stream was opened and where its items go; a *peer* is who serves it. Stream
numbers are given by the home and are unique there; with the home's incarnation they name a stream
on the whole node. Tags 1 to 15 travel on the data lane, 16 and above on the control lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transport.bus.address import Address
from transport.wire.message import message


@message(23)
class Report(NamedTuple):
    """What one engine incarnation carries, cumulative, as one router should see it.

    ``opened`` and ``settled`` count the streams that came from that router; ``ended`` names those
    that settled since the last report sent to it directly: ``[home, stream, error code or ""]``. To
    a home only their difference is told, its streams that are here now, and none is named.
    """

    incarnation: int
    seq: int
    in_flight: int
    queued: int
    capacity: int
    opened: int
    settled: int
    ended: list[list[Any]] = []  # noqa: RUF012 - never mutated, a NamedTuple default


class Route(NamedTuple):
    """What a home asks of the choice of a worker; most streams ask nothing.

    ``instance``: this one and no other (0: any). ``avoid``: ``[instance, error code]`` of those
    that have failed the request before. ``priority``: of two streams that wait at a router, the
    one with the larger number goes first.
    """

    instance: int = 0
    avoid: list[list[Any]] = []  # noqa: RUF012 - as above
    priority: int = 0


@message(1)
class Open(NamedTuple):
    """Open a stream: from the home to a router or straight to an actor, from the router to an
    engine.

    ``many``: the request is a stream of items too (bidirectional). ``native``: the home takes
    shared-memory handles. ``handles`` and ``segments`` are the handles in the payload and the
    announcements of their segments. ``window_items`` and ``window_bytes`` are the credit for items
    towards the home. ``remaining``: seconds until the deadline. ``router``: filled in by the
    router. ``reports``: the newest report of each of its workers that came home since the last
    Open. ``route`` is for the router.
    """

    stream: int
    home: Address
    target: str
    many: bool
    codec: str
    native: bool
    payload: bytes
    handles: list[Any]
    segments: list[Any]
    window_items: int
    window_bytes: int
    remaining: float | None
    metadata: dict[str, Any]
    request_id: str
    router: Address | None = None
    reports: list[Report] = []  # noqa: RUF012 - as above
    route: Route | None = None


@message(2)
class Accept(NamedTuple):
    """The stream has a peer: from now on control goes straight to it. Feed credit is for
    ``many``. ``codec`` is that of the items, in which request items are wanted too, where it is
    not the Open's.
    """

    stream: int
    peer: Address
    feed_items: int
    feed_bytes: int
    codec: str = ""


@message(3)
class Items(NamedTuple):
    """Items ``first``, ``first + 1``, … of a stream, each as payload bytes without handles."""

    stream: int
    first: int
    payloads: list[bytes]


@message(4)
class Item(NamedTuple):
    """One item with shared-memory handles; ``size`` counts payload and array bytes against the
    credit.
    """

    stream: int
    seq: int
    payload: bytes
    handles: list[Any]
    size: int


@message(5)
class End(NamedTuple):
    """The stream ends after ``total`` items: cleanly, or with ``error`` = ``[code, text,
    details]``. ``last``: the last of the items, as payload bytes, that no other message has
    brought.
    """

    stream: int
    total: int
    error: list[Any] | None
    report: Report | None = None
    last: list[bytes] = []  # noqa: RUF012 - never mutated, a NamedTuple default


@message(6)
class Feed(NamedTuple):
    """Items of a bidirectional request, from the home to the peer."""

    stream: int
    first: int
    payloads: list[bytes]


@message(7)
class FeedItem(NamedTuple):
    """One request item with shared-memory handles."""

    stream: int
    seq: int
    payload: bytes
    handles: list[Any]
    size: int


@message(8)
class FeedEnd(NamedTuple):
    """The home has said its last after ``total`` items; that is no cancel."""

    stream: int
    total: int


@message(9)
class Tell(NamedTuple):
    """A message for a user's actor; nobody answers. ``target`` is the message's class name."""

    target: str
    payload: bytes


@message(10)
class Hello(NamedTuple):
    """First message on every connection: who its batches come from."""

    address: Address


@message(11)
class Bye(NamedTuple):
    """The sender's incarnation closes, though its process may live on; behind all that it sent."""


@message(12)
class ItemBody(NamedTuple):
    """Between nodes, in place of an Item, a FeedItem or Items of one payload that is large: its
    bytes follow as a body of their own.

    ``payload`` is the payload or the number of its bytes. ``table`` stands for its handles, in
    order: ``[dtype, shape, bytes]``, or the number of bytes in the third place. Each such number
    of bytes follows in chunks of body ``body``, first the payload's, then the table's in order.
    ``seq`` -1 is the request itself. ``size`` counts against the credit, as an Item's.
    """

    stream: int
    seq: int
    payload: bytes | int
    table: list[Any]
    size: int
    body: int


@message(13)
class Faulted(NamedTuple):
    """The peer is about to send an error item: whoever holds a permit for the stream gives it back
    now, though the stream may go on.
    """

    stream: int


@message(16)
class Credit(NamedTuple):
    """The home grants room for further items and bytes (it travels to the peer)."""

    stream: int
    items: int
    bytes: int


@message(17)
class FeedCredit(NamedTuple):
    """The peer grants room for further request items and bytes (it travels to the home)."""

    stream: int
    items: int
    bytes: int


@message(18)
class Stop(NamedTuple):
    """Ask the handler to finish; what it still yields arrives. Before Accept it follows its
    Open.
    """

    home: int
    stream: int
    reason: str


@message(19)
class Kill(NamedTuple):
    """Drop the stream: nothing more is wanted. Before Accept it follows its Open."""

    home: int
    stream: int
    reason: str


@message(20)
class Announce(NamedTuple):
    """A shared-memory segment that the receiver should attach now (see transport.wire.handle)."""

    segment: list[Any]


@message(21)
class Attached(NamedTuple):
    """Answer to Announce: are handles readable, why not, by which road, whose memory (0: yours)?"""

    segment: int
    ok: bool
    reason: str
    road: str = ""
    owner: int = 0


@message(22)
class Release(NamedTuple):
    """Leases given back: ``[segment, offset, generation]`` each, with an owner if not to him."""

    leases: list[Any]


@message(24)
class Down(NamedTuple):
    """From the node: this actor's process has ended, and how."""

    address: Address
    reason: str


@message(25)
class Lost(NamedTuple):
    """From a router to a home: the worker chosen for the stream died, perhaps before accepting
    it.
    """

    stream: int
    peer: Address
    reason: str


class Inspect(NamedTuple):
    """Ask any actor, as a stream of one item, for its counters and what it carries."""


class BusyAt(NamedTuple):
    """Ask a router, as a stream of one item: from when on a worker gets no new streams.

    ``streams``: from this many on; ``fraction``: from this part of its capacity on. Whichever
    comes first; None means no limit. The answer is what held before.
    """

    streams: int | None = None
    fraction: float | None = None


class Workers(NamedTuple):
    """Ask a router, as a stream of one item, who serves ``endpoint`` ("": all): a list of maps."""

    endpoint: str = ""


class Record(NamedTuple):
    """One thing that can be found: an engine's endpoint, a router, or a user's actor.

    ``instance`` is the incarnation; ``kind`` is ``engine``, ``router``, ``ingress``, ``actor`` or
    ``node``; ``endpoint`` is the endpoint of an engine and "" otherwise; ``many``: the request is
    a stream. ``via`` is ``host:port/path`` of an engine on another node and "" of what is on this
    node's bus; of an ingress it is the ``host:port`` at which other nodes reach it. ``speaks`` is
    what that engine's node understands: "" is Dynamo 1.6, ``callhome1`` more. The address of one
    on another node is made up. ``device`` is what an engine computes on (``cpu``, ``cuda``) and
    ``device_id`` which of its host's that is (``cuda:1``), "" where nobody has said.
    """

    instance: int
    address: Address
    kind: str
    endpoint: str = ""
    many: bool = False
    capacity: int = 0
    codec: str = "msgpack"
    via: str = ""
    speaks: str = ""
    device: str = ""
    device_id: str = ""


@message(32)
class Subscribe(NamedTuple):
    """Ask the node for a Snapshot and then every change, or an engine for its reports; ``address``
    is the subscriber. One that sends an engine streams as their ``home`` knows of those itself, and
    is told when there is a change in what the engine carries for others.
    """

    address: Address
    home: bool = False


@message(33)
class Unsubscribe(NamedTuple):
    """The subscriber wants no more changes."""

    incarnation: int


@message(34)
class Snapshot(NamedTuple):
    """All records at the moment of the subscription."""

    records: list[Record]


@message(35)
class Added(NamedTuple):
    """A record that can serve from now on."""

    record: Record


@message(36)
class Removed(NamedTuple):
    """A record that gets no new streams from now on, and why."""

    record: Record
    reason: str


@message(37)
class Publish(NamedTuple):
    """To the node: an actor in the sender's own process (``place="here"``) can serve now."""

    record: Record


@message(38)
class Withdraw(NamedTuple):
    """To the node: what the sender's process had published gets no new streams from now on."""

    instance: int
    reason: str


@message(39)
class Sync(NamedTuple):
    """From the node to a subscriber: answer when every change sent before this is taken in."""

    number: int


@message(40)
class Synced(NamedTuple):
    """The subscriber's answer to Sync."""

    number: int
