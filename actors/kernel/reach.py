"""Where the shared memory of an actor is to be had: its door in the run folder, its files, its
setting. What ``transport.shm`` needs to know of addresses, put together for a runtime.
"""

from __future__ import annotations

import os

from transport.bus.address import Address, inbox_path
from transport.errors import LocalProtocolError
from transport.shm.offers import Offers
from transport.shm.roads import Roads
from transport.wire.handle import Announcement

_DOOR = "m"
_LEFT = "v"


def both_ways(run: str, address: Address, road: str) -> tuple[Offers, Roads]:
    """What ``address`` offers to others, and how it reaches theirs; ``road``: ``frame_road``."""
    cluster, node = os.path.split(run.rstrip("/"))
    offers = Offers(
        name=address.name,
        space=address.space,
        door=_door(run, address),
        label=f"{os.path.basename(cluster)}-{node}",
        road=road,
    )
    roads = Roads(road=road, space=address.space, door=lambda told: _door(run, owner_address(told)))
    return offers, roads


def owner_address(told: Announcement) -> Address:
    """Where the owner of an announced segment is reached, whoever has told of it."""
    return Address(told.name, told.owner, told.pid, told.started, told.space)


def left_file(run: str, address: Address) -> str:
    """What ``address`` leaves in the run folder while arrays of it outlive it. "" for a name that
    nobody's socket can have.
    """
    try:
        return inbox_path(run, address, _LEFT)
    except LocalProtocolError:
        return ""


def _door(run: str, address: Address) -> str:
    try:
        return inbox_path(run, address, _DOOR)
    except LocalProtocolError:
        return ""  # a name that nobody's socket can have
