"""A policy of the user's own: a function that chooses a worker for each request.

    def mine(workers: Sequence[WorkerView], request: RoutedRequest) -> WorkerView:
        return min(workers, key=lambda worker: worker.load)

It runs in a thread of its own, for it may take its time, and nobody knows what it does: whatever
goes wrong is an error of the request that it was asked for. One choice is made after the other, and
the stream is booked in between, so that the next choice sees it.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import traceback
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol, TypeAlias

from actors.errors import CallHomeError, PolicyFailed, SpecError
from actors.kernel.asked import is_async
from actors.messages import Open
from actors.router.asks import Ask, Asks, Done, priority_of
from actors.router.loads import Worker
from actors.router.options import Options

#: Seconds that a choice may take.
LIMIT: Final = 1.0
#: Threads that may hang in the function at the same time.
_HUNG: Final = 8
#: Characters of what it has raised, and of where.
_TEXT: Final = 500
_TRACEBACK: Final = 8000


class WorkerView(NamedTuple):
    """A worker as a policy of the user's own sees it, at the time of the choice.

    ``load`` counts the streams it carries, queued ones and those on the way included; ``capacity``
    is the number it runs at the same time, 0 where that is not known; ``device`` is what it
    computes on, "" where nobody has said.
    """

    instance: int
    load: int
    capacity: int
    device: str
    endpoint: str


class RoutedRequest(NamedTuple):
    """A request as a policy of the user's own sees it: all but its payload.

    ``many``: its requests are a stream too. ``size``: bytes of the payload, with what it has in
    shared memory. ``priority`` is what the caller gave.
    """

    endpoint: str
    request_id: str
    metadata: dict[str, str]
    many: bool
    size: int
    priority: int


#: Returns one of the workers that it was shown, or that one's instance. The parameters are called
#: by position.
Function: TypeAlias = Callable[[Sequence[WorkerView], RoutedRequest], WorkerView | int]


class _Timer(Protocol):
    def cancel(self) -> None: ...


class _Loop(Protocol):
    """What is needed of the event loop."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Timer: ...

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> object: ...


def load_policy(options: Options) -> Function:
    """The function that ``options.policy`` names. Raises SpecError, which names it, too."""
    name = options.policy
    try:
        function = options.load(name)
    except SpecError as error:
        raise SpecError(f"policy: {error.message}") from error
    except (Exception, SystemExit) as error:
        raise SpecError(
            f"policy: {name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    check_policy(function, name)
    loaded: Function = function
    return loaded


def check_policy(function: object, name: str) -> None:
    """Raises SpecError for what cannot be asked for a worker."""
    expected = "it is to be a plain function of (workers, request)"
    if not callable(function) or inspect.isclass(function):
        kind = "a class" if inspect.isclass(function) else f"{str(function)[:80]}, no function"
        raise SpecError(f"policy: {name} is {kind}; {expected}")
    if is_async(function):
        raise SpecError(f"policy: {name} is async, and a choice cannot be awaited; {expected}")
    if any(map(inspect.isgeneratorfunction, (function, type(function).__call__))):
        raise SpecError(f"policy: {name} is a generator; {expected}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: it will show
    try:
        signature.bind((), None)
    except TypeError as error:
        raise SpecError(f"policy: {name}{signature}: {error}; {expected}") from None


class _Raised:
    """What the function raised, as text: the exception itself holds on to all that the function had
    in hand.
    """

    def __init__(self, error: BaseException) -> None:
        self.text, self.traceback = type(error).__name__, ""
        # Its ``__str__`` is the user's as well, and formatting looks at more than that.
        with contextlib.suppress(Exception):
            self.text = "".join(traceback.format_exception_only(error)).strip()[:_TEXT]
            self.traceback = "".join(traceback.format_exception(error))[:_TRACEBACK]


#: The instance that was chosen, how that looks which is no choice, or what was raised.
_Answer: TypeAlias = int | str | _Raised


class _Thread:
    """A thread that calls the function, one time after the other, until it is told to end.

    Whatever is the user's is handled in it: the ``__repr__`` of what was returned may hang, too.
    """

    def __init__(
        self, function: Function, name: str, returned: Callable[[_Thread, _Answer], None]
    ) -> None:
        self._function = function
        self._returned = returned
        self._asks: SimpleQueue[tuple[list[WorkerView], RoutedRequest] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"policy {name}", daemon=True).start()

    def call(self, views: list[WorkerView], request: RoutedRequest) -> None:
        self._asks.put((views, request))

    def end(self) -> None:
        """End after the call that goes on, if one does."""
        self._asks.put(None)

    def _run(self) -> None:
        while (ask := self._asks.get()) is not None:
            self._returned(self, self._answer(*ask))
            del ask

    def _answer(self, views: list[WorkerView], request: RoutedRequest) -> _Answer:
        try:
            answer: object = self._function(views, request)
            if isinstance(answer, WorkerView):
                answer = answer.instance
            if type(answer) is int:
                return answer
            if inspect.iscoroutine(answer):
                answer.close()  # nobody will await it, of which Python would warn
            return repr(answer)[:100]
        except BaseException as error:  # it is the user's; its SystemExit ends no router either
            return _Raised(error)


class UserPolicy:
    """Asks the user's function on behalf of a router: for the request with the largest priority,
    among equals for the one that came first.

    Made by a router for all its endpoints. Raises SpecError for what is no such function.
    """

    def __init__(self, function: Function, name: str, limit: float, loop: _Loop) -> None:
        check_policy(function, name)
        self._function = function
        self._name = name
        self._limit = limit
        self._loop = loop
        self._waiting = Asks()
        self._thread: _Thread | None = None
        #: Threads that were given up and have not returned.
        self._hung: set[_Thread] = set()
        self._now: Ask | None = None
        #: What the function was shown for it, by instance.
        self._shown: dict[int, Worker] = {}
        self._timer: _Timer | None = None
        self._stepping = False
        self._closed = False

    def ask(self, open: Open, workers: Sequence[Worker], done: Done) -> Ask:
        """Have a worker chosen among ``workers``, who are looked at when it is this request's turn.

        ``done`` gets the worker, a PolicyFailed or None, on the loop; at once where there is
        nothing to wait for. Who does not want it any more withdraws the ask. Raises
        RemoteProtocolError for a priority that is none.
        """
        waiting = self._waiting
        ask = Ask(waiting, open, workers, done)
        if self._closed:
            ask.tell(self._failed("was not asked: the router stops"))
        elif waiting.put(ask):
            self._step()
        else:
            held = f"{len(waiting)} requests of {waiting.bytes >> 20} MiB"
            ask.tell(self._failed(f"is too slow: {held} wait for it"))
        return ask

    def close(self) -> None:
        """Ask no more; those that wait fail. A call that hangs is left behind."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.end()
        ask, self._now, self._thread = self._now or self._waiting.next(), None, None
        while ask is not None:
            ask.tell(self._failed("did not choose in time: the router stops"))
            ask = self._waiting.next()

    def _step(self) -> None:
        """Begin what is next, unless a choice goes on. ``done`` may ask again: no deeper for it."""
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._now is None and (ask := self._waiting.next()) is not None:
                self._begin(ask)
        finally:
            self._stepping = False

    def _begin(self, ask: Ask) -> None:
        if len(self._hung) >= _HUNG:
            ask.tell(
                self._failed(
                    f"was not asked: {_HUNG} calls hang in it; it is asked again when one returns"
                )
            )
            return
        shown = {worker.instance: worker for worker in ask.workers}
        if not shown:
            ask.tell(None)
            return
        try:
            request = _request(ask)
            thread = self._thread or _Thread(self._function, self._name, self._from_thread)
        except (RuntimeError, TypeError, ValueError) as error:
            ask.tell(self._failed(f"was not asked: {error}"))
            return
        self._thread, self._now, self._shown = thread, ask, shown
        self._timer = self._loop.call_later(self._limit, self._late)
        views = [
            WorkerView(each.instance, each.load, each.capacity, each.device, each.endpoint)
            for each in shown.values()
        ]
        thread.call(views, request)

    def _from_thread(self, thread: _Thread, answer: _Answer) -> None:
        try:
            self._loop.call_soon_threadsafe(lambda: self._returned(thread, answer))
        except RuntimeError:
            thread.end()  # the loop is closed, and so is the router

    def _returned(self, thread: _Thread, answer: _Answer) -> None:
        if thread in self._hung:
            self._hung.discard(thread)
            thread.end()
        elif thread is self._thread and self._now is not None:
            self._settle(self._chosen(answer))

    def _late(self) -> None:
        """The call hangs: its thread is left to it, for a thread cannot be ended from outside."""
        assert self._thread is not None
        self._hung.add(self._thread)
        self._thread = None
        self._settle(self._failed(f"did not choose within {self._limit:g} s; make it faster"))

    def _settle(self, result: Worker | CallHomeError) -> None:
        ask, self._now = self._now, None
        if self._timer is not None:
            self._timer.cancel()
        try:
            if ask is not None:
                ask.tell(result)
        finally:
            self._step()

    def _chosen(self, answer: _Answer) -> Worker | CallHomeError:
        if isinstance(answer, _Raised):
            failed = self._failed(f"raised {answer.text}")
            failed.details["traceback"] = answer.traceback
            return failed
        chosen = self._shown.get(answer) if isinstance(answer, int) else None
        return chosen or self._failed(
            f"returned {answer}; it is to return one of the {len(self._shown)} workers that it was "
            "shown, or the instance of one"
        )

    def _failed(self, why: str) -> PolicyFailed:
        return PolicyFailed(f"policy {self._name} {why}")


def _request(ask: Ask) -> RoutedRequest:
    """What the function sees. Raises TypeError, ValueError for metadata that are none."""
    open = ask.open
    return RoutedRequest(
        open.target,
        open.request_id,
        dict(open.metadata),
        open.many,
        ask.size + sum(map(_size, open.handles)),
        priority_of(open),
    )


def _size(entry: object) -> int:
    """Bytes of what a payload refers to; 0 for what is no such entry, which its worker refuses."""
    if not isinstance(entry, (list, tuple)) or len(entry) not in (3, 7):
        return 0
    if len(entry) == 3:  # dtype, shape, bytes
        return len(entry[2]) if isinstance(entry[2], bytes) else 0
    size = entry[3]  # of a Handle
    return size if type(size) is int else 0
