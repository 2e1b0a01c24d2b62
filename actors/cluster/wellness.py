"""What a node answers when it is asked how it is: see ``actors.health``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.cluster.inspecting import Inspector
from actors.kernel.children import ChildStatus
from actors.messages import Record
from transport.bus.address import Address

#: Those that can tell of trouble beyond the node.
_ASKED: Final = ("router", "ingress")


async def wellness(
    inspector: Inspector,
    own: Address,
    statuses: Sequence[ChildStatus],
    placed: Mapping[str, str],
    records: Sequence[Record],
    states: Mapping[str, str],
) -> dict[str, Any]:
    """The answer to ``Health`` without ``stops``.

    ``own`` is the node's address; ``placed`` the role of each actor, by name, that the launcher
    runs; ``states`` tells who drains.
    """
    rows = [await _row(inspector, status, states) for status in statuses]
    known = {record.address.name: record for record in records}
    rows += [
        _placed(inspector, name, role, known.get(name), states) for name, role in placed.items()
    ]
    return {"lag": inspector.ill(own)["lag"], "actors": rows}


async def _row(
    inspector: Inspector, status: ChildStatus, states: Mapping[str, str]
) -> dict[str, Any]:
    spec, address = status.spec.spec, status.address
    found = await inspector.inspect(status) if spec["role"] in _ASKED else {}
    return {
        "name": status.spec.name,
        "role": spec["role"],
        "endpoint": spec.get("endpoint"),
        "instance": None if address is None else address.incarnation,
        "pid": status.pid or None,
        "state": states.get(status.spec.name, "up") if status.state == "up" else status.state,
        "reason": status.reason,
        **inspector.ill(address),
        **{key: found.get(key) or None for key in ("peers", "discovery", "advertised")},
    }


def _placed(
    inspector: Inspector, name: str, role: str, record: Record | None, states: Mapping[str, str]
) -> dict[str, Any]:
    """One in the launcher's process: its record goes when it ends."""
    state = states.get(name, "missing")
    row: dict[str, Any] = {"name": name, "role": role, "state": state, "placed": True}
    if record is None:
        return row
    here = {"state": "here", "endpoint": record.endpoint or None, "instance": record.instance}
    return row | here | {"pid": record.address.pid} | inspector.ill(record.address)
