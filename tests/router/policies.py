"""Policies of a user's own, good ones and bad ones, for the tests of routers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from actors import RoutedRequest, WorkerView

Views = Sequence[WorkerView]

#: Set: whoever hangs goes on.
GO = threading.Event()
#: What policies in this process were shown, newest last.
SHOWN: list[tuple[list[WorkerView], RoutedRequest]] = []


def idlest(workers: Views, request: RoutedRequest) -> WorkerView:
    """As it should be."""
    SHOWN.append((list(workers), request))
    return min(workers, key=lambda worker: worker.load)


def by_instance(workers: Views, request: RoutedRequest) -> int:
    return max(worker.instance for worker in workers)


def as_told(workers: Views, request: RoutedRequest) -> Any:
    """Does what the request's metadata say."""
    what = request.metadata.get("do", "")
    if what == "raise":
        raise ValueError(f"no luck with {len(workers)} workers")
    if what == "talk":
        raise ValueError("no luck " * 100_000)
    if what == "exit":
        raise SystemExit(3)
    if what == "hang":
        GO.wait(30)
    if what == "unspeakable":
        raise Unspeakable
    rubbish = {"none": None, "text": "the first", "number": 7, "true": True, "list": list(workers)}
    if what in rubbish:
        return rubbish[what]
    if what == "stranger":
        return workers[0]._replace(instance=99)
    if what == "repr":
        return Unspeakable()
    if what == "coroutine":
        return later(workers, request)
    return min(workers, key=lambda worker: worker.load)


class Unspeakable(Exception):
    """Raises whatever is asked of it."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


async def later(workers: Views, request: RoutedRequest) -> WorkerView:
    return workers[0]


def one_at_a_time(workers: Views, request: RoutedRequest) -> Iterator[WorkerView]:
    yield workers[0]


def of_one(workers: Views) -> WorkerView:
    return workers[0]


class Chosen:
    """Has the parameters of a policy and is none."""

    def __init__(self, workers: Views, request: RoutedRequest) -> None:
        self.workers = workers


class Later:
    async def __call__(self, workers: Views, request: RoutedRequest) -> WorkerView:
        return workers[0]


class Kept:
    """An object that can be called is a policy as well."""

    def __call__(self, workers: Views, request: RoutedRequest) -> WorkerView:
        return workers[-1]


KEPT = Kept()
LATER = Later()
PARTLY_LATER = functools.partial(later)
NUMBER = 7
