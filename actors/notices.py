"""What the processes of one node tell each other beside the life of streams: memory that is handed
on or given up, trouble at the other end, an end that is to be orderly. Pure data, as
``actors.messages``.

Tags 14 and 15 travel on the data lane, all others on the control lane; ``Leaving`` between nodes.
"""

from __future__ import annotations

from typing import NamedTuple

from transport.wire.message import message


@message(14)
class Warned(NamedTuple):
    """To the home of a stream: something is wrong at the other end, and the stream goes on.

    ``code`` is that of a ``StreamWarning`` (``frozen``, ``stalled``, ``unready``, ``thawed``),
    ``text`` names the process and the cause; ``since``: seconds that it has been so.
    """

    stream: int
    code: str
    text: str
    since: float


@message(26)
class Adopt(NamedTuple):
    """To the owner of memory, from whom a frame of it was handed on to: the lease of ``lender``
    (incarnation) on ``segment, offset, generation`` shall hold for the sender too.
    """

    lender: int
    segment: int
    offset: int
    generation: int
    stream: int


@message(27)
class Adopted(NamedTuple):
    """The owner's answer to Adopt; not ``ok``: the lease has ended, and ``reason`` says how."""

    segment: int
    offset: int
    generation: int
    ok: bool
    reason: str


@message(28)
class Retired(NamedTuple):
    """The sender has given segments of its memory back to the system: unmap them. Their numbers
    are never used again.
    """

    segments: list[int]


@message(41)
class Drain(NamedTuple):
    """From the node to an actor: take nothing new; what is under way may go on for ``limit``
    seconds. ``limit`` below 0: it takes what comes again. ``why`` it is to end, where nobody has
    asked the node to stop. ``succeeded``: another has its place, and refuses nothing: whoever comes
    still is served, and sent there.
    """

    limit: float
    why: str = ""
    succeeded: bool = False


@message(42)
class Drained(NamedTuple):
    """The actor's answer to Drain: nothing is under way any more, or the limit is over and ``left``
    streams were ended with an error.
    """

    left: int


@message(45)
class Leaving(NamedTuple):
    """From an ingress to the routers of other nodes, on their connections: another ingress has its
    place at the same address. Open nothing more on this connection; what is open goes on.
    """

    stream: int = 0


class DrainTarget(NamedTuple):
    """Ask a node, as a stream, to drain: ``target`` is an engine's name or the id of an instance,
    "" is the node itself. What is under way may go on for ``limit`` seconds (below 0: the setting
    ``drain_limit``). Each item is a step, see ``actors.cluster.steps``; the last one says how it
    ended. Asked once more meanwhile, it only shortens the limit.
    """

    target: str = ""
    limit: float = -1.0


class RestartActors(NamedTuple):
    """Ask a node, as a stream, to start actors of its spec anew: all engines, routers and the
    ingress where none is named. ``rolling``: one after the other. ``limit`` as in ``DrainTarget``.
    Each item is a step, see ``actors.cluster.steps``; the last one says how it ended. Whoever ends
    the stream ends the work behind the actor that it is at.
    """

    actors: list[str]
    rolling: bool = False
    limit: float = -1.0


class Grace(NamedTuple):
    """Asked of an ingress by its node, as a stream of one item: the records of ``instances`` are
    withdrawn. It answers when nobody is to come for them any more who has found them elsewhere.
    """

    instances: list[int]


class InspectMemory(NamedTuple):
    """Ask any actor, as a stream of one item, for its shared memory: segments, who holds what for
    how long, what it holds of others, who waits for room. ``Keeping.account`` says what is in it.
    """
