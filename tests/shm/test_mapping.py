"""Mappings for reading: no descriptor stays, and the memory lives as long as its last view."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from tests.shm.test_memory import OWNER, READER, Pair
from transport.shm.mapping import map_readonly
from transport.shm.memory import Memory

MIB = 1 << 20


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings(name: str) -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count(f"memfd:{name}")


def test_a_mapping_needs_no_descriptor_and_goes_with_its_last_view() -> None:
    before = descriptors()
    fd = os.memfd_create("callhome-try")
    os.ftruncate(fd, MIB)
    view = map_readonly(fd, MIB)
    os.pwrite(fd, b"hello", 4096)
    os.close(fd)
    assert descriptors() == before
    assert view.readonly
    array = np.frombuffer(view, "u1", 5, 4096)
    view.release()
    gc.collect()
    assert bytes(array) == b"hello"
    assert mappings("callhome-try") == 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)
    part = array[2:]
    del array
    assert bytes(part) == b"llo"
    del part
    assert mappings("callhome-try") == 0


def test_what_cannot_be_mapped_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="cannot map 4096 bytes"):
        map_readonly(-1, 4096)


def test_readers_have_no_descriptor_for_each_segment() -> None:
    owner = Memory(OWNER, wake=lambda: None, step=MIB, limit=64 * MIB)
    reader = Memory(READER, wake=lambda: None)
    handles = [owner.export_bytes(bytes([n]) * MIB) for n in range(50)]
    told = owner.needs(READER, handles)
    before = descriptors()
    for each in told:
        reader.attach(each)
    assert reader.reading.mapped == 50
    assert descriptors() == before
    for number, handle in enumerate(handles):
        owner.lend(handle, READER, 1)
        assert reader.read_bytes(handle)[0] == number
    reader.close()
    owner.close()
    assert mappings("callhome-frames") == 0


def test_a_view_that_is_left_is_the_last_to_go() -> None:
    pair = Pair()
    seen = pair.reader.view_array(pair.lend(pair.owner.export_array(np.arange(1000))))
    pair.reader.close()
    pair.owner.close()
    assert int(seen.sum()) == 499500
    del seen
    assert mappings("callhome-frames") == 0
