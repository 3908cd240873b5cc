"""Pains of others: machines bought, torn down or waited for because somebody misread silence, a quota or a lost answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.rig import Rig
from tests.real import training_plain
from tests.support.bought import PACE, World, job, market
from windfall.errors import ProviderUnreachable
from windfall.events import Fact
from windfall.fleet import JobPhase, MachineSilent

HOUR_S = 3600.0


def facts(world: World, kind: type[Fact]) -> list[Fact]:
    return [fact for row in world.rows() for fact in row.facts if isinstance(fact, kind)]


# ------------------------------------------------------------------------------------------------------ false recovery


@pytest.mark.parametrize("trouble", ["unanswered", "machine missing"])
def test_25_status_timeouts_recover_a_healthy_job_24_times(trouble: str) -> None:
    """Not here: while the machine itself answers, neither lost nor empty listings buy, release or restart anything."""
    world = World(job())
    world.controller()
    world.trains()
    asked = [0]

    def list_(call: Callable[[], object]) -> object:
        asked[0] += 1
        if asked[0] > 25:
            return call()
        if trouble == "unanswered":
            raise ProviderUnreachable("status: timed out")
        return ()

    world.provider.bent["list"] = list_
    world.until(lambda: asked[0] > 40)

    assert world.provider.born == ["sim-1"]
    assert len(world.provider.orders) == 1
    assert world.provider.released == []
    assert world.training() == ["sim-1"]
    assert world.run_term == 1, "its script was never started again"
    assert world.summary.preemptions == 0


def test_a_machine_that_cannot_reach_its_controller_is_given_up() -> None:
    """Not here: nothing is heard of it on any channel, but the run's log grows: it is left in peace."""
    world = World(job())
    world.controller()
    world.trains()
    world.workers["sim-1"].sdk_inactive = True
    world.until(lambda: bool(facts(world, MachineSilent)))
    world.pass_time(HOUR_S)

    assert world.training() == world.lifetime_source() == ["sim-1"]
    assert len(world.provider.orders) == 1


def test_a_machine_that_hangs_runs_and_bills_beside_its_successor() -> None:
    """Not here: it is given back first, and its successor is bought only once the market says that it is gone."""
    world = World(job())
    world.controller()
    world.trains()
    world.workers["sim-1"].hangs()
    world.until(lambda: bool(facts(world, MachineSilent)))
    world.pass_time(PACE.silent_after_s)
    assert len(world.provider.orders) == 1, "silence alone buys nothing"
    crowd: list[int] = []
    world.until(lambda: "sim-2" in world.training() or crowd.append(len(world.lifetime_source())) is not None, HOUR_S)  # type: ignore[func-returns-value]

    assert set(world.provider.released) == {"sim-1"}
    assert max(crowd) == 1, "both never ran together"


# ------------------------------------------------------------------------------------------------ the whole cluster torn


def test_the_whole_cluster_is_torn_down_for_one_machine() -> None:
    """Not here: of four machines one is lost; three stay as they are, one is bought, and all train together again."""
    world = World(job(nodes=4))
    world.controller()
    world.trains(4)
    world.provider.preempt("sim-2", None)
    world.until(lambda: "sim-2" not in world.lifetime_source())
    world.trains(4)
    world.pass_time(60.0)

    assert [order.count_max for order in world.provider.orders] == [4, 1]
    assert world.provider.released == []
    assert world.training() == ["sim-1", "sim-3", "sim-4", "sim-5"]
    assert world.summary.generation is not None
    assert world.summary.generation.number == 2


# ----------------------------------------------------------------------------------------------------------- quota zero


def test_quota_zero_looks_like_starting() -> None:
    """Not here: the reason is shown within one poll, and the next zone is taken instead."""
    world = World(job(), market("a"), market("b", price=2.0))
    world.provider.limits.quota["m4", "a"] = 0
    world.controller()
    world.pass_time(PACE.turn_s)

    assert any("quota 0 for m4 in a" in message for message in world.told)
    world.trains()
    assert [(order.offer.zone, order.count_max) for order in world.provider.orders][-1] == ("b", 1)


def test_quota_zero_everywhere_waits_for_ever_without_a_word() -> None:
    """Not here: the job says within one poll that it waits, for what and where; and goes on once the quota is raised."""
    world = World(job())
    world.provider.limits.quota["m4", "a"] = 0
    world.controller()
    world.pass_time(PACE.turn_s)

    assert world.summary.phase is JobPhase.WAITING
    assert "quota 0 for m4 in a" in world.summary.message
    assert world.lifetime_source() == []
    world.pass_time(600.0)
    assert len(world.provider.orders) <= 1, "asking again and again does not raise it"
    world.provider.limits.quota["m4", "a"] = 1
    world.trains(limit_s=HOUR_S)


# -------------------------------------------------------------------------------------------- the death of a controller


@pytest.mark.real
@pytest.mark.timeout(240)
def test_the_controllers_death_tears_down_healthy_work(tmp_path: Path) -> None:
    """Not here: killed for a while, the training goes on without it; back again it buys nothing and restarts nothing."""
    rig = Rig(tmp_path / "rig")
    wanted = {
        "envs": {"STEPS": "100000", "STEP_S": "0.03", "STARTS": "starts.txt"},
        "checkpoint": {"insure": "20 steps"},
    }
    try:
        rig.start_controller()
        job_id = rig.submit({"name": "healthy", **wanted}, Path(training_plain.__file__))
        rig.until(lambda: rig.saved_step(job_id) > 0, "a step is saved")
        (pid,) = rig.processes("controller")
        os.kill(pid, signal.SIGKILL)
        before = rig.saved_step(job_id)
        rig.until(lambda: rig.saved_step(job_id) >= before + 60, "three more points without a controller")
        assert rig.job(job_id) is None, "nobody started one"
        rig.start_controller()
        back = rig.saved_step(job_id)
        rig.until(lambda: rig.saved_step(job_id) >= back + 40, "and more with the next one")
        told = rig.job(job_id)
        assert told is not None

        assert told["phase"] == "running"
        assert len(rig.stays(job_id)) == 1, "one machine was ever bought"
        assert rig.starts(job_id) == 1, "its script was started once"
    finally:
        rig.close()


def test_an_hour_without_a_controller_changes_nothing() -> None:
    """The machine trains through it, and the next controller finds it as it is: no order, no release, no new start."""
    world = World(job())
    world.controller()
    world.trains()
    world.controllers[-1].dead = True
    before = world.workers["sim-1"].step
    world.pass_time(HOUR_S)
    assert world.workers["sim-1"].step >= before + HOUR_S - 2
    world.controller()
    world.pass_time(600.0)

    assert world.provider.born == ["sim-1"]
    assert world.provider.released == []
    assert world.run_term == 1
    assert world.summary.phase is JobPhase.RUNNING


# ---------------------------------------------------------------------------------------------------- duplicate machines


def lost_reply(world: World) -> Callable[[Callable[[], object]], object]:
    """The order is carried out, and nobody hears it."""

    def order(call: Callable[[], object]) -> object:
        call()
        world.provider.bent.pop("order")
        raise ProviderUnreachable("order: timed out")

    return order


def doubled_order(world: World) -> Callable[[Callable[[], object]], object]:
    """A proxy on the way sends every order twice, the second time much later."""

    def order(call: Callable[[], object]) -> object:
        world.at(20.0, call)
        return call()

    return order


def late_order(world: World) -> Callable[[Callable[[], object]], object]:
    """The order is carried out long after the caller gave it up."""

    def order(call: Callable[[], object]) -> object:
        world.provider.bent.pop("order")
        world.at(30.0, call)
        raise ProviderUnreachable("order: timed out")

    return order


def failover(world: World) -> Callable[[Callable[[], object]], object]:
    """The controller dies after the order was carried out; another one takes the installation."""

    def order(call: Callable[[], object]) -> object:
        call()
        world.provider.bent.pop("order")
        world.controllers[-1].dead = True
        world.at(1.0, lambda: world.controller() and None)
        raise ProviderUnreachable("its process is gone")

    return order


def forgotten_order(world: World) -> Callable[[Callable[[], object]], object]:
    """The controller dies between the durable intent and the call; another one takes the installation."""

    def order(call: Callable[[], object]) -> object:
        world.provider.bent.pop("order")
        world.controllers[-1].dead = True
        world.at(1.0, lambda: world.controller() and None)
        raise ProviderUnreachable("its process is gone")

    return order


@pytest.mark.parametrize("accident", [lost_reply, doubled_order, late_order, failover, forgotten_order])
def test_duplicate_machines(accident: Callable[[World], Callable[[Callable[[], object]], object]]) -> None:
    """Not here: whatever becomes of the order and of who placed it, one machine is bought and none is left over."""
    world = World(job(), market("a"), market("b", price=1.1))
    world.provider.bent["order"] = accident(world)
    world.controller()
    world.trains()
    world.pass_time(HOUR_S)

    assert world.provider.born == ["sim-1"], "one machine ever ran"
    assert world.training() == world.lifetime_source() == ["sim-1"]
    assert {order.token for order in world.provider.orders} == {world.provider.orders[0].token}


def test_two_controllers_at_once_buy_twice() -> None:
    """Not here: a controller that was paused while another took the installation buys nothing when it wakes."""
    world = World(job())
    asleep = world.controller()
    asleep.dead = True  # paused before its first order reached anybody
    world.controller()
    world.trains()
    world.provider.preempt("sim-1", None)
    asleep.dead = False
    asleep.turn()
    world.trains()
    world.pass_time(600.0)

    assert asleep.dead, "it finds that it was replaced, and leaves"
    assert world.provider.born == ["sim-1", "sim-2"]
    assert len(world.provider.orders) == 2
