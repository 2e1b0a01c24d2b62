"""What a node answers when it is asked how it is: see ``actors.health``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.cluster.inspecting import Inspector
from actors.cluster.spec import EngineSpec, Instance
from actors.kernel.children import ChildStatus
from actors.messages import Record
from transport.bus.address import Address

#: Those that can tell of trouble beyond the node.
_ASKED: Final = ("router", "ingress")


async def wellness(
    inspector: Inspector,
    own: Address,
    statuses: Sequence[ChildStatus],
    placed: Sequence[Instance],
    records: Sequence[Record],
    states: Mapping[str, str],
) -> dict[str, Any]:
    """The answer to ``Health`` without ``stops``.

    ``own`` is the node's address; ``placed`` are the actors that the launcher runs; ``states``
    tells who drains.
    """
    asked = [status for status in statuses if status.spec.spec["role"] in _ASKED]
    answers = dict(zip(map(id, asked), await inspector.inspect_all(asked), strict=True))
    rows = [_row(inspector, each, states, answers.get(id(each), {})) for each in statuses]
    known = {record.address.name: record for record in records}
    rows += [
        _placed(inspector, each, known.get(each.name), states.get(each.name)) for each in placed
    ]
    return {"lag": inspector.ill(own)["lag"], "actors": rows}


def _row(
    inspector: Inspector,
    status: ChildStatus,
    states: Mapping[str, str],
    found: Mapping[str, Any],
) -> dict[str, Any]:
    spec, address = status.spec.spec, status.address
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
    inspector: Inspector, instance: Instance, record: Record | None, state: str | None
) -> dict[str, Any]:
    """One in the launcher's process: its record goes when it drains or ends."""
    row: dict[str, Any] = {
        "name": instance.name,
        "role": instance.role,
        "endpoint": instance.spec.endpoint if isinstance(instance.spec, EngineSpec) else None,
        "state": state or "missing",
        "placed": True,
    }
    if record is None:
        return row
    here = {"state": "here", "endpoint": record.endpoint or None, "instance": record.instance}
    return row | here | {"pid": record.address.pid} | inspector.ill(record.address)
