"""What the machine can do without callhome: every figure can be read as a ratio to one of these.

``floor.pingpong``: p50 of a blocking ZeroMQ ping-pong over ipc, 200 bytes, one process on the
client's core and one on the engine's. ``floor.codec``: items a second that plain msgpack packs and
unpacks, the items being those of the stream suite, in one process on the client's core. Both run
in a worker of their own, as suites do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from perf.figures import Sample, percentile
from perf.plan import PerfError, Plan, pin_to

MESSAGE = b"x" * 200
_WAIT_MS = 10_000


def pingpong(plan: Plan) -> list[Sample]:
    """Round trips with a second process; raises PerfError when it does not answer within 10 s."""
    import zmq

    with tempfile.TemporaryDirectory(prefix="callhome-perf-") as folder, zmq.Context() as context:
        path = f"ipc://{folder}/floor"
        socket = context.socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, _WAIT_MS)
        socket.bind(path)
        command = [sys.executable, "-m", "perf.floors", path, str(plan.engine_core)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as peer:
            try:
                times = _round_trips(
                    socket, warm=plan.count(1_000), rounds=plan.count(4_000, least=20)
                )
                socket.send(b"")
                peer.wait(timeout=10)
            except zmq.Again:
                raise PerfError("the ping-pong peer did not answer within 10 s") from None
            finally:
                peer.kill()
                socket.close()
    return [Sample("floor", "floor.pingpong", "p50_us", "us", percentile(times, 0.5) / 1e3)]


def _round_trips(socket: object, warm: int, rounds: int) -> list[float]:
    """Nanoseconds of each round trip after the warm ones."""
    send, receive = socket.send, socket.recv  # type: ignore[attr-defined]
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


def _echo(path: str, core: int) -> None:
    """The other process of ``pingpong``: sends back what comes until an empty message."""
    pin_to(core)
    import zmq

    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, _WAIT_MS)
        socket.connect(path)
        parent = os.getppid()
        while os.getppid() == parent:
            message = socket.recv()
            if not message:
                return
            socket.send(message)


if __name__ == "__main__":
    _echo(sys.argv[1], int(sys.argv[2]))
