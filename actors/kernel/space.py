"""PID namespaces: whether a pid that a peer tells means anything here, and what to do if not.

Actors and clients of a node may share its run folder without sharing its PID namespace (a container
beside it). A pid is then somebody else, or nobody; what still tells of a peer's life are its
sockets, which the kernel closes with its process.
"""

from __future__ import annotations

import json
import os
import socket

from transport.bus.claim import HIDDEN


def own_space() -> int:
    """The number of this process's PID namespace; 0 where the system does not tell."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def space_beside(run: str) -> int:
    """``Address.space`` of this process on the node in folder ``run``.

    0 in the namespace of the node, and before ``node.json`` is there: only the node's own children
    start so early.
    """
    try:
        with open(os.path.join(run, "node.json"), encoding="utf-8") as file:
            space = json.load(file).get("space", 0)
    except (OSError, ValueError, AttributeError):
        return 0
    own = own_space()
    return 0 if space in (0, own) else own


def whose(path: str) -> str:
    """Words for a path that may not be entered: the folder it ends at, and both users."""
    while True:
        try:
            owner = os.stat(path).st_uid
        except PermissionError:
            path = os.path.dirname(path)
        except OSError as error:
            return str(error)
        else:
            return (
                f"{path!r} belongs to uid {owner}, this process runs as uid {os.geteuid()} and may "
                "not enter it; run both as one user"
            )


def knock(path: str) -> socket.socket:
    """A connection to the inbox at ``path``, on which nothing is ever said: it ends with its owner.

    ZeroMQ ends it too, after half a minute without a greeting, and then it is knocked again. Raises
    BlockingIOError when it is there and has no place for us now, another OSError when it is gone.
    """
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        caller.setblocking(False)
        caller.connect(path)
    except FileNotFoundError:
        caller.close()
        if os.path.exists(path + HIDDEN):
            raise BlockingIOError(f"{path} takes no new connections") from None
        raise
    except BaseException:
        caller.close()
        raise
    return caller
