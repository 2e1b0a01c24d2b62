"""What the machine can do without callhome: every figure can be read as a ratio to one of these.

``floor.pingpong``: p50 of a blocking ZeroMQ ping-pong over ipc, 200 bytes, one process on the
client's core and one on the engine's. ``floor.codec``: items a second that plain msgpack packs and
unpacks, the items being those of the stream suite, in one process on the client's core.
``floor.loopback``: bytes a second of a plain blocking TCP socket on loopback, pieces of 8 MiB from
the engine's core received into one warm buffer on the client's. All run in a worker of their own,
as suites do.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time

from perf.figures import Sample, percentile
from perf.plan import PerfError, Plan, pin_to

MESSAGE = b"x" * 200
_WAIT_MS = 10_000
_PIECE = bytearray(8 << 20)


def pingpong(plan: Plan) -> list[Sample]:
    """Round trips with a second process; raises PerfError when it does not answer within 10 s."""
    import zmq

    with tempfile.TemporaryDirectory(prefix="callhome-perf-") as folder, zmq.Context() as context:
        path = f"ipc://{folder}/floor"
        pair = context.socket(zmq.PAIR)
        pair.setsockopt(zmq.LINGER, 0)
        pair.setsockopt(zmq.RCVTIMEO, _WAIT_MS)
        pair.bind(path)
        command = [sys.executable, "-m", "perf.floors", path, str(plan.engine_core)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as peer:
            try:
                times = _round_trips(
                    pair, warm=plan.count(1_000), rounds=plan.count(4_000, least=20)
                )
                pair.send(b"")
                peer.wait(timeout=10)
            except zmq.Again:
                raise PerfError("the ping-pong peer did not answer within 10 s") from None
            finally:
                peer.kill()
                pair.close()
    return [Sample("floor", "floor.pingpong", "p50_us", "us", percentile(times, 0.5) / 1e3)]


def _round_trips(pair: object, warm: int, rounds: int) -> list[float]:
    """Nanoseconds of each round trip after the warm ones."""
    send, receive = pair.send, pair.recv  # type: ignore[attr-defined]
    times: list[float] = []
    for _ in range(warm + rounds):
        start = time.perf_counter_ns()
        send(MESSAGE)
        receive()
        times.append(float(time.perf_counter_ns() - start))
    return times[warm:]


def codec(plan: Plan) -> list[Sample]:
    """Pack and unpack each item by itself with ``msgpack.packb`` and ``unpackb``."""
    import msgpack

    pack, unpack = msgpack.packb, msgpack.unpackb
    items = [{"token_ids": [index], "text": "tok"} for index in range(1_000)]
    rates = []
    for _ in range(plan.count(60, least=3)):
        start = time.perf_counter()
        for item in items:
            unpack(pack(item))
        rates.append(len(items) / (time.perf_counter() - start))
    warmed = rates[len(rates) // 6 :]
    return [Sample("floor", "floor.codec", "items_s", "items/s", percentile(warmed, 0.5))]


def loopback(plan: Plan) -> list[Sample]:
    """Rate over 60 pieces, timed as the frames suite times its stream, after 15 that warm up.

    Raises PerfError when the sender stops for 10 s.
    """
    warm, rounds = plan.count(15), plan.count(60, least=2)
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(_WAIT_MS / 1e3)
        command = [sys.executable, "-m", "perf.floors", "loopback", str(plan.engine_core)]
        command += [str(door.getsockname()[1]), str(warm + rounds)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as peer:
            try:
                sender, _ = door.accept()
                with sender:
                    sender.settimeout(_WAIT_MS / 1e3)
                    _receive(sender, warm)
                    start = time.perf_counter()
                    _receive(sender, rounds)
                    seconds = time.perf_counter() - start
                peer.wait(timeout=10)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise PerfError(f"the sender of the loopback floor failed: {error}") from None
            finally:
                peer.kill()
    rate = len(_PIECE) * rounds / seconds / 1e9
    return [Sample("floor", "floor.loopback", "gb_s", "GB/s", rate)]


def _receive(sender: socket.socket, pieces: int) -> None:
    """Take that many pieces into the one buffer."""
    for _ in range(pieces):
        target = memoryview(_PIECE)
        while target:
            got = sender.recv_into(target)
            if not got:
                raise ConnectionError("it closed the connection too early")
            target = target[got:]


def _pour(core: int, port: int, rounds: int) -> None:
    """The other process of ``loopback``."""
    pin_to(core)
    with socket.create_connection(("127.0.0.1", port), timeout=_WAIT_MS / 1e3) as sink:
        for _ in range(rounds):
            sink.sendall(_PIECE)


def _echo(path: str, core: int) -> None:
    """The other process of ``pingpong``: sends back what comes until an empty message."""
    pin_to(core)
    import zmq

    with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
        pair.setsockopt(zmq.LINGER, 0)
        pair.setsockopt(zmq.RCVTIMEO, _WAIT_MS)
        pair.connect(path)
        parent = os.getppid()
        while os.getppid() == parent:
            message = pair.recv()
            if not message:
                return
            pair.send(message)


if __name__ == "__main__":
    if sys.argv[1] == "loopback":
        _pour(*map(int, sys.argv[2:]))
    else:
        _echo(sys.argv[1], int(sys.argv[2]))
