"""Specs: three notations of one thing, and the words for every mistake in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.spec import ActorSpec, EngineSpec, IngressSpec, NodeSpec, RouterSpec
from actors.config import Settings
from actors.errors import SpecError
from tests.cluster import spec_targets
from tests.waiting import LONG

ENGINE = {"endpoint": "demo.shout.generate", "engine": "mine.engines:Shout"}

TOML = """
name = "b"

[[routers]]
policy = "round_robin"

[[engines]]
endpoint = "demo.shout.generate"
engine = "mine.engines:Shout"
replicas = 2
cpus = [1]
args = { words = ["a", 1, 2.5, true], deep = { x = 1 } }
env = { LEVEL = "high" }

[[actors]]
name = "counter"
actor = "mine.actors:Counter"
restart = "always"

[settings]
window_bytes = "8 MiB"
"""


def refused(words: list[str], data: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        NodeSpec.from_dict(data)
    for word in words:
        assert word in str(caught.value)


def test_the_defaults() -> None:
    engine = EngineSpec(endpoint="demo.shout.generate", engine="mine:Shout")
    assert (engine.replicas, engine.capacity, engine.queue) == (1, 64, 1024)
    assert (engine.restart, engine.place, engine.cpus) == ("on-failure", "process", None)
    node = NodeSpec(engines=[engine])
    assert node.routers == (RouterSpec(policy="least_loaded", name="router"),)
    assert node.settings == Settings.load()


def test_toml_python_and_json_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TOML)
    read = NodeSpec.from_toml(path)
    made = NodeSpec(
        name="b",
        routers=[RouterSpec(policy="round_robin")],
        engines=[
            EngineSpec(
                "demo.shout.generate",
                "mine.engines:Shout",
                replicas=2,
                cpus=[1],
                args={"words": ["a", 1, 2.5, True], "deep": {"x": 1}},
                env={"LEVEL": "high"},
            )
        ],
        actors=[ActorSpec("counter", actor="mine.actors:Counter", restart="always")],
        settings=Settings.load(window_bytes=8 << 20),
    )
    assert read == made
    assert NodeSpec.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_the_environment_stands_above_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TOML)
    monkeypatch.setenv("CALLHOME_WINDOW_BYTES", "4 MiB")
    assert NodeSpec.from_toml(path).settings.window_bytes == 4 << 20


def test_instances_have_unique_names_in_the_order_written() -> None:
    twice = EngineSpec("demo.shout.generate", "m:A", replicas=2)
    once = EngineSpec("demo.shout.generate", "m:A")
    named = EngineSpec("demo.shout.generate", "m:A", name="big", replicas=2)
    chat = EngineSpec("demo.chat.converse", "m:B")
    counter = ActorSpec("counter", "m:C")
    node = NodeSpec(engines=[twice, named, chat, once], actors=[counter])
    assert [(each.name, each.role) for each in node.instances()] == [
        ("router", "router"),
        ("demo.shout.generate-0", "engine"),
        ("demo.shout.generate-1", "engine"),
        ("big-0", "engine"),
        ("big-1", "engine"),
        ("demo.chat.converse", "engine"),
        ("demo.shout.generate-2", "engine"),
        ("counter", "actor"),
    ]
    assert node.instances()[6].spec is once


def test_a_node_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeSpec(listen="127.0.0.1:7400", peers=["10.0.0.8:7400", "[::1]:7400"])
    assert node.ingress == IngressSpec("127.0.0.1:7400")
    assert node == NodeSpec(
        ingress=IngressSpec("127.0.0.1:7400"), listen=node.listen, peers=node.peers
    )
    assert [(each.name, each.role) for each in node.instances()] == [
        ("router", "router"),
        ("ingress", "ingress"),
    ]
    assert (node.ingress.restart, node.ingress.place) == ("always", "process")
    monkeypatch.setenv("DYN_TCP_RPC_PORT", "7411")
    assert NodeSpec.from_dict(json.loads(json.dumps(node.to_dict()))) == node
    assert IngressSpec().listen == "127.0.0.1:7411"
    assert NodeSpec(ingress=IngressSpec(advertise="10.0.0.7")).listen == ""
    assert NodeSpec().ingress is None
    assert IngressSpec(advertise="[::1]:9").advertise == "[::1]:9"
    assert IngressSpec(advertise="fe80::1").advertise == "fe80::1"


def test_peers_may_be_written_as_they_are_connected_to() -> None:
    assert NodeSpec(peers=["tcp://a:1", "b:2"]).peers == ("a:1", "b:2")


def test_a_port_for_calls_home_is_one_routers_only() -> None:
    fixed = Settings(call_home_port=7500)
    two = [RouterSpec(), RouterSpec(name="second")]
    with pytest.raises(SpecError, match=r"NodeSpec.settings.call_home_port: 7500 can be one r"):
        NodeSpec(routers=two, peers=["a:1"], settings=fixed)
    with pytest.raises(SpecError, match="call_home_port"):
        NodeSpec(routers=two, directory="/shared/kv", settings=fixed)
    with pytest.raises(SpecError, match="call_home_port"):
        NodeSpec(routers=two, etcd="etcd://h:1", settings=fixed)
    NodeSpec(routers=two, settings=fixed)
    NodeSpec(peers=["a:1"], settings=fixed)


def test_engines_are_of_the_namespace_of_their_node() -> None:
    names = ("red.shout.go", "redder.shout.go")
    engines = [EngineSpec(name, spec_targets.Shout) for name in names]
    assert NodeSpec(engines=engines[:1], namespace="red").namespace == "red"
    with pytest.raises(SpecError) as caught:
        NodeSpec(engines=engines, namespace="red")
    assert str(caught.value).startswith(
        "NodeSpec.engines[1].endpoint: 'redder.shout.go' is not in the namespace of its node, 'red'"
    )
    with pytest.raises(SpecError, match=r"namespace: 'red\.shout' is not allowed"):
        NodeSpec(namespace="red.shout")


def test_a_shared_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NodeSpec().directory == ""
    path = tmp_path / "cluster.toml"
    path.write_text('directory = "kv"\nlisten = "127.0.0.1:0"\n[ingress]\nlisten = "127.0.0.1:0"')
    node = NodeSpec.from_toml(path)
    assert node.directory == str(tmp_path / "kv")
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "file")
    monkeypatch.setenv("DYN_FILE_KV", "/shared/kv")
    assert NodeSpec().directory == "/shared/kv"
    assert NodeSpec(directory="").directory == ""
    assert NodeSpec.from_dict(node.to_dict()).directory == str(tmp_path / "kv")


def test_classes_and_functions_are_kept_as_text() -> None:
    module = "tests.cluster.spec_targets"
    engine = EngineSpec("a.b.c", spec_targets.Shout, adapter=spec_targets.length)
    assert engine.target == f"{module}:Shout"
    assert engine.adapter_target == f"{module}:length"
    assert ActorSpec("x", spec_targets.Shout.Inner).target == f"{module}:Shout.Inner"
    assert EngineSpec("a.b.c", "m:A").adapter_target is None


def test_files_named_in_toml_stand_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    path = tmp_path / "cluster.toml"
    path.write_text('[[engines]]\nendpoint = "a.b.c"\nengine = "mine.py:Mine"\n')
    assert NodeSpec.from_toml(path).engines[0].target == f"{tmp_path}/mine.py:Mine"


def test_a_class_without_an_importable_home_is_refused() -> None:
    class Local:
        """Lives inside a function."""

    with pytest.raises(SpecError, match=r"EngineSpec\.engine: .*top of a module"):
        EngineSpec("a.b.c", Local)
    with pytest.raises(SpecError, match=r"EngineSpec\.engine: .*top of a module"):
        EngineSpec("a.b.c", lambda request, ctx: None)
    stray = type("Stray", (), {"__module__": "typed_at_a_prompt"})
    with pytest.raises(SpecError, match="defined in no file"):
        EngineSpec("a.b.c", stray)


def test_a_script_on_stdin_is_no_file() -> None:
    script = """
from actors import EngineSpec
async def echo(request, ctx): return request
EngineSpec("a.b.c", echo)
"""
    done = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, timeout=LONG
    )
    assert "EngineSpec.engine: echo was defined in no file" in done.stderr.splitlines()[-1]
    assert "define the function in a module" in done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"endpoint": "demo.shout"}, ["engines[1].endpoint", "namespace.component.endpoint"]),
        ({"endpoint": "a.b.c/d"}, ["engines[1].endpoint", "'a.b.c/d'"]),
        ({"endpoint": None}, ["engines[1].endpoint", "None"]),
        ({"engine": "Shout"}, ["engines[1].engine", "'Shout'", "module:attribute"]),
        ({"engine": "mine:"}, ["engines[1].engine"]),
        ({"engine": 7}, ["engines[1].engine", "7"]),
        ({"engine": "missing.py:Shout"}, ["engines[1].engine", "no such file", "missing.py"]),
        ({"adapter": "x"}, ["engines[1].adapter"]),
        ({"replicas": 0}, ["engines[1].replicas", "from 1 to 1024"]),
        ({"capacity": "many"}, ["engines[1].capacity", "'many'", "whole number"]),
        ({"queue": -1}, ["engines[1].queue", "-1"]),
        ({"cpus": 1}, ["engines[1].cpus", "[0, 1]"]),
        ({"cpus": []}, ["engines[1].cpus"]),
        ({"cpus": [0, "x"]}, ["engines[1].cpus[1]", "'x'"]),
        ({"cpus": [1, 1]}, ["engines[1].cpus", "each core once"]),
        ({"restart": "allways"}, ["engines[1].restart", "did you mean 'always'"]),
        ({"args": {"x": {"y": [1, {2}]}}}, ["engines[1].args.x.y[1]", "{2}"]),
        ({"args": {"no way": 1}}, ["engines[1].args", "'no way'"]),
        ({"env": {"A": 1}}, ["engines[1].env.A", "text"]),
        ({"env": {"A=B": "x"}}, ["engines[1].env", "'A=B'"]),
        ({"name": "a/b"}, ["engines[1].name", "'a/b'"]),
        ({"place": "there"}, ["engines[1].place", "'process' or 'here'"]),
        ({"place": "here", "cpus": [0]}, ["engines[1].cpus", "place='here'"]),
        ({"place": "here", "env": {"A": "b"}}, ["engines[1].env", "place='here'"]),
        ({"place": "here", "essential": True}, ["engines[1].essential", "place='here'"]),
        ({"essential": "often"}, ["engines[1].essential", "true or false"]),
        ({"capacty": 3}, ["engines[1].capacty", "unknown key", "did you mean 'capacity'"]),
    ],
)
def test_a_wrong_field_is_named_by_its_path(change: dict[str, Any], words: list[str]) -> None:
    refused(words, {"engines": [ENGINE, ENGINE | change]})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"engine": []}, ["engine: unknown key", "did you mean 'engines'"]),
        ({"engines": {}}, ["engines", "a list of EngineSpec"]),
        ({"engines": ["x"]}, ["engines[0]", "a table"]),
        ({"engines": [{"engine": "m:A"}]}, ["engines[0].endpoint: missing"]),
        ({"routers": [{"policy": "lest_loaded"}]}, ["routers[0].policy", "'least_loaded'"]),
        ({"routers": [{}, {}]}, ["routers[1].name", "'router'", "routers[0].name"]),
        ({"actors": [{"name": "x"}]}, ["actors[0].actor: missing"]),
        ({"actors": [{"name": "router", "actor": "m:A"}]}, ["actors[0].name", "routers[0].name"]),
        ({"actors": [{"name": "node", "actor": "m:A"}]}, ["actors[0].name", "the node itself"]),
        ({"name": ""}, ["name", "a name of 1 to 40 letters"]),
        ({"name": "x" * 41}, ["name", "a name of 1 to 40 letters"]),
        ({"actors": [{"name": "x" * 81, "actor": "m:A"}]}, ["actors[0].name", "1 to 80 letters"]),
        ({"settings": {"windw_items": 1}}, ["settings.windw_items", "'window_items'"]),
        ({"lisen": "127.0.0.1:1"}, ["lisen: unknown key", "'listen'"]),
        ({"listen": "7400"}, ["listen", "'7400'", "'host:port'"]),
        ({"listen": 7400}, ["listen", "7400", "'host:port'"]),
        ({"listen": "a:1", "ingress": {"listen": "a:2"}}, ["listen: 'a:1'", "ingress.listen"]),
        ({"ingress": "a:1"}, ["ingress", "a table"]),
        ({"ingress": {"port": 1}}, ["ingress.port: unknown key"]),
        ({"ingress": {"listen": "a"}}, ["ingress.listen", "'host:port'"]),
        ({"ingress": {"advertise": "a b"}}, ["ingress.advertise", "without a port"]),
        ({"ingress": {"advertise": "0.0.0.0:1"}}, ["ingress.advertise", "names no host"]),
        ({"ingress": {"advertise": 5}}, ["ingress.advertise", "a host, or 'host:port'"]),
        ({"ingress": {"place": "here", "cpus": [1]}}, ["ingress.cpus", "place='here'"]),
        ({"ingress": {"name": "router"}}, ["ingress.name", "routers[0].name"]),
        ({"peers": "a:1"}, ["peers", "a list of 'host:port'"]),
        ({"peers": ["a:1", "a"]}, ["peers[1]", "host:port"]),
        ({"peers": ["a:0"]}, ["peers[0]", "host:port"]),
        ({"peers": ["0.0.0.0:1"]}, ["peers[0]", "names no host"]),
        ({"peers": ["a:1", "a:1"]}, ["peers[1]", "stands twice"]),
        ({"peers": ["a:1", "tcp://a:1"]}, ["peers[1]", "stands twice"]),
        ({"peers": ["a:65536"]}, ["peers[0]", "'a:65536'", "a port is at most 65535"]),
        ({"peers": ["[::1]:999999"]}, ["peers[0]", "a port is at most 65535"]),
        ({"directory": "/etc/passwd"}, ["directory", "'/etc/passwd' is no folder"]),
        ({"directory": "/etc/passwd/kv"}, ["directory", "'/etc/passwd' is no folder"]),
        ({"peers": [7]}, ["peers[0]", "7"]),
        ({"directory": 7}, ["directory", "the path of a folder"]),
    ],
)
def test_a_wrong_node_is_named_by_its_path(data: dict[str, Any], words: list[str]) -> None:
    refused(words, data)


def test_python_names_the_class() -> None:
    with pytest.raises(SpecError, match=r"^EngineSpec\.capacity: 0 is not allowed"):
        EngineSpec("a.b.c", "m:A", capacity=0)
    engine = EngineSpec("a.b.c", "m:A", name="x")
    with pytest.raises(SpecError, match=r"^NodeSpec\.engines\[1\]\.name: the name 'x' is taken"):
        NodeSpec(engines=[engine, engine])
    with pytest.raises(SpecError, match=r"^NodeSpec\.engines\[0\]: 5 is not allowed"):
        NodeSpec(engines=[5])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = x\n", ["cluster.toml", "line 1"]),
        ("[settings]\nmailbox = 0\n", ["cluster.toml: settings.mailbox", "0"]),
        ("[[engines]]\nendpoint = 'a'\nengine = 'm:A'\n", ["cluster.toml: engines[0].endpoint"]),
        ("engines = 3\n", ["cluster.toml: engines", "a list"]),
        ("\x00", ["cluster.toml"]),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        NodeSpec.from_toml(path)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.toml"):
        NodeSpec.from_toml(tmp_path / "gone.toml")
