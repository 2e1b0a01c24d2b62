"""``callhome up --join``: nodes that find each other in etcd, and what is said of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from actors import NodeSpec
from actors.cli.parser import parser
from actors.cli.up import _with_roads
from actors.cluster.script import load_spec
from actors.errors import SpecError
from tests.cli.tool import LIMIT, Tool, up, write_spec
from tests.e2e.test_two_nodes import Cable
from tests.e2e.test_two_nodes import cable as cable
from tests.etcd import Etcd
from tests.waiting import wait_until_sync


def spec_of(spec: str, *options: str) -> NodeSpec:
    """The spec that ``callhome up`` starts with these options."""
    return _with_roads(load_spec(spec), parser().parse_args(["up", spec, *options]))


def test_nodes_that_join_find_each_other_and_an_etcd_that_is_away_is_told(
    tool: Tool, tmp_path: Path, etcd: Etcd
) -> None:
    join = ("--join", etcd.address)
    (tmp_path / "far").mkdir()
    far = write_spec(tmp_path / "far", same="same")
    near = tmp_path / "near.toml"
    near.write_text("[settings]\nlease_ttl = 2.0\n")
    with up(tool, tmp_path / "far.log", far, "--node", "m2", "--namespace", "demo", *join) as there:
        there.wait_for(f"node m2 has joined {etcd.address} (namespace demo), and advertises 127.0.")
        wait_until_sync(lambda: etcd.get("v1/instances/"), LIMIT, "its record is written")
        (key,) = etcd.get("v1/instances/")
        assert key.startswith("v1/instances/demo/same/run/")
        etcd.kill()
        with up(tool, tmp_path / "near.log", str(near), "--node", "m1", *join) as here:
            here.wait_for("until then nodes elsewhere are not found, and do not find this one")
            here.wait_for(f"node m1 joins {etcd.address} as soon as it can, and offers no engines")
            shown = tool.run("ps").stdout
            assert "near/m1" in shown
            assert "node/m2" in shown
            wanted = f"router of near/m1: {etcd.address} cannot be used, for "
            assert any(line.startswith(wanted) for line in shown.splitlines())
            router = tool.actors("--cluster", "near")["router"]
            assert etcd.address in router["discovery"][etcd.address]
            etcd.start()
            here.wait_for("callhome stream demo.same.run JSON --cluster near\n")
            found = tool.run("call", "demo.same.run", "7", "--cluster", "near")
            assert found.stdout == "7\n"
            wait_until_sync(lambda: "etcd" not in tool.run("ps").stdout, LIMIT, "all is well")
        assert there.end(signal.SIGINT) == 130
    assert etcd.get("v1/instances/") == {}


def test_a_node_that_joins_listens_where_it_reaches_etcd(
    tmp_path: Path, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path, same="same")
    joined = spec_of(spec, "--join", f"etcd://no.such.invalid:1,{cable.there}:2379", "--node", "m")
    assert joined.name == "m"
    assert joined.etcd == f"etcd://no.such.invalid:1,{cable.there}:2379"
    assert joined.ingress is not None
    assert joined.ingress.listen == f"{cable.here}:0"
    local = spec_of(spec, "--join", "etcd://127.0.0.1:2379")
    assert local.ingress is not None
    assert local.ingress.listen == "127.0.0.1:0"
    own = spec_of(spec, "--join", f"etcd://{cable.there}:2379", "--listen", "127.0.0.1:7400")
    assert own.ingress is not None
    assert own.ingress.listen == "127.0.0.1:7400"
    monkeypatch.setenv("DYN_TCP_RPC_HOST", "127.0.0.7")
    named = spec_of(spec, "--join", f"etcd://{cable.there}:2379")
    assert named.ingress is not None
    assert named.ingress.listen == "127.0.0.7:0"
    bare = tmp_path / "bare.toml"
    bare.write_text('name = "bare"\n')
    assert spec_of(str(bare), "--join", "etcd://127.0.0.1:1").ingress is None  # nobody's door


def test_a_machine_without_a_way_to_etcd_waits_and_then_fails_as_one_to_be_started_again(
    tool: Tool, tmp_path: Path
) -> None:
    impatient = Tool(tool.run_folder)
    impatient.environ["CALLHOME_START_TIMEOUT"] = "0.4"
    spec = write_spec(tmp_path, same="same")
    done = impatient.run("up", spec, "--join", "etcd://no.such.invalid:2379")
    assert done.returncode == 1  # 2 would be a spec that never works
    waits, fails = done.stderr.splitlines()
    assert "from which 'no.such.invalid' can be reached: " in waits
    assert waits.endswith("; tried again for 0.4 s")
    assert fails.startswith("callhome: error: --join: ")
    assert fails.endswith("start it when there is a way, or give --listen HOST:PORT")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--join", "tcp://10.0.0.8:7400"], "--join: 'tcp://10.0.0.8:7400' is no etcd://host:port"),
        (["--join", "/shared/kv"], "use --peer HOST:PORT, for a folder that nodes share --direct"),
        (["--join", "etcd://h"], "--join 'h' is not of the form host:port"),
        (["--node", "../x"], "--node: '../x' is not allowed"),
        (["--namespace", "a.b"], "--namespace: 'a.b' is not allowed"),
        (["--namespace", "other"], "engines[0].endpoint: 'demo.same.run' is not in the namespace"),
    ],
)
def test_wrong_ways_to_join_are_told(tmp_path: Path, options: list[str], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(write_spec(tmp_path, same="same"), *options)
    assert words in str(caught.value)
