"""What a stream asks of the choice: this worker and no other, or not those that have failed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.errors import AllBusy, NoWorkers, WorkerUnavailable
from actors.kernel.opened import Limits as StreamLimits
from actors.messages import Route
from actors.router.member import FREE, QUARANTINED, Limits, Member
from tests.router.local_rig import GO, local_rig
from tests.router.pools import Rig
from tests.waiting import wait_until
from transport.context import Context
from transport.errors import RemoteProtocolError


def test_a_stream_avoids_those_that_failed_it() -> None:
    rig = Rig(3)
    route = {"avoid": [[1, "connection.lost"], [2, "connection.peer"]]}
    assert {rig.send(**route)[0].instance for _ in range(10)} == {3}
    assert rig.pool.members[2].state == QUARANTINED  # the newest of them
    with pytest.raises(NoWorkers, match=r"all 3 workers of t\.e\.go failed this request before"):
        rig.send(avoid=[[each, "connection.lost"] for each in (1, 2, 3)])
    assert rig.pool.free == 1  # the last one is not given up


def test_a_stream_comes_back_to_one_that_had_no_room_when_it_has() -> None:
    rig = Rig(1, capacity=2)
    with pytest.raises(AllBusy):
        rig.send(avoid=[[1, "overloaded"]])
    rig.pass_time(1.1)
    assert rig.send(avoid=[[9, "overloaded"]])[0].instance == 1


def test_what_this_router_has_seen_itself_is_not_counted_twice() -> None:
    rig = Rig(2)
    _, key = rig.send(instance=1)
    rig.end(rig.workers[0], key, "connection.lost")
    rig.pass_time(5.0)
    rig.send(avoid=[[1, "connection.lost"]])
    assert rig.pool.faults.due(1)


def test_a_pinned_stream_goes_to_its_worker_whatever_it_is() -> None:
    rig = Rig(2, limits=Limits(streams=1))
    rig.send(instance=1)
    assert rig.send(instance=1)[0].instance == 1
    assert rig.workers[0].permits == 2
    with pytest.raises(WorkerUnavailable, match=r"there are: 1, 2 .instance= names") as caught:
        rig.send(instance=5)
    assert caught.value.details["pinned"] == "yes"


@pytest.mark.parametrize(
    "avoid", [[[1]], [["1", "x"]], [[None, "x"]], [[1, "x", 2]], [5], [[True, "x"]], [[1, None]]]
)
def test_an_avoid_list_that_is_none_is_an_error_of_that_stream(avoid: list[Any]) -> None:
    rig = Rig(2)
    with pytest.raises(RemoteProtocolError, match="named by instance and error code"):
        rig.pool.choose(rig.open(avoid=avoid))
    with pytest.raises(RemoteProtocolError, match="named by instance and error code"):
        rig.send(avoid=avoid)
    assert rig.send()


def test_a_home_is_believed_about_the_attempt_that_failed_last_and_no_other() -> None:
    rig = Rig(100, "random")
    everybody = [[each, "connection.lost"] for each in range(1, 101)]
    assert rig.send(avoid=everybody)[0].instance <= 100 - 64  # as many as are looked at
    assert [each.instance for each, state in rig.pool.seen() if state != FREE] == [100]
    for _ in range(5):  # told of again it is no news
        rig.send(avoid=everybody)
    assert rig.pool.faults.until(100) == rig.now + 5.0


def test_who_waits_does_not_say_again_who_refused_it() -> None:
    """Else each look at the line would have its worker left alone anew."""
    rig = Rig(1)
    m = rig.open(avoid=[[1, "overloaded"]])
    assert m.route is not None
    rig.pool.told(m.route)
    assert rig.pool.pick(m) is None
    rig.pass_time(1.1)
    assert rig.pool.pick(m) is rig.workers[0]


def test_what_is_said_of_those_that_are_left_does_not_cost_a_look_at_each() -> None:
    rig = Rig(3, limits=Limits(streams=1))
    for _ in range(3):
        rig.send()
    with pytest.raises(AllBusy, match=r"all 2 workers are busy \(2 at the limit"):
        rig.send(avoid=[[1, "deadline"], [77, "deadline"]])
    rig.pool.members = _NoLooks(rig.pool.members)
    assert "its one worker is busy (1 at" in str(
        rig.pool.none(rig.open(avoid=[[1, "deadline"], [2, "deadline"]]))
    )


def test_candidates_cost_no_look_at_each_when_all_who_are_free_are_avoided() -> None:
    rig = Rig(3, limits=Limits(streams=1))
    rig.send(instance=2)
    avoid = [[1, "deadline"], [3, "deadline"]]
    assert [each.instance for each in rig.pool.candidates(rig.open(avoid=avoid[1:]))] == [1]
    rig.pool.members = _NoLooks(rig.pool.members)
    assert not rig.pool.candidates(rig.open(avoid=avoid))


def test_what_is_said_when_the_last_worker_has_left() -> None:
    rig = Rig(1)
    rig.pool.remove(rig.workers[0])
    assert rig.pool.busy_words().startswith("no worker of it is there any more")


class _NoLooks(dict[int, Member]):
    """Members that are found by their number alone."""

    def values(self) -> Any:
        raise AssertionError("all of them were looked at")

    __iter__ = items = values


def test_one_that_is_free_for_others_is_not_called_busy() -> None:
    rig = Rig(2, limits=Limits(streams=1))
    rig.send()
    assert "none of its 2 workers takes this stream (1 free for others; 1 at" in (
        rig.pool.busy_words()
    )


async def test_who_sends_a_list_that_is_none_is_told_so(tmp_path: Path) -> None:
    async with local_rig(tmp_path, 1) as here:
        runtime = here.runtime
        stream = runtime.home.open(
            here.router.address,
            GO,
            runtime.encode("quick", "msgpack", True, "a request"),
            many=False,
            codec="msgpack",
            native=True,
            limits=StreamLimits(None, None, None),
            context=Context("r-1"),
            named=False,
            route=Route(avoid=[5]),  # type: ignore[list-item]
        )
        await wait_until(lambda: stream.error is not None)
        assert "named by instance and error code" in str(stream.error)
        stream.settle()
