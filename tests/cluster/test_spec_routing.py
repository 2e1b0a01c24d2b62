"""What a spec may say of routing, and the words for what it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.plan import actor_child, record_of
from actors.cluster.spec import EngineSpec, NodeSpec, RouterSpec
from actors.errors import SpecError
from actors.router.options import Options
from actors.router.policy import MODES
from tests.cluster import spec_targets
from tests.router import policies
from transport.bus.address import Address

RATIO = "DYN_ENCODER_CUDA_TO_CPU_RATIO"
NODE = Address("node", 1, 2, 3)


def test_the_defaults_are_those_of_the_router() -> None:
    given = RouterSpec().routing()
    assert Options(**given) == Options()
    assert set(given) == {"policy", "sticky_key", "device_ratio", "busy_streams", "busy_fraction",
                          "queue", "queue_timeout", "dispatch"}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_may_be_written_as_dynamo_writes_it(mode: str) -> None:
    assert RouterSpec(policy=mode).policy == mode
    assert RouterSpec(policy=f" {mode.replace('_', '-').title()}").policy == mode


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"policy": "least_loded"}, "did you mean 'least_loaded'?"),
        ({"policy": "roundrobin"}, "did you mean 'round_robin'?"),
        ({"policy": "kv"}, "expected 'least_loaded', 'round_robin', 'random'"),
        ({"policy": ""}, "or a function of yours: 'module:attribute'"),
        ({"policy": 7}, "'module:attribute', 'file.py:attribute', or a class or function"),
        ({"policy": None}, "'module:attribute'"),
        ({"policy": "mine:"}, "'module:attribute'"),
        ({"policy": "no/such/file.py:choose"}, "no such file"),
        ({"policy": lambda workers, request: workers[0]}, "at the top of a module"),
        ({"device_ratio": 0}, "device_ratio: 0 is not allowed; expected a number above 0"),
        ({"device_ratio": -1}, "device_ratio: -1 is not allowed"),
        ({"device_ratio": "x"}, "device_ratio: 'x' is not allowed"),
        ({"device_ratio": True}, "device_ratio: True is not allowed"),
        ({"device_ratio": float("nan")}, "device_ratio: nan is not allowed"),
        ({"device_ratio": float("inf")}, "device_ratio: inf is not allowed"),
        ({"sticky_key": ""}, "sticky_key: '' is not allowed; expected a key of requests' metadata"),
        ({"sticky_key": "a\nb"}, "sticky_key"),
        ({"sticky_key": "a" * 257}, "sticky_key"),
        ({"sticky_key": None}, "sticky_key: None is not allowed"),
        ({"busy_streams": 0}, "busy_streams: 0 is not allowed"),
        ({"busy_fraction": 0}, "busy_fraction: 0 is not allowed"),
        ({"busy_fraction": -0.5}, "busy_fraction: -0.5 is not allowed"),
        ({"queue": -1}, "queue: -1 is not allowed"),
        ({"queue_timeout": 0}, "queue_timeout: 0 is not allowed"),
        ({"dispatch": "record"}, "dispatch: 'record' is not allowed"),
        ({"polici": "random"}, "routers[0].polici: unknown key; did you mean 'policy'?"),
    ],
)
def test_b114_what_is_wrong_is_refused_before_anything_starts(
    given: dict[str, Any], words: str
) -> None:
    if "polici" not in given:
        with pytest.raises(SpecError) as caught:
            RouterSpec(**given)
        assert words in str(caught.value)
        assert "RouterSpec." in str(caught.value)
    with pytest.raises(SpecError) as caught:
        NodeSpec.from_dict({"routers": [given]})
    assert words in str(caught.value)
    assert str(caught.value).startswith("routers[0].")


@pytest.mark.parametrize("value", ["0", "-1", "x", "nan", "inf"])
def test_b114_a_ratio_of_the_environment_that_is_none_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RATIO, value)
    for make in (RouterSpec, NodeSpec):
        with pytest.raises(SpecError, match=f"{RATIO}: '{value}' is no number above 0"):
            make()
    assert RouterSpec(device_ratio=4).device_ratio == 4.0  # a keyword stands above it


def test_b114_the_ratio_of_the_environment_is_told_to_the_router(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(RATIO, "2.5")
    node = NodeSpec()
    monkeypatch.setenv(RATIO, "x")  # nobody reads it again
    assert NodeSpec.from_dict(json.loads(json.dumps(node.to_dict()))) == node
    (router,) = node.instances()
    child = actor_child(
        router, cluster="c", node=node, folder="/x", supervisor=NODE, cpus=None
    )  # fmt: skip
    assert child["routing"]["device_ratio"] == 2.5


def test_a_function_is_named_so_that_the_router_can_import_it() -> None:
    assert RouterSpec(policy=policies.idlest).policy == "tests.router.policies:idlest"
    assert RouterSpec(policy="mine.policies:choose").policy == "mine.policies:choose"
    assert RouterSpec(policy=spec_targets.Shout).routing()["policy"].endswith(":Shout")


def test_files_of_a_router_are_looked_for_beside_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def choose(workers, request): return workers[0]\n")
    path = tmp_path / "cluster.toml"
    path.write_text('[[routers]]\npolicy = "mine.py:choose"\ndispatch = "mine.py:make"\n')
    (router,) = NodeSpec.from_toml(path).routers
    assert (router.policy, router.dispatch) == (
        f"{tmp_path}/mine.py:choose",
        f"{tmp_path}/mine.py:make",
    )


@pytest.mark.parametrize("place", ["process", "here"])
def test_what_an_engine_computes_on_stands_in_its_record(place: Any) -> None:
    engine = EngineSpec("a.b.c", "mine:Engine", device="cuda", place=place)
    node = NodeSpec(routers=[], engines=[engine])
    (instance,) = node.instances()
    child = actor_child(
        instance, cluster="c", node=node, folder="/x", supervisor=NODE, cpus=None
    )  # fmt: skip
    assert record_of(child, Address("e", 7, 8, 9), {}).device == "cuda"
    with pytest.raises(SpecError, match=r"EngineSpec\.device: 'a b' is not allowed"):
        EngineSpec("a.b.c", "mine:Engine", device="a b")
