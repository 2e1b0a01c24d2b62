"""One connection to one member of etcd, by aetcd; used in the thread of
``actors.discovery.etcd_link`` only.

Every request has a limit, and what fails does so in one of two ways: ``Lost``, the connection is of
no use any more, or ``Refused``, etcd has answered no.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from actors.errors import SpecError

#: Seconds in which a member must answer that is connected to, and that closing may take.
_DIAL: Final = 2.0
_HANG_UP: Final = 1.0
#: Of the gRPC channel. etcd cuts off who pings more often than every 5 s. What a proxy is there for
#: is not the etcd of a cluster.
_OPTIONS: Final = {
    "grpc.enable_http_proxy": 0,
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.keepalive_permit_without_calls": 0,
    "grpc.max_receive_message_length": 64 * 1024 * 1024,
    # An attempt that nobody waits for any more holds its socket no longer than this.
    "grpc.min_reconnect_backoff_ms": 2_000,
    # A channel of its own for each attempt: else gRPC's pauses come on top of ours.
    "grpc.use_local_subchannel_pool": 1,
}


class Failed(Exception):
    """What can go wrong with etcd; its text says why."""


class Lost(Failed):
    """The connection is of no use any more; its text says why."""


class Refused(Failed):
    """etcd has answered, and does not do it; its text says why."""


class Gone(Refused):
    """What was named, such as a lease, is not there any more."""


class Past(Refused):
    """The revision that was asked for is compacted, or was never there."""


async def together(*steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run all to their end; the first that fails ends the others. Raises what that raises, where
    it is a Failed, without what it came from.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step(), name="etcd step")
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        if not isinstance(first, Failed):
            raise
    else:
        return
    # A new one: group, frames and the old one hold each other, and with them the connection.
    raise type(first)(str(first))


def load_aetcd(address: str) -> Any:
    """The library. Raises SpecError where the extra is not installed."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its lines go to stderr, past all loggers
    try:
        return importlib.import_module("aetcd")
    except ImportError as error:
        raise SpecError(
            f"etcd: {address!r} cannot be used, the library for it is missing ({error}); "
            "pip install 'callhome[etcd]'"
        ) from error


class Connection:
    """One connection to one member of etcd. Used in the thread only."""

    def __init__(self, aetcd: Any, member: str, when_lost: Callable[[], None]) -> None:
        host, _, port = member.rpartition(":")
        user = os.environ.get("ETCD_AUTH_USERNAME") or None
        password = os.environ.get("ETCD_AUTH_PASSWORD") or None
        if user is None or password is None:
            user = password = None
        self.member = member
        self.rpc = aetcd.rpc
        self._client = aetcd.Client(
            host, int(port), user, password, timeout=_DIAL, options=_OPTIONS
        )
        self._errors = aetcd.exceptions
        self._lost = asyncio.Event()
        self._when_lost = when_lost
        #: Somebody has used it with success.
        self.proved = False
        self.why = ""
        #: What etcd can be asked, by the name that etcd gives it; nothing while this is not open.
        self._methods: dict[str, Any] = {}
        self._metadata: Any = None

    async def open(self) -> None:
        """Raises Lost, Refused."""
        try:
            async with asyncio.timeout(2 * _DIAL):  # two calls with a limit each
                await self._client.connect()
                self._collect()
                status = await self.call("Status", self.rpc.StatusRequest(), _DIAL)
        except TimeoutError:
            raise Lost("it does not answer") from None
        except self._errors.ClientError as error:
            if isinstance(error, self._errors.ConnectionFailedError):
                raise Lost(_text(error)) from None
            if isinstance(error, self._errors.ConnectionTimeoutError):
                raise Lost("it does not answer") from None
            raise Refused(f"it does not let us in: {_text(error)}") from None
        if not status.leader:
            raise Lost("it has no leader")

    def _collect(self) -> None:
        client = self._client
        self._metadata = client.metadata
        self._methods["Watch"] = self.rpc.WatchStub(client.channel).Watch
        for stub, names in (
            (client.kvstub, ("Range", "Put", "Txn")),
            (client.leasestub, ("LeaseGrant", "LeaseKeepAlive", "LeaseTimeToLive", "LeaseRevoke")),
            (client.maintenancestub, ("Status",)),
        ):
            self._methods |= {name: getattr(stub, name) for name in names}

    async def close(self) -> None:
        """Never raises; bounded."""
        # gRPC closes its socket when the last reference to channel and calls is gone.
        self._methods.clear()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_HANG_UP):
                await self._client.close()

    def give_up(self, why: str) -> None:
        """It is of no use any more: the link makes another. A second call does nothing."""
        if not self._lost.is_set():
            self.why = why
            self._lost.set()
            self._when_lost()

    async def wait_lost(self) -> None:
        """Returns when it has been given up."""
        await self._lost.wait()

    def _method(self, name: str) -> Any:
        method = self._methods.get(name)
        if method is None:
            raise Lost(self.why or "the connection has ended")
        return method

    async def call(self, name: str, request: Any, limit: float) -> Any:
        """One request, as etcd names it, and its answer, within ``limit`` seconds. Raises Lost,
        Refused.
        """
        method = self._method(name)
        with self.failing():
            return await method(request, timeout=limit, metadata=self._metadata)

    async def renew(self, lease: int, limit: float) -> int:
        """Keep a lease alive; the seconds that it has then, 0 for one that is gone.

        Raises Lost, Refused.
        """
        request = self.rpc.LeaseKeepAliveRequest(ID=lease)
        method = self._method("LeaseKeepAlive")
        with self.failing():
            call = method(timeout=limit, metadata=self._metadata)
            try:
                await call.write(request)
                answer = await call.read()
            finally:
                call.cancel()
        if not hasattr(answer, "TTL"):
            raise Lost("it has ended the stream of a lease")
        return int(answer.TTL)

    async def watch(self, request: Any) -> Watch:
        """A watch. Raises Lost, Refused."""
        method = self._method("Watch")
        with self.failing():
            call = method(metadata=self._metadata)
            await call.write(request)
        return Watch(self, call)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """What gRPC raises inside becomes Lost or Refused."""
        try:
            yield
        except (self.rpc.AioRpcError, self.rpc.BaseError, asyncio.InvalidStateError) as error:
            error.__traceback__ = None  # its frames hold the call
            raise self._failure(error) from None
        except asyncio.CancelledError:
            # So gRPC ends what is under way on a channel that is closed.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Lost(self.why or "the connection has ended") from None

    def _failure(self, error: Exception) -> Lost | Refused:
        if not isinstance(error, self.rpc.AioRpcError):
            return Lost("the connection has ended")
        codes = self.rpc.StatusCode
        if error.code() is codes.DEADLINE_EXCEEDED:
            return Lost("it does not answer")
        text = _text(error.details() or error.code().name)
        if "user name is empty" in text:
            text += "; give ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD in the environment"
        lasting = (
            codes.PERMISSION_DENIED,
            codes.RESOURCE_EXHAUSTED,
            codes.FAILED_PRECONDITION,
            codes.INVALID_ARGUMENT,
            codes.UNIMPLEMENTED,
        )
        if error.code() is codes.NOT_FOUND:
            return Gone(text)
        if error.code() is codes.OUT_OF_RANGE:
            return Past(text)
        return Refused(text) if error.code() in lasting else Lost(text)


class Watch:
    """Changes of keys, as etcd tells them. Used in the thread only; aetcd's own watcher would drop
    the word that a watch was cancelled.
    """

    def __init__(self, connection: Connection, call: Any) -> None:
        self._connection = connection
        self._call = call

    async def read(self) -> Any:
        """The next answer of etcd. A caller that is cancelled ends the watch.

        Raises Lost, Refused.
        """
        with self._connection.failing():
            answer = await self._call.read()
        if not hasattr(answer, "watch_id"):
            raise Lost("it has ended the watch")
        return answer

    def end(self) -> None:
        """Nothing can be read any more; a second call does nothing."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


def _text(error: object) -> str:
    """What gRPC says, without its own preface."""
    text = str(error).rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
    return ascii(text)[1:-1][:300]
