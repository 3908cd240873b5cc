"""Binds implementations to the controller's ports."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import windfall
from windfall import codec
from windfall.channels.direct import DirectChannel
from windfall.channels.mailbox import BackgroundChannel, MailboxChannel, MailboxPace
from windfall.control.controller import Controller
from windfall.control.controller_log import ControllerLog, to_stderr
from windfall.control.controller_views import Json
from windfall.control.dependencies import Dependencies, RunAccess
from windfall.control.limited_provider import PurchaseLimits, limited
from windfall.control.planner import NoRecords, Planner
from windfall.control.single_user import SingleUserProvider, refusal
from windfall.errors import Misuse
from windfall.extras import install
from windfall.fleet import AgeWeighed, Lifetime, ScheduleComputed
from windfall.jobs import Job, Measurement
from windfall.linux.clock import SystemClock
from windfall.linux.random_names import new_nonce
from windfall.market import BootSpec
from windfall.models.item_measurements import measure_items
from windfall.models.job_measurements import measure, merge
from windfall.policies.checkpointing import schedule_table
from windfall.policies.checkpointing.schedule_table import ScheduleRequest
from windfall.policies.layout import runtime_list
from windfall.policies.policy_registry import BAG
from windfall.policies.replacement.age_requests import AgeRequest
from windfall.ports import Clock, ObjectStore, Provider, Runtime
from windfall.providers import job_blocks, provider_list
from windfall.providers.provider_settings import NO_SETTINGS, ProviderSettings
from windfall.runtimes.item_dispatcher import read_records
from windfall.spec import config_file
from windfall.spelling import nearest
from windfall.storage import object_stores, run_log, spool_journal, store_operations
from windfall.storage.database import Database, UserEntry, open_database
from windfall.storage.object_stores import open_store
from windfall.storage.store_operations import get, put
from windfall.structs import replace
from windfall.terms import Seconds, Term, WallTime
from windfall.wire import start_script
from windfall.wire.environment import STORE_VARIABLES
from windfall.wire.python_programs import program
from windfall.wire.run_layout import JOB

if TYPE_CHECKING:
    from windfall.policies.checkpointing.live_schedules import ProviderFit

REFIT_GROWTH = 1.05
"""Lifetime models are refitted once the number of ended lifetimes has grown by this factor since the last fit."""
RUNS = "runs"
"""Folder for runs that name no store, inside the installation's folder."""
_STORE_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")
_LOCAL_MAIL = MailboxPace(poll_s=Seconds(1.0), heartbeat_s=Seconds(2.0))


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
) -> Controller:
    """Build the controller service.

    Args:
        state: the installation's folder.
        database: its tables.
        term: this controller's term, with which it writes.
        clock: time.
        url: where machines reach this controller.
        leave: ends this process with a message.
        webhooks_inside: whether any user's webhook may lead to this machine or its link; an admin's always may.
        store: where runs that name no store are kept; None for a folder of the installation.
    """
    log = ControllerLog(clock, to_stderr)
    if (count := user_count(database)) > 1:
        for entry in provider_list.PROVIDERS:
            if entry.single_user:
                log(refusal(entry.name, count))
    configured = config_file.load(config_file.config_path(os.environ))
    schedules = Schedules(database.lifetimes, clock)
    return Controller(
        Dependencies(
            term=term,
            owner=owner_tag(database),
            url=url,
            version=windfall.__version__,
            clock=clock,
            records=database,
            providers=providers(state, clock, lambda: user_count(database), configured=configured),
            open_run=lambda job: _open(job, clock, log),
            new_direct=DirectChannel,
            boot_argv=program("windfall.cli.node_agent_process"),
            store_env=_store_env,
            merge=merge,
            leave=leave,
            log=log,
            admit=lambda job: _refuse_place(job, state, database.users),
            inside=lambda user: webhooks_inside or any(one.admin for one in database.users() if one.name == user),
            schedule=schedules.make_schedule,
            weigh=schedules.weigh,
            store=store or f"file://{(state / RUNS).absolute()}",
            equip=lambda provider, spec: equip(spec, provider, configured),
        )
    )


def user_count(database: Database) -> int:
    """Return the number of users by their tokens; the user who runs the controller may have two names and one token."""
    return len({user.token_hash for user in database.users()})


class Schedules:
    """Makes save schedules from all lifetimes of the installation's machines.

    A fit takes seconds of this process and is reused until 5 % more lifetimes have ended.  Needs the packages of the
    extra `lab`; without them the schedule says so, and machines save by the default rule.
    """

    def __init__(self, lifetimes: Callable[[], Sequence[Lifetime]], clock: Clock) -> None:
        self._lifetimes, self._clock = lifetimes, clock
        self._known: dict[str, tuple[int, ProviderFit]] = {}
        self._lock = threading.Lock()

    def make_schedule(self, request: ScheduleRequest) -> ScheduleComputed | None:
        """Return a machine's new schedule; None if its present one is good enough."""
        try:
            from windfall.policies.checkpointing import live_schedules  # noqa: PLC0415 - needs numba and scipy, an extra
        except ImportError:
            reason = (
                f"the controller needs `{install('lab')}` to plan save schedules; until then the default rule decides"
            )
            return None if request.answered else schedule_table.default_schedule(request, reason)
        rows, now = self._lifetimes(), self._clock.wall_time()
        return live_schedules.make_schedule(request, self._fit(request.provider, rows, now), rows, now)

    def weigh(self, request: AgeRequest) -> AgeWeighed | None:
        """Return what a machine's next item is expected to take there and on a new one; None without the packages."""
        try:
            from windfall.policies.replacement import item_ages  # noqa: PLC0415 - needs numba and scipy, an extra
        except ImportError:
            return None
        rows, now = self._lifetimes(), self._clock.wall_time()
        return item_ages.weigh(request, self._fit(request.provider, rows, now))

    def _fit(self, provider: str, rows: Sequence[Lifetime], now: WallTime) -> ProviderFit:
        """Return the laws of a provider's machines, fitted again after enough others have ended."""
        from windfall.policies.checkpointing import live_schedules  # noqa: PLC0415 - the caller has seen that it is there

        ended = sum(row.provider == provider and row.ended is not None for row in rows)
        with self._lock:
            seen = self._known.get(provider)
            if seen is None or ended > REFIT_GROWTH * seen[0]:
                seen = self._known[provider] = (ended, live_schedules.fit_provider(rows, now, provider))
            return seen[1]


def providers(
    state: Path,
    clock: Clock,
    users: Callable[[], int],
    *,
    configured: Mapping[str, ProviderSettings],
    start: bool = True,
) -> dict[str, Provider]:
    """Return all providers by name.

    Args:
        state: the installation's folder.
        clock: time.
        users: returns the number of users.
        configured: what the configuration file says of each.
        start: whether their calls may start processes.
    """
    found: dict[str, Provider] = {}
    for entry in provider_list.PROVIDERS:
        settings = configured.get(entry.name, NO_SETTINGS)
        provider = provider_list.open_provider(entry, state, clock, start=start, settings=settings)
        if entry.single_user:
            provider = SingleUserProvider(provider, users)
        limits = settings.limits
        found[entry.name] = limited(
            provider, PurchaseLimits(limits.machines, limits.usd_per_hour, settings.origin), clock
        )
    return found


def equip(spec: BootSpec, provider: str, configured: Mapping[str, ProviderSettings]) -> BootSpec:
    """Add the image, the way of the agent, and the command that runs it, which on another host has another Python."""
    entry, settings = provider_list.find(provider), configured.get(provider, NO_SETTINGS)
    if entry is None or entry.single_user:
        return spec
    return replace(spec, argv=start_script.NODE_AGENT, image=settings.image, agent=settings.agent)


@contextlib.contextmanager
def open_planner(state: Path, path: Path) -> Iterator[Planner]:
    """Open an installation for plans alone: no process is started, and nothing is ordered or recorded.

    Args:
        state: the installation's folder, which need not exist.
        path: of its database, which need not exist either.
    """
    clock = SystemClock()
    configured = config_file.load(config_file.config_path(os.environ))
    with contextlib.ExitStack() as stack:
        if path.exists():
            database = stack.enter_context(contextlib.closing(open_database(str(path.absolute()), clock)))
            found = providers(state, clock, lambda: user_count(database), configured=configured, start=False)
            yield Planner(database, found, clock, merge, owner_tag(database))
        else:
            found = providers(state, clock, lambda: 0, configured=configured, start=False)
            yield Planner(NoRecords(), found, clock, merge, "")


def _store_env(provider: str) -> tuple[tuple[str, str], ...]:
    """Return this controller's object-store credentials for machines that run on this host under this user.

    Other machines get theirs from their cloud's instance identity or from the job's secrets.  Only Windfall itself uses
    the lent credentials; the job's setup and script do not see them.
    """
    entry = provider_list.find(provider)
    if entry is None or not entry.single_user:
        return ()
    lent = {name: value for name, value in os.environ.items() if name.startswith(_STORE_VARIABLES)}
    return (*lent.items(), (STORE_VARIABLES, ",".join(lent))) if lent else ()


def _refuse_place(job: Job, state: Path, users: Callable[[], Sequence[UserEntry]]) -> None:
    """Refuse a run in a folder that is not for runs, since the controller would write there with its own rights.

    Raises:
        Misuse: the folder is the controller's, or the user is not an admin; or a provider's block is not valid.
    """
    _refuse_blocks(job)
    scheme, separator, rest = job.run_url.partition("://")
    if separator and scheme != "file":
        return
    folder = Path(unquote(rest) if separator else job.run_url).resolve()
    own = state.resolve()
    if folder == own or (own in folder.parents and own / RUNS not in folder.parents) or folder in own.parents:
        raise Misuse(f"a run cannot be stored in the controller's own folder {job.run_url}: choose another store")
    if not any(user.admin for user in users() if user.name == job.user):
        raise Misuse(
            f"{job.run_url} is a folder on the controller's machine, where {job.user} may not write: choose an object store "
            "(checkpoint.store: s3://..., gs://... or az://...)"
        )


def _refuse_blocks(job: Job) -> None:
    """Refuse a job whose blocks a job file would not have had: not every client reads one."""
    for block in job.blocks:
        entry = provider_list.find(block.provider)
        if entry is None:
            raise Misuse(f"blocks: {nearest(block.provider, provider_list.names())}")
        if problem := job_blocks.block_problem(entry.name, entry.block, dict(block.settings)):
            raise Misuse(problem)
    if len({block.provider for block in job.blocks}) < len(job.blocks):
        raise Misuse("blocks: one provider has two blocks")


def owner_tag(database: Database) -> str:
    """Return the tag that every machine of this installation carries; it reveals nothing secret."""
    return f"windfall-{hashlib.sha256(database.key()).hexdigest()[:12]}"


def _open_runtime(job: Job, store: ObjectStore, clock: Clock) -> Runtime:
    """Open the controller's side of a job's runtime."""
    module, _, function = runtime_list.rules(job.runtime.name).live.partition(":")
    opener: Callable[..., Runtime] = getattr(import_module(module), function)
    return opener(job, store, clock, new_nonce)


def _open(job: Job, clock: Clock, log: Callable[[str], None]) -> RunAccess:
    store = open_store(job.run_url)

    def mailbox(controller: Term, alive: Callable[[], Iterable[str]]) -> BackgroundChannel:
        pace = _LOCAL_MAIL if job.run_url.startswith("file://") else MailboxPace()
        return BackgroundChannel(MailboxChannel(store, clock, controller, alive, pace), clock, log=log)

    def write_boot(boot: Json) -> None:
        store_operations.run(put(JOB, json.dumps(boot).encode()), store, clock)

    return RunAccess(
        runtime=_open_runtime(job, store, clock),
        mailbox=mailbox,
        write_boot=write_boot,
        measure=lambda lines: _measure(job, lines, object_stores.Reader(store, clock)),
        deleted=lambda: store_operations.run(get(JOB), store, clock) is None,
    )


def _measure(job: Job, lines: Iterable[str], run: object_stores.Reader) -> tuple[Measurement, ...]:
    job_rows = (codec.row_from_line(line) for line in lines)
    if job.runtime.name == BAG:
        return measure_items(job_rows, run.run(read_records(0)))
    rows = run.run(spool_journal.read_journal()).rows
    head = run.run(run_log.read_head())
    holders = {}
    for term in {row.term for row in rows}:
        record = run.run(run_log.read_record(term))
        if record is not None and record.state.holder is not None:
            holders[term] = record.state.holder.host
    costs = None if head is None else head.state.costs
    return measure(job, job_rows, rows, holders, costs)
