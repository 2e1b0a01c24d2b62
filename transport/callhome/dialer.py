"""Dialling: a worker that calls home, and a requester that opens a connection to an ingress."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Final

from transport.callhome.address import check_hostport
from transport.callhome.framed import FramedLink
from transport.callhome.link import Link
from transport.callhome.net import Net, lost, tune
from transport.errors import CallHomeError, ConnectionLost, RemoteProtocolError, shown
from transport.wire.framing import LIMIT

#: Seconds before the second and the third try when this machine has no port left to dial from.
_PAUSES: Final = (0.3, 0.7)


async def dial(
    net: Net,
    address: str,
    handshake: bytes,
    timeout: float,
    *,
    limit: int = LIMIT,
    check: bool = False,
) -> FramedLink:
    """A connection to ``host:port`` that nobody reads yet, with ``handshake`` queued on it.

    One try; up to three within 2 s when this machine has no free port to dial from, and never
    longer than ``timeout`` seconds in all. An empty handshake writes nothing.

    Raises ConnectionLost, naming address and errno, when it is refused, unreachable or silent, and
    RemoteProtocolError for an address that cannot be dialled.
    """
    link = await dial_link(net, address, timeout)
    if handshake:
        link.write(handshake)
    return FramedLink(link, limit, check)


async def dial_link(net: Net, address: str, timeout: float) -> Link:
    """As ``dial``, the bare link."""
    host, port = check_hostport(address)
    try:
        async with asyncio.timeout(timeout):
            sock = await _connect(net, host, port)
    except TimeoutError:
        net.count("dial.silent")
        raise ConnectionLost(
            f"{address} has not answered within {timeout:g} s", peer=address, errno="ETIMEDOUT"
        ) from None
    except OSError as error:
        net.count("dial.failed")
        raise lost(address, error) from error
    except CallHomeError:  # it has not been found
        net.count("dial.failed")
        raise
    except ValueError as error:
        net.count("dial.failed")
        raise RemoteProtocolError(f"address {shown(address)} cannot be dialled: {error}") from error
    net.count("dialled")
    return Link(net, sock, address)


async def _connect(net: Net, host: str, port: int) -> socket.socket:
    target = (await net.names.find(host), port)
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    for pause in (*_PAUSES, None):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            tune(sock)
            await net.loop.sock_connect(sock, target)
            if sock.getsockname() == sock.getpeername():
                # Nobody listens on a port of the range for dialling, and this machine chose that
                # very port to dial from.
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRNOTAVAIL or pause is None:
                raise
            net.complain("dial.ports", f"no port is left to dial {host}:{port} from: {error}")
        except BaseException:
            sock.close()
            raise
        await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")
