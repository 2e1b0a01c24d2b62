"""References: how one actor, or a client, reaches another by name; tell, ask with a deadline,
stream.
"""

from __future__ import annotations

import asyncio
import functools
import typing
from collections.abc import Mapping
from typing import Any, Final, Protocol

from actors.errors import ActorDead, DecodeError, EncodeError, Unsupported
from actors.kernel.calls import DEFAULT, Caller, Timeout
from actors.kernel.chains import CHAIN, KEY
from actors.kernel.responses import ResponseStream
from actors.kernel.runtime import Runtime
from actors.kernel.sent import Request
from actors.kernel.watchful import OnWarning
from actors.messages import Tell
from transport.bus.address import Address
from transport.errors import LocalProtocolError, RemoteProtocolError, shown

#: Bytes of a name that came from elsewhere; names of actors are shorter.
_MAX_NAME: Final = 128


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


class _Asker(Caller):
    """Calls to one actor; they tell which handlings of others they come from."""

    def _request(self, *arguments: Any) -> Request:
        sent = super()._request(*arguments)
        if chain := CHAIN.get():
            sent.context.metadata[KEY] = chain
        return sent


class Ref:
    """An actor of the node by name: ``client.ref(name)``, ``cluster.ref(name)``, ``self.ref(name)``
    in an actor. It is looked up at every use, so it survives the actor's restarts.

    A reference may stand in a message, a request or an item, and arrives as one of the receiver's
    own; it does not leave its node. ``Ref(name)`` is one for the ``args`` of an ActorSpec or
    EngineSpec: it can be used from ``on_start`` on. There it waits for an actor that starts beside
    this one. It cannot be pickled or copied.
    """

    def __init__(
        self, name: str, runtime: Runtime | None = None, lookup: Lookup | None = None
    ) -> None:
        self.name = name
        if runtime is not None:
            self.bind(runtime, lookup)

    def bind(self, runtime: Runtime, lookup: Lookup | None = None) -> None:
        """Let it be used by ``runtime``; called by whoever made that."""
        found = lookup or runtime.lookup
        if found is None:
            raise ActorDead(f"{runtime.address.name} is outside any node and knows no other actor")
        self._runtime = runtime
        self._lookup = found
        self._caller = _Asker(runtime, self._route)
        self._caller.actor = self.name

    def __getattr__(self, attribute: str) -> Any:
        # Only what ``bind`` sets can be missing.
        if attribute in ("_runtime", "_lookup", "_caller"):
            raise LocalProtocolError(
                f"{self!r} is not bound to a node yet; as an argument of a spec it can be used "
                "from on_start on, elsewhere take client.ref(name), cluster.ref(name) or self.ref"
            )
        raise AttributeError(f"'Ref' object has no attribute {attribute!r}")

    def __repr__(self) -> str:
        return f"Ref({self.name!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise LocalProtocolError(
            f"{self!r} belongs to this process and is neither pickled nor copied; send it in a "
            "message, give it among the args of a spec, or hand on its name"
        )

    def __callhome_reference__(self) -> bytes:
        """What stands for it in a value."""
        node = self._runtime.node
        if not node:
            raise EncodeError(f"{self!r} of a client outside any node; send the name")
        return node.to_bytes(8, "big") + self.name.encode()

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
        if (starting := self._runtime.starting) is not None:
            await starting.wait(self.name)
        encoded = self._runtime.encode(fields, "msgpack", False, target)
        address = self._lookup.actor(self.name)
        if self._runtime.port.pressed(address):
            await asyncio.sleep(0)  # to hear how far it has read, before it counts as full
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
        if (starting := self._runtime.starting) is not None:
            await starting.wait(self.name, timeout if isinstance(timeout, int | float) else None)
        return await self._caller.call(target, fields, timeout=timeout, on_warning=on_warning)

    def stream(
        self, message: Any, *, timeout: Timeout = None, on_warning: OnWarning | None = None
    ) -> ResponseStream:
        """Send a message to a handler that yields; its items come as from ``Client.stream``."""
        target, fields = write_message(message)
        return self._caller.stream(target, fields, timeout=timeout, on_warning=on_warning)


def read_reference(data: bytes, runtime: Runtime) -> Ref:
    """What ``__callhome_reference__`` has written, for ``runtime``. Raises DecodeError, Unsupported
    when it comes from another node.
    """
    try:
        node, name = int.from_bytes(data[:8], "big"), data[8:].decode()
    except UnicodeDecodeError:
        raise DecodeError("a reference to an actor without a name") from None
    if not node or not name or len(name) > _MAX_NAME:
        raise DecodeError("a reference to an actor without a name")
    if node != runtime.node or runtime.lookup is None:
        raise Unsupported(
            f"a reference to actor {shown(name)} of another node: references do not leave their "
            "node; let an engine there do what is to be done"
        )
    return Ref(name, runtime)


#: A table with this one key stands for a reference among the arguments of a spec.
_ARGUMENT: Final = "callhome:ref"


def write_argument(ref: Ref) -> dict[str, str]:
    """A reference among the arguments of a spec, as JSON."""
    return {_ARGUMENT: ref.name}


def read_arguments(value: Any, given: list[Ref]) -> Any:
    """Arguments of a spec with their references in place, each still to be bound and noted in
    ``given``.
    """
    if isinstance(value, Mapping):
        if value.keys() == {_ARGUMENT}:
            given.append(Ref(str(value[_ARGUMENT])))
            return given[-1]
        return {name: read_arguments(part, given) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [read_arguments(part, given) for part in value]
    if isinstance(value, Ref):  # of an actor in the launcher's own process
        given.append(Ref(value.name))
        return given[-1]
    return value
