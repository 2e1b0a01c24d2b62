"""Records as other nodes read them: Dynamo's JSON object with one field more.

Written into a directory (``actors.discovery.directory``) or etcd, and told to other nodes by an
ingress (stream ``callhome/records``); read by routers. An instance is an incarnation of an engine;
it is reached at ``host:port`` of its node's ingress, which finds the engine by the routing path.

What is read comes from outside: everything is checked, and a record that does not hold is refused
whole, with ``BadRecord``, which says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from actors.errors import RemoteProtocolError
from actors.messages import Record
from transport.bus.address import Address
from transport.callhome.address import split_address

#: What a node of ours understands beyond Dynamo 1.6, as its records say it.
SPEAKS: Final = "callhome1"
#: The path at which every ingress tells its node's records.
RESERVED: Final = "callhome/records"

# Half a surrogate pair has no bytes: nobody could be told of such a record, nor dial it.
_WORD = re.compile(r"[^\x00-\x20/\x7f\ud800-\udfff]{1,255}")
_PATH = re.compile(r"[^\x00-\x20\x7f\ud800-\udfff]{1,1024}")
_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}")
_DEVICE_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_CODECS: Final = ("msgpack", "json")
#: Devices that Dynamo 1.6 knows; it throws away the record of an engine on any other.
_DYNAMO_DEVICES: Final = ("cpu", "cuda")
_LARGEST_ID: Final = (1 << 64) - 1
_LARGEST_CAPACITY: Final = 1 << 20


class BadRecord(ValueError):
    """A record from outside that cannot be used; its text says why."""


def is_own(record: Record, namespace: str = "") -> bool:
    """Whether it is of an engine on this node's bus, which others may be told of; with a
    ``namespace`` of those in it.
    """
    return record.kind == "engine" and not record.via and within(record.endpoint, namespace)


def routing_path(record: Record) -> str:
    """By which an ingress finds the engine of one of its own node's records."""
    return f"{record.instance:x}/{record.endpoint.replace('.', '/')}"


def within(endpoint: str, namespace: str) -> bool:
    """Whether an endpoint belongs to a namespace, its first word; all do to ""."""
    return not namespace or endpoint.partition(".")[0] == namespace


def pack_record(record: Record, reached: str, ingress: int) -> dict[str, Any]:
    """The JSON object of an engine of this node.

    ``reached`` is the ``host:port`` at which other nodes reach its ingress, ``ingress`` that one's
    incarnation.
    """
    namespace, component, endpoint = record.endpoint.split(".")
    known = {"device_type": record.device} if record.device in _DYNAMO_DEVICES else {}
    return {
        "type": "Endpoint",
        "namespace": namespace,
        "component": component,
        "endpoint": endpoint,
        "instance_id": record.instance,
        "transport": {"tcp": f"{reached}/{routing_path(record)}"},
        "request_plane_codec": record.codec,
        **known,
        "callhome": {
            "speaks": SPEAKS,
            "ingress": f"{ingress:x}",
            "many": record.many,
            "capacity": record.capacity,
            "device": record.device,
            **({"device_id": record.device_id} if record.device_id else {}),
        },
    }


def read_record(data: Any) -> Record:
    """The record of an engine on another node. Raises BadRecord.

    A codec that is not told is JSON: its worker is older than the field.
    """
    table = _table(data, "the record")
    if table.get("type") != "Endpoint":
        raise BadRecord(f"type is {_short(table.get('type'))}, not 'Endpoint'")
    endpoint = ".".join(_word(table, key) for key in ("namespace", "component", "endpoint"))
    instance = _number(table.get("instance_id"), "instance_id", _LARGEST_ID)
    via = _via(_table(table.get("transport"), "transport"))
    codec = table.get("request_plane_codec")
    if codec is not None and codec not in _CODECS:
        raise BadRecord(f"request_plane_codec is {_short(codec)}, not 'msgpack' or 'json'")
    many, capacity, speaks, device, device_id = _ours(table.get("callhome"))
    return Record(
        instance=instance,
        address=Address(f"{endpoint}@{via.partition('/')[0]}", instance, 0, 0),
        kind="engine",
        endpoint=endpoint,
        many=many,
        capacity=capacity,
        codec=codec or "json",
        via=via,
        speaks=speaks,
        device=device or _device_type(table.get("device_type")),
        device_id=device_id,
    )


def _ours(data: Any) -> tuple[bool, int, str, str, str]:
    """What only a node of ours says of its engine; a later version of us may say more."""
    if data is None:
        return False, 0, "", "", ""
    table = _table(data, "callhome")
    many = table.get("many", False)
    if not isinstance(many, bool):
        raise BadRecord(f"callhome.many is {_short(many)}, not true or false")
    capacity = _number(table.get("capacity", 0), "callhome.capacity", _LARGEST_CAPACITY)
    device = table.get("device", "")
    if device != "" and not (isinstance(device, str) and _DEVICE.fullmatch(device)):
        raise BadRecord(f"callhome.device is {_short(device)}, not a word such as 'cpu' or 'cuda'")
    device_id = table.get("device_id", "")
    if device_id != "" and not (isinstance(device_id, str) and _DEVICE_ID.fullmatch(device_id)):
        raise BadRecord(f"callhome.device_id is {_short(device_id)}, not a word such as 'cuda:1'")
    speaks = SPEAKS if table.get("speaks") == SPEAKS else ""
    return many, capacity, speaks, device, device_id


def _device_type(data: Any) -> str:
    """What an engine of Dynamo's computes on. It only gives it weight: one that says it in a way of
    its own is used all the same.
    """
    return data if isinstance(data, str) and _DEVICE.fullmatch(data) else ""


def _via(transport: Mapping[str, Any]) -> str:
    address = transport.get("tcp")
    if not isinstance(address, str):
        named = ", ".join(sorted(map(_short, transport))[:3]) or "none"
        raise BadRecord(f"its transport is {named}, not tcp")
    try:
        _, path = split_address(address)
    except RemoteProtocolError as error:
        raise BadRecord(f"transport.tcp: {error}") from None
    if not _PATH.fullmatch(path):
        raise BadRecord(f"transport.tcp is {_short(address)}, not 'host:port/path'")
    return address


def _word(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise BadRecord(f"{key} is {_short(value)}, not a name")
    return value


def _number(value: Any, key: str, largest: int) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        raise BadRecord(f"{key} is {_short(value)}, not a whole number from 0 to {largest}")
    return value


def _table(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRecord(f"{what} is {_short(value)}, not an object")
    return value


def _short(value: object) -> str:
    return repr(value)[:80]
