"""The socket of an ingress, which its node keeps."""

from __future__ import annotations

import os
import socket

import pytest

from actors.cluster.porch import Porch
from actors.kernel.children import ChildSpec


def ingress(listen: str) -> ChildSpec:
    args = {"listen": listen, "advertise": ""}
    return ChildSpec("ingress", {"role": "ingress", "args": args})


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def reached(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_port_outlives_who_listens_and_is_shut_when_nobody_will() -> None:
    porch = Porch()
    given = porch.give(ingress("127.0.0.1:0"))
    (fd,) = given.fds
    assert given.spec["args"]["socket"] == fd
    with socket.socket(fileno=os.dup(fd)) as one, socket.socket(fileno=os.dup(fd)) as other:
        port = one.getsockname()[1]
        assert not reached(port)  # nobody listens yet: nobody is to wait
        one.listen()
        assert reached(port)
        other.listen()
        one.close()
        assert reached(port)
        porch.shut(given)
        assert not reached(port)
        other.listen()  # by somebody's wish
        assert reached(other.getsockname()[1])
    porch.close()
    porch.close()
    assert not reached(port)


def test_it_is_shut_for_one_that_has_never_listened() -> None:
    porch = Porch()
    porch.shut(porch.give(ingress("127.0.0.1:0")))
    porch.close()


def test_a_host_in_brackets_is_one_too() -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    porch = Porch()
    given = porch.give(ingress("[::1]:0"))
    (fd,) = given.fds
    with socket.socket(fileno=os.dup(fd)) as one:
        assert one.getsockname()[0] == "::1"
    porch.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("listen", ["nonsense", "192.0.2.1:7400"])
def test_what_cannot_be_bound_is_left_to_the_ingress_to_tell(listen: str) -> None:
    porch = Porch()
    spec = ingress(listen)
    assert porch.give(spec) is spec
    porch.shut(spec)
    porch.close()


def test_only_an_ingress_is_given_one() -> None:
    spec = ChildSpec("engine", {"role": "engine", "args": {}})
    assert Porch().give(spec) is spec
