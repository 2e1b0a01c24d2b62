"""Variables of Dynamo's environment: honoured below our own, refused by name when they ask for
what is not spoken here.
"""

from __future__ import annotations

import logging

import pytest

from actors import NodeSpec, dynamo
from actors.config import MIB, Settings
from actors.dynamo import directory_of, etcd_of, listen_of
from actors.errors import SpecError


def test_each_variable_sets_ours() -> None:
    environ = {
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_REQUEST_PLANE_CODEC": "json",
        "DYN_RESPONSE_PLANE": "tcp",
        "DYN_TCP_MAX_MESSAGE_SIZE": "1048576",
        "DYN_TCP_REQUEST_TIMEOUT": "7",
        "DYN_TCP_CONNECT_TIMEOUT": "3",
        "DYN_TCP_POOL_SIZE": "100",
        "DYN_TCP_CHANNEL_BUFFER": "50",
        "DYN_TCP_GLOBAL_CONNECT_LIMIT": "12",
        "DYN_TCP_HOST_IDLE_TTL_SECS": "60",
        "DYN_TCP_WORKER_POOL_SIZE": "1500",
        "DYN_TCP_WORK_QUEUE_SIZE": "6000",
        "DYN_TCP_RESPONSE_STREAM_HOST": "10.0.0.7",
        "DYN_TCP_RESPONSE_STREAM_PORT": "9000",
        "DYN_TCP_LATENCY_TRACE": "1",
        "ETCD_LEASE_TTL": "10",
    }
    settings = Settings.load(environ=environ)
    assert settings == Settings(
        codec="json",
        max_message=MIB,
        ack_timeout=7,
        connect_timeout=3,
        request_pool=100,
        request_depth=50,
        request_connects=12,
        host_idle=60,
        ingress_pool=1500,
        ingress_queue=6000,
        call_home_host="10.0.0.7",
        call_home_port=9000,
    )


def test_ours_stand_above_dynamos_and_those_above_a_table() -> None:
    environ = {"DYN_TCP_POOL_SIZE": "2", "CALLHOME_REQUEST_POOL": "3"}
    assert Settings.load({"request_pool": 1}, environ=environ).request_pool == 3
    del environ["CALLHOME_REQUEST_POOL"]
    assert Settings.load({"request_pool": 1}, environ=environ).request_pool == 2
    assert Settings.load({"request_pool": 1}, environ={}).request_pool == 1
    assert Settings.load({"request_pool": 1}, environ={"DYN_TCP_POOL_SIZE": ""}).request_pool == 1


def test_a_wrong_value_names_its_variable() -> None:
    with pytest.raises(SpecError, match=r"^DYN_TCP_POOL_SIZE: 'many' is not allowed"):
        Settings.load(environ={"DYN_TCP_POOL_SIZE": "many"})


def test_a_wrong_codec_is_told_once_and_msgpack(caplog: pytest.LogCaptureFixture) -> None:
    dynamo._warn_once.cache_clear()
    environ = {"DYN_REQUEST_PLANE_CODEC": "xml", "DYN_REQUEST_PLANE": "http"}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert Settings.load({"codec": "json"}, environ=environ).codec == "msgpack"
    assert [record.getMessage()[:29] for record in caplog.records] == [
        "DYN_REQUEST_PLANE='http' is n",
        "DYN_REQUEST_PLANE_CODEC='xml'",
    ]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"DYN_REQUEST_PLANE": "nats"}, "DYN_REQUEST_PLANE: 'nats'"),
        ({"DYN_RESPONSE_PLANE": "quic"}, "DYN_RESPONSE_PLANE: 'quic'"),
        ({"DYN_RESPONSE_PLANE": "TCP"}, "DYN_RESPONSE_PLANE: 'TCP'"),
        ({"DYN_RESPONSE_PLANE": ""}, "DYN_RESPONSE_PLANE: ''"),
    ],
)
def test_a_plane_not_spoken_here_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        Settings.load(environ=environ)
    assert str(caught.value).startswith(words)
    assert "tcp" in str(caught.value)


def test_where_an_ingress_listens() -> None:
    assert listen_of({}) == "127.0.0.1:0"
    assert listen_of({"DYN_TCP_RPC_HOST": "10.0.0.7"}) == "10.0.0.7:0"
    assert listen_of({"DYN_TCP_RPC_HOST": "::1", "DYN_TCP_RPC_PORT": "7400"}) == "[::1]:7400"


def test_where_a_fleet_writes_its_records() -> None:
    assert directory_of({}) == ""
    assert directory_of({"DYN_DISCOVERY_BACKEND": "etcd", "DYN_FILE_KV": "/kv"}) == ""
    assert directory_of({"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": "/kv"}) == "/kv"
    environ = {"DYN_DISCOVERY_BACKEND": "file", "TMPDIR": "/var/tmp"}
    assert directory_of(environ) == "/var/tmp/dynamo_store_kv"


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("http://10.0.0.1:2379", "10.0.0.1:2379"),
        ("10.0.0.1:2379", "10.0.0.1:2379"),
        ("HTTP://etcd-0.etcd:2379/", "etcd-0.etcd:2379"),
        ("http://[::1]:2379/prefix", "[::1]:2379"),
        ("etcd://10.0.0.1:2379", "10.0.0.1:2379"),
        (" http://a:1, b:2/ ,http://a:1, ", "a:1,b:2"),
        ("", "127.0.0.1:2379"),
        (" , ", "127.0.0.1:2379"),
    ],
)
def test_where_a_fleet_has_its_etcd(named: str, found: str) -> None:
    environ = {"DYN_DISCOVERY_BACKEND": "etcd", "ETCD_ENDPOINTS": named}
    assert etcd_of(environ) == f"etcd://{found}"
    spec = NodeSpec(etcd=etcd_of(environ))
    assert spec.etcd == f"etcd://{found}"


def test_etcd_is_used_where_somebody_says_so() -> None:
    assert etcd_of({}) == ""
    assert etcd_of({"ETCD_LEASE_TTL": "10", "DYN_DISCOVERY_BACKEND": ""}) == ""
    assert etcd_of({"DYN_DISCOVERY_BACKEND": "etcd"}) == "etcd://127.0.0.1:2379"
    assert etcd_of({"ETCD_ENDPOINTS": "http://a:1"}) == "etcd://a:1"
    assert etcd_of({"DYN_DISCOVERY_BACKEND": "file", "ETCD_ENDPOINTS": "http://a:1"}) == ""


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"ETCD_ENDPOINTS": "https://a:1"}, r"ETCD_ENDPOINTS: 'https://a:1': .* TLS"),
        ({"ETCD_ENDPOINTS": "http://a:1,HTTPS://b:1"}, r"ETCD_ENDPOINTS: 'HTTPS://b:1': .* TLS"),
        ({"ETCD_ENDPOINTS": "unix:///run/etcd"}, r"ETCD_ENDPOINTS: 'unix:///run/etcd' is not"),
        ({"ETCD_ENDPOINTS": "http://a"}, r"ETCD_ENDPOINTS 'a' is not of the form host:port"),
        ({"ETCD_ENDPOINTS": "a:1;b:2"}, r"ETCD_ENDPOINTS 'a:1;b:2' "),
        (
            {"ETCD_ENDPOINTS": "http://me:word@a:1"},
            r"ETCD_ENDPOINTS names a user; give ETCD_AUTH_USERNAME[^@]*$",
        ),
        ({"ETCD_ENDPOINTS": "a:1", "ETCD_AUTH_CA": "/ca.pem"}, r"ETCD_AUTH_CA: .* TLS"),
        (
            {"DYN_DISCOVERY_BACKEND": "etcd", "ETCD_AUTH_CLIENT_CERT": "/me.pem"},
            r"ETCD_AUTH_CLIENT_CERT: .* TLS",
        ),
    ],
)
def test_an_etcd_that_cannot_be_reached_is_refused_by_its_variable(
    environ: dict[str, str], words: str
) -> None:
    with pytest.raises(SpecError, match=f"^{words}"):
        etcd_of(environ)


def test_variables_of_an_etcd_that_is_not_asked_for_say_nothing() -> None:
    environ = {"ETCD_ENDPOINTS": "https://a:1", "ETCD_AUTH_CA": "/ca.pem"}
    assert etcd_of({**environ, "DYN_DISCOVERY_BACKEND": "file"}) == ""
    assert etcd_of({"ETCD_AUTH_CA": "/ca.pem"}) == ""


@pytest.mark.parametrize("backend", ["kubernetes", "mem", "nats", "ETCD"])
def test_a_fleet_that_cannot_be_found_is_told_once(
    backend: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamo._warn_once.cache_clear()
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", backend)
    monkeypatch.setenv("ETCD_ENDPOINTS", "https://a:1")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            spec = NodeSpec()
            assert (spec.etcd, spec.directory) == ("", "")
        assert len(caplog.records) == 1
        assert caplog.records[0].getMessage().startswith(f"DYN_DISCOVERY_BACKEND={backend!r} ")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert NodeSpec(etcd="etcd://a:1").etcd == "etcd://a:1"
    assert not caplog.records


def test_a_node_without_an_etcd_of_its_own_takes_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "etcd")
    monkeypatch.setenv("ETCD_ENDPOINTS", "http://a:1,http://b:2")
    assert NodeSpec().etcd == "etcd://a:1,b:2"
    assert NodeSpec(etcd="").etcd == ""
    assert NodeSpec(etcd="etcd://c:3").etcd == "etcd://c:3"
