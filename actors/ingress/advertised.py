"""The address that an ingress tells other nodes: chosen where its spec leaves that open, and
checked once it listens.

What other nodes read in etcd or in a directory they dial. An address that leads nowhere, or to
somebody else, would show as connections that fail elsewhere and much later: so the ingress dials it
itself and asks who is there. A network may have no way back to the machine it comes from; hence the
check warns, and neither fails nor delays the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
from collections.abc import Sequence
from typing import Final

from actors.config import etcd_members, host_port
from transport.callhome.address import (
    check_hostport,
    hostport,
    local_address_toward,
    numeric,
    wildcard,
)
from transport.callhome.net import Net
from transport.errors import CallHomeError, SpecError, text_of
from transport.wire.request import ReplyReader, pack_request

log = logging.getLogger("callhome.ingress")

#: The path at which every ingress says which node's it is.
DOOR: Final = "callhome/door"
#: Seconds for a member of etcd to be looked up, and for the whole check.
_LOOK_UP: Final = 1.0
_PATIENCE: Final = 2.0
#: Seconds until what was wrong is looked at again.
_AGAIN: Final = 30.0


def members(etcd: str) -> list[str]:
    """The hosts of ``etcd://host:port,…``; none of ""."""
    return [each.rpartition(":")[0].strip("[]") for each in etcd_members(etcd)]


def loopback(host: str) -> bool:
    """Whether a host means the machine of whoever dials it."""
    if not numeric(host):
        return host == "localhost" or host.endswith(".localhost")
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def told(bound: str, advertise: str) -> str:
    """The ``host:port`` that other nodes are told. Raises SpecError for what nobody can dial."""
    if not advertise:
        return bound
    port = int(bound.rpartition(":")[2])
    try:
        host, _, own = host_port(advertise, "advertise").rpartition(":")
        port = int(own) or port
    except SpecError:
        host = advertise
    found = hostport(host.strip("[]"), port)
    check_hostport(found, SpecError, "advertise")
    return found


async def chosen(net: Net, listen: str, bound: str, hosts: Sequence[str]) -> str:
    """The ``host:port`` to tell of a listener at ``bound`` that was asked to listen at host
    ``listen``: of all addresses the one by which one of ``hosts`` (etcd's members) is reached, else
    that by which far hosts are, which ``bound`` names.

    An address of this machine alone is none for others, who find etcd by another.
    """
    if not wildcard(listen):
        return bound
    for host in hosts:
        with contextlib.suppress(CallHomeError, TimeoutError):
            async with asyncio.timeout(_LOOK_UP):
                found = local_address_toward(await net.names.find(host))
            if not loopback(found) and (":" not in found or listen == "::"):
                return hostport(found, int(bound.rpartition(":")[2]))
    return bound


class Check:
    """Asks at ``reached``, which others are told, whether this very node answers there.

    ``node`` is what the ingress says at ``DOOR``; ``etcd`` is where others read the address, if
    they do. Made by an ingress; ``run`` is a task of its own, to be cancelled.
    """

    def __init__(self, net: Net, reached: str, node: str, etcd: str) -> None:
        self._net = net
        self._reached = reached
        self._node = node
        self._etcd = etcd
        #: What is wrong and what to do; "" before the first answer, and when nothing is.
        self.warning = ""

    async def run(self) -> None:
        """Ask, and as long as something is wrong again; a line in the log for each change."""
        while True:
            before, self.warning = self.warning, await self._ask()
            if self.warning != before:
                if self.warning:
                    log.warning("%s", self.warning)
                else:
                    log.warning("this node is reached at %s, which it advertises", self._reached)
            if not self.warning:
                return
            await asyncio.sleep(_AGAIN)

    async def _ask(self) -> str:
        host, _ = check_hostport(self._reached)
        hosts = members(self._etcd)
        if loopback(host) and hosts and not any(map(loopback, hosts)):
            return (
                f"this node advertises {self._reached} in {self._etcd}: on other machines that is "
                "their own address; let it listen at one that they can dial (listen=), or name it "
                "(advertise=)"
            )
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await self._dial()
        except TimeoutError:
            why = (
                f"nobody has answered there within {_PATIENCE:g} s; where the network has no way "
                "back to this machine itself, others may reach it all the same"
            )
        except (OSError, CallHomeError) as error:
            code = error.errno if isinstance(error, OSError) else None
            why = f"it cannot be dialled: {os.strerror(code) if code else text_of(error)}"
        else:
            if answer == self._node.encode():
                return ""
            why = f"somebody else answers there ({ascii(answer[:80])[1:]})"
        return (
            f"this node advertises {self._reached}, and {why}; give an address or name of this "
            "machine that others can dial (advertise=), or see firewalls and name service"
        )

    async def _dial(self) -> bytes:
        """What is said at the door. Raises OSError, CallHomeError."""
        host, port = check_hostport(self._reached)
        reader, writer = await asyncio.open_connection(await self._net.names.find(host), port)
        try:
            writer.write(b"".join(pack_request(DOOR, {}, [])))
            replies = ReplyReader()
            while data := await reader.read(4096):
                for reply in replies.feed(data):
                    return reply
            return b"the connection was closed"
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
