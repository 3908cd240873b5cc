"""The controller's work: jobs submitted once, machines answered and dismissed, nothing kept of ended jobs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.control.conftest import until
from tests.control.house import House, Run, Voices, a_job, run_state
from windfall import codec
from windfall.channels.direct import DirectChannel
from windfall.control import auth
from windfall.control.controller import Controller
from windfall.control.dependencies import Dependencies, RunAccess
from windfall.errors import DatabaseUnreachable, Misuse
from windfall.events import Fact
from windfall.fleet import DesiredState, JobPhase, JobStopRequested, JobSubmitted, MachineStatus, Report
from windfall.jobs import Forecast, ForecastBasis, Measurement, Notify, Resources, SecretRef
from windfall.linux.clock import SystemClock
from windfall.market import BootSpec, Capabilities, MachineLifecycle, Order
from windfall.runtimes.checkpoint import CheckpointRuntime
from windfall.storage.database import open_database
from windfall.structs import replace
from windfall.terms import Outcome, Seconds, Step, Term, Unit, Usd, WallTime

MEASURED = Measurement("local", "m4", Unit.STEP, 2.0, Seconds(5.0), Seconds(3.0), 1)
JOB = replace(a_job(), resources=(Resources("local"),))


class Mailbox(Voices):
    """A mailbox that knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class SimulatedMarket:
    """The simulated market for several threads; each call lets four of its seconds pass."""

    name = "local"

    def __init__(self) -> None:
        self.house = House()
        self.house.market.name = "local"
        self.there = self.house.market
        self._lock = threading.Lock()

    def capabilities(self) -> Capabilities:
        """It is in this process, so a job may ask for its listing at once, not each half minute."""
        return replace(self.there.capabilities(), nearby=True)

    def __getattr__(self, name: str) -> Any:
        there = getattr(self.there, name)

        def call(*given: Any) -> Any:
            with self._lock:
                self.house.timeline.pass_time(4.0)
                return there(*given)

        return call if callable(there) else there


@dataclass
class Shop:
    """A controller over a real database and a market; runs are set by the test."""

    folder: Path
    market: SimulatedMarket = field(default_factory=SimulatedMarket)
    run: Run = field(default_factory=Run)
    boxes: list[Mailbox] = field(default_factory=list)
    written: list[dict[str, Any]] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    measured: int = 0
    deleted: bool = False
    offices: list[Controller] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = open_database(str(self.folder / "controller.db"), SystemClock())

    def controller(self) -> Controller:
        dependencies = Dependencies(
            term=self.database.acquire("here"), owner="home", url="http://here", version="1", clock=SystemClock(),
            records=self.database, providers={"local": self.market}, open_run=lambda _: self._opened(),
            new_direct=DirectChannel, boot_argv=("node-agent",), store_env=lambda _: (), merge=tuple,
            leave=self.logged.append, log=self.logged.append,
        )  # fmt: skip
        self.offices.append(Controller(dependencies))
        return self.offices[-1]

    def _opened(self) -> RunAccess:
        return RunAccess(
            CheckpointRuntime(self.run), self._box, self.written.append, self._measure, lambda: self.deleted
        )

    def _box(self, *_: object) -> Mailbox:
        self.boxes.append(Mailbox("mailbox"))
        return self.boxes[-1]

    def _measure(self, _: object) -> tuple[Measurement, ...]:
        self.measured += 1
        return (MEASURED,)

    @property
    def alive(self) -> list[str]:
        return [
            one.machine_id for one in self.market.there.alive(JOB.job_id) if one.lifecycle is MachineLifecycle.RUNNING
        ]

    def trains(self, controller: Controller) -> str:
        """Run until a machine runs and reports that it trains; return its name."""
        until(lambda: bool(self.alive))
        (machine_id,) = self.alive
        self.run.state = run_state(Outcome.RUNNING, machine_id)
        controller.report(JOB.job_id, Report(machine_id, 1, "life", MachineStatus.TRAINING))
        until(lambda: controller.job(JOB.job_id).phase is JobPhase.RUNNING)
        return machine_id

    def settled(self, controller: Controller) -> bool:
        return controller.status().unfinished == 0


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    one = Shop(tmp_path)
    yield one
    for controller in one.offices:
        controller.end()
        for running in controller._running.values():
            until(lambda running=running: running._thread is None or not running._thread.is_alive())
    one.database.close()


def finished(shop: Shop, controller: Controller, **job: Any) -> str:
    """A job from its submission to its closed bill; return its machine."""
    controller.submit(replace(JOB, **job), {secret.name: "value" for secret in job.get("secrets", ())})
    machine_id = shop.trains(controller)
    shop.run.state = run_state(Outcome.DONE, None)
    until(lambda: shop.settled(controller))
    return machine_id


def test_a_job_that_has_ended_leaves_nothing_at_work(shop: Shop) -> None:
    """Its mailbox is not read any more, its secrets are deleted, its job loop is dropped; its measurements are stored."""
    controller = shop.controller()
    finished(shop, controller, secrets=(SecretRef("HF_TOKEN"),))

    assert controller.job(JOB.job_id).phase is JobPhase.DONE
    assert [box.closed for box in shop.boxes] == [True]
    assert shop.database.secrets(JOB.job_id) == {}
    assert controller._handles[JOB.job_id].job_loop is None
    assert shop.measured == 1


@pytest.mark.trial("D4")
def test_a_job_that_is_done_shows_its_last_step_not_its_last_stored_one(shop: Shop) -> None:
    """The last report comes when the job is over already; another controller shows the step before it, not less."""
    controller = shop.controller()
    controller.submit(JOB, {})
    machine_id = shop.trains(controller)
    report = Report(machine_id, 2, "life", MachineStatus.TRAINING, Term(1), Step(398), Step(344))
    controller.report(JOB.job_id, report)
    running = controller.job(JOB.job_id)
    shop.run.state = run_state(Outcome.DONE, None)
    until(lambda: shop.settled(controller))
    controller.report(JOB.job_id, replace(report, sequence=3, step=Step(400)))

    assert (running.details["step"], running.user) == (398, JOB.user)
    assert controller.job(JOB.job_id).details["step"] == 400
    assert shop.controller().job(JOB.job_id).details["step"] >= 398


def test_a_runs_measurements_count_once_whatever_is_requested_later(shop: Shop) -> None:
    """Neither a stop that came late nor the same submission again makes one run into two."""
    controller = shop.controller()
    finished(shop, controller)
    controller.stop(JOB.job_id, "ada", now=False)
    assert controller.submit(JOB, {}) == JOB.job_id
    with contextlib.suppress(Misuse):
        controller.resume(JOB.job_id, "ada")
    controller._request(JOB, JobStopRequested(False, "ada"))
    until(lambda: shop.settled(controller))
    assert shop.measured == 1


def test_a_job_whose_run_was_deleted_is_not_resumed(shop: Shop) -> None:
    """Refused before anything is bought; its view says so, and goes on to say so with the next controller's list."""
    controller = shop.controller()
    controller.submit(JOB, {})
    shop.trains(controller)
    controller.stop(JOB.job_id, "ada", now=True)
    shop.run.state = run_state(Outcome.WAITING, None)
    until(lambda: shop.settled(controller))
    before = controller.job(JOB.job_id)
    shop.deleted = True

    with pytest.raises(Misuse, match="its run was deleted"):
        controller.resume(JOB.job_id, "ada")

    assert shop.alive == []
    (listed,) = shop.controller().jobs(None)
    assert (before.run_deleted, listed.run_deleted, listed.phase) == (False, True, JobPhase.STOPPED)
    assert listed.message.endswith("its run was deleted")
    assert listed.details["money"] == before.details["money"]


def test_the_same_submission_again_is_the_same_job(shop: Shop) -> None:
    """A client whose answer was lost repeats itself; a different job of that name changes nothing of the first."""
    controller = shop.controller()
    assert controller.submit(JOB, {}) == controller.submit(JOB, {})
    with pytest.raises(Misuse, match="job gpt-1 already exists"):
        controller.submit(replace(JOB, command=("evil",), user="eve"), {})
    assert [boot["command"] for boot in shop.written] == [("train",)]
    assert len(controller.jobs(None)) == 1


def test_a_machine_that_comes_too_late_for_its_job_is_told_to_leave(shop: Shop) -> None:
    """An empty answer would count as contact with a controller: the machine would wait, and cost money, for ever."""
    controller = shop.controller()
    machine_id = finished(shop, controller)
    late = Report("m-late", 1, "life", MachineStatus.WAITING)
    directive = controller.report(JOB.job_id, late)
    assert directive is not None
    assert directive.desired_state is DesiredState.STOP

    again = shop.controller()
    again.start()
    directive = again.report(JOB.job_id, replace(late, machine_id=machine_id))
    assert directive is not None
    assert directive.desired_state is DesiredState.STOP


def test_a_machine_that_is_not_known_yet_gets_no_directive(shop: Shop) -> None:
    """Its order's answer may be on the way."""
    controller = shop.controller()
    controller.submit(JOB, {})
    assert controller.report(JOB.job_id, Report("m-early", 1, "life", MachineStatus.WAITING)) is None


def test_a_machine_of_an_unfinished_job_is_never_unneeded(shop: Shop) -> None:
    """Also before its job loop has started; what carries another owner's tag is not touched in any case."""
    controller = shop.controller()
    controller.submit(JOB, {})
    machine_id = shop.trains(controller)
    assert controller.unneeded().machines == ()
    controller.end()

    again = shop.controller()
    assert again.unneeded().machines == ()
    assert again.collect([machine_id]).machines == ()
    assert shop.alive == [machine_id]


def test_a_stray_machine_is_named_and_released(shop: Shop) -> None:
    """One of a job that this installation knows nothing of any more."""
    offer = shop.market.there.offers()[0]
    stray = Order("old-1", "home", "old", offer, 1, 1)
    shop.market.there.order(stray, BootSpec(("node-agent",)))
    controller = shop.controller()
    (machine,) = controller.unneeded().machines
    assert [one.machine_id for one in controller.collect([machine.machine_id]).machines] == [machine.machine_id]
    assert controller.unneeded().machines == ()


def test_a_machine_gets_its_jobs_secrets_for_its_own_order_alone(shop: Shop) -> None:
    """A credential of another order, or a second boot, buys nothing."""
    controller = shop.controller()
    controller.submit(replace(JOB, secrets=(SecretRef("HF_TOKEN"),)), {"HF_TOKEN": "hf"})
    machine_id = shop.trains(controller)
    assert controller.claim(JOB.job_id, "gpt-1-2", machine_id, "boot") is None
    assert controller.claim(JOB.job_id, "gpt-1-1", "m-other", "boot") is None
    claimed = controller.claim(JOB.job_id, "gpt-1-1", machine_id, "boot")
    assert claimed is not None
    assert claimed.secrets == {"HF_TOKEN": "hf"}
    assert claimed.token == auth.machine_token(shop.database.key(), JOB.job_id, machine_id)
    assert controller.claim(JOB.job_id, "gpt-1-1", machine_id, "another boot") is None
    assert "hf" not in "".join(line for _, line in shop.database.rows(JOB.job_id))


def test_unfinished_jobs_continue_with_the_next_controller(shop: Shop) -> None:
    """The next one resumes them, adopts their machines and buys none; the one before can write no more."""
    controller = shop.controller()
    controller.submit(JOB, {})
    machine_id = shop.trains(controller)
    again = shop.controller()
    again.start()
    until(lambda: again.job(JOB.job_id).details["slots"] != [])
    again.report(JOB.job_id, Report(machine_id, 2, "life", MachineStatus.TRAINING))
    until(lambda: any("took over the installation" in message for message in shop.logged))
    until(lambda: again.job(JOB.job_id).phase is JobPhase.RUNNING)
    assert shop.alive == [machine_id]
    assert shop.market.there._count == 1


def test_a_job_without_the_value_of_its_secret_is_refused_before_anything_is_written(shop: Shop) -> None:
    """The message says what to export."""
    controller = shop.controller()
    with pytest.raises(Misuse, match="export HF_TOKEN"):
        controller.submit(replace(JOB, secrets=(SecretRef("HF_TOKEN"),)), {})
    assert shop.written == []
    assert controller.jobs(None) == []


def test_the_status_needs_no_provider(shop: Shop) -> None:
    """It says how many jobs are unfinished, and how long their machines run alone."""
    controller = shop.controller()
    controller.submit(replace(JOB, notify=Notify(), dead_man_s=Seconds(60.0)), {})
    status = controller.status()
    assert (status.unfinished, status.dead_man_s, status.term) == (1, 60.0, Term(1))


def test_an_outage_of_the_database_is_a_sentence(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that cannot be answered is an error, not a dismissal."""
    controller = shop.controller()

    def fails(_: str) -> None:
        raise DatabaseUnreachable("the database does not answer")

    monkeypatch.setattr(shop.database, "job", fails)
    with pytest.raises(DatabaseUnreachable):
        controller.report(JOB.job_id, Report("m1", 1, "life", MachineStatus.WAITING))


# -------------------------------------------------------------------------------------------------------- forecasts


FORECAST = Forecast(
    WallTime(5.0), "local", "m4", "a", True, 1, "fixed", ForecastBasis.TRIALS, 1000, Usd(1.0), Seconds(1e6),
    Usd(1.0), Usd(1e6), Seconds(1e6), Seconds(2e6),
)  # fmt: skip


def first_facts(shop: Shop) -> tuple[Fact, ...]:
    """The facts of a job's first row."""
    until(lambda: bool(list(shop.database.rows(JOB.job_id))))
    line = next(iter(shop.database.rows(JOB.job_id)))[1]
    return codec.row_from_line(line).facts


def test_the_forecast_is_in_the_journals_first_row(shop: Shop) -> None:
    """Before any order: that row has the submission, and orders come in later rows or with it."""
    controller = shop.controller()
    controller.submit(JOB, {}, FORECAST)
    (submitted,) = [fact for fact in first_facts(shop) if isinstance(fact, JobSubmitted)]
    assert submitted.forecast == FORECAST


def test_a_controller_that_dies_before_the_first_row_loses_no_forecast(shop: Shop) -> None:
    """It is stored with the submission; the next controller writes it into the journal."""
    dead = shop.controller()
    dead._run = lambda job: None  # type: ignore[method-assign]
    dead.submit(JOB, {}, FORECAST)
    assert list(shop.database.rows(JOB.job_id)) == []

    shop.controller().start()
    (submitted,) = [fact for fact in first_facts(shop) if isinstance(fact, JobSubmitted)]
    assert submitted.forecast == FORECAST


def test_without_a_forecast_the_controller_stores_what_its_plan_expects(shop: Shop) -> None:
    """Nothing is measured in this shop, so the plan expects nothing and promises nothing."""
    controller = shop.controller()
    controller.submit(JOB, {})
    (submitted,) = [fact for fact in first_facts(shop) if isinstance(fact, JobSubmitted)]
    assert submitted.forecast is None


def test_a_plan_has_the_record_of_the_users_runs(shop: Shop) -> None:
    """Once a run is done, it counts for its user, and for nobody else; a restarted controller knows it too."""
    controller = shop.controller()
    assert controller.plan(JOB)["track_record"] is None
    controller.submit(JOB, {}, FORECAST)
    shop.trains(controller)
    shop.run.state = run_state(Outcome.DONE, None)
    until(lambda: shop.settled(controller))

    said = {"runs": 1, "cost_inside": 1, "cost_runs": 1, "finish_inside": 1, "finish_runs": 1, "left_out": 0}
    for one in (controller, shop.controller()):
        assert one.plan(replace(JOB, job_id="gpt-2"))["track_record"] == said
        assert one.plan(replace(JOB, job_id="gpt-2", user="eve"))["track_record"] is None
