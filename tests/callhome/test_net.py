"""What the connections of one loop share."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.callhome.sockets import Heard, a_net, a_pair, read_all, two_links
from tests.waiting import LONG, TICK, wait_until
from transport.callhome.link import Link


async def test_a_net_waits_for_links_that_are_closing() -> None:
    with a_net() as net, a_pair(net) as (link, peer):
        link.write(bytes(4 << 20))
        link.close()
        reading = asyncio.ensure_future(read_all(peer))
        closing = asyncio.ensure_future(net.wait_closed(LONG))
        assert len(await reading) == 4 << 20
        peer.close()
        await closing
        assert net.links == set()


async def test_the_slow_look_forgets_links_whose_bytes_have_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transport.callhome.net._LOOK", TICK / 10)
    asked: list[Link] = []
    examine = Link.examine

    def counting(link: Link) -> bool:
        asked.append(link)
        return examine(link)

    monkeypatch.setattr(Link, "examine", counting)
    with a_net() as net:
        one, two = two_links(net)
        heard = Heard(two)
        one.write(b"hello")
        await heard.wait_bytes(5)
        await wait_until(lambda: one in asked and net._looking is None)
        assert net._unsure == set()


async def test_complaints_are_counted_and_come_once_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_net() as net, caplog.at_level(logging.WARNING):
        for number in range(100):
            net.complain("some.thing", f"trouble {number}")
        net.complain("other.thing", "other trouble")
        assert [record.message for record in caplog.records] == ["trouble 0", "other trouble"]
        assert net.counters == {"some.thing": 100, "other.thing": 1}
        monkeypatch.setattr("transport.callhome.net._QUIET", 0.0)
        net.complain("some.thing", "trouble again")
        assert caplog.records[-1].message == "trouble again (and 99 more like this before it)"
        assert net.statistics()["some.thing"] == 101


async def test_links_that_were_flushed_already_are_not_flushed_again() -> None:
    with a_net() as net, a_pair(net) as (link, _):
        for _ in range(10):
            link.write(b"x")
            link.flush()
        assert net.writes == 10
        await asyncio.sleep(0)
        assert (net.writes, link.dirty) == (10, False)


async def test_room_for_large_frames_is_kept_once() -> None:
    with a_net() as net:
        one, two = net.borrow_room(1000), net.borrow_room(500)
        assert (len(one), len(two)) == (1000, 500)
        net.return_room(two)
        net.return_room(one)
        assert net.borrow_room(900) is one
        assert len(net.borrow_room(10)) == 10


async def test_a_closed_net_has_no_links_and_no_timer() -> None:
    with a_net() as net:
        one, two = two_links(net)
        heard = Heard(two)
        one.write(b"x")
        await heard.wait_bytes(1)
        net.close()
        net.close()
        assert net.links == set()
        assert net._looking is None
        assert heard.ends == []
        one.write(b"nothing")
        one.close()
