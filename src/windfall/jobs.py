"""Jobs, as submitted by a user and stored in the journal.  Imports only `terms`.

These are plain values; `spec` reads and validates the YAML job file.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from windfall.structs import Tagged
from windfall.terms import BlockValue, Bundle, RunOptions, Seconds, Unit, Usd, WallTime

SAVE_TIMEOUT_S = Seconds(600.0)
"""Default time limit of the last save [s]."""
DEAD_MAN_S = Seconds(7200.0)
"""Default time a machine keeps running without contact to its controller [s]."""


class Minimize(enum.StrEnum):
    """What the plan minimizes."""

    COST = "cost"
    TIME = "time"


class Use(enum.StrEnum):
    """Which kinds of machines a job may use."""

    SPOT = "spot"
    """Only machines that can be preempted."""
    ON_DEMAND = "on-demand"
    """Only machines that cannot be preempted."""
    AUTO = "auto"
    """Spot first, on-demand if spot is unavailable."""


class SecretRef(Tagged, frozen=True):
    """The name of a secret; its value never appears in an event, a log or a command line."""

    name: str


class Resources(Tagged, frozen=True):
    """Requirements for one kind of machine; a job lists alternatives in order of preference (`any_of`).

    Attributes:
        provider: None for any configured provider.
        zone: None for any.
        machine_type: None for any that meets the other requirements.
        accelerator, accelerators: name and count; None and 0 for none.
        cpus_min, memory_gib_min: 0 for no requirement.
    """

    provider: str | None = None
    zone: str | None = None
    machine_type: str | None = None
    accelerator: str | None = None
    accelerators: int = 0
    cpus_min: float = 0.0
    memory_gib_min: float = 0.0


class BuyingLimits(Tagged, frozen=True):
    """What is never bought, and how much of one kind.

    Attributes:
        zones_excluded, machine_types_excluded: no machine is bought there, or of this type, whatever else fits the job.
        pool_machines_max: the most machines of one offer: one type in one zone of one provider, spot and on-demand apart;
            None for no limit.  A machine that is about to leave does not count: its successor may take its place.
    """

    zones_excluded: tuple[str, ...] = ()
    machine_types_excluded: tuple[str, ...] = ()
    pool_machines_max: int | None = None


class Work(Tagged, frozen=True):
    """The total amount of work, over all restarts."""

    amount: float
    unit: Unit


class Objective(Tagged, frozen=True):
    """The limits of a job, and what to minimize.

    Attributes:
        deadline_s: from the submission [s]; None for none.
        budget_usd: hard limit, which includes a reserve for the last save and the release.
        loss: the training loss that the script trains to; `Job.work` then holds what the runtime predicts for it.  None if
            the work is given.
    """

    deadline_s: Seconds | None = None
    budget_usd: Usd | None = None
    minimize: Minimize = Minimize.COST
    loss: float | None = None


class Checkpointing(Tagged, frozen=True):
    """How the run is checkpointed.

    Attributes:
        store: URL under which the run's folder is created; None for the installation's default.
        keep_every: interval of the user's own periodic saves, which are kept, for display; None if the script decides.
        save_timeout_s: how long `stop` and the dead-man limit wait for the last save [s].
        source: URL of the run whose newest checkpoint this one starts from (`from`); None for a fresh start.
    """

    store: str | None = None
    keep_every: str | None = None
    save_timeout_s: Seconds = SAVE_TIMEOUT_S
    source: str | None = None


class Recovery(Tagged, frozen=True):
    """What happens after losses.

    Attributes:
        unproductive_machines_max: number of consecutive machines per node that may end without completing a step
            before the job stops.
    """

    unproductive_machines_max: int = 10


class Notify(Tagged, frozen=True):
    """Where to send notifications of `preempted`, `waiting`, `done`, `failed`, `over-budget` and `late`.

    Attributes:
        command: run by a shell on the controller, with the event in its environment; None for none.
        webhook: URL that receives the event as a JSON POST; None for none.
    """

    command: str | None = None
    webhook: str | None = None


class Injection(Tagged, frozen=True):
    """The thesis' preemption injector (section 6.2.1): exponential lifetimes with these means, used in turn.

    The lifetime of the n-th machine of a slot is drawn with mean `mttp_s[(n - 1) % len(mttp_s)]`; the same seed gives
    the same lifetimes.  `notice_s` None: without notice.
    """

    mttp_s: tuple[Seconds, ...]
    seed: int
    notice_s: Seconds | None = None


DEFAULT_RUNTIME = "checkpoint"
DEFAULT_FLEET = "fixed"


class RuntimeSpec(Tagged, frozen=True):
    """The runtime of a job, and its own settings, which only the runtime reads."""

    name: str = DEFAULT_RUNTIME
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ProviderBlock(Tagged, frozen=True):
    """A job's settings for one provider, which reach its `order` call; other providers never see them."""

    provider: str
    settings: tuple[tuple[str, BlockValue], ...] = ()


class Job(Tagged, frozen=True):
    """A job as submitted.

    Attributes:
        job_id: unique in an installation; `<name>-<nonce>`.
        user: who submitted it.
        run_url: URL of the run; everything outside it is temporary.
        command: the command that each machine runs (`run`), as an argv.
        setup: shell script that each new machine runs once before the command; None for none.
        nodes: number of machines that train together.
        resources: in order of preference; at least one.
        envs: environment variables of setup and command.
        secrets: names of the secrets in the environment of setup and command.
        max_price_usd_per_hour: of one machine; None for no limit.
        max_duration_s: wall time from the submission until the last machine is released, saved or not [s]; None for none.
        work: None if unknown; the plan then reports it as unknown.
        options: how the run is saved and restarted; carried to the machines, with the time limits that the controller sets.
        code: digest of the code, used to find measurements of the same job.
        dead_man_s: how long a machine keeps running without contact to the controller [s].
        runtime: how its state survives.
        fleet: name of the policy that decides what fleet to have.
        fleet_settings: its own settings, which only the policy reads.
        blocks: settings for single providers, at most one each.
        limits: what is never bought, and how much of one kind.
    """

    job_id: str
    name: str
    user: str
    run_url: str
    command: tuple[str, ...]
    resources: tuple[Resources, ...]
    setup: str | None = None
    bundle: Bundle | None = None
    nodes: int = 1
    use: Use = Use.SPOT
    envs: tuple[tuple[str, str], ...] = ()
    secrets: tuple[SecretRef, ...] = ()
    max_price_usd_per_hour: float | None = None
    max_duration_s: Seconds | None = None
    work: Work | None = None
    objective: Objective = Objective()
    options: RunOptions = RunOptions()
    checkpointing: Checkpointing = Checkpointing()
    recovery: Recovery = Recovery()
    notify: Notify = Notify()
    injection: Injection | None = None
    code: str | None = None
    dead_man_s: Seconds = DEAD_MAN_S
    runtime: RuntimeSpec = RuntimeSpec()
    fleet: str = DEFAULT_FLEET
    blocks: tuple[ProviderBlock, ...] = ()
    fleet_settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    limits: BuyingLimits = BuyingLimits()


def settings_for(job: Job, provider: str) -> tuple[tuple[str, BlockValue], ...]:
    """Return a job's settings for one provider; none if it has no block for it."""
    return next((block.settings for block in job.blocks if block.provider == provider), ())


def may_use(job: Job, provider: str) -> bool:
    """Return whether a job may have machines of a provider: it names that one, or any."""
    return not job.resources or any(want.provider in (None, provider) for want in job.resources)


DRILL = "drill"
"""Provider name of measurements made by a drill, on any machine."""


class Measurement(Tagged, frozen=True):
    """Measurements of earlier runs of the same job (same command, same or older code) on one kind of machine.

    Attributes:
        provider, machine_type: of the machines; `DRILL` and the host's name for a drill.
        work_per_s: completed work per second of training on all of the job's machines together, in `unit`s,
            excluding saves, losses and restarts.
        prepare_s: mean time from a machine's start to its first completed step: boot, setup, restore, script start [s].
        allocate_s: mean time from an order to the machine's start [s].
        stall_s, size_bytes, upload_s, commit_s: of a save; None if never measured.
        runs: number of runs averaged.
        boot_s: the part of `prepare_s` until the machine is ready to acquire the run [s]; None if unknown.
        item_s: mean time of an item of a bag [s]; `work_per_s` is then of one machine, which runs several items at once.  None
            for other jobs.
    """

    provider: str
    machine_type: str
    unit: Unit
    work_per_s: float
    prepare_s: Seconds
    allocate_s: Seconds
    runs: int
    stall_s: Seconds | None = None
    size_bytes: int | None = None
    upload_s: Seconds | None = None
    commit_s: Seconds | None = None
    boot_s: Seconds | None = None
    item_s: Seconds | None = None


class ForecastBasis(enum.StrEnum):
    """What a forecast rests on."""

    TRIALS = "trials"
    """Simulated runs."""
    EXACT = "exact"
    """The exact distribution of the finish."""
    EXPECTED = "expected"
    """Expected values alone: no P50 and P90 were computed where the job was submitted."""


class Forecast(Tagged, frozen=True):
    """What a job would cost and when it would finish, as its user read it before anything was bought.

    Attributes:
        made_at: when it was made.
        provider, machine_type, zone: of the plan's best offer, for which it was made.
        spot: whether that offer can be preempted.
        machines: how many of them.
        fleet: name of the job's fleet policy.
        basis: what it rests on.
        trials: number of simulated runs; 0 if there are none.
        expected_cost_usd, expected_finish_s: expected values; the finish counts from the submission [s].
        cost_p50_usd, cost_p90_usd, finish_p50_s, finish_p90_s: quantiles; None if unknown.
    """

    made_at: WallTime
    provider: str
    machine_type: str
    zone: str
    spot: bool
    machines: int
    fleet: str
    basis: ForecastBasis
    trials: int = 0
    expected_cost_usd: Usd | None = None
    expected_finish_s: Seconds | None = None
    cost_p50_usd: Usd | None = None
    cost_p90_usd: Usd | None = None
    finish_p50_s: Seconds | None = None
    finish_p90_s: Seconds | None = None
