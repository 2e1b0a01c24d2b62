"""Records and files of records for the tests of discovery."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from actors.discovery.files import file_name, instances_folder
from actors.messages import Record
from transport.bus.address import Address

#: As a worker of Dynamo 1.6.1 wrote it.
DYNAMO = (
    '{"type":"Endpoint","component":"worker","endpoint":"generate","namespace":"bench",'
    '"instance_id":401342572738012927,'
    '"transport":{"tcp":"127.0.0.1:41525/591daf1894a66ff/bench/worker/generate"},'
    '"device_type":"cuda","request_plane_codec":"msgpack"}'
)
DYNAMO_NAME = "bench%2Fworker%2Fgenerate%2F591daf1894a66ff"


def engine(instance: int, endpoint: str = "demo.shout.generate", capacity: int = 8) -> Record:
    """The record of an engine on the own node."""
    address = Address(f"engine-{instance}", instance, 100 + instance, 1)
    return Record(instance, address, "engine", endpoint, capacity=capacity)


def far(
    instance: int, reached: str = "10.0.0.7:7400", endpoint: str = "demo.shout.generate"
) -> Record:
    """The record of an engine on another node."""
    via = f"{reached}/{instance:x}/{endpoint.replace('.', '/')}"
    address = Address(f"{endpoint}@{reached}", instance, 0, 0)
    return Record(instance, address, "engine", endpoint, via=via, speaks="callhome1")


def door(instance: int, reached: str) -> Record:
    """The record of an ingress on the own node."""
    return Record(instance, Address("ingress", instance, 9, 1), "ingress", via=reached)


def dynamo(**changed: Any) -> dict[str, Any]:
    """A record of Dynamo's with other fields."""
    record: dict[str, Any] = json.loads(DYNAMO)
    return record | changed


def put(directory: Path, data: Any, name: str | None = None) -> Path:
    """Write a record file as somebody else would; its path."""
    folder = Path(instances_folder(str(directory)))
    folder.mkdir(parents=True, exist_ok=True)
    if name is None:
        endpoint = ".".join(data[key] for key in ("namespace", "component", "endpoint"))
        name = file_name(endpoint, data["instance_id"])
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    temporary = directory / "new"
    temporary.write_bytes(content)
    os.replace(temporary, folder / name)
    return folder / name
