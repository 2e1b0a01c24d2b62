"""The socket at which a node's ingress listens, kept by the node beyond the life of one process.

So another ingress can take the place of one that goes, and whoever dials while there is none waits
for it instead of being refused. It is shut when there will be none: a door that nobody opens any
more must not look like one.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from dataclasses import replace

from actors.config import host_port
from actors.errors import SpecError
from actors.kernel.children import ChildSpec

log = logging.getLogger("callhome.node")


class Porch:
    """Made by the node; ``give`` before the ingress starts, ``close`` before it is stopped."""

    def __init__(self) -> None:
        self._socks: dict[str, socket.socket] = {}

    def give(self, spec: ChildSpec) -> ChildSpec:
        """The child's spec with the socket of an ingress; of all others as it is. Where none can be
        had the ingress tries by itself, and tells why it cannot.
        """
        if spec.spec["role"] != "ingress":
            return spec
        from transport.callhome.listener import bound_socket  # most nodes have none

        args = dict(spec.spec["args"])
        try:
            host, _, port = host_port(args["listen"], "listen").rpartition(":")
            sock = bound_socket(host.strip("[]"), int(port), "listen")
        except SpecError as error:
            log.debug("%s is left to bind its socket: %s", spec.name, error)
            return spec
        self._socks[spec.name] = sock
        args["socket"] = sock.fileno()
        return replace(spec, spec={**spec.spec, "args": args}, fds=(sock.fileno(),))

    def shut(self, spec: ChildSpec) -> None:
        """The ingress stays down: whoever dials is refused, unless it is started by a wish."""
        sock = self._socks.get(spec.name)
        if sock is not None:
            with contextlib.suppress(OSError):  # nobody has listened there yet
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the sockets: they end with the ingress."""
        for sock in self._socks.values():
            sock.close()
        self._socks.clear()
