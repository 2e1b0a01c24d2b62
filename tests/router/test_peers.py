"""What a router knows of a node that it follows by name."""

from __future__ import annotations

from actors.router.peers import _Peer
from tests.discovery.samples import far


def test_a_snapshot_in_parts_withdraws_nothing_before_its_last_part() -> None:
    """An ingress has handed its followers over: what its successor serves was known."""
    told: list[tuple[int, str]] = []
    peer = _Peer("10.0.0.7:7400", lambda key, reason: told.append((key[0], reason)))
    for number in range(1, 5):
        peer.add(far(number))
    told.clear()
    peer.replace([far(1)], more=True)
    peer.add(far(2))
    peer.remove((3, far(3).endpoint), "it ends")
    assert set(told) == {(1, ""), (2, ""), (3, "it ends")}
    assert {instance for instance, _ in peer.records} == {1, 2, 4}
    peer.whole()
    assert told[-1] == (4, "it is not served there any more")
    peer.replace([far(2)], more=False)
    assert {instance for instance, _ in peer.records} == {2}
