"""Addresses as text, and what this machine tells others."""

from __future__ import annotations

import pytest

from transport.callhome import address
from transport.callhome.address import (
    advertised,
    check_hostport,
    hostport,
    local_address_toward,
    split_address,
    wildcard,
)
from transport.errors import ConnectionLost, RemoteProtocolError, SpecError

WILDCARDS = ("", "0.0.0.0", "::", "*")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80/path", ("127.0.0.1:80", "path")),
        ("10.0.0.7:41525/5/ns/comp/ep", ("10.0.0.7:41525", "5/ns/comp/ep")),
        ("[fe80::1]:65535/a//b", ("[fe80::1]:65535", "a//b")),
        ("host.name:1/x", ("host.name:1", "x")),
    ],
)  # fmt: skip
def test_an_address_is_split_at_its_first_slash(text: str, expected: tuple[str, str]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["", "host:80", "host:80/", "/path", "host/path", "0.0.0.0:8/x"])
def test_what_is_no_address_of_an_instance(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        split_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "host", ":80", "host:", "host:0", "host:65536", "host:-1", "host: 80", "ho st:80",
        "::1:80", "[::1]", "[::]:80", "0.0.0.0:80", "*:80", "host:99999999999999999999",
        "host:٨٠", "a/b:80", "[]:80", "hôst:80", "a\x00b:80", "\ud800:80", "1.2.3.4\u0661:80",
        "a\x7f:80", "a\nb:80", "a" * 64 + ".x:80", "a..b:80", ".a:80", "a." * 127 + "a:80",
    ],
)  # fmt: skip
def test_what_cannot_be_dialled_is_refused_by_name(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="address"):
        check_hostport(text)
    with pytest.raises(SpecError, match="some_setting"):
        check_hostport(text, SpecError, "some_setting")


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1:80", "[::1]:8080", "node-7.cluster:1", "[fe80::1%eth0]:9", "a" * 63 + ".x.:80"],
)
def test_host_and_port_come_back_as_they_were(text: str) -> None:
    assert hostport(*check_hostport(text)) == text


def test_a_far_too_long_address_does_not_fill_the_error() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_hostport("x" * 10_000)
    assert len(str(caught.value)) < 300


def test_the_address_toward_this_machine_is_its_own() -> None:
    assert local_address_toward("127.0.0.1") == "127.0.0.1"
    assert local_address_toward("localhost") in ("127.0.0.1", "::1")


def test_no_road_is_a_typed_error() -> None:
    with pytest.raises(ConnectionLost, match="no-such-host"):
        local_address_toward("no-such-host.invalid")


@pytest.mark.parametrize("host", ["a" * 64 + ".x", "a\x00b", "\ud800"])
def test_what_the_system_cannot_be_asked_for_is_a_typed_error(host: str) -> None:
    with pytest.raises(ConnectionLost, match="no address from which"):
        local_address_toward(host)
    with pytest.raises(SpecError, match="cannot be looked up"):
        advertised(host)


@pytest.mark.parametrize("host", WILDCARDS)
def test_b125_a_wildcard_is_never_advertised(host: str) -> None:
    assert wildcard(host)
    assert not wildcard(advertised(host))
    check_hostport(hostport(advertised(host), 80))


def test_b125_a_network_without_a_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(host: str) -> str:
        raise ConnectionLost("no way out")

    monkeypatch.setattr(address, "local_address_toward", nowhere)
    monkeypatch.setattr(address, "_interfaces", lambda: iter(["10.1.2.3", "10.1.2.4"]))
    assert advertised("0.0.0.0") == "10.1.2.3"
    monkeypatch.setattr(address, "_interfaces", lambda: iter([]))
    assert advertised("0.0.0.0") == "127.0.0.1"


def test_a_name_is_advertised_as_a_number() -> None:
    assert advertised("localhost") == "127.0.0.1"
    assert advertised("::1") == "::1"
    with pytest.raises(SpecError, match="no-such-host"):
        advertised("no-such-host.invalid")
