"""The job file: its keys, and the job that it describes.

The keys are SkyPilot's where SkyPilot has one, dstack's `spot_policy`, `max_price` and `max_duration`, and Windfall's own
for the rest.  Nothing is guessed: an unknown key, a value of the wrong type and a duplicate key are errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema, create_model

from windfall import jobs
from windfall.errors import Misuse
from windfall.policies.layout import bag_rules, runtime_list
from windfall.policies.planning import job_checks
from windfall.policies.policy_registry import BAG, EXPLORE
from windfall.providers import job_blocks, provider_list
from windfall.providers.job_blocks import BlockKey, BlockKind
from windfall.spec import bag_rows, fields
from windfall.spec.bag_block import BagBlock
from windfall.spec.bag_rows import BagRows
from windfall.spec.fields import Amount, Duration, Money
from windfall.spec.job_block import JobFileBlock
from windfall.spelling import nearest
from windfall.structs import replace
from windfall.terms import DEFAULT_SAVING, Bundle, RunOptions, Seconds, Unit, Usd
from windfall.units import duration_s

SHELL = 'command -v bash >/dev/null && exec bash -euo pipefail -c "$0"; exec sh -eu -c "$0"'
"""Runs its first argument on any Linux; a failing command or an unset variable ends it, in bash also a failure in a
pipe."""


class MachinesBlock(JobFileBlock):
    """One kind of machine that can run the job."""

    infra: fields.Where | None = None
    """Where to order machines: PROVIDER or PROVIDER/ZONE (default: anywhere)."""
    zone: fields.Names | None = None
    """The zone, if infra has none; a list for alternatives."""
    instance_type: fields.Names | None = None
    """The provider's name for a machine type; a list for alternatives."""
    accelerators: fields.Accelerators | None = None
    """Name and count, A100:8; a list or a map for alternatives."""
    cpus: fields.Cpus | None = None
    """The least number of processors: 4+ (4 means the same)."""
    memory: fields.Memory | None = None
    """The least memory in GiB: 16+ (16 means the same)."""
    use_spot: bool | None = None
    """true: spot machines, which can be preempted (default); false: only on-demand machines."""

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that it names; none for any."""
        return (self.infra.zone,) if self.infra is not None and self.infra.zone is not None else self.zone or ()


class JobRecoveryBlock(JobFileBlock):
    """What happens after failures of the script; lost machines are always replaced."""

    max_restarts_on_errors: Annotated[int, Field(ge=0, le=job_checks.RESTARTS_MAX)] | None = None
    """How often a failed script is restarted (default: 2)."""
    recover_on_exit_codes: fields.ExitCodes = ()
    """Exit codes that always restart the script."""
    max_losses_without_progress: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Fail the job once this many machines in a row, per node, are lost without a single step (default: 10)."""


class ExcludeBlock(JobFileBlock):
    """Machines that are never ordered, whatever else fits the job."""

    zone: fields.Names | None = None
    """A zone, or a list of zones."""
    instance_type: fields.Names | None = None
    """A machine type, or a list of machine types."""


class ResourcesBlock(MachinesBlock):
    """Which machines can run the job."""

    any_of: Annotated[tuple[MachinesBlock, ...], Field(strict=False, min_length=1)] | None = None
    """Alternatives in order of preference; each extends or overrides the keys next to any_of."""
    ordered: Annotated[tuple[MachinesBlock, ...], Field(strict=False, min_length=1)] | None = None
    """The same as any_of."""
    exclude: ExcludeBlock = ExcludeBlock()
    """Zones and machine types that are never ordered, of all alternatives."""
    pool_max: Annotated[int, Field(ge=1, le=job_checks.NODES_MAX)] | None = None
    """The most machines of one pool: a type in a zone of a provider, spot and on-demand apart (default: no limit)."""
    max_hourly_cost: Money | None = None
    """The same as max_price."""
    job_recovery: JobRecoveryBlock | None = None
    """The same as job_recovery at the top."""


class WorkBlock(JobFileBlock):
    """The amount of work over all restarts, in one unit; without it, a plan has no cost and no finish."""

    steps: Amount | None = None
    """Training steps."""
    samples: Amount | None = None
    """Training samples."""
    tokens: Amount | None = None
    """Tokens."""
    items: Amount | None = None
    """Items of a list."""


class ObjectiveBlock(JobFileBlock):
    """The limits of the job, and what to minimize within them."""

    deadline: fields.Deadline | None = None
    """By when the job must be done: 12h from the submission, or a time: fri 9:00, tomorrow 9:00, 2027-01-31 18:00."""
    budget_usd: Money | None = None
    """The most to spend [USD]; a hard limit, which includes the cost of the last save."""
    loss: fields.Loss | None = None
    """The training loss to reach, in place of work; for runtimes that predict how much work that takes."""
    minimize: Literal["cost", "time"] = "cost"
    """What to minimize among the plans that meet the limits."""


class CheckpointBlock(JobFileBlock):
    """Where and when checkpoints are saved."""

    store: fields.Store | None = None
    """URL or folder for runs; each run gets its own folder in it."""
    from_: fields.Store | None = Field(default=None, alias="from")
    """URL of an earlier run whose newest checkpoint this run starts from."""
    keep_every: fields.Every | None = None
    """Interval of the saves that are kept: 1000 steps, or 1h."""
    insure: fields.Insure = DEFAULT_SAVING
    """Saves against losses without a notice, replaced by newer ones: auto (default), optimal, 10m, 200 steps, never."""
    keep: Annotated[int, Field(ge=1, le=job_checks.KEEP_MAX)] | None = None
    """How many of the keep_every saves to keep (default: all)."""
    save_timeout: Duration = jobs.SAVE_TIMEOUT_S
    """How long a stop waits for the last save (default: 10m)."""


class NotifyBlock(JobFileBlock):
    """Notifications of the events preempted, waiting, done, failed, over-budget and late."""

    command: fields.Words | None = None
    """Shell command to run on the controller, with the event in its environment."""
    webhook: fields.Webhook | None = None
    """Address to post the event to, as JSON."""


class ControllerBlock(JobFileBlock):
    """Settings for the controller."""

    dead_man: Duration = jobs.DEAD_MAN_S
    """How long a machine keeps training without contact to its controller before it saves and stops (default: 2h)."""


class JobFile(JobFileBlock):
    """A training job for `windfall run`."""

    name: fields.Name = "job"
    """The name of the job (default: the file's name)."""
    run: fields.Words
    """Shell commands that each machine runs."""
    setup: fields.Words | None = None
    """Shell commands that each new machine runs once, before run."""
    workdir: fields.Words | None = None
    """Folder with the code, relative to the job file; it is uploaded, and setup and run start in it."""
    num_nodes: Annotated[int, Field(ge=1, le=job_checks.NODES_MAX)] = 1
    """The number of machines: those that train together, or that run the items of a bag."""
    runtime: fields.Runtime | None = None
    """How the job's state survives: a runtime, or {RUNTIME: {settings}} (default: checkpoint)."""
    fleet: fields.Fleet | None = None
    """The policy that decides which machines the job has: a policy, or {POLICY: {settings}} (default: fixed)."""
    bag: BagBlock | None = None
    """Many items that run the same command with different parameters."""
    resources: ResourcesBlock = ResourcesBlock()
    """Which machines can run the job."""
    spot_policy: Literal["spot", "on-demand", "auto"] | None = None
    """spot, on-demand, or auto: spot first, on-demand if no spot machine is available."""
    max_price: Money | None = None
    """The highest price of one machine [USD/h]; also the bid, if the provider takes bids."""
    max_duration: Duration | None = None
    """Time from the submission after which the job saves and stops."""
    envs: fields.Envs = {}  # noqa: RUF012 - a field of a model, which is given a copy
    """Environment variables of setup and run."""
    secrets: fields.Secrets = ()
    """Names of variables whose values are taken from your environment and never written to a file."""
    work: WorkBlock | None = None
    """The amount of work."""
    objective: ObjectiveBlock = ObjectiveBlock()
    """The limits of the job, and what to minimize within them."""
    checkpoint: CheckpointBlock = CheckpointBlock()
    """Where and when checkpoints are saved."""
    job_recovery: JobRecoveryBlock | None = None
    """What happens after failures of the script."""
    notify: NotifyBlock = NotifyBlock()
    """Notifications."""
    event_callback: fields.Words | None = None
    """The same as notify.command."""
    controller: ControllerBlock = ControllerBlock()
    """Settings for the controller."""

    @property
    def alternatives(self) -> tuple[MachinesBlock, ...]:
        """The kinds of machines that can run the job, in order of preference, each with the shared keys."""
        shared = {
            key: value for key in MachinesBlock.model_fields if (value := getattr(self.resources, key)) is not None
        }
        listed = self.resources.any_of or self.resources.ordered or (MachinesBlock(),)
        return tuple(
            MachinesBlock.model_construct(
                **{
                    **shared,
                    **{key: getattr(one, key) for key in one.model_fields_set if getattr(one, key) is not None},
                }
            )
            for one in listed
        )

    @property
    def machines(self) -> int:
        """How many machines the job has: without `num_nodes` those of one item."""
        least = 1 if self.bag is None else self.bag.nodes_per_item
        return self.num_nodes if "num_nodes" in self.model_fields_set else max(self.num_nodes, least)

    @property
    def use(self) -> jobs.Use:
        """Which kinds of machines to order: as given, else spot."""
        if self.spot_policy is not None:
            return jobs.Use(self.spot_policy)
        spots = {one.use_spot is not False for one in self.alternatives}
        if len(spots) == 2:
            return jobs.Use.AUTO
        return jobs.Use.SPOT if True in spots else jobs.Use.ON_DEMAND


def _key_type(key: BlockKey) -> Any:
    def check(value: object) -> object:
        if problem := job_blocks.problem_with(key, value):
            raise ValueError(problem)
        return value

    kinds = {
        BlockKind.TEXT: "string",
        BlockKind.NUMBER: "number",
        BlockKind.WHOLE: "integer",
        BlockKind.FLAG: "boolean",
    }
    schema: dict[str, Any] = {"type": kinds[key.kind]}
    if key.kind is BlockKind.TEXT:
        schema["pattern"] = f"^({key.pattern or '.*[^ ].*'})$"
    if key.choices:
        schema["enum"] = list(key.choices)
    bounds = {"minimum": key.least, "maximum": key.most}
    schema |= {name: bound for name, bound in bounds.items() if abs(bound) != math.inf}
    return Annotated[object, PlainValidator(check), WithJsonSchema(schema)]


def _block_model(entry: provider_list.ProviderEntry) -> type[JobFileBlock]:
    keys: dict[str, Any] = {
        key.name: (_key_type(key) | None, Field(default=None, description=key.help)) for key in entry.block
    }
    model: type[JobFileBlock] = create_model(
        f"{entry.name.title()}Block", __base__=JobFileBlock, __doc__=f"Settings for the provider {entry.name}.", **keys
    )
    return model


BLOCKS: Mapping[str, type[JobFileBlock]] = MappingProxyType(
    {entry.name: _block_model(entry) for entry in provider_list.PROVIDERS}
)
"""For each provider, the model of its block."""
_BLOCK_FIELDS: dict[str, Any] = {
    name: (model | None, Field(default=None, description=f"Settings for machines of the provider {name}."))
    for name, model in BLOCKS.items()
}
MODEL: type[JobFile] = create_model("JobFile", __base__=JobFile, __doc__=JobFile.__doc__, **_BLOCK_FIELDS)
"""The job file with a block for each provider."""


def _provider_blocks(jobfile: JobFile) -> tuple[jobs.ProviderBlock, ...]:
    return tuple(
        jobs.ProviderBlock(name, tuple((key, getattr(block, key)) for key in sorted(block.model_fields_set)))
        for name in BLOCKS
        if (block := getattr(jobfile, name, None)) is not None and block.model_fields_set
    )


def to_job(
    jobfile: JobFile,
    *,
    job_id: str,
    user: str,
    run_url: str,
    code: str | None = None,
    bundle: Bundle | None = None,
    injection: jobs.Injection | None = None,
    deadline_s: Seconds | None = None,
    rows: BagRows | None = None,
    carried: int = 0,
) -> jobs.Job:
    """Return the job that a file describes.

    Args:
        jobfile: as `load` returned it.
        job_id: unique in the installation.
        user: who submits it.
        run_url: where the run is stored.
        code: digest of the code that runs; None if unknown.
        bundle: the packed `workdir`; None without one.
        injection: preemptions to rehearse; None for none.
        deadline_s: how long from now the file's deadline is, if that is a time; a duration needs none.
        rows: the items of its bag; None without one.
        carried: how many of them an earlier run has done.

    Raises:
        Misuse: the runtime predicts that the job never reaches the loss of its objective.
    """
    made = jobs.Job(
        job_id=job_id,
        name=jobfile.name,
        user=user,
        run_url=run_url,
        command=("sh", "-c", SHELL, jobfile.run),
        resources=_wants(jobfile),
        setup=jobfile.setup,
        bundle=bundle,
        nodes=jobfile.machines,
        use=jobfile.use,
        envs=tuple(jobfile.envs.items()),
        secrets=tuple(jobs.SecretRef(name) for name in jobfile.secrets),
        max_price_usd_per_hour=jobfile.max_price or jobfile.resources.max_hourly_cost,
        max_duration_s=_seconds(jobfile.max_duration),
        work=_work(jobfile.work) if rows is None else jobs.Work(float(len(rows.rows) - carried), Unit.ITEM),
        objective=_objective(jobfile.objective, deadline_s),
        checkpointing=_checkpointing(jobfile.checkpoint),
        options=_options(jobfile.checkpoint, jobfile.job_recovery or jobfile.resources.job_recovery),
        recovery=_recovery(jobfile.job_recovery or jobfile.resources.job_recovery),
        notify=jobs.Notify(jobfile.notify.command or jobfile.event_callback, jobfile.notify.webhook),
        injection=injection,
        code=code,
        dead_man_s=Seconds(jobfile.controller.dead_man),
        runtime=_runtime(jobfile, rows),
        fleet=_fleet(jobfile, rows),
        fleet_settings=jobfile.fleet.settings if jobfile.fleet else {},
        blocks=_provider_blocks(jobfile),
        limits=_limits(jobfile.resources),
    )
    return runtime_list.with_work(made)


def _runtime(jobfile: JobFile, rows: BagRows | None) -> jobs.RuntimeSpec:
    if jobfile.bag is None or rows is None:
        return jobfile.runtime or jobs.RuntimeSpec()
    return jobs.RuntimeSpec(BAG, bag_rules.settings_of(bag_rows.to_bag(jobfile.bag, rows)))


def _fleet(jobfile: JobFile, rows: BagRows | None) -> str:
    """Return the fleet policy: machines of one allocation are as many as the job says."""
    if jobfile.fleet is not None:
        return jobfile.fleet.name
    single = jobfile.bag is not None and jobfile.bag.nodes_per_item == 1
    return EXPLORE if rows is not None and single else jobs.DEFAULT_FLEET


def _seconds(length_s: float | None) -> Seconds | None:
    return None if length_s is None else Seconds(length_s)


def _wants(jobfile: JobFile) -> tuple[jobs.Resources, ...]:
    """Return the machines that can run the job; one on which no item of its bag fits cannot."""
    cpus = 0.0 if jobfile.bag is None else jobfile.bag.cpus_each
    memory_gib = 0.0 if jobfile.bag is None else jobfile.bag.memory_each_gib or 0.0
    return tuple(
        jobs.Resources(
            provider=one.infra.provider if one.infra else None,
            zone=zone,
            machine_type=machine_type,
            accelerator=accelerator.name if accelerator else None,
            accelerators=accelerator.count if accelerator else 0,
            cpus_min=max(one.cpus or 0.0, cpus),
            memory_gib_min=max(one.memory or 0.0, memory_gib),
        )
        for one in jobfile.alternatives
        for zone in one.zones or (None,)
        for machine_type in one.instance_type or (None,)
        for accelerator in (one.accelerators or (None,))
    )


def _limits(resources: ResourcesBlock) -> jobs.BuyingLimits:
    excluded = resources.exclude
    return jobs.BuyingLimits(excluded.zone or (), excluded.instance_type or (), resources.pool_max)


def _work(work: WorkBlock | None) -> jobs.Work | None:
    units = (("steps", Unit.STEP), ("samples", Unit.SAMPLE), ("tokens", Unit.TOKEN), ("items", Unit.ITEM))
    given = [
        (getattr(work, name), unit) for name, unit in units if work is not None and getattr(work, name) is not None
    ]
    return jobs.Work(*given[0]) if given else None


def _objective(objective: ObjectiveBlock, deadline_s: Seconds | None) -> jobs.Objective:
    budget, deadline = objective.budget_usd, objective.deadline
    if deadline is not None:
        deadline_s = deadline.length_s or deadline_s
        assert deadline_s is not None, "how far away a time is depends on now, which the caller knows"
    return jobs.Objective(
        deadline_s=deadline_s,
        budget_usd=None if budget is None else Usd(budget),
        minimize=jobs.Minimize(objective.minimize),
        loss=objective.loss,
    )


def _checkpointing(checkpoint: CheckpointBlock) -> jobs.Checkpointing:
    return jobs.Checkpointing(
        store=checkpoint.store,
        keep_every=checkpoint.keep_every,
        save_timeout_s=Seconds(checkpoint.save_timeout),
        source=checkpoint.from_,
    )


def _options(checkpoint: CheckpointBlock, recovery: JobRecoveryBlock | None) -> RunOptions:
    options = RunOptions(policy=checkpoint.insure, keep=checkpoint.keep)
    if recovery is None:
        return options
    restarts = recovery.max_restarts_on_errors
    failures_max = options.failures_max if restarts is None else restarts + 1
    return replace(options, failures_max=failures_max, retry_codes=recovery.recover_on_exit_codes)


def _recovery(recovery: JobRecoveryBlock | None) -> jobs.Recovery:
    losses_max = None if recovery is None else recovery.max_losses_without_progress
    return jobs.Recovery(losses_max or jobs.Recovery().unproductive_machines_max)


def parse_injection(text: str) -> jobs.Injection:
    """Read the preemption injector's option (thesis, section 6.2.1).

    Args:
        text: `mttp=90s+300s,seed=7,notice=30s`; `seed` is 0 and `notice` `none` by default.

    Raises:
        Misuse: it is not valid.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in ("mttp", "seed", "notice"):
            raise Misuse(f"--inject: unknown part {part.strip()!r}; {nearest(key, ('mttp=', 'seed=', 'notice='))}")
        if key in given:
            raise Misuse(f"--inject: {key} is given twice")
        given[key] = value
    if "mttp" not in given:
        raise Misuse("--inject: mttp is missing; write for example mttp=90s+300s,seed=7,notice=30s")
    seed, notice = given.get("seed", "0"), given.get("notice", "none")
    if not (seed.isascii() and seed.isdigit() and len(seed) <= 18):
        raise Misuse(f"--inject: seed must be a whole number, not {seed!r}")
    return jobs.Injection(
        mttp_s=tuple(_above_zero(part, "--inject: mttp") for part in given["mttp"].split("+")),
        seed=int(seed),
        notice_s=None if notice == "none" else _above_zero(notice, "--inject: notice"),
    )


def _above_zero(text: str, what: str) -> Seconds:
    length_s = duration_s(text, what)
    if not 0 < length_s <= fields.DURATION_S_MAX:
        raise Misuse(f"{what}: must be more than 0s and at most 30 years, for example 90s, not {text!r}")
    return length_s
