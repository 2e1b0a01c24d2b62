"""Stop a node that another launcher has started. Used by ``callhome stop``."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import NamedTuple

from actors.cluster.folder import NodeInfo, claimer, open_word, read_word
from actors.cluster.sweep import sweep_dead
from actors.errors import SpecError
from actors.kernel.peers import alive
from transport.bus.address import Address


class Stopped(NamedTuple):
    """What became of a node that was asked to stop; ``killed``: those of its actors that did not
    stop in their grace time.
    """

    in_order: bool
    killed: list[str]


async def stop_node(info: NodeInfo, grace: float) -> Stopped:
    """Ask another launcher's node to stop; kill it after ``grace`` seconds.

    Raises SpecError for one of another PID namespace, where our signals do not reach.
    """
    if not info.near:
        raise SpecError(
            f"node {info.node!r} runs in another PID namespace (as pid {info.address.pid} there): "
            "stop it from inside that container, or from its launcher"
        )
    word, owner = open_word(info.folder), claimer(info.folder)
    try:
        went = await _end(info.address, signal.SIGTERM, grace)
        if not went:
            await _end(info.address, signal.SIGKILL, grace)
            sweep_dead(info.folder, owner)
        return Stopped(went, read_word(word))
    finally:
        if word >= 0:
            os.close(word)


async def _end(address: Address, number: int, limit: float) -> bool:
    """Signal a process that is not our child and wait for its end; False when it takes too long."""
    try:
        fd = os.pidfd_open(address.pid)
    except ProcessLookupError:
        return True
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    try:
        if not alive(address):
            return True
        loop.add_reader(fd, gone.set)
        signal.pidfd_send_signal(fd, number)
        signal.pidfd_send_signal(fd, signal.SIGCONT)  # one that was stopped hears it, too
        async with asyncio.timeout(limit):
            await gone.wait()
    except TimeoutError:
        return False
    except ProcessLookupError:
        return True
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return True
