"""Where the nodes of a fleet find each other beyond the node itself, from what their specs say.

Used by whoever starts a router or an ingress (``actors.cluster.entry``). What reads and writes etcd
is imported only where a spec names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from actors.discovery.base import Publisher, Source
from actors.discovery.directory import TTL, DirectoryDiscovery, DirectoryPublisher
from actors.discovery.merged import HEARD


class Sources(NamedTuple):
    """A directory, an etcd, or both ("" is none), and the one namespace there is ("" is all).

    ``ttl`` is how many seconds a record lives in etcd without a sign of its node.
    """

    directory: str = ""
    etcd: str = ""
    namespace: str = ""
    ttl: float = TTL

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Sources:
        """What a child spec of ``actors.cluster.plan`` says, which may say nothing of it."""
        return cls(
            spec.get("directory", ""),
            spec.get("etcd", ""),
            spec.get("namespace", ""),
            spec["settings"].get("lease_ttl", TTL),
        )

    @property
    def any(self) -> bool:
        """Whether there is anything beyond the node."""
        return bool(self.directory or self.etcd)

    @property
    def doubt(self) -> float:
        """Seconds after which what nobody renews has expired everywhere."""
        return max(TTL, self.ttl if self.etcd else 0.0) + HEARD

    def discoveries(self) -> dict[str, Source]:
        """What to read, by the name that people know it by. Raises SpecError for a missing
        extra.
        """
        found: dict[str, Source] = {}
        if self.directory:
            found[self.directory] = DirectoryDiscovery(self.directory, namespace=self.namespace)
        if self.etcd:
            from actors.discovery.etcd import EtcdDiscovery

            found[self.etcd] = EtcdDiscovery(self.etcd, namespace=self.namespace, ttl=self.ttl)
        return found

    def publishers(self, reached: str, ingress: int) -> dict[str, Publisher]:
        """What takes records there, by the same names. ``reached`` is the ``host:port`` of the
        node's ingress as others dial it, ``ingress`` that one's incarnation. Raises as
        ``discoveries``.
        """
        found: dict[str, Publisher] = {}
        if self.directory:
            found[self.directory] = DirectoryPublisher(
                self.directory, reached=reached, ingress=ingress, namespace=self.namespace
            )
        if self.etcd:
            from actors.discovery.etcd_publisher import EtcdPublisher

            found[self.etcd] = EtcdPublisher(
                self.etcd, reached=reached, ingress=ingress, namespace=self.namespace, ttl=self.ttl
            )
        return found
