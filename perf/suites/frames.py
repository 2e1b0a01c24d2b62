"""Arrays in shared memory, 64 KiB to 64 MiB: ``frames.copy.*`` and ``frames.inplace.*``.

copy: the engine yields a warm array of its own, which the runtime copies into the arena. inplace:
it leases a frame and writes 8 bytes and the last one; the arena's memory is warm and used again.
The reader checks shape, stamp and last byte of every frame. GB are 1e9 bytes.

``gb_s``: over one stream of 2000, 400, 60 or 12 frames. ``one_p50_us``: a single call, the whole
round trip. ``hand_p50_us``: of the same calls, from just before the engine yields the finished
frame (copy: the finished source array) until the reader has checked it, both on CLOCK_MONOTONIC.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from perf.figures import Sample, percentile
from perf.plan import PerfError, Plan
from perf.road import LIMIT, engine, launched

if TYPE_CHECKING:
    from actors import Client

ENDPOINT = "perf.frames.generate"
KIB, MIB = 1 << 10, 1 << 20
#: Name, bytes, frames of the stream, single calls.
SIZES = (
    ("64KiB", 64 * KIB, 2_000, 200),
    ("1MiB", MIB, 400, 200),
    ("8MiB", 8 * MIB, 60, 60),
    ("64MiB", 64 * MIB, 12, 30),
)
_ROW = 4 * KIB


async def run(plan: Plan) -> list[Sample]:
    """Rate and latencies of each size, copied and in place."""
    samples = []
    async with launched(plan, [engine(plan, ENDPOINT, "Frames")]) as client:
        for how in ("copy", "inplace"):
            for name, size, frames, calls in SIZES:
                request = {"how": how, "shape": [size // _ROW, _ROW], "timed": False}
                count = plan.count(frames, least=2)
                await _stream(client, {**request, "count": max(2, count // 4)})
                rate = size * count / await _stream(client, {**request, "count": count}) / 1e9
                await _singles(client, request, 3)
                whole, hand = await _singles(client, request, plan.count(calls, least=2))
                workload = f"frames.{how}.{name}"
                samples += [
                    Sample("frames", workload, "gb_s", "GB/s", rate),
                    Sample("frames", workload, "one_p50_us", "us", percentile(whole, 0.5) / 1e3),
                    Sample("frames", workload, "hand_p50_us", "us", percentile(hand, 0.5) / 1e3),
                ]
    return samples


async def _stream(client: Client, request: dict[str, Any]) -> float:
    """Seconds from opening a stream of frames until its end."""
    start = time.perf_counter()
    index = 0
    async with client.stream(ENDPOINT, request) as stream:
        async for item in stream:
            if check(item, request["shape"]) != index:
                raise PerfError(f"frame {index} of {request} carries another frame's stamp")
            del item  # the lease of this frame, before the wait for the next
            index += 1
    if index != request["count"]:
        raise PerfError(f"{index} frames came of {request}")
    return time.perf_counter() - start


async def _singles(
    client: Client, request: dict[str, Any], calls: int
) -> tuple[list[float], list[float]]:
    """Nanoseconds of each whole call, and from the engine's yield to the checked frame."""
    whole, hand = [], []
    for _ in range(calls):
        start = time.monotonic_ns()
        item = await client.call(ENDPOINT, {**request, "count": 1, "timed": True}, timeout=LIMIT)
        yielded = check(item, request["shape"])
        end = time.monotonic_ns()
        del item
        whole.append(float(end - start))
        hand.append(float(end - yielded))
    return whole, hand


def check(item: Any, shape: list[int]) -> int:
    """The stamp of a frame, array or bytes; raises PerfError when shape or last byte is wrong."""
    if isinstance(item, bytes):
        value = int.from_bytes(item[:8], "little")
        if len(item) != shape[0] * shape[1] or item[-1] != value & 0xFF:
            raise PerfError(f"{len(item)} bytes with stamp {value} are not what was sent ({shape})")
        return value
    array = item.array if hasattr(item, "array") else item
    flat = array.reshape(-1)
    value = int(flat[:8].view("uint64")[0])
    if list(array.shape) != shape or int(flat[-1]) != value & 0xFF:
        raise PerfError(
            f"a frame of shape {array.shape} and stamp {value} is not what was sent ({shape})"
        )
    return value
