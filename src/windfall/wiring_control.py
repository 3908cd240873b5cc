"""Which implementation stands behind which port of the controller."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from windfall import codec, wiring
from windfall.channels.direct import DirectChannel
from windfall.channels.mailbox import BackgroundChannel, MailboxChannel, MailPace
from windfall.control.alone import Alone, refusal
from windfall.control.means import Means, Opened
from windfall.control.office import Office
from windfall.control.saying import Saying, to_stderr
from windfall.control.service import Json
from windfall.errors import Misuse
from windfall.extras import install
from windfall.fleet import Lifetime, ScheduleMade
from windfall.jobs import Job, Measured
from windfall.policies.saving import replanning
from windfall.policies.saving.replanning import ScheduleWish
from windfall.ports import Clock, Provider
from windfall.providers.local.client import LocalProvider
from windfall.report.measured import measure, merge
from windfall.storage import executor, journal, log
from windfall.storage.objects import open_store
from windfall.storage.operations import get, put
from windfall.storage.sql import Database, UserEntry
from windfall.storage.watch import StoreWatch
from windfall.terms import Seconds, Term
from windfall.wire.environment import LENT
from windfall.wire.layout import JOB
from windfall.wire.programs import program

if TYPE_CHECKING:
    from windfall.policies.saving.schedules_live import Known

REFIT_GROWTH = 1.05
"""Laws of lives are fitted anew when so many times as many lives have ended as at the last fit."""
RUNS = "runs"
"""Folder of the runs that name no store, inside the installation's."""
MARKET = "market"
"""Folder of the local market inside the installation's."""
_STORE_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")
_LOCAL_MAIL = MailPace(look_s=Seconds(1.0), beat_s=Seconds(2.0))


def build_service(
    state: Path,
    database: Database,
    term: Term,
    clock: Clock,
    *,
    url: str,
    leave: Callable[[str], None],
    webhooks_inside: bool = False,
    store: str | None = None,
) -> Office:
    """Put the controller's work together.

    Args:
        state: the installation's folder.
        database: its tables.
        term: as which to write.
        clock: time.
        url: where machines reach this controller.
        leave: ends this process with a sentence.
        webhooks_inside: whether any user's webhook may lead to this very machine or its link; an admin's always may.
        store: where runs lie that name no store; None: in a folder of the installation's.
    """
    say = Saying(clock, to_stderr)
    if (count := people(database)) > 1:
        say(refusal("local", count))
    return Office(
        Means(
            term=term,
            owner=owner_tag(database),
            url=url,
            version=wiring.VERSION,
            clock=clock,
            records=database,
            providers=providers(state, clock, lambda: people(database)),
            open_run=lambda job: _open(job, clock, say),
            new_direct=DirectChannel,
            boot_argv=program("windfall.cli.join"),
            store_env=_store_env,
            merge=merge,
            leave=leave,
            say=say,
            admit=lambda job: _refuse_place(job, state, database.users),
            inside=lambda user: webhooks_inside or any(one.admin for one in database.users() if one.name == user),
            schedule=Schedules(database.lifetimes, clock).make,
            store=store or f"file://{(state / RUNS).absolute()}",
        )
    )


def people(database: Database) -> int:
    """Return how many may use the controller; whoever runs it may be known by two names, with one token."""
    return len({user.token_hash for user in database.users()})


class Schedules:
    """Makes schedules of saves from all lives of the installation.

    A fit takes seconds of this process: it is kept until a twentieth more lives have ended.  Needs the packages of the
    extra `lab`; without them it says so, and machines save by the default rule.
    """

    def __init__(self, lifetimes: Callable[[], Sequence[Lifetime]], clock: Clock) -> None:
        self._lifetimes, self._clock = lifetimes, clock
        self._known: dict[str, tuple[int, Known]] = {}
        self._lock = threading.Lock()

    def make(self, wish: ScheduleWish) -> ScheduleMade | None:
        """Return the schedule that a machine is to have; None if the one that it has will do."""
        try:
            from windfall.policies.saving import schedules_live  # noqa: PLC0415 - needs numba and scipy, an extra
        except ImportError:
            says = f"the controller cannot make schedules ({install('lab')} there): the default rule decides"
            return None if wish.answered else replanning.by_default(wish, says)
        rows, now = self._lifetimes(), self._clock.wall()
        ended = sum(row.provider == wish.provider and row.ended is not None for row in rows)
        with self._lock:
            seen = self._known.get(wish.provider)
            if seen is None or ended > REFIT_GROWTH * seen[0]:
                seen = self._known[wish.provider] = (ended, schedules_live.know(rows, now, wish.provider))
        return schedules_live.make(wish, seen[1], rows, now)


def providers(state: Path, clock: Clock, users: Callable[[], int]) -> dict[str, Provider]:
    """Return the providers that are configured, by name; `users` says how many the controller has."""
    return {"local": Alone(LocalProvider(str(state / MARKET), clock), users)}


def _store_env(provider: str) -> tuple[tuple[str, str], ...]:
    """Lend this controller's own access to object stores to machines that are of this very host and user.

    Others have theirs by their cloud's instance identity, or by the job's secrets.  It is for what Windfall itself does
    there; the job's setup and script do not find it.
    """
    if provider != "local":
        return ()
    lent = {name: value for name, value in os.environ.items() if name.startswith(_STORE_VARIABLES)}
    return (*lent.items(), (LENT, ",".join(lent))) if lent else ()


def _refuse_place(job: Job, state: Path, users: Callable[[], Sequence[UserEntry]]) -> None:
    """Refuse a run in a place that is not for runs: the controller would write there with its own rights.

    Raises:
        Misuse: with what to do instead.
    """
    scheme, separator, rest = job.run_url.partition("://")
    if separator and scheme != "file":
        return
    folder = Path(unquote(rest) if separator else job.run_url).resolve()
    own = state.resolve()
    if folder == own or (own in folder.parents and own / RUNS not in folder.parents) or folder in own.parents:
        raise Misuse(f"the run's place {job.run_url} is the controller's own folder: name another store")
    if not any(user.admin for user in users() if user.name == job.user):
        raise Misuse(
            f"the run's place {job.run_url} is a folder of the controller's machine, where {job.user} may not write: name an "
            "object store (checkpoint.store: s3://..., gs://... or az://...)"
        )


def owner_tag(database: Database) -> str:
    """Return the tag that every machine of this installation carries; nothing secret can be told from it."""
    return f"windfall-{hashlib.sha256(database.key()).hexdigest()[:12]}"


def _open(job: Job, clock: Clock, say: Callable[[str], None]) -> Opened:
    store = open_store(job.run_url)

    def mailbox(controller: Term, alive: Callable[[], Iterable[str]]) -> BackgroundChannel:
        pace = _LOCAL_MAIL if job.run_url.startswith("file://") else MailPace()
        return BackgroundChannel(MailboxChannel(store, clock, controller, alive, pace), clock, say=say)

    def write_boot(boot: Json) -> None:
        executor.run(put(JOB, json.dumps(boot).encode()), store, clock)

    return Opened(
        watch=StoreWatch(store, clock, wiring.new_nonce),
        mailbox=mailbox,
        write_boot=write_boot,
        measure=lambda lines: _measure(job, lines, wiring.Reader(store, clock)),
        deleted=lambda: executor.run(get(JOB), store, clock) is None,
    )


def _measure(job: Job, lines: Iterable[str], run: wiring.Reader) -> tuple[Measured, ...]:
    rows = run.run(journal.read_journal()).rows
    head = run.run(log.read_head())
    holders = {}
    for term in {row.term for row in rows}:
        record = run.run(log.read_record(term))
        if record is not None and record.state.holder is not None:
            holders[term] = record.state.holder.host
    costs = None if head is None else head.state.costs
    return measure(job, (codec.row_from_line(line) for line in lines), rows, holders, costs)
