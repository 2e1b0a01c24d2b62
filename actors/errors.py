"""Failures of routing and of actors; re-exports what a user can meet.

CallHomeError
├── NoWorkers           nobody serves this endpoint (unknown name, or none is alive)
├── Overloaded          every place and every queue place of a worker is taken; try elsewhere
│   └── AllBusy         every worker of the endpoint is busy; try later
├── WorkerLost          the worker died before it had accepted the stream
├── WorkerUnavailable   the worker is there and takes no requests now: unknown path, or it stops
│   └── Draining        it finishes what it has, and then stops
├── Unsupported         the peer or the mode cannot do what was asked
├── PolicyFailed        the user's function that chooses for a router raised, hung, chose nobody
├── ActorDead           the actor is dead or was never born
├── SpawnError          an actor did not come up: import, constructor, on_start, bind, time-out
└── NameTaken           another live actor or node holds this name
"""

from __future__ import annotations

from transport.errors import (
    AttachFailed,
    CallBackFailed,
    CallHomeError,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    EncodeError,
    EngineError,
    FrameReleased,
    LocalProtocolError,
    MemoryExhausted,
    OutboxFull,
    PayloadError,
    PeerLost,
    ProtocolError,
    RemoteProtocolError,
    SpecError,
    StaleHandle,
    TooLarge,
)

__all__ = [
    "ActorDead",
    "AllBusy",
    "AttachFailed",
    "CallBackFailed",
    "CallHomeError",
    "Cancelled",
    "ConnectionLost",
    "DeadlineExceeded",
    "DecodeError",
    "Draining",
    "EncodeError",
    "EngineError",
    "FrameReleased",
    "LocalProtocolError",
    "MemoryExhausted",
    "NameTaken",
    "NoWorkers",
    "OutboxFull",
    "Overloaded",
    "PayloadError",
    "PeerLost",
    "PolicyFailed",
    "ProtocolError",
    "RemoteProtocolError",
    "SpawnError",
    "SpecError",
    "StaleHandle",
    "TooLarge",
    "Unsupported",
    "WorkerLost",
    "WorkerUnavailable",
]


class NoWorkers(CallHomeError):
    """Nobody serves this endpoint: the name is unknown, or none of its workers is alive."""

    code = "no_workers"
    retry = True


class Overloaded(CallHomeError):
    """Every place and every queue place of the worker is taken; try later or elsewhere."""

    code = "overloaded"
    retry = True


class AllBusy(Overloaded):
    """Workers are there and every one of them is busy; the text says how, and for how long the
    stream has waited.

    One worker that refuses is ``Overloaded``, and another may have room; this is said of them all.
    """

    code = "all_busy"


class WorkerLost(PeerLost):
    """The worker died before it had accepted the stream; no item was delivered."""

    code = "worker.lost"


class WorkerUnavailable(CallHomeError):
    """The worker's node answers but takes no requests for it now: it stops, or is not there yet."""

    code = "worker.unavailable"
    retry = True


class Draining(WorkerUnavailable):
    """The worker, or its whole node, finishes what it has and then stops; others may serve."""

    code = "draining"


class Unsupported(CallHomeError):
    """The peer, the mode or the endpoint cannot do what was asked."""

    code = "unsupported"


class PolicyFailed(CallHomeError):
    """The function that a router was given to choose by raised, took too long, or chose nobody of
    those it was shown; the text names the function. ``details``: ``traceback`` where it raised.
    """

    code = "policy"


class ActorDead(ConnectionLost):
    """The actor is dead or was never born; the text says which and names the next step."""

    code = "actor.dead"


class SpawnError(CallHomeError):
    """An actor did not come up. ``details``: ``stage`` (import, constructor, on_start, bind,
    timeout, exit), ``type`` and ``traceback`` of the exception in the child."""

    code = "spawn"


class NameTaken(CallHomeError):
    """Another live actor, node or cluster holds this name; the text names its pid."""

    code = "name_taken"
