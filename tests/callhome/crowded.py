"""A requester with hardly any descriptors, as a process of its own for ``test_crowd.py``.

Commands on stdin: ``limit N`` leaves N descriptors free, ``expect`` awaits a call and prints its
address and subject, ``report`` prints counters. ``arrived`` is printed for each call that came.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
import time
from typing import Any

from transport.callhome.framed import FramedLink
from transport.callhome.link import Net
from transport.callhome.reception import Reception


class Lines(logging.Handler):
    """Counts what would be written to a log."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main() -> None:
    lines = Lines()
    logging.getLogger().addHandler(lines)
    net, loop = Net(), asyncio.get_running_loop()
    reception = Reception(net)
    ended = asyncio.Event()

    def arrived(framed: FramedLink) -> None:
        say(arrived=framed.peer)
        framed.close()

    def command() -> None:
        for line in os.read(0, 65_536).decode().split("\n")[:-1]:
            match line.split():
                case ["limit", count]:
                    top = max(int(fd) for fd in os.listdir("/proc/self/fd"))
                    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                    resource.setrlimit(resource.RLIMIT_NOFILE, (top + int(count), hard))
                    say(limit=top + int(count))
                case ["expect"]:
                    expected = reception.expect(
                        "response", "c", None, arrived, lambda error: None, 1e12, "127.0.0.1:9"
                    )
                    say(**expected.info)
                case ["report"]:
                    say(lines=lines.count, **net.counters)
                case ["end"]:
                    ended.set()

    loop.add_reader(0, command)
    while not ended.is_set():
        reception.check(time.monotonic())
        await asyncio.sleep(0.05)
    loop.remove_reader(0)
    reception.close()
    net.close()


if __name__ == "__main__":
    asyncio.run(main())
