"""Addresses of the request plane: ``host:port`` and ``host:port/path``, as text and as peers see
them.

What is told to a peer is always a numeric address that it can dial: never ``0.0.0.0``, ``::`` or
nothing.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator
from typing import Final

from transport.errors import CallHomeError, ConnectionLost, RemoteProtocolError, SpecError, shown

_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::", "0:0:0:0:0:0:0:0", "*"})
#: Addresses set aside for documentation: routed like any far host, so that the system tells the
#: address this machine would use. Nothing is sent.
_FAR: Final = ("192.0.2.1", "2001:db8::1")
#: Characters of a name, and of each of its parts (RFC 1035).
_LONGEST_HOST: Final = 253
_LONGEST_LABEL: Final = 63
#: Asks for the address of an interface (netdevice(7)).
_SIOCGIFADDR: Final = 0x8915


def split_address(text: str) -> tuple[str, str]:
    """``("host:port", "path")`` of an instance's address; the path is all behind the first slash.

    Raises RemoteProtocolError for what is no such address.
    """
    hostport, slash, path = text.partition("/")
    if not slash or not path:
        raise RemoteProtocolError(f"{shown(text)} is no address of an instance: host:port/path")
    check_hostport(hostport)
    return hostport, path


def check_hostport(
    text: str, error: type[CallHomeError] = RemoteProtocolError, what: str = "address"
) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``; the host comes without brackets.

    Raises ``error``, naming ``what``, for anything else: no host, a wildcard, what is neither an
    IP address nor a plain ASCII name, a port outside 1 to 65535. With ``SpecError`` it checks a
    setting, by default what a peer has sent.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if colon and port.isascii() and port.isdigit() and (len(port) > 5 or number > 65535):
        raise error(f"{what} {shown(text)}: a port is at most 65535")
    if not colon or not number or (":" in bare and bare is host):
        raise error(f"{what} {shown(text)} is not of the form host:port or [v6]:port")
    if bare in _WILDCARDS or not _plain_name(bare):
        raise error(f"{what} {shown(text)} names no host that can be dialled")
    return bare, number


def _plain_name(host: str) -> bool:
    """Whether a host is one that the system can be asked for.

    What is not makes its functions raise ValueError or UnicodeError, or ends the text early.
    """
    if len(host) > _LONGEST_HOST or "/" in host or not host.isascii() or not host.isprintable():
        return False
    labels = host.removesuffix(".").split(".")
    return " " not in host and all(0 < len(each) <= _LONGEST_LABEL for each in labels)


def hostport(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def wildcard(host: str) -> bool:
    """Whether a host to bind means every address of this machine."""
    return host in _WILDCARDS


def numeric(host: str) -> bool:
    """Whether a host is an IP address, and no name that has to be looked up."""
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except (OSError, ValueError):
        return False
    return True


def local_address_toward(host: str) -> str:
    """The numeric address of this machine from which ``host`` is reached.

    Asks the routing table; nothing is sent. A host name is looked up first, which may block: on a
    loop ``Names`` has to know its address.
    Raises ConnectionLost when there is no road to it, or it is no host at all.
    """
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        text = f"this machine has no address from which {shown(host)} can be reached: {error}"
        raise ConnectionLost(text, peer=host) from error


def advertised(host: str) -> str:
    """The numeric address to tell peers for a listener bound to ``host``.

    For a wildcard: the IPv4 address of this machine by which it reaches far hosts, else IPv6, else
    that of its first network (one without a way out), else 127.0.0.1. Raises SpecError for a name
    that cannot be looked up.
    """
    if not wildcard(host):
        return _numeric(host)
    for far in _FAR:
        try:
            return local_address_toward(far)
        except ConnectionLost:
            continue
    return next(_interfaces(), "127.0.0.1")


def _interfaces() -> Iterator[str]:
    """The IPv4 addresses of this machine's networks, itself left out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has none
            address = socket.inet_ntoa(found[20:24])
            if not address.startswith("127."):
                yield address


def _numeric(host: str) -> str:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"host {shown(host)} cannot be looked up: {error}; give an address of this machine"
        ) from error
    # IPv4 first: a peer may have no IPv6.
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return str(found[0][4][0])
