from __future__ import annotations

from typing import Any

import pytest

from transport.errors import RemoteProtocolError
from transport.wire.handle import (
    MAX_DTYPE,
    Announcement,
    Handle,
    announcement_from_wire,
    handle_from_wire,
)

HANDLE = Handle(2**64 - 1, 1, 8192, 24, 7, "<f4", (2, 3))
ANNOUNCEMENT = Announcement(5, 1, 4711, 99, 3, 1, 2**60, 1 << 26, b"t" * 16, "engine", 9, "")


def test_a_handle_comes_back_from_lists() -> None:
    assert handle_from_wire([*HANDLE[:-1], [2, 3]]) == HANDLE
    assert handle_from_wire(list(HANDLE)).shape == (2, 3)


def test_a_handle_to_nothing_names_no_segment() -> None:
    empty = Handle(5, 0, 0, 0, 0, "<f4", (0, 3))
    assert handle_from_wire(list(empty)) == empty


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("owner", -1),
        ("owner", 2**64),
        ("owner", "5"),
        ("owner", True),
        ("segment", 0),
        ("segment", 1.0),
        ("offset", -4096),
        ("offset", 2**62),
        ("size", 0),
        ("size", -1),
        ("size", 2**62),
        ("generation", None),
        ("dtype", b"<f4"),
        ("dtype", "x" * (MAX_DTYPE + 1)),
        ("shape", 6),
        ("shape", [1] * 65),
        ("shape", [2, -3]),
        ("shape", [2, "3"]),
    ],
)
def test_a_handle_that_cannot_be_one_is_refused(field: str, value: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="handle from a peer"):
        handle_from_wire(list(HANDLE._replace(**{field: value})))


@pytest.mark.parametrize("value", [None, {}, b"handle", [], list(HANDLE)[:-1], [*HANDLE, 1]])
def test_what_has_not_seven_fields_is_no_handle(value: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        handle_from_wire(value)


def test_an_announcement_comes_back_from_a_list() -> None:
    assert announcement_from_wire(list(ANNOUNCEMENT)) == ANNOUNCEMENT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("owner", -1),
        ("segment", 0),
        ("pid", 0),
        ("pid", "../../etc"),
        ("started", -1),
        ("fd", -1),
        ("device", 2**64),
        ("inode", None),
        ("size", 2**62),
        ("token", b"short"),
        ("token", "t" * 16),
        ("name", b"engine"),
        ("name", "x" * 108),
        ("space", -1),
        ("space", 2**64),
        ("path", None),
        ("path", "/etc/passwd"),
        ("path", "/dev/shm/other-0-a/1"),
        ("path", "/dev/shm/callhome-0-a/../1"),
        ("path", "/dev/shm/callhome-0-a/1/2"),
        ("path", "/dev/shm/callhome-0-a/1\n"),
    ],
)
def test_an_announcement_that_cannot_be_one_is_refused(field: str, value: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="announcement from a peer"):
        announcement_from_wire(list(ANNOUNCEMENT._replace(**{field: value})))


@pytest.mark.parametrize("value", [None, [], list(ANNOUNCEMENT)[:-1], [*ANNOUNCEMENT, 0]])
def test_what_has_not_twelve_fields_is_no_announcement(value: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        announcement_from_wire(value)
