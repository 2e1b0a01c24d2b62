"""Maps a descriptor for reading without keeping one.

``mmap.mmap`` holds a descriptor of its own as long as it lives (up to Python 3.12 there is no
choice), so a process that reads many segments would run out of descriptors before memory.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from typing import Any

_FAILED = ctypes.c_void_p(-1).value


def map_readonly(fd: int, size: int) -> memoryview:
    """The first ``size`` bytes of ``fd``, shared and read-only; they stay mapped until the last
    view of them is gone, whatever becomes of the descriptor. Raises OSError.
    """
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {size} bytes: {os.strerror(code)}")
    pages = (ctypes.c_char * size).from_address(address)
    # Every view refers to it, numpy's too.
    weakref.finalize(pages, libc.munmap, address, size).atexit = False
    return memoryview(pages).cast("B").toreadonly()


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc
