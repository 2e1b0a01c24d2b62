"""Plain data about shared memory: a handle names bytes, an announcement their segment.

Both travel on the bus of one node and never between nodes. The functions here check what a peer
sent: types, counts and bounds. Whether the memory behind a handle is there, and whether shape and
dtype fill its size, is checked by ``transport.shm``, which knows the segment and numpy.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from transport.errors import RemoteProtocolError, described

#: Segment number of a handle to no bytes at all: nothing is leased, nothing has to be attached.
NO_SEGMENT = 0
#: Longest dtype text in characters; a structured dtype of some forty fields fits.
MAX_DTYPE = 2048
#: numpy's own bound on dimensions.
MAX_DIMENSIONS = 64
#: Bytes of the random number in a segment's header page.
TOKEN_SIZE = 16
#: Longest name of an owner in characters; a socket path leaves no more.
MAX_NAME = 107
#: Where a segment that is a file may stand, and nowhere else: two levels below no link of ours.
SHARED = "/dev/shm"

_FILE = re.compile(re.escape(SHARED) + r"/callhome-[A-Za-z0-9._-]{1,200}/[0-9]{1,10}")
_MAX_ID = 2**64 - 1
_MAX_SIZE = 2**48


class Handle(NamedTuple):
    """Names bytes in a shared-memory segment, and what array they are.

    ``owner`` is the incarnation of the actor whose memory it is; ``segment`` the owner's number for
    the segment (``NO_SEGMENT`` when ``size`` is 0); ``offset`` and ``size`` are bytes from the
    segment's start; ``generation`` is the slot's number at the time it was filled; ``dtype`` is
    numpy's dtype text (``"<f4"``), the text of a field list for a structured dtype, or ``""`` for
    raw bytes; ``shape`` is in C order.
    """

    owner: int
    segment: int
    offset: int
    size: int
    generation: int
    dtype: str
    shape: tuple[int, ...]


class Announcement(NamedTuple):
    """Names a segment so that another process of the node can map it.

    ``owner`` and ``segment`` are those of its handles; ``pid`` and ``started`` (clock ticks since
    boot) name the process, ``fd`` its descriptor; ``device`` and ``inode`` the file behind it;
    ``size`` is in bytes, header included; ``token`` is the 16-byte random number in the header
    page. ``name`` is the owner's name and ``space`` its PID namespace as in an ``Address``, so that
    whoever gets the announcement from a third actor can reach the owner; ``path`` is that of a
    segment which is a file, else "".
    """

    owner: int
    segment: int
    pid: int
    started: int
    fd: int
    device: int
    inode: int
    size: int
    token: bytes
    name: str = ""
    space: int = 0
    path: str = ""


def handle_from_wire(value: object) -> Handle:
    """The handle that a peer sent as a list.

    Raises RemoteProtocolError for anything that cannot be one.
    """
    if not isinstance(value, (list, tuple)) or len(value) != len(Handle._fields):
        raise _bad("handle", "is no list of 7 fields", value)
    owner, segment, offset, size, generation, dtype, shape = value
    _check_ids("handle", owner=owner, segment=segment, generation=generation)
    _check_sizes("handle", offset=offset, size=size)
    if (segment == NO_SEGMENT) != (size == 0):
        raise _bad("handle", "names bytes without a segment, or a segment without bytes", value)
    if type(dtype) is not str or len(dtype) > MAX_DTYPE:
        raise _bad("handle", f"dtype is no text of at most {MAX_DTYPE} characters", dtype)
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_DIMENSIONS:
        raise _bad("handle", f"shape is no list of at most {MAX_DIMENSIONS} lengths", shape)
    for length in shape:
        _check_sizes("handle", length=length)
    return Handle(owner, segment, offset, size, generation, dtype, tuple(shape))


def announcement_from_wire(value: object) -> Announcement:
    """The announcement that a peer sent as a list.

    Raises RemoteProtocolError for anything that cannot be one.
    """
    if not isinstance(value, (list, tuple)) or len(value) != len(Announcement._fields):
        raise _bad("announcement", "is no list of 12 fields", value)
    owner, segment, pid, started, fd, device, inode, size, token, name, space, path = value
    _check_ids("announcement", owner=owner, segment=segment, device=device, inode=inode)
    _check_ids("announcement", space=space)
    _check_sizes("announcement", pid=pid, started=started, fd=fd, size=size)
    if segment == NO_SEGMENT or pid == 0:
        raise _bad("announcement", "names no segment or no process", value)
    if type(token) is not bytes or len(token) != TOKEN_SIZE:
        raise _bad("announcement", f"token is no bytes of length {TOKEN_SIZE}", token)
    if type(name) is not str or len(name) > MAX_NAME:
        raise _bad("announcement", f"name is no text of at most {MAX_NAME} characters", name)
    if type(path) is not str or (path and _FILE.fullmatch(path) is None):
        raise _bad("announcement", f"path is none of a segment below {SHARED}", path)
    return Announcement(*value)


def _check_ids(what: str, **numbers: object) -> None:
    for name, number in numbers.items():
        if type(number) is not int or not 0 <= number <= _MAX_ID:
            raise _bad(what, f"{name} is no number of 64 bits", number)


def _check_sizes(what: str, **numbers: object) -> None:
    for name, number in numbers.items():
        if type(number) is not int or not 0 <= number <= _MAX_SIZE:
            raise _bad(what, f"{name} is no number from 0 to 2**48", number)


def _bad(what: str, why: str, value: object) -> RemoteProtocolError:
    return RemoteProtocolError(f"{what} from a peer {why}: {described(value, 120)}")
