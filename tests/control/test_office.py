"""The controller's work: jobs taken in once, machines heard and sent away, nothing kept of what has ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.control.conftest import until
from tests.control.house import House, Run, Voices, a_job, run_state
from windfall.channels.direct import DirectChannel
from windfall.control import auth
from windfall.control.means import Means, Opened
from windfall.control.office import Office
from windfall.errors import DatabaseUnreachable, Misuse
from windfall.fleet import Direction, Doing, JobPhase, Report, StopWanted
from windfall.jobs import Measured, Notify, SecretRef, Want
from windfall.market import Boot, Life, Order
from windfall.storage.clocks import SystemClock
from windfall.storage.sql import open_database
from windfall.terms import Outcome, Seconds, Step, Term, Unit

MEASURED = Measured("local", "m4", Unit.STEP, 2.0, Seconds(5.0), Seconds(3.0), 1)
JOB = replace(a_job(), wants=(Want("local"),))


class Mailbox(Voices):
    """A mailbox that knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Market:
    """The simulated market for several threads; each call lets four of its seconds pass."""

    name = "local"

    def __init__(self) -> None:
        self.house = House()
        self.house.market.name = "local"
        self.there = self.house.market
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        there = getattr(self.there, name)

        def call(*given: Any) -> Any:
            with self._lock:
                self.house.timeline.pass_time(4.0)
                return there(*given)

        return call if callable(there) else there


@dataclass
class Shop:
    """An office over a real database and a market; runs say what a test says."""

    folder: Path
    market: Market = field(default_factory=Market)
    run: Run = field(default_factory=Run)
    boxes: list[Mailbox] = field(default_factory=list)
    written: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    measured: int = 0
    deleted: bool = False
    offices: list[Office] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = open_database(str(self.folder / "controller.db"), SystemClock())

    def office(self) -> Office:
        means = Means(
            term=self.database.take("here"), owner="home", url="http://here", version="1", clock=SystemClock(),
            records=self.database, providers={"local": self.market}, open_run=lambda _: self._opened(),
            new_direct=DirectChannel, boot_argv=("keeper",), store_env=lambda _: (), merge=tuple,
            leave=self.said.append, say=self.said.append,
        )  # fmt: skip
        self.offices.append(Office(means))
        return self.offices[-1]

    def _opened(self) -> Opened:
        return Opened(self.run, self._box, self.written.append, self._measure, lambda: self.deleted)

    def _box(self, *_: object) -> Mailbox:
        self.boxes.append(Mailbox("mailbox"))
        return self.boxes[-1]

    def _measure(self, _: object) -> tuple[Measured, ...]:
        self.measured += 1
        return (MEASURED,)

    @property
    def alive(self) -> list[str]:
        return [one.machine_id for one in self.market.there.alive(JOB.job_id) if one.life is Life.RUNNING]

    def trains(self, office: Office) -> str:
        """Go on until a machine runs and says that it trains; return its name."""
        until(lambda: bool(self.alive))
        (machine_id,) = self.alive
        self.run.state = run_state(Outcome.RUNNING, machine_id)
        office.report(JOB.job_id, Report(machine_id, 1, "life", Doing.TRAINING))
        until(lambda: office.job(JOB.job_id).phase is JobPhase.RUNNING)
        return machine_id

    def settled(self, office: Office) -> bool:
        return office.status().unfinished == 0


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    one = Shop(tmp_path)
    yield one
    for office in one.offices:
        office.end()
        for running in office._running.values():
            until(lambda running=running: running._thread is None or not running._thread.is_alive())
    one.database.close()


def finished(shop: Shop, office: Office, **job: Any) -> str:
    """A job from its submission to its closed bill; return its machine."""
    office.submit(replace(JOB, **job), {secret.name: "value" for secret in job.get("secrets", ())})
    machine_id = shop.trains(office)
    shop.run.state = run_state(Outcome.DONE, None)
    until(lambda: shop.settled(office))
    return machine_id


def test_a_job_that_has_ended_leaves_nothing_at_work(shop: Shop) -> None:
    """Its mailbox is not read any more, its secrets are deleted, its conductor is let go; what it showed is kept."""
    office = shop.office()
    finished(shop, office, secrets=(SecretRef("HF_TOKEN"),))

    assert office.job(JOB.job_id).phase is JobPhase.DONE
    assert [box.closed for box in shop.boxes] == [True]
    assert shop.database.secrets(JOB.job_id) == {}
    assert office._ways[JOB.job_id].conductor is None
    assert shop.measured == 1


@pytest.mark.trial("D4")
def test_a_job_that_is_done_shows_its_last_step_not_its_last_stored_one(shop: Shop) -> None:
    """The last report comes when the job is over already; another controller shows the step before it, not less."""
    office = shop.office()
    office.submit(JOB, {})
    machine_id = shop.trains(office)
    report = Report(machine_id, 2, "life", Doing.TRAINING, Term(1), Step(398), Step(344))
    office.report(JOB.job_id, report)
    running = office.job(JOB.job_id)
    shop.run.state = run_state(Outcome.DONE, None)
    until(lambda: shop.settled(office))
    office.report(JOB.job_id, replace(report, sequence=3, step=Step(400)))

    assert (running.details["step"], running.user) == (398, JOB.user)
    assert office.job(JOB.job_id).details["step"] == 400
    assert shop.office().job(JOB.job_id).details["step"] >= 398


def test_what_a_run_showed_counts_once_whatever_is_wished_afterwards(shop: Shop) -> None:
    """Neither a stop that came late nor the same submission again makes one run into two."""
    office = shop.office()
    finished(shop, office)
    office.stop(JOB.job_id, "ada", now=False)
    assert office.submit(JOB, {}) == JOB.job_id
    with contextlib.suppress(Misuse):
        office.resume(JOB.job_id, "ada")
    office._wish(JOB, StopWanted(False, "ada"))
    until(lambda: shop.settled(office))
    assert shop.measured == 1


def test_a_job_whose_run_was_deleted_is_not_resumed(shop: Shop) -> None:
    """Refused before anything is bought; its view says so, and goes on to say so with the next controller's list."""
    office = shop.office()
    office.submit(JOB, {})
    shop.trains(office)
    office.stop(JOB.job_id, "ada", now=True)
    shop.run.state = run_state(Outcome.WAITING, None)
    until(lambda: shop.settled(office))
    before = office.job(JOB.job_id)
    shop.deleted = True

    with pytest.raises(Misuse, match="its run was deleted"):
        office.resume(JOB.job_id, "ada")

    assert shop.alive == []
    (listed,) = shop.office().jobs(None)
    assert (before.run_deleted, listed.run_deleted, listed.phase) == (False, True, JobPhase.STOPPED)
    assert listed.sentence.endswith("its run was deleted")
    assert listed.details["money"] == before.details["money"]


def test_the_same_submission_again_is_the_same_job(shop: Shop) -> None:
    """A client whose answer was lost repeats itself; a different job of that name changes nothing of the first."""
    office = shop.office()
    assert office.submit(JOB, {}) == office.submit(JOB, {})
    with pytest.raises(Misuse, match="there is a job gpt-1 already"):
        office.submit(replace(JOB, command=("evil",), user="eve"), {})
    assert [boot["command"] for boot in shop.written] == [("train",)]
    assert len(office.jobs(None)) == 1


def test_a_machine_that_comes_too_late_for_its_job_is_sent_away(shop: Shop) -> None:
    """An answer without a word would be contact with a controller: it would wait, on the bill, for ever."""
    office = shop.office()
    machine_id = finished(shop, office)
    late = Report("m-late", 1, "life", Doing.WAITING)
    told = office.report(JOB.job_id, late)
    assert told is not None
    assert told.direction is Direction.LEAVE

    again = shop.office()
    again.begin()
    told = again.report(JOB.job_id, replace(late, machine_id=machine_id))
    assert told is not None
    assert told.direction is Direction.LEAVE


def test_a_machine_that_is_not_known_yet_is_told_nothing(shop: Shop) -> None:
    """Its order's answer may be on the way."""
    office = shop.office()
    office.submit(JOB, {})
    assert office.report(JOB.job_id, Report("m-early", 1, "life", Doing.WAITING)) is None


def test_a_machine_of_an_unfinished_job_is_never_unneeded(shop: Shop) -> None:
    """Also while its conductor has not begun; what carries another owner's tag is not touched in any case."""
    office = shop.office()
    office.submit(JOB, {})
    machine_id = shop.trains(office)
    assert office.unneeded().machines == ()
    office.end()

    again = shop.office()
    assert again.unneeded().machines == ()
    assert again.collect([machine_id]).machines == ()
    assert shop.alive == [machine_id]


def test_a_stray_machine_is_named_and_released(shop: Shop) -> None:
    """One of a job that this installation knows nothing of any more."""
    offer = shop.market.there.offers()[0]
    stray = Order("old-1", "home", "old", offer, 1, 1)
    shop.market.there.order(stray, Boot(("keeper",)))
    office = shop.office()
    (machine,) = office.unneeded().machines
    assert [one.machine_id for one in office.collect([machine.machine_id]).machines] == [machine.machine_id]
    assert office.unneeded().machines == ()


def test_a_machine_gets_its_jobs_secrets_for_its_own_order_alone(shop: Shop) -> None:
    """A credential of another order, or a second boot, buys nothing."""
    office = shop.office()
    office.submit(replace(JOB, secrets=(SecretRef("HF_TOKEN"),)), {"HF_TOKEN": "hf"})
    machine_id = shop.trains(office)
    assert office.claim(JOB.job_id, "gpt-1-2", machine_id, "boot") is None
    assert office.claim(JOB.job_id, "gpt-1-1", "m-other", "boot") is None
    claimed = office.claim(JOB.job_id, "gpt-1-1", machine_id, "boot")
    assert claimed is not None
    assert claimed.secrets == {"HF_TOKEN": "hf"}
    assert claimed.token == auth.machine_token(shop.database.key(), JOB.job_id, machine_id)
    assert office.claim(JOB.job_id, "gpt-1-1", machine_id, "another boot") is None
    assert "hf" not in "".join(line for _, line in shop.database.rows(JOB.job_id))


def test_unfinished_jobs_go_on_with_the_next_controller(shop: Shop) -> None:
    """The next one takes them up, adopts their machines and buys none; the one before can write nothing any more."""
    office = shop.office()
    office.submit(JOB, {})
    machine_id = shop.trains(office)
    again = shop.office()
    again.begin()
    until(lambda: again.job(JOB.job_id).details["slots"] != [])
    again.report(JOB.job_id, Report(machine_id, 2, "life", Doing.TRAINING))
    until(lambda: any("took the installation" in sentence for sentence in shop.said))
    until(lambda: again.job(JOB.job_id).phase is JobPhase.RUNNING)
    assert shop.alive == [machine_id]
    assert shop.market.there._count == 1


def test_a_job_without_the_value_of_its_secret_is_refused_before_anything_is_written(shop: Shop) -> None:
    """The sentence says what to export."""
    office = shop.office()
    with pytest.raises(Misuse, match="export HF_TOKEN"):
        office.submit(replace(JOB, secrets=(SecretRef("HF_TOKEN"),)), {})
    assert shop.written == []
    assert office.jobs(None) == []


def test_the_status_needs_no_provider(shop: Shop) -> None:
    """It says how many jobs are unfinished, and how long their machines go on alone."""
    office = shop.office()
    office.submit(replace(JOB, notify=Notify(), dead_man_s=Seconds(60.0)), {})
    status = office.status()
    assert (status.unfinished, status.dead_man_s, status.term) == (1, 60.0, Term(1))


def test_an_outage_of_the_database_is_a_sentence(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that cannot be answered is an error, not a dismissal."""
    office = shop.office()

    def fails(_: str) -> None:
        raise DatabaseUnreachable("the database does not answer")

    monkeypatch.setattr(shop.database, "job", fails)
    with pytest.raises(DatabaseUnreachable):
        office.report(JOB.job_id, Report("m1", 1, "life", Doing.WAITING))
