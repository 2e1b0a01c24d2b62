"""Runs coroutine tests and fails every test that leaves something behind."""

from __future__ import annotations

import asyncio
import asyncio.constants
import gc
import inspect
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Coroutine, Generator, Iterator

import hypothesis
import pytest

from tests.etcd import etcd as etcd
from tests.etcd import etcd_server as etcd_server
from tests.leaks import MARKER, Traces, settle
from tests.waiting import DEADLINE, LONG

#: How long a test's leftovers may take to go, in seconds; an orphan waits for a busy init.
GRACE = DEADLINE

_failed = pytest.StashKey[bool]()


# `python -m perf fuzz` is there for millions; a profile with other figures of its own stands aside.
# The same examples each time, and none is too slow: a machine may stand still at any of them.
hypothesis.settings.register_profile(
    "suite",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")

# In debug mode a loop notes for each callback and future where it was made: one frame of it says
# where, and ten took longer than all else that these tests do.
vars(asyncio.constants)["DEBUG_STACK_DEPTH"] = 1


def pytest_configure(config: pytest.Config) -> None:
    """A marker for all processes of this session, and a run root of its own with a short path."""
    os.environ[MARKER] = uuid.uuid4().hex
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["CALLHOME_RUN"] = tempfile.mkdtemp(prefix="ch-", dir="/tmp")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The run root goes with the session."""
    shutil.rmtree(os.environ.pop("CALLHOME_RUN"), ignore_errors=True)
    del os.environ[MARKER]


def _settle_garbage() -> None:
    """What is alive now stays: the collection after each coroutine test need not look at it."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of collected tests took a collection 90 ms to look at."""
    _settle_garbage()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Behind each file: reports are kept to the end, and those of 1,500 tests cost 10 ms a look."""
    done: object = yield
    if nextitem is None or nextitem.path != item.path:
        _settle_garbage()
    return done


async def _checked(test: Coroutine[object, object, None]) -> None:
    """Awaits the test, then fails on tasks still running and on errors that nobody was told."""
    loop = asyncio.get_running_loop()
    loop.slow_callback_duration = LONG  # else a process that stood still is a line in the log
    untold: list[str] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        untold.append(f"{context['message']}: {context.get('exception')!r}")

    loop.set_exception_handler(note)
    # On a busy machine any step of a loop may be slow; the log is for what a test makes happen.
    loop.slow_callback_duration = float("inf")
    await test
    me = asyncio.current_task()
    deadline = time.monotonic() + GRACE
    while left := asyncio.all_tasks() - {me}:
        if time.monotonic() > deadline:
            names = "\n".join(repr(task) for task in left)
            raise AssertionError(f"the test left {len(left)} tasks running:\n{names}")
        await asyncio.sleep(0.005)
    gc.collect()
    await asyncio.sleep(0)
    if untold:
        raise AssertionError("errors that nobody handled:\n" + "\n".join(untold))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Coroutine tests run on a loop of their own, in debug mode."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(_checked(test), debug=True)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remembers whether the test failed, for ``nothing_left``."""
    report = yield
    if call.when == "call" and call.excinfo is not None:
        item.stash[_failed] = True
    return report


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test when processes, threads, descriptors, files or mappings of its own remain."""
    before = Traces.now()
    yield
    # The traceback of a failed test keeps its frames alive, so only its processes say anything.
    failed = request.node.stash.get(_failed, False)
    left = settle(before, GRACE, processes_only=failed)
    if left:
        pytest.fail("the test left behind:\n" + "\n".join(left), pytrace=False)
