"""The runtimes that jobs can name, and their rules for the driver.

A runtime is how a job's state survives: what the job needs, which machines may work together, what a machine is told.
Its rules are pure and serve the live system and every simulated one; what it does on a machine stands behind
`ports.Runtime`.  A new runtime is an entry of `policy_registry.ENTRIES`, or an entry point of the group `windfall.runtimes`
in another package, whose value is a `RuntimeRules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from windfall.errors import Misuse
from windfall.fleet import Slot
from windfall.jobs import Job, RuntimeSpec, Work
from windfall.policies import policy_registry
from windfall.policies.layout.membership import Membership
from windfall.policies.policy_registry import PolicyKind
from windfall.structs import Struct, replace

if TYPE_CHECKING:
    # Needs numpy, which a controller need not have.
    from windfall.models.asp import AspModel


class Placement(Struct, frozen=True):
    """The machine that fills a slot now, and where others reach its program (empty if nowhere)."""

    role: str
    machine_id: str
    address: str


class Scaling(Struct, frozen=True):
    """How many machines a job can use, and what a change of them costs.

    Attributes:
        machines_min, machines_max: machines that do work; None for no upper bound.
        reliable: machines that cannot be preempted, which keep the state safe and do no work.
        role, reliable_role: the roles of the two kinds.
        eviction_s: how long no machine makes progress after a loss [s].
        change_s: how long none does after machines were added or released [s].
        loss_per_core: how much of the fleet's work each core beyond the first costs [1].
        work_per_core_s: work that a core does in a second, in the job's unit; None if unknown.
    """

    machines_min: int
    machines_max: int | None
    role: str
    reliable: int = 0
    reliable_role: str = ""
    eviction_s: float = 0.0
    change_s: float = 0.0
    loss_per_core: float = 0.0
    work_per_core_s: float | None = None


class SettingProblem(str):
    """What is wrong with one setting, in words that follow the runtime's name.

    Attributes:
        key: of the setting.
    """

    __slots__ = ("key",)
    key: str

    def __new__(cls, text: str, key: str) -> SettingProblem:
        """Return the words, with the setting that they are about."""
        problem = super().__new__(cls, text)
        problem.key = key
        return problem


class RuntimeRules(Struct, frozen=True):
    """The rules of a runtime.

    Attributes:
        name: as a job file names it.
        help: one sentence for users.
        roles: what its machines can be for.
        slots: what a job needs at its start.
        membership: which of its machines train together.
        live: module and function that open the controller's side, `ports.Runtime`: it gets the job, the run's store, a
            clock, and a function that returns random names.
        program: module that runs on each machine, as `python -m PROGRAM REQUEST`; it takes the request of `windfall exec`.
        assign: the body of a machine's assignment, from its slot and the machines by slot; None if there is none.
        reliable_roles: roles that need a machine that cannot be preempted.
        check: returns what is wrong with a job's settings, None if they are valid; without it any are accepted.  A
            `SettingProblem` leads to the line of its setting.
        scaling: how many machines a job can use; None: those that it needs at its start, no more and no fewer.
        command: the shell command that settings stand for, so that a job file has no `run`; None if they stand for none.
        work: the work that a job's settings imply; None: they imply none, and it may be given.
        work_to_loss: predicts the work that a job needs until the training loss `objective.loss`, on the machines of its
            start; raises `Misuse` if it never gets there.  None: the runtime predicts none, and the work must be given.
        training: how fast a job trains on workers of each machine type, and to which loss; its types of workers are named
            as the machine types; raises `Misuse` if the job does not say.  None: the runtime does not know.
        ends_at_loss: a job with the training loss `objective.loss` ends when it is reached; its `work` is then the most that it
            does.
        iterations: how many iterations of `training`, which are then called turns, a job does at most.  None: an iteration is a
            step, and there is no limit.
        without_effect: keys of a job file's block `checkpoint` that change nothing, and what to write instead of each.
    """

    name: str
    help: str
    roles: tuple[str, ...]
    slots: Callable[[Job], tuple[Slot, ...]]
    membership: Callable[[Job], Membership]
    live: str
    program: str
    assign: Callable[[Job, Slot, Mapping[str, Placement]], Mapping[str, Any]] | None = None
    reliable_roles: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any]], str | None] | None = None
    scaling: Callable[[Job], Scaling | None] | None = None
    command: Callable[[Mapping[str, Any]], str | None] | None = None
    work: Callable[[Job], Work] | None = None
    work_to_loss: Callable[[Job], Work] | None = None
    training: Callable[[Job], AspModel] | None = None
    ends_at_loss: bool = False
    iterations: Callable[[Job], float] | None = None
    without_effect: Mapping[str, str] = MappingProxyType({})


def rules(name: str) -> RuntimeRules:
    """Return the rules of a runtime.

    Raises:
        Misuse: no such runtime is installed.
    """
    found: RuntimeRules = policy_registry.load(PolicyKind.RUNTIME, name)
    return found


def scaling_of(job: Job) -> Scaling | None:
    """Return how many machines a job can use; None if its runtime needs a fixed number."""
    scaling = rules(job.runtime.name).scaling
    return None if scaling is None else scaling(job)


def settings_problem(spec: RuntimeSpec) -> str | None:
    """Return what is wrong with a job's settings of its runtime; None if they are valid.

    Raises:
        Misuse: no such runtime is installed.
    """
    check = rules(spec.name).check
    return None if check is None else check(spec.settings)


def loss_problem(runtime: str) -> str | None:
    """Return what is wrong with an objective's loss under a runtime; None if it sees or predicts when a loss is reached.

    Raises:
        Misuse: no such runtime is installed.
    """
    if rules(runtime).work_to_loss is not None or rules(runtime).ends_at_loss:
        return None
    problem = f"needs a runtime that predicts the training loss, and {runtime} does not"
    if rules(runtime).work is not None:
        return f"{problem}; remove it: how much work there is follows from the runtime's settings"
    return f"{problem}: write how much work there is instead, work: {{steps: 20000}}"


def work_to_loss_text(job: Job) -> str:
    """Return where the work of a job with the training loss `objective.loss` is from, for a plan."""
    if rules(job.runtime.name).ends_at_loss:
        return f"at most: it ends at a training loss of {job.objective.loss:g}"
    return f"predicted by the runtime until a training loss of {job.objective.loss:g}"


def with_work(job: Job) -> Job:
    """Return the job with the work that its runtime's settings imply, or that its runtime predicts until its objective's loss.

    Raises:
        Misuse: the runtime predicts none, or that the job never reaches this loss.
    """
    own = rules(job.runtime.name).work
    if own is not None:
        return replace(job, work=own(job))
    if job.objective.loss is None:
        return job
    predict = rules(job.runtime.name).work_to_loss
    if predict is None:
        raise Misuse(f"objective.loss {loss_problem(job.runtime.name)}")
    return replace(job, work=predict(job))
