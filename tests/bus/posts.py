"""Ports for tests: each keeps what has come, in order."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from actors.messages import Credit, Hello, Tell
from tests.waiting import DEADLINE, wait_until
from transport.bus.address import Address
from transport.bus.port import Bus, Port
from transport.wire.message import Message

_numbers = itertools.count(1)


class Post:
    """A port and what it was given: ``came`` holds (sender, message), Hellos left out."""

    def __init__(self, bus: Bus, run: str, name: str, **bounds: int) -> None:
        self.bus = bus
        self.address = Address(name, next(_numbers) << 8, os.getpid(), 1)
        self.came: list[tuple[int, Message]] = []
        self.hellos: list[Address] = []
        self.refused = -1
        self.react: Callable[[Message], None] = lambda message: None
        self.port = Port(
            bus, run, self.address, self._deliver, hello=Hello(self.address), **bounds
        )  # fmt: skip

    def _deliver(self, sender: int, message: Message) -> None:
        if isinstance(message, Hello):
            self.hellos.append(message.address)
            return
        self.came.append((sender, message))
        self.react(message)

    @property
    def numbers(self) -> list[int]:
        """The numbers of ``numbered`` and ``weighty`` messages, in order of arrival."""
        return [number_of(message) for _, message in self.came]


def numbered(number: int) -> Credit:
    """A small message with a number."""
    return Credit(number, 1, 2)


def weighty(number: int, size: int) -> Tell:
    """A message of ``size`` bytes with a number."""
    return Tell(str(number), bytes(size))


def number_of(message: Message) -> int:
    value: Any = message[0]
    return int(value)


@contextlib.contextmanager
def posts(run: str, *names: str, shared: bool = False, **bounds: int) -> Iterator[list[Post]]:
    """Ports of these names, each on a bus of its own as if in another process, or on one bus."""
    buses = [Bus()] if shared else [Bus() for _ in names]
    made: list[Post] = []
    try:
        for number, name in enumerate(names):
            made.append(Post(buses[number % len(buses)], run, name, **bounds))
        yield made
    finally:
        for post in made:
            post.port.close(0)
        for bus in buses:
            bus.close()


def stand_still() -> None:
    """Keep the loop from its turn until the threads of ZeroMQ, whom nobody can ask, have no more to
    do: a thread that has work and no core is no sleeping one. What one hands to another makes that
    one wake at once, so it is seen in the next look at the latest.
    """
    looks = 0
    while looks < 3:
        time.sleep(0.005)
        looks = looks + 1 if _asleep() else 0


def _asleep() -> bool:
    for task in Path("/proc/self/task").iterdir():
        _, _, rest = (task / "stat").read_text().partition("(ZMQ")
        if rest and rest.rpartition(")")[2].split()[0] != "S":
            return False
    return True


async def arrived(post: Post, count: int, within: float = DEADLINE) -> None:
    """Wait until so many messages have come."""
    await wait_until(lambda: len(post.came) >= count, within, f"{count} messages")
