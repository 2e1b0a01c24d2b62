"""Which device of the host an engine has, and that a router tells one from another."""

from __future__ import annotations

import json

import pytest

from actors import Cluster, EngineSpec, NodeSpec
from actors.cluster.devices import device_id
from actors.discovery.record import BadRecord, pack_record, read_record
from actors.messages import Record
from transport.bus.address import Address


@pytest.mark.parametrize(
    ("device", "environ", "told"),
    [
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0"}, "cuda:0"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": " 2, 3 "}, "cuda:2,3"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1,-1,2"}, "cuda:1"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, "GPU-8932f937"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "MIG-GPU-1/2/0"}, "MIG-GPU-1/2/0"),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "-1"}, ""),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "a b"}, ""),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "é"}, ""),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1," * 200}, ""),
        ("cuda", {}, ""),
        ("rocm", {"HIP_VISIBLE_DEVICES": "1"}, "rocm:1"),
        ("rocm", {"ROCR_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "0"}, "rocm:3"),
        ("cpu", {"CUDA_VISIBLE_DEVICES": "0"}, ""),
        ("", {"CUDA_VISIBLE_DEVICES": "0"}, ""),
    ],
)
def test_a_device_is_called_as_its_host_calls_it(
    device: str, environ: dict[str, str], told: str
) -> None:
    assert device_id(device, environ) == told


async def test_b162_two_engines_on_device_0_of_their_own_are_on_two_devices() -> None:
    spec = NodeSpec(
        engines=[
            EngineSpec(
                "t.gpu.go",
                "tests.cluster.workers:Echo",
                name=f"gpu{number}",
                device="cuda",
                env={"CUDA_VISIBLE_DEVICES": str(number)},
            )
            for number in (0, 1)
        ]
    )
    async with Cluster(spec) as cluster, cluster.client() as client:
        workers = await client.workers("t.gpu.go")
        assert sorted(each.device_id for each in workers) == ["cuda:0", "cuda:1"]
        assert {each.device for each in workers} == {"cuda"}


def test_b162_other_nodes_are_told_which_device_it_is() -> None:
    record = Record(
        5, Address("e", 5, 1, 2), "engine", "n.c.e", device="cuda", device_id="GPU-8932f937"
    )
    data = json.loads(json.dumps(pack_record(record, "127.0.0.1:80", 7)))
    assert read_record(data).device_id == "GPU-8932f937"
    for wrong in ("a b", 7, "x" * 201, None):
        data["callhome"]["device_id"] = wrong
        with pytest.raises(BadRecord, match="device_id"):
            read_record(data)
