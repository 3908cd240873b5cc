"""What a user wants: a job, as the job file says it and the journal keeps it.  Imports `terms` alone.

Everything here is a plain value; reading and checking the YAML file is the business of `spec`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from windfall.terms import Bundle, Seconds, Unit, Usd

SAVE_TIMEOUT_S = Seconds(600.0)
"""How long a last save may take, if the job does not say."""
DEAD_MAN_S = Seconds(7200.0)
"""How long a machine goes on without hearing from its controller, if the job does not say."""


class Minimize(enum.StrEnum):
    """What a user would rather have less of."""

    COST = "cost"
    TIME = "time"


class Use(enum.StrEnum):
    """Which kinds of machines may be bought for a job."""

    SPOT = "spot"
    """Only machines that can be taken back."""
    ON_DEMAND = "on-demand"
    """Only machines that cannot."""
    AUTO = "auto"
    """Spot first; on-demand where spot cannot be had."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A need for a machine: the `index`-th of a job's `role`s; its machine changes, the need stays."""

    index: int
    role: str = "node"

    @property
    def name(self) -> str:
        """As people see it: `node-0`."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class SecretRef:
    """The name of a secret; its value never enters an event, a log or a command line."""

    name: str


@dataclass(frozen=True, slots=True)
class Want:
    """One kind of machine that would do; a job lists them in order of preference (`any_of`).

    Attributes:
        provider: None: any that is configured.
        zone: None: any.
        machine_type: None: any that has enough of the rest.
        accelerator, accelerators: name and count; None and 0 for none.
        cpus_min, memory_gib_min: 0 for no wish.
    """

    provider: str | None = None
    zone: str | None = None
    machine_type: str | None = None
    accelerator: str | None = None
    accelerators: int = 0
    cpus_min: float = 0.0
    memory_gib_min: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """How much there is to do, once, over all restarts."""

    amount: float
    unit: Unit


@dataclass(frozen=True, slots=True)
class Objective:
    """What must hold, and what shall be small.

    Attributes:
        deadline_s: from the submission on; None for none.
        budget_usd: hard; what the last save and the release cost is reserved inside it.
    """

    deadline_s: Seconds | None = None
    budget_usd: Usd | None = None
    minimize: Minimize = Minimize.COST


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How the run survives.

    Attributes:
        store: URL under which the run's own folder is made; None for the installation's default.
        policy: as `policies.saving` understands it (`adaptive`, `optimal`, `never`, `every:200steps`, `every:600.0s`): the job
            file's `insure`.
        keep_every: the user's own periodic saves that stay, as text for people; None if the script decides alone.
        keep: how many periodic points to keep; None for all.
        save_timeout_s: how long `stop` and the dead-man limit wait for the last save.
        source: URL of an earlier run whose newest point this one begins with (`from`); None for a fresh start.
    """

    store: str | None = None
    policy: str = "adaptive"
    keep_every: str | None = None
    keep: int | None = None
    save_timeout_s: Seconds = SAVE_TIMEOUT_S
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """What happens after losses and failures.

    Attributes:
        failures_max: how often the script may fail by itself before the spending stops.
        retry_codes: exit codes that are always worth another start (`recover_on_exit_codes`).
        barren_max: how many machines in a row, per node, may come and go without a step before the spending stops.
    """

    failures_max: int = 3
    retry_codes: tuple[int, ...] = ()
    barren_max: int = 10


@dataclass(frozen=True, slots=True)
class Notify:
    """Whom to tell of `preempted`, `waiting`, `done`, `failed`, `over-budget`, `late`.

    Attributes:
        command: run by a shell on the controller; finds the event in its environment.  None for none.
        webhook: URL to which the event is posted as JSON.  None for none.
    """

    command: str | None = None
    webhook: str | None = None


@dataclass(frozen=True, slots=True)
class Injection:
    """The thesis' preemption injector (section 6.2.1): exponential lives with these means, one after the other.

    The n-th machine of a slot lives for a draw with mean `mttp_s[(n - 1) % len(mttp_s)]`; the same seed gives the same
    lives.  `notice_s` None: without notice.
    """

    mttp_s: tuple[Seconds, ...]
    seed: int
    notice_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as submitted.

    Attributes:
        job_id: unique in an installation; `<name>-<nonce>`.
        user: who submitted it.
        run_url: the run, which is everything that survives.
        command: what each machine runs (`run`), as an argv.
        setup: shell text that each new machine runs once before; None for none.
        nodes: how many machines train together.
        wants: in order of preference; at least one.
        envs: plain environment of setup and command.
        secrets: names of the secrets that setup and command find in their environment.
        max_price_usd_per_hour: of one machine; None for no limit.
        max_duration_s: wall time from the submission at which the last machine is given back, saved or not; None for none.
        work: None if unknown: then the plan says that it is.
        code: digest of the code that runs, so that measurements of the same job can be found again.
        dead_man_s: how long a machine goes on without hearing from the controller.
    """

    job_id: str
    name: str
    user: str
    run_url: str
    command: tuple[str, ...]
    wants: tuple[Want, ...]
    setup: str | None = None
    bundle: Bundle | None = None
    nodes: int = 1
    use: Use = Use.SPOT
    envs: tuple[tuple[str, str], ...] = ()
    secrets: tuple[SecretRef, ...] = ()
    max_price_usd_per_hour: float | None = None
    max_duration_s: Seconds | None = None
    work: Work | None = None
    objective: Objective = field(default_factory=Objective)
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    recovery: Recovery = field(default_factory=Recovery)
    notify: Notify = field(default_factory=Notify)
    injection: Injection | None = None
    code: str | None = None
    dead_man_s: Seconds = DEAD_MAN_S


DRILL = "drill"
"""Stands for the provider of what a drill measured, on whatever machine that was."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What earlier runs of the same job (same command, same code or an older one) showed on one kind of machine.

    Attributes:
        provider, machine_type: of the machines; `DRILL` and the host's name for a drill.
        work_per_s: finished work per second of training on all of the job's machines together, in `unit`s, saves,
            losses and restarts not counted.
        prepare_s: mean time from a machine's start to its first finished step: boot, setup, restore, the script's start.
        allocate_s: mean time from an order to the machine's start.
        stall_s, size_bytes, upload_s, commit_s: of a save; None if never measured.
        runs: how many runs this is the mean of.
        boot_s: of `prepare_s`, the mean time until the machine is ready to take the run; None if not known.
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
