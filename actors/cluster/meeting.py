"""Nodes of one cluster that are to find each other: which, by what, and whether they have.

Used by the launcher, which returns from its start when the nodes it has started can be called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.cluster.spec import NodeSpec
from actors.cluster.unmet import plain
from actors.config import etcd_members


def found_by(own: NodeSpec, other: NodeSpec, listen: str) -> str | None:
    """The namespace ("" is all) whose engines of ``other``, which listens at ``listen``, the
    routers of ``own`` find: as a peer, in a directory or in etcd. None: they find none.
    """
    if listen in own.peers:
        return ""
    apart = own.namespace and other.namespace and own.namespace != other.namespace
    if other.ingress is None or apart or not (_one_folder(own, other) or _one_etcd(own, other)):
        return None
    return own.namespace


def _one_folder(own: NodeSpec, other: NodeSpec) -> bool:
    return bool(
        own.directory
        and other.directory
        and os.path.realpath(own.directory) == os.path.realpath(other.directory)
    )


def _one_etcd(own: NodeSpec, other: NodeSpec) -> bool:
    """Whether they name a member in common; two that name none may still share one."""
    return not set(etcd_members(own.etcd)).isdisjoint(etcd_members(other.etcd))


def missing(
    router: Mapping[str, Any], peers: Mapping[str, Callable[[], set[int]]], named: Sequence[str]
) -> dict[str, str]:
    """Which peers a router does not know completely, and why, by what it says of itself; those that
    are not ``named`` it is to find in a directory or in etcd.
    """
    states: dict[str, str] = router.get("peers", {})
    known = {worker["instance"] for worker in router.get("workers", ())}
    unread = unreadable(router)
    found = {}
    for peer, engines in peers.items():
        if peer in named and (why := states.get(peer, "the router has not tried it")):
            found[peer] = plain(peer, why)
        elif not engines() <= known:
            found[peer] = unread or "some of its engines have not been heard of"
    return found


def unreadable(router: Mapping[str, Any]) -> str:
    """Which of its sources a router cannot read, and why; "" when there is none."""
    sources: dict[str, str] = router.get("discovery") or {}
    return "; ".join(filter(None, sources.values()))
