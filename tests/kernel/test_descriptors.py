"""How many descriptors a node needs, and that a lack of them is told."""

from __future__ import annotations

import resource

import pytest

from actors.kernel import descriptors


@pytest.mark.parametrize(
    ("soft", "hard", "actors", "said"),
    [
        (1024, 4096, 10, []),
        (320, 4096, 1, ["320 allowed (hard limit 4096)", "328", "32 clients", "ulimit -n 4096"]),
        (1024, 4096, 200, ["1024 allowed", "each of 200 actors", "1920", "ulimit -n 4096"]),
        (1024, 1024, 600, ["hard limit 1024", "5120", "LimitNOFILE", "ulimit -n 5120"]),
    ],
)
def test_what_is_too_little_is_told_with_numbers_and_the_next_step(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, actors: int, said: list[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    text = descriptors.scarce(actors)
    assert bool(text) == bool(said)
    for each in said:
        assert each in text


def test_what_is_enough_for_some_is_what_they_need() -> None:
    most = descriptors.fellows(4096)
    assert descriptors.needed(most, 0) <= 4096 < descriptors.needed(most + 1, 0)
    assert descriptors.fellows(10) == 0
