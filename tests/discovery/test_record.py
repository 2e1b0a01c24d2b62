"""Records as JSON: Dynamo's are read, ours come back whole, anything else is refused with words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.discovery.files import file_name
from actors.discovery.record import (
    SPEAKS,
    BadRecord,
    pack_record,
    read_record,
    routing_path,
    within,
)
from actors.messages import Record
from tests.discovery.samples import DYNAMO, dynamo, engine
from transport.bus.address import Address
from transport.wire.codec import decode, encode


def test_a_record_of_dynamo() -> None:
    assert read_record(json.loads(DYNAMO)) == Record(
        instance=401342572738012927,
        address=Address("bench.worker.generate@127.0.0.1:41525", 401342572738012927, 0, 0),
        kind="engine",
        endpoint="bench.worker.generate",
        codec="msgpack",
        via="127.0.0.1:41525/591daf1894a66ff/bench/worker/generate",
        device="cuda",
    )


def test_ours_comes_back_and_is_dynamos_with_a_field_more() -> None:
    own = engine(0x591DAF1894A66FF)._replace(many=True, codec="json")
    data = json.loads(json.dumps(pack_record(own, "10.0.0.7:7400", 0xABC)))
    assert data.pop("callhome") == {
        "speaks": SPEAKS,
        "ingress": "abc",
        "many": True,
        "capacity": 8,
        "device": "",
    }
    assert data == {
        "type": "Endpoint",
        "namespace": "demo",
        "component": "shout",
        "endpoint": "generate",
        "instance_id": own.instance,
        "transport": {"tcp": f"10.0.0.7:7400/{routing_path(own)}"},
        "request_plane_codec": "json",
    }
    found = read_record(pack_record(own, "10.0.0.7:7400", 0xABC))
    assert (found.many, found.capacity, found.codec) == (True, 8, "json")
    assert (found.speaks, found.instance) == (SPEAKS, own.instance)
    assert found.via == "10.0.0.7:7400/591daf1894a66ff/demo/shout/generate"


@pytest.mark.parametrize(
    ("device", "known"), [("cpu", "cpu"), ("cuda", "cuda"), ("tpu-v6", None), ("CPU", None)]
)
def test_a_device_is_told_to_all_and_to_dynamo_in_its_words_only(
    device: str, known: str | None
) -> None:
    data = json.loads(json.dumps(pack_record(engine(7)._replace(device=device), "h:1", 0xABC)))
    assert data.get("device_type") == known
    assert read_record(data).device == device


def test_b114_a_device_that_is_not_told_or_told_in_other_words_is_unknown() -> None:
    assert read_record(dynamo(device_type="cpu")).device == "cpu"
    for said in (None, "", {"other": "npu"}, 7, "a b", "x" * 41):
        assert read_record(dynamo(device_type=said)).device == ""
    assert read_record(dynamo(device_type="cuda", callhome={"device": "gaudi"})).device == "gaudi"
    assert read_record(dynamo(device_type="cuda", callhome={})).device == "cuda"


def test_conformance_37_a_codec_that_is_not_told_is_json() -> None:
    data = dynamo()
    del data["request_plane_codec"]
    assert read_record(data).codec == "json"
    assert read_record(dynamo(request_plane_codec=None)).codec == "json"


def test_a_later_version_of_ours_is_read_as_far_as_it_goes() -> None:
    data = dynamo(callhome={"speaks": "callhome9", "many": True, "capacity": 3, "new": [1]})
    found = read_record(data)
    assert (found.speaks, found.many, found.capacity) == ("", True, 3)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "the record is []"),
        (None, "the record is None"),
        (dynamo(type="Model"), "type is 'Model'"),
        (dynamo(namespace=""), "namespace is ''"),
        (dynamo(component="a/b"), "component is 'a/b'"),
        (dynamo(endpoint="x\ny"), "endpoint is"),
        (dynamo(endpoint="x" * 256), "endpoint is"),
        (dynamo(endpoint=7), "endpoint is 7"),
        (dynamo(instance_id=-1), "instance_id is -1"),
        (dynamo(instance_id=1 << 64), "instance_id is"),
        (dynamo(instance_id=True), "instance_id is True"),
        (dynamo(instance_id=1.0), "instance_id is 1.0"),
        (dynamo(transport="tcp"), "transport is 'tcp'"),
        (dynamo(transport={"nats_tcp": "x"}), "its transport is 'nats_tcp', not tcp"),
        (dynamo(transport={"tcp": "127.0.0.1:1"}), "host:port/path"),
        (dynamo(transport={"tcp": "127.0.0.1:0/a/b"}), "host:port"),
        (dynamo(transport={"tcp": "0.0.0.0:7400/a/b"}), "names no host"),
        (dynamo(transport={"tcp": "127.0.0.1/a"}), "host:port"),
        (dynamo(transport={"tcp": "h:1/" + "x" * 1025}), "not 'host:port/path'"),
        (dynamo(transport={"tcp": "h:99999/a"}), "65535"),
        (dynamo(transport={"tcp": "h:1/a\ud800"}), "not 'host:port/path'"),
        (dynamo(namespace="a\ud800"), "namespace is"),
        (dynamo(endpoint="a\udfff"), "endpoint is"),
        (dynamo(request_plane_codec="xml"), "request_plane_codec is 'xml'"),
        (dynamo(request_plane_codec=["msgpack"]), "request_plane_codec is"),
        (dynamo(callhome="callhome1"), "callhome is 'callhome1'"),
        (dynamo(callhome={"many": 1}), "callhome.many is 1"),
        (dynamo(callhome={"capacity": -1}), "callhome.capacity is -1"),
        (dynamo(callhome={"device": 7}), "callhome.device is 7"),
        (dynamo(callhome={"device": None}), "callhome.device is None"),
        (dynamo(callhome={"device": "a b"}), "callhome.device is 'a b'"),
    ],
)
def test_what_does_not_hold_is_refused_with_its_field(data: Any, words: str) -> None:
    with pytest.raises(BadRecord) as caught:
        read_record(data)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("host", ["\ud800", "a\x00b", "böse.example", "a" * 64 + ".example"])
def test_a_host_that_nobody_can_look_up_is_refused(host: str) -> None:
    with pytest.raises(BadRecord):
        read_record(dynamo(transport={"tcp": f"{host}:7400/a/b"}))


@pytest.mark.parametrize("name", ["ä", "\x9f", "深い", "\ufdd0"])
def test_whatever_is_read_can_be_written_and_told(name: str) -> None:
    found = read_record(dynamo(namespace=name, transport={"tcp": f"h:1/{name}"}))
    decode(encode([found.endpoint, found.via]))
    assert file_name(found.endpoint, found.instance).isascii()


def test_a_namespace_is_the_whole_first_word_of_an_endpoint() -> None:
    assert within("red.who.go", "red")
    assert within("red.who.go", "")
    assert not within("reddish.who.go", "red")
    assert not within("re.who.go", "red")
