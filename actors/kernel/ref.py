"""References: how one actor, or a client, reaches another by name; tell, ask with a deadline,
stream.
"""

from __future__ import annotations

import functools
import typing
from typing import Any, Protocol

from actors.kernel.calls import DEFAULT, Caller, Timeout
from actors.kernel.responses import ResponseStream
from actors.kernel.runtime import Runtime
from actors.kernel.watchful import OnWarning
from actors.messages import Tell
from transport.bus.address import Address
from transport.errors import LocalProtocolError, RemoteProtocolError


class Lookup(Protocol):
    """Who knows the actors of a node; ``actors.discovery`` has it."""

    def actor(self, name: str) -> Address:
        """The living incarnation of an actor. Raises ActorDead when there is none."""

    def router(self, target: str) -> Address:
        """A router for calls to an endpoint. Raises NoWorkers when the node has none."""


def write_message(message: Any) -> tuple[str, list[Any]]:
    """Name and fields of a user's message. Raises LocalProtocolError when it is no NamedTuple."""
    if not (isinstance(message, tuple) and hasattr(message, "_fields")):
        raise LocalProtocolError(f"a message is a NamedTuple, not {type(message).__name__}")
    return type(message).__name__, list(message)


def read_message(fields: Any, kind: Any) -> Any:
    """A user's message from its fields, checked for their number and plain types. Raises
    RemoteProtocolError.
    """
    if type(fields) is not list:
        raise RemoteProtocolError(f"{kind.__name__} came without its fields")
    least = len(kind._fields) - len(kind._field_defaults)
    if not least <= len(fields) <= len(kind._fields):
        raise RemoteProtocolError(
            f"{kind.__name__} has {len(kind._fields)} fields ({', '.join(kind._fields)}), "
            f"{len(fields)} came"
        )
    hints = _hints(kind)
    for name, value in zip(kind._fields, fields, strict=False):
        expected = _PLAIN.get(hints.get(name))
        if expected is not None and type(value) not in expected:
            raise RemoteProtocolError(
                f"field {name!r} of {kind.__name__} is {hints[name].__name__}, "
                f"not {type(value).__name__}"
            )
    return kind(*fields)


@functools.lru_cache(maxsize=1024)
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


_PLAIN: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    str: (str,),
    bytes: (bytes,),
    bool: (bool,),
    list: (list,),
    dict: (dict,),
}


class Ref:
    """An actor of the node by name. It is looked up at every use, so it survives the actor's
    restarts.
    """

    def __init__(self, name: str, runtime: Runtime, lookup: Lookup) -> None:
        self.name = name
        self._runtime = runtime
        self._lookup = lookup
        self._caller = Caller(runtime, self._route)

    def _route(self, target: str) -> Address:
        return self._lookup.actor(self.name)

    @property
    def address(self) -> Address:
        """Where it lives now. Raises ActorDead when it does not."""
        return self._lookup.actor(self.name)

    async def tell(self, message: Any) -> None:
        """Send a message and go on; nobody answers. Messages of one sender arrive in order.

        Arrays and frames are copied into the message. Raises ActorDead when the actor is known to
        be dead or unknown, OutboxFull when it does not read, EncodeError for fields outside the
        payload domain, FrameReleased.
        """
        target, fields = write_message(message)
        encoded = self._runtime.encode(fields, "msgpack", False, target)
        address = self._lookup.actor(self.name)
        self._runtime.send(address, Tell(target, encoded.data), size=len(encoded.data) + 64)

    async def ask(
        self,
        message: Any,
        *,
        timeout: Timeout = DEFAULT,
        on_warning: OnWarning | None = None,
    ) -> Any:
        """Send a message and wait for the handler's answer; ``timeout`` in seconds, None for no
        limit; ``on_warning`` as for ``Client.call``.

        Raises what the handler raised (as EngineError, or as itself when it is an error of
        callhome), ActorDead, Overloaded when the mailbox is full, DeadlineExceeded.
        """
        target, fields = write_message(message)
        return await self._caller.call(target, fields, timeout=timeout, on_warning=on_warning)

    def stream(
        self, message: Any, *, timeout: Timeout = None, on_warning: OnWarning | None = None
    ) -> ResponseStream:
        """Send a message to a handler that yields; its items come as from ``Client.stream``."""
        target, fields = write_message(message)
        return self._caller.stream(target, fields, timeout=timeout, on_warning=on_warning)
