"""The job file: what may stand in it, and what the job is that it describes.

The keys are SkyPilot's where SkyPilot has a word, dstack's `spot_policy`, `max_price` and `max_duration`, and our own
for what neither has.  Nothing is guessed: an unknown key, a value of another kind, a key that stands twice are errors.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from windfall import jobs
from windfall.errors import Misuse
from windfall.policies import admitting
from windfall.spec import fields
from windfall.spec.fields import Amount, Duration, Money
from windfall.spelling import nearest
from windfall.terms import Bundle, Seconds, Unit, Usd
from windfall.units import duration_s

SHELL = 'command -v bash >/dev/null && exec bash -euo pipefail -c "$0"; exec sh -eu -c "$0"'
"""Runs its first argument on any Linux: a command that fails, or a variable that is not set, ends it; in bash a failure
inside a pipe does too."""


class Block(BaseModel):
    """A map of the job file: no other keys, no other kinds of values, unchangeable once read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )


class Machines(Block):
    """One kind of machine that would do."""

    infra: fields.Where | None = None
    """Where to buy: PROVIDER or PROVIDER/ZONE, for example local/zone-a; anywhere if left out."""
    zone: fields.Words | None = None
    """The zone, if infra names none."""
    instance_type: fields.Words | None = None
    """The provider's name of a machine type."""
    accelerators: fields.Accelerators | None = None
    """Name and count, A100:8; a list or a map for several that would do."""
    cpus: fields.Cpus | None = None
    """At least so many processors: 4+ (4 means the same)."""
    memory: fields.Memory | None = None
    """At least so much memory in GiB: 16+ (16 means the same)."""
    use_spot: bool | None = None
    """true: machines that can be taken back, the default; false: only machines that cannot."""


class JobRecovery(Block):
    """What happens after failures of the script itself; machines that are lost are always replaced."""

    max_restarts_on_errors: Annotated[int, Field(ge=0, le=admitting.RESTARTS_MAX)] | None = None
    """How often a script that failed by itself is started again; 2 if left out."""
    recover_on_exit_codes: fields.ExitCodes = ()
    """Exit codes that are always worth another start."""
    max_losses_without_progress: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many machines in a row, per node, may be lost without one step before the job has failed; 10 if left out."""


class Resources(Machines):
    """Which machines would do."""

    any_of: Annotated[tuple[Machines, ...], Field(strict=False, min_length=1)] | None = None
    """Alternatives in order of preference; each adds to, or overrides, what stands beside any_of."""
    ordered: Annotated[tuple[Machines, ...], Field(strict=False, min_length=1)] | None = None
    """The same as any_of."""
    max_hourly_cost: Money | None = None
    """The same as max_price."""
    job_recovery: JobRecovery | None = None
    """The same as job_recovery at the top."""


class Work(Block):
    """How much there is to do over all restarts, in one unit; without it the plan knows no cost and no finish."""

    steps: Amount | None = None
    """Training steps."""
    samples: Amount | None = None
    """Training samples."""
    tokens: Amount | None = None
    """Tokens."""
    items: Amount | None = None
    """Items of a list."""


class Objective(Block):
    """What must hold, and what shall be small."""

    deadline: Duration | None = None
    """When it shall be done, from the submission on: 12h."""
    budget_usd: Money | None = None
    """The most that may be spent [USD]: hard, the last save's cost is reserved inside it."""
    minimize: Literal["cost", "time"] = "cost"
    """What to have less of, among plans that hold the rest."""


class Checkpoint(Block):
    """How the run survives."""

    store: fields.Store | None = None
    """URL or folder under which the run's own folder is made."""
    from_: fields.Store | None = Field(default=None, alias="from")
    """URL of an earlier run whose newest point this one begins with."""
    keep_every: fields.Every | None = None
    """The script's own saves that stay: 1000 steps, or 1h."""
    insure: fields.Insure = "adaptive"
    """Saves against losses without a notice, which go when a newer one is there: auto (default), 10m, 200 steps, never."""
    keep: Annotated[int, Field(ge=1, le=admitting.KEEP_MAX)] | None = None
    """How many of the saves that stay are kept; all if left out."""
    save_timeout: Duration = jobs.SAVE_TIMEOUT_S
    """How long stopping waits for the last save: 10m if left out."""


class Notify(Block):
    """Whom to tell of preempted, waiting, done, failed, over-budget, late."""

    command: fields.Words | None = None
    """Run by a shell on the controller, with the event in its environment."""
    webhook: fields.Webhook | None = None
    """Address to which the event is posted as JSON."""


class Controller(Block):
    """What the job asks of its controller."""

    dead_man: Duration = jobs.DEAD_MAN_S
    """How long a machine goes on without hearing from its controller before it saves and stops: 2h if left out."""


class JobFile(Block):
    """A training job for `windfall run`."""

    name: fields.Name = "job"
    """What the job is called; the file's name if left out."""
    run: fields.Words
    """What each machine runs: shell text."""
    setup: fields.Words | None = None
    """Shell text that each new machine runs once before."""
    workdir: fields.Words | None = None
    """Folder with the code, from the job file's own; it travels with the run, and setup and run happen in it."""
    num_nodes: Annotated[int, Field(ge=1, le=admitting.NODES_MAX)] = 1
    """How many machines train together."""
    resources: Resources = Resources()
    """Which machines would do."""
    spot_policy: Literal["spot", "on-demand", "auto"] | None = None
    """spot, on-demand, or auto: spot first, on-demand where spot cannot be had."""
    max_price: Money | None = None
    """The most one machine may cost in an hour [USD]; also given as bid where a provider takes bids."""
    max_duration: Duration | None = None
    """Time from the submission after which the job is saved and stopped."""
    envs: fields.Envs = {}
    """Environment of setup and run: names and values."""
    secrets: fields.Secrets = ()
    """Names of variables whose values are taken from your environment and written to no file."""
    work: Work | None = None
    """How much there is to do."""
    objective: Objective = Objective()
    """What must hold, and what shall be small."""
    checkpoint: Checkpoint = Checkpoint()
    """How the run survives."""
    job_recovery: JobRecovery | None = None
    """What happens after failures of the script itself."""
    notify: Notify = Notify()
    """Whom to tell."""
    event_callback: fields.Words | None = None
    """The same as notify.command."""
    controller: Controller = Controller()
    """What the job asks of its controller."""

    @property
    def alternatives(self) -> tuple[Machines, ...]:
        """The kinds of machines that would do, in order of preference, each with what it shares with the others."""
        shared = {key: value for key in Machines.model_fields if (value := getattr(self.resources, key)) is not None}
        listed = self.resources.any_of or self.resources.ordered or (Machines(),)
        return tuple(
            Machines.model_construct(
                **{
                    **shared,
                    **{key: getattr(one, key) for key in one.model_fields_set if getattr(one, key) is not None},
                }
            )
            for one in listed
        )

    @property
    def use(self) -> jobs.Use:
        """Which kinds of machines may be bought: as said, else spot."""
        if self.spot_policy is not None:
            return jobs.Use(self.spot_policy)
        spots = {one.use_spot is not False for one in self.alternatives}
        if len(spots) == 2:
            return jobs.Use.AUTO
        return jobs.Use.SPOT if True in spots else jobs.Use.ON_DEMAND


def to_job(
    jobfile: JobFile,
    *,
    job_id: str,
    user: str,
    run_url: str,
    code: str | None = None,
    bundle: Bundle | None = None,
    injection: jobs.Injection | None = None,
) -> jobs.Job:
    """Return the job that a file describes.

    Args:
        jobfile: as `load` returned it.
        job_id: unique in the installation.
        user: who submits it.
        run_url: the run's own place.
        code: digest of the code that runs; None if unknown.
        bundle: the packed `workdir`; None without one.
        injection: preemptions to rehearse; None for none.
    """
    return jobs.Job(
        job_id=job_id,
        name=jobfile.name,
        user=user,
        run_url=run_url,
        command=("sh", "-c", SHELL, jobfile.run),
        wants=_wants(jobfile),
        setup=jobfile.setup,
        bundle=bundle,
        nodes=jobfile.num_nodes,
        use=jobfile.use,
        envs=tuple(jobfile.envs.items()),
        secrets=tuple(jobs.SecretRef(name) for name in jobfile.secrets),
        max_price_usd_per_hour=jobfile.max_price or jobfile.resources.max_hourly_cost,
        max_duration_s=_seconds(jobfile.max_duration),
        work=_work(jobfile.work),
        objective=_objective(jobfile.objective),
        checkpointing=_checkpointing(jobfile.checkpoint),
        recovery=_recovery(jobfile.job_recovery or jobfile.resources.job_recovery),
        notify=jobs.Notify(jobfile.notify.command or jobfile.event_callback, jobfile.notify.webhook),
        injection=injection,
        code=code,
        dead_man_s=Seconds(jobfile.controller.dead_man),
    )


def _seconds(length_s: float | None) -> Seconds | None:
    return None if length_s is None else Seconds(length_s)


def _wants(jobfile: JobFile) -> tuple[jobs.Want, ...]:
    return tuple(
        jobs.Want(
            provider=one.infra.provider if one.infra else None,
            zone=(one.infra.zone if one.infra else None) or one.zone,
            machine_type=one.instance_type,
            accelerator=accelerator.name if accelerator else None,
            accelerators=accelerator.count if accelerator else 0,
            cpus_min=one.cpus or 0.0,
            memory_gib_min=one.memory or 0.0,
        )
        for one in jobfile.alternatives
        for accelerator in (one.accelerators or (None,))
    )


def _work(work: Work | None) -> jobs.Work | None:
    units = (("steps", Unit.STEP), ("samples", Unit.SAMPLE), ("tokens", Unit.TOKEN), ("items", Unit.ITEM))
    said = [(getattr(work, name), unit) for name, unit in units if work is not None and getattr(work, name) is not None]
    return jobs.Work(*said[0]) if said else None


def _objective(objective: Objective) -> jobs.Objective:
    budget = objective.budget_usd
    return jobs.Objective(
        deadline_s=_seconds(objective.deadline),
        budget_usd=None if budget is None else Usd(budget),
        minimize=jobs.Minimize(objective.minimize),
    )


def _checkpointing(checkpoint: Checkpoint) -> jobs.Checkpointing:
    return jobs.Checkpointing(
        store=checkpoint.store,
        policy=checkpoint.insure,
        keep_every=checkpoint.keep_every,
        keep=checkpoint.keep,
        save_timeout_s=Seconds(checkpoint.save_timeout),
        source=checkpoint.from_,
    )


def _recovery(recovery: JobRecovery | None) -> jobs.Recovery:
    if recovery is None:
        return jobs.Recovery()
    restarts = recovery.max_restarts_on_errors
    failures_max = jobs.Recovery().failures_max if restarts is None else restarts + 1
    barren_max = recovery.max_losses_without_progress or jobs.Recovery().barren_max
    return jobs.Recovery(failures_max, recovery.recover_on_exit_codes, barren_max)


def parse_injection(text: str) -> jobs.Injection:
    """Read the preemption injector's option (thesis, section 6.2.1).

    Args:
        text: `mttp=90s+300s,seed=7,notice=30s`; `seed` is 0 and `notice` `none` if left out.

    Raises:
        Misuse: it says something else.
    """
    said: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in ("mttp", "seed", "notice"):
            raise Misuse(f"--inject: {part.strip()!r} is not known; {nearest(key, ('mttp=', 'seed=', 'notice='))}")
        if key in said:
            raise Misuse(f"--inject: {key} stands twice")
        said[key] = value
    if "mttp" not in said:
        raise Misuse("--inject: mttp is missing; write for example mttp=90s+300s,seed=7,notice=30s")
    seed, notice = said.get("seed", "0"), said.get("notice", "none")
    if not (seed.isascii() and seed.isdigit() and len(seed) <= 18):
        raise Misuse(f"--inject: seed must be a whole number, not {seed!r}")
    return jobs.Injection(
        mttp_s=tuple(_above_zero(part, "--inject: mttp") for part in said["mttp"].split("+")),
        seed=int(seed),
        notice_s=None if notice == "none" else _above_zero(notice, "--inject: notice"),
    )


def _above_zero(text: str, what: str) -> Seconds:
    length_s = duration_s(text, what)
    if not 0 < length_s <= fields.DURATION_S_MAX:
        raise Misuse(f"{what}: {text!r} is no time that can be waited for; write for example 90s")
    return length_s
