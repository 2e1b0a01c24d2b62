"""What an ingress tells other nodes of an engine that is not well; the verdict is the test's."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from actors.discovery.loads import FOLLOWS, OCCUPANCY, Ill, read_ill
from actors.kernel.verdicts import FROZEN, Verdict
from actors.messages import Items, Kill
from actors.notices import Warned
from tests.ingress.muxhome import MuxHome, mux_home
from tests.ingress.standin import requester
from tests.ingress.test_occupancy import GATE, both, held
from tests.ingress.test_occupancy import told as loads_told
from tests.waiting import wait_until


async def test_those_who_know_the_word_are_warned_and_the_streams_of_all_go_on(
    tmp_path: Path,
) -> None:
    async with both(tmp_path) as (at, new), AsyncExitStack() as stack:
        path = await at.engine(held, capacity=9)
        address = at.engines[0].address
        old = await stack.enter_async_context(
            mux_home(await stack.enter_async_context(requester(at.ingress.reached)))
        )
        follows = [(new, await new.ask(OCCUPANCY, FOLLOWS)), (old, await old.ask(OCCUPANCY, None))]
        streams = [(home, await home.ask(path, "item")) for home in (new, old)]
        for home, stream in follows + streams:
            await home.until(Items, stream)
        verdict = Verdict(FROZEN, time.monotonic() - 5.0, "its process is stopped")
        health = at.ingress.health
        assert health is not None
        health._looked({address.incarnation: verdict})  # and the next look finds it well again
        warned = await new.until(Warned, streams[0][1], 2)
        assert [each.code for each in warned] == ["frozen", "thawed"]
        assert f"(pid {address.pid}) behind {at.ingress.reached} is frozen" in warned[0].text
        assert "its process is stopped" in warned[0].text
        assert 5.0 <= warned[0].since <= warned[1].since < 60.0
        for home, stream in follows:  # who does not know it reads on
            await wait_until(partial(told, home, stream))
            ((instance, code, since, _),) = next(each for each in ill(home, stream) if each)
            assert (instance, code) == (address.incarnation, "frozen")
            assert since >= 5.0
        assert not old.got(Warned, streams[1][1])
        GATE[-1].set()
        for home, stream in streams:
            assert (await home.ended(stream)).error is None


async def test_who_follows_anew_is_not_told_who_was_ill_before(tmp_path: Path) -> None:
    async with both(tmp_path) as (at, home):
        await at.engine(held)
        health, incarnation = at.ingress.health, at.engines[0].address.incarnation
        assert health is not None
        health.stop()  # the looks, too, are the test's
        first = await home.ask(OCCUPANCY, FOLLOWS)
        health._looked({incarnation: Verdict(FROZEN, time.monotonic(), "its process is stopped")})
        await wait_until(partial(told, home, first))
        home.send(Kill(home.incarnation, first, "enough"))
        await wait_until(lambda: not at.ingress.loads.streams, what="nobody follows")
        second = await home.ask(OCCUPANCY, FOLLOWS)
        await wait_until(lambda: loads_told(home, second), what="the loads")
        assert not ill(home, second)


def ill(home: MuxHome, stream: int) -> list[list[Ill]]:
    """All that was told of who is ill, in order."""
    found = [read_ill(item) for item in home.items(stream)]
    return [told for told in found if told is not None]


def told(home: MuxHome, stream: int) -> bool:
    return any(ill(home, stream))
