"""``call``, ``stream`` and ``chat``: an endpoint from the command line."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import Any, Final

from actors.cli.show import put, say, to_line
from actors.cli.signals import Interrupts
from actors.client import Client
from actors.cluster.launcher import connect
from actors.errors import CallHomeError, Cancelled, EncodeError, SpecError
from actors.kernel.calls import DEFAULT
from actors.kernel.responses import DuplexStream, ResponseStream

#: Lines read ahead of what the engine takes.
_AHEAD: Final = 64
_REASON: Final = "Ctrl-C on the command line"


def call(options: Namespace) -> int:
    """``callhome call ENDPOINT JSON``."""
    return asyncio.run(_call(options))


def stream(options: Namespace) -> int:
    """``callhome stream ENDPOINT JSON``."""
    return asyncio.run(_stream(options))


def chat(options: Namespace) -> int:
    """``callhome chat ENDPOINT``."""
    if sys.stdin is None:
        raise SpecError("stdin is closed; chat sends its lines: give it some, or </dev/null")
    return asyncio.run(_chat(options))


def _client(options: Namespace) -> Client:
    """A client of the node that the options name."""
    if options.connect is None:
        return connect(options.cluster, options.node)
    if options.cluster is not None or options.node is not None:
        raise SpecError("--connect names the node; leave out --cluster and --node")
    if not options.connect.startswith("tcp://"):
        raise SpecError(f"--connect: {options.connect[:200]!r} is not of the form tcp://HOST:PORT")
    # What goes wrong with the only connection is told as the error of the command, once.
    logging.getLogger("callhome.net").setLevel(logging.ERROR)
    return connect(options.connect)


async def _call(options: Namespace) -> int:
    with Interrupts():
        async with _client(options) as client:
            limit = getattr(options, "timeout", DEFAULT)
            answer = await client.call(
                options.endpoint,
                options.request,
                timeout=limit,
                instance=options.instance,
                priority=options.priority,
                migration_limit=options.migration_limit,
            )
            put(to_line(answer))
    return 0


async def _stream(options: Namespace) -> int:
    with Interrupts(signal.SIGINT) as interrupts:
        async with _client(options) as client:
            limit = getattr(options, "timeout", None)
            items = client.stream(
                options.endpoint,
                options.request,
                timeout=limit,
                instance=options.instance,
                priority=options.priority,
                migration_limit=options.migration_limit,
            )
            async with items:
                interrupts.ask = lambda: _ask(items)
                async for item in items:
                    put(to_line(item))
    return 0


def _ask(items: ResponseStream) -> None:
    say(f"asked {items.context.id} to stop after {items.received} items; Ctrl-C again drops it")
    items.stop(_REASON)


async def _chat(options: Namespace) -> int:
    with Interrupts(signal.SIGINT) as interrupts:
        async with _client(options) as client:
            answers = client.open(
                options.endpoint,
                timeout=getattr(options, "timeout", None),
                instance=options.instance,
                priority=options.priority,
            )
            async with answers:
                interrupts.ask = lambda: _ask(answers)
                await _converse(answers, options.json)
    return 0


async def _converse(answers: DuplexStream, as_json: bool) -> None:
    if sys.stdin.isatty():
        say("each line is an item; Ctrl-D ends, Ctrl-C stops")
    feeding = asyncio.create_task(_feed(answers, as_json))
    try:
        async for answer in answers:
            put(answer if isinstance(answer, str) and not as_json else to_line(answer))
    except Cancelled:
        # Our own mistake killed the stream: tell the mistake, not its consequence.
        if feeding.done() and (mistake := feeding.result()) is not None:
            raise mistake from None
        raise
    finally:
        feeding.cancel()
        await asyncio.wait({feeding})


async def _feed(answers: DuplexStream, as_json: bool) -> CallHomeError | None:
    """Send the lines of stdin; the mistake in one of them, after which the stream is killed."""
    count = 0
    try:
        async for line in _lines():
            count += 1
            await answers.send(_item(line, count) if as_json else line)
        await answers.end()
    except (EncodeError, SpecError) as error:
        answers.context.kill(str(error)[:200])
        return error
    except CallHomeError:
        return None  # the stream is over: whoever reads its answers is told why
    return None


def _item(line: str, count: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise SpecError(
            f"line {count} of stdin is no JSON: {error}; without --json lines are text"
        ) from None


async def _lines() -> AsyncIterator[str]:
    """Lines of stdin without their ends, read by a thread: a file cannot be polled."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)

    def hand_over(line: str | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, line)

    def read() -> None:
        rest = b""
        try:
            # Not sys.stdin: a thread that waits inside it keeps the interpreter from leaving.
            while data := os.read(0, 65_536):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    hand_over(line.decode(errors="replace"))
            if rest:
                hand_over(rest.decode(errors="replace"))
        except OSError as error:
            say(f"stdin cannot be read: {error}")
        except RuntimeError:
            return  # the loop is closed
        hand_over(None)

    threading.Thread(target=read, name="callhome-stdin", daemon=True).start()
    while (line := await queue.get()) is not None:
        room.release()
        yield line
