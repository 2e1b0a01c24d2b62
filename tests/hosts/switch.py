"""The switch that all cables of a kit end at: ``python -m tests.hosts.switch FOLDER SEED
NAME...``.

It makes a network for each name with one Ethernet device in it, holds the other ends, and hands on
every frame: after a while, not at all, or at once, as the two cables on its way say. Commands come
as lines of JSON on its standard input, answers go to its output. It ends with its input, and with
it go all networks, however it or whoever started it has ended, and the folder.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import shutil
import sys
import time
from typing import Any, Final

from tests.hosts.taps import HEAD, join_segments, new_network, new_tap

#: The net of all kits: each is alone in its networks, so none meets another.
NET: Final = "10.77.0"
_MASK: Final = "255.255.255.0"
_MAC: Final = b"\x02\x63\x68\0\0"
#: Bytes of frames that may be on their way; what comes above is dropped and counted.
_MOST: Final = 64 << 20
#: Longest frame, and frames taken from one host before the others have their turn.
_FRAME: Final = HEAD + 14 + 65_535 + 64
_TURN: Final = 64


class Way:
    """One direction of a host's cable: seconds that a frame takes, its chance to be lost."""

    def __init__(self, seed: str) -> None:
        self.delay = self.loss = 0.0
        self.cut = False
        self.counts = {"passed": 0, "lost": 0, "cut": 0, "dropped": 0}
        self._chance: Final = random.Random(seed)

    def takes(self) -> bool:
        """Whether a frame gets through; one that does not is counted."""
        if self.cut:
            self.counts["cut"] += 1
            return False
        if self.loss and self._chance.random() < self.loss:
            self.counts["lost"] += 1
            return False
        return True


class Port:
    """A host: its network, the end of its cable, and both ways over it as the host sees them."""

    def __init__(self, name: str, number: int, seed: str) -> None:
        self.name = name
        self.mac = _MAC + bytes([number])
        self.address = f"{NET}.{number}"
        self.ways = {way: Way(f"{seed} {name} {way}") for way in ("out", "in")}
        self.latest: dict[str, float] = {}
        """When the last frame to each other host arrives there: none overtakes another."""
        with new_network() as self.network:
            self.tap = new_tap(self.mac, self.address, _MASK)


class Switch:
    """All ports and the frames that are on their way."""

    def __init__(self, seed: str, names: list[str]) -> None:
        self.ports = [Port(name, number, seed) for number, name in enumerate(names, 1)]
        self._by_mac = {port.mac: port for port in self.ports}
        self._by_tap = {port.tap: port for port in self.ports}
        self._under_way: list[tuple[float, int, Port, Port, bytes]] = []
        self._bytes = self._number = 0
        self._heard = b""
        self._join()

    def run(self) -> None:
        """Until the standard input ends."""
        waited_for = [0, *self._by_tap]
        while True:
            pause = None
            if self._under_way:
                pause = max(0.0, self._under_way[0][0] - time.monotonic())
            for ready in select.select(waited_for, [], [], pause)[0]:
                if ready:
                    self._read(self._by_tap[ready])
                elif not self._hear():
                    return
            self._deliver(time.monotonic())

    # Frames

    def _read(self, port: Port) -> None:
        for _ in range(_TURN):
            try:
                frame = os.read(port.tap, _FRAME)
            except BlockingIOError:
                return
            to = frame[HEAD : HEAD + 6]
            target = self._by_mac.get(to)
            if target is not None:
                self._pass(port, target, frame)
            elif to[0] & 1:  # to all
                for each in self.ports:
                    if each is not port:
                        self._pass(port, each, frame)

    def _pass(self, port: Port, target: Port, frame: bytes) -> None:
        out, way = port.ways["out"], target.ways["in"]
        if not (out.takes() and way.takes()):
            return
        now = time.monotonic()
        due = max(now + out.delay + way.delay, port.latest.get(target.name, 0.0))
        if due <= now:
            self._write(port, target, frame)
        elif self._bytes + len(frame) > _MOST:
            way.counts["dropped"] += 1
        else:
            port.latest[target.name] = due
            self._number += 1
            self._bytes += len(frame)
            heapq.heappush(self._under_way, (due, self._number, port, target, frame))

    def _deliver(self, now: float) -> None:
        under_way = self._under_way
        while under_way and under_way[0][0] <= now:
            _, _, port, target, frame = heapq.heappop(under_way)
            self._bytes -= len(frame)
            self._write(port, target, frame)

    def _write(self, port: Port, target: Port, frame: bytes) -> None:
        way = target.ways["in"]
        if way.cut or port.ways["out"].cut:  # since it left
            way.counts["cut"] += 1
            return
        try:
            os.write(target.tap, frame)
        except OSError:  # the host takes no more now
            way.counts["dropped"] += 1
        else:
            way.counts["passed"] += 1
            port.ways["out"].counts["passed"] += 1

    # Commands

    def _hear(self) -> bool:
        found = os.read(0, 65_536)
        self._heard += found
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            say(self._obey(json.loads(line)))
        return bool(found)

    def _obey(self, command: dict[str, Any]) -> dict[str, Any]:
        if "host" in command:
            port = next(each for each in self.ports if each.name == command["host"])
            for name in command["ways"]:
                for what, value in command["set"].items():
                    setattr(port.ways[name], what, value)
            self._join()
        return {
            port.name: {name: way.counts for name, way in port.ways.items()} for port in self.ports
        }

    def _join(self) -> None:
        """What is lost on a wire is one segment, not the 64 KiB that a host gives as one."""
        lossy = any(way.loss for port in self.ports for way in port.ways.values())
        for port in self.ports:
            join_segments(port.tap, not lossy)


def say(what: object) -> None:
    """One line of JSON."""
    os.write(1, json.dumps(what).encode() + b"\n")


def main() -> None:
    folder, seed, *names = sys.argv[1:]
    try:
        switch = Switch(seed, names)
        say({port.name: [port.network, port.address] for port in switch.ports})
        switch.run()
    except OSError as error:
        say({"error": str(error)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
