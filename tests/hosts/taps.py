"""Networks of the kernel and devices in them: what of Linux the switch needs, by its numbers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from fcntl import ioctl
from typing import Final

#: Bytes before each frame: what of a checksum or of cutting into segments is still to be done.
HEAD: Final = 10
DEVICE: Final = "eth0"

_CLONE_NEWNET: Final = 0x4000_0000
_TUNSETIFF: Final = 0x4004_54CA
_TUNSETOFFLOAD: Final = 0x4004_54D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUMS, _SEGMENTS_4, _SEGMENTS_6 = 1, 2, 4
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_SIOCSIFHWADDR, _SIOCSIFTXQLEN = 0x8924, 0x8943
_IFF_UP: Final = 1
_ETHER: Final = 1
#: Frames that may wait in the kernel for the switch to read them.
_QUEUE: Final = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def _called(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def own_network() -> int:
    """A descriptor of the calling thread's network."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def new_network() -> Iterator[int]:
    """A network in which nothing is but a loopback that is up; the block runs inside of it. It
    lives as long as the descriptor, and the processes in it.
    """
    before = own_network()
    try:
        _called(_libc.unshare(_CLONE_NEWNET), "unshare(CLONE_NEWNET)")
        try:
            _up("lo")
            yield own_network()
        finally:
            _called(_libc.setns(before, _CLONE_NEWNET), "setns")
    finally:
        os.close(before)


def new_tap(mac: bytes, address: str, mask: str) -> int:
    """The other end of an Ethernet device ``eth0`` in the network of the calling thread, which is
    there as long as the descriptor.
    """
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        ioctl(tap, _TUNSETIFF, _named(DEVICE, "H", _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
        with _control() as control:
            ioctl(control, _SIOCSIFHWADDR, _named(DEVICE, "H6s", _ETHER, mac))
            ioctl(control, _SIOCSIFTXQLEN, _named(DEVICE, "i", _QUEUE))
            ioctl(control, _SIOCSIFADDR, _named(DEVICE, "HH4s", *_inet(address)))
            ioctl(control, _SIOCSIFNETMASK, _named(DEVICE, "HH4s", *_inet(mask)))
        _up(DEVICE)
    except BaseException:
        os.close(tap)
        raise
    return tap


def join_segments(tap: int, joined: bool) -> None:
    """Whether the host may give up to 64 KiB of one connection as one frame, which is ten times
    as quick, or frames as they are on a wire.
    """
    ioctl(tap, _TUNSETOFFLOAD, (_CHECKSUMS | _SEGMENTS_4 | _SEGMENTS_6) if joined else 0)


def _up(device: str) -> None:
    with _control() as control:
        found = ioctl(control, _SIOCGIFFLAGS, _named(device, "H", 0))
        flags: int = struct.unpack_from("H", found, 16)[0]
        ioctl(control, _SIOCSIFFLAGS, _named(device, "H", flags | _IFF_UP))


def _control() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _named(device: str, form: str, *values: object) -> bytes:
    """A ``struct ifreq``."""
    return (device.encode().ljust(16, b"\0") + struct.pack("=" + form, *values)).ljust(40, b"\0")


def _inet(address: str) -> tuple[int, int, bytes]:
    return int(socket.AF_INET), 0, socket.inet_aton(address)
