"""Why a client outside cannot be entered, in words: what listens there, and what to do.

The router tells what has failed on the road, by the names that it has for it. Whoever calls
``connect("tcp://host:port")`` knows that address and nothing of the road.
"""

from __future__ import annotations

import os
import re
from errno import ECONNREFUSED
from typing import Final

from actors.discovery.record import RESERVED
from actors.errors import (
    CallBackFailed,
    CallHomeError,
    ConnectionLost,
    DeadlineExceeded,
    RemoteProtocolError,
    WorkerUnavailable,
)

#: What to look at when somebody listens there, and is no node.
_ASK: Final = "is this the listen of a callhome node (callhome ps on its machine shows it)?"
_UNKNOWN: Final = "cannot be looked up: "
_ADVICE: Final = "; try later or elsewhere"
#: What the event loop makes of a refusal.
_CONNECT: Final = re.compile(r"\[ECONNREFUSED\] Connect call failed \([^)]*\)")
#: Where the router has told to call home, in its words.
_TOLD: Final = re.compile(r"back to (\S+) within")
#: The number before the words of a system's error.
_NUMBER: Final = re.compile(r"\[(Errno -?\d+|E[A-Z0-9]+)\] ")


def worded(peer: str, failure: CallHomeError, limit: float) -> CallHomeError:
    """``failure`` on the road to the node at ``peer`` (``host:port``) as whoever connects can use
    it; ``limit`` is the seconds that it may take.
    """
    error: CallHomeError
    if isinstance(failure, CallBackFailed):
        told = _TOLD.search(str(failure))
        error = uncalled(peer, told[1] if told else "this program", limit)
    elif isinstance(failure, DeadlineExceeded):
        error = silent(peer, limit)
    elif type(failure) is ConnectionLost:
        error = ConnectionLost(_lost(peer, failure), **failure.details)
    elif isinstance(failure, RemoteProtocolError | WorkerUnavailable):
        what = plain(peer, str(failure)).removesuffix(_ADVICE)
        if what.startswith("said "):
            what = f"it {what}"
        error = RemoteProtocolError(
            f"what listens at {peer} does not answer as a node of callhome: {what}; {_ASK}"
        )
    else:
        return failure
    error.__cause__ = failure
    return error


def silent(peer: str, limit: float) -> DeadlineExceeded:
    """Nothing has come of it in time."""
    return DeadlineExceeded(
        f"nothing of callhome answers at {peer} within {limit:g} s (connect_timeout): {_ASK}"
    )


def uncalled(peer: str, told: str, limit: float) -> CallBackFailed:
    """Whoever is there has taken the question and has not called back to ``told``."""
    return CallBackFailed(
        f"{peer} has taken the request and has not called back to {told} within {limit:g} s "
        f"(connect_timeout): can {told} be reached from there (call_home_host, "
        f"call_home_advertise)? And {_ASK}",
        peer=peer,
        address=told,
    )


def _lost(peer: str, failure: ConnectionLost) -> str:
    text = plain(peer, str(failure))
    if _UNKNOWN in text:
        host = peer.rpartition(":")[0]
        why = text.rpartition(_UNKNOWN)[2]
        return f"the name {host!r} cannot be resolved ({why}); see its spelling, or give a number"
    code = failure.details.get("errno", "")
    if code == "ECONNREFUSED" or "ECONNREFUSED" in str(failure):
        words = os.strerror(ECONNREFUSED)
        return f"nobody listens at {peer} ({words}): does the node run, and {_ASK}"
    if code:
        return f"{peer} cannot be reached: {text}; see the network and its firewalls"
    return f"what listens at {peer} has ended the connection without an answer: {_ASK}"


def plain(peer: str, text: str) -> str:
    """Why a router cannot see ``peer``, without the names that only the router has for it."""
    for name in (f"callhome.records@{peer}", f"{peer}/{RESERVED}", peer):
        text = text.removeprefix(f"{name}: ").removeprefix(f"{name} ")
    text = text.removeprefix(f"connection with {peer} is lost: ")
    return _NUMBER.sub("", _CONNECT.sub(os.strerror(ECONNREFUSED), text))
