"""The file in which an actor's signs of life stand: how it is written, and what is read from it.

Native byte order, for it never leaves the machine; nanoseconds of the monotonic clock:

======  =====  ================================================================================
offset  bytes  what
======  =====  ================================================================================
0       8      ``chbeat1`` and a line feed
8       8      the incarnation
16      8      the last beat
24      8      the last turn of the event loop
32      8      how long the loop took to turn when it was last asked (or has taken so far)
40      8      since when an engine is not ready; 0: it is, or is none
48      240    why, as UTF-8, ended by zeros
======  =====  ================================================================================

An older version writes the first 32 bytes only, and reads no more. A file of any other length says
nothing. The beats' thread writes what stands before ``TOLD``, the actor's loop what stands behind.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import Final

from actors.kernel.verdicts import Sign
from transport.bus.address import Address, inbox_path
from transport.errors import LocalProtocolError

_OLD: Final = Struct("=8sQQQ")
_BEAT: Final = Struct("=8sQQQQ")
_READY: Final = Struct("=Q240s")
_ALL: Final = Struct("=8sQQQQQ240s")
_WORD: Final = b"chbeat1\n"
#: Where it stands whether the engine is ready.
TOLD: Final = _BEAT.size
SIZE: Final = _ALL.size
#: Bytes of the reason that are told.
_WHY: Final = 240
#: What the file is called behind the actor's name and incarnation.
LANE: Final = "b"
#: Whatever stands there: it must not make the reader wait.
READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def pack_beat(incarnation: int, beat: int, turn: int, lag: int) -> bytes:
    """What stands before ``TOLD``; times in nanoseconds."""
    return _BEAT.pack(_WORD, incarnation, beat, turn, lag)


def pack_ready(since: int, why: str) -> bytes:
    """What stands behind: 0 and "" of an engine that is ready."""
    return _READY.pack(since, why.encode("utf-8", "replace")[:_WHY])


def read_sign(data: bytes, incarnation: int) -> Sign | None:
    """The sign of life of this incarnation; None for what is none. At least one byte more than
    ``SIZE`` is to be read from the file, where it has one.
    """
    if len(data) not in (SIZE, _OLD.size):
        return None
    word, who, beat, turn = _OLD.unpack_from(data)
    if word != _WORD or who != incarnation:
        return None
    if len(data) == _OLD.size:
        return Sign(beat / 1e9, turn / 1e9)
    *_, lag, since, why = _ALL.unpack(data)
    if not since:
        return Sign(beat / 1e9, turn / 1e9, lag / 1e9)
    text = why.partition(b"\0")[0].decode("utf-8", "ignore")
    if not text.isprintable():  # it goes to terminals
        text = "".join(each if each.isprintable() else " " for each in text)
    return Sign(beat / 1e9, turn / 1e9, lag / 1e9, since / 1e9, text or "it does not say why")


def read_beats(run: str, address: Address) -> Sign | None:
    """One look at the signs of life of an actor in the folder ``run``; None where there are none.
    Whoever looks again and again uses a ``Vigil``.
    """
    try:
        fd = os.open(inbox_path(run, address, LANE), READ)
    except (OSError, LocalProtocolError):
        return None
    try:
        return read_sign(os.pread(fd, SIZE + 1, 0), address.incarnation)
    except OSError:
        return None
    finally:
        os.close(fd)
