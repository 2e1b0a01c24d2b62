"""A client of a chaos run, in a process of its own: ``python -m perf.chaos.client JSON``.

Plays its share of the plan and writes a JSON line as each stream begins and ends. End of stdin
means that nothing new is to begin, SIGTERM that what is under way is to be killed, too.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, Final

from actors import CallHomeError, Client, connect
from perf.chaos.plan import Options, Play, make
from perf.chaos.player import Played, Player

#: Streams of one client at the same time.
AT_ONCE: Final = 24
#: A stream whose end does not come so many seconds of this process's own time after its deadline
#: has hung: those in which the process was stopped do not count.
GRACE: Final = 10.0
_LOOK: Final = 0.25


@dataclass
class _Running:
    player: Player
    task: asyncio.Task[Played]
    limit: float
    since: float


class Work:
    """The streams of one client."""

    def __init__(self, plays: list[Play], began: float) -> None:
        self._plays = plays
        self._began = began
        self._running: dict[int, _Running] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        #: Seconds that this process has really had.
        self._own = 0.0
        self.finishing = asyncio.Event()
        self.ending = asyncio.Event()

    def end(self) -> None:
        """Begin nothing more, and kill what is under way."""
        self.ending.set()
        self.finishing.set()

    async def run(self, client: Client) -> None:
        """Play until all is played, or until it is to end."""
        looking = asyncio.create_task(self._look())
        try:
            for play in self._plays:
                if not await self._due(play):
                    break
                await self._places.acquire()
                if self.finishing.is_set():
                    break
                self._begin(client, play)
            if self._running:
                await asyncio.wait([each.task for each in self._running.values()])
        finally:
            looking.cancel()
            await asyncio.wait({looking})

    async def _due(self, play: Play) -> bool:
        """Wait for its time; False: there is no more to begin."""
        delay = self._began + play.at - time.monotonic()
        if delay > 0 and not self.finishing.is_set():
            try:
                async with asyncio.timeout(delay):
                    await self.finishing.wait()
            except TimeoutError:
                return True
        return not self.finishing.is_set()

    def _begin(self, client: Client, play: Play) -> None:
        say({"begin": play.number, "time": time.monotonic()})
        player = Player(client, play)
        task = asyncio.create_task(player.run())
        self._running[play.number] = _Running(player, task, play.timeout + GRACE, self._own)
        task.add_done_callback(lambda done: self._end(play, done))

    def _end(self, play: Play, task: asyncio.Task[Played]) -> None:
        running = self._running.pop(play.number)
        self._places.release()
        if task.cancelled():
            if self.ending.is_set():
                played = Played(play.number, "cut short", 0, 0, "", [])
            else:
                played = running.player.hung(self._own - running.since)
        else:
            played = task.result()
        record = {**played._asdict(), "time": time.monotonic()}
        if played.outcome != "FAILURE":
            del record["log"]
        say({"end": record})

    async def _look(self) -> None:
        """Count our own time; end what has hung, and all when that was asked for."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK)
            now = time.monotonic()
            self._own += min(now - last, 2 * _LOOK)
            last = now
            for running in list(self._running.values()):
                if self.ending.is_set() or self._own - running.since > running.limit:
                    running.task.cancel("it hangs")


def say(record: dict[str, Any]) -> None:
    """One line for the run."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


async def _entered(address: str, work: Work) -> Client | None:
    """A client that is in; the door may be down just now."""
    while not work.finishing.is_set():
        client = connect(address) if "://" in address else Client(run=address)
        try:
            return await client.__aenter__()
        except CallHomeError as error:
            say({"note": f"not in yet: {type(error).__name__}: {error}"})
            await asyncio.sleep(_LOOK)
    return None


async def main(given: dict[str, Any]) -> None:
    """The whole life of the client."""
    options = Options(**given["options"])
    after = time.monotonic() - given["began"]
    plays = [
        play for play in make(options).plays if play.client == given["client"] and play.at >= after
    ]
    work = Work(plays, given["began"])
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, work.end)
    loop.add_reader(sys.stdin.fileno(), lambda: _stdin_ended(loop, work))
    client = await _entered(given["address"], work)
    if client is not None:
        try:
            await work.run(client)
            say({"statistics": client.statistics()})
        finally:
            await client.__aexit__(None, None, None)
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    say({"ended": True, "tasks": left})


def _stdin_ended(loop: asyncio.AbstractEventLoop, work: Work) -> None:
    loop.remove_reader(sys.stdin.fileno())
    work.finishing.set()


if __name__ == "__main__":
    try:
        asyncio.run(main(json.loads(sys.argv[1])))
    except Exception:
        say({"failed": traceback.format_exc()})
        sys.exit(1)
