"""The policies of every kind, in one list: what they are called, where they are, and what they do.

Names are written here and nowhere else.  The job file, the command line, its help and completion, the driver, the simulation,
the kernels and the reference read this list; a row is plain data, and what it names is loaded when it is first used.  Fleet
policies and runtimes of other packages are entry points of the groups in `GROUPS`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from windfall.errors import Misuse
from windfall.jobs import DEFAULT_FLEET, DEFAULT_RUNTIME
from windfall.structs import Struct
from windfall.terms import DEFAULT_SAVING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OPTIMAL = "optimal"
THESIS = "thesis"
YOUNG_DALY = "young-daly"
NEVER = "never"
EVERY = "every"
BUYING = "acquisition"
SUCCESSION = "replacement"
BY_AGE = "by-age"
BIDBRAIN = "bidbrain"
MIX = "mix"
GREEDY_DEADLINE = "greedy-deadline"
UNIFORM_PROGRESS = "uniform-progress"
OPTIMAL_DEADLINE = "optimal-deadline"
SPOTDNN = "spotdnn"
BAG = "bag"
PARAMSERVER = "paramserver"
ELASTIC = "elastic"
EXPLORE = "explore"


class PolicyKind(enum.StrEnum):
    """What a policy decides."""

    SAVING = "saving"
    """When the script saves against losses without a notice."""
    FLEET = "fleet"
    """Which machines a job has."""
    REPLACEMENT = "replacement"
    """When a machine is bought for a slot that has none, or will lose its own."""
    RUNTIME = "runtime"
    """How a job's state survives, and which machines it needs."""


class KernelCode(enum.IntEnum):
    """The kernels' number of a saving policy."""

    NEVER = 0
    EVERY_STEPS = 1
    EVERY_S = 2
    """Either, by the unit of the argument."""
    ADAPTIVE = 3
    YOUNG = 4
    THESIS = 5
    OPTIMAL = 6
    INJECTED = 7
    """The kernels call its scalar rule, once per machine."""


class PolicyEntry(Struct, frozen=True):
    """A policy.

    Attributes:
        name: as commands, journals and `explain` call it.
        word: as a job file calls it.
        place: module and attribute.
        help: one sentence for users; empty if its package does not say.
        kernel: its code in the kernels; None if a simulation cannot run it, or need not.
        arguments: examples of its argument; empty if it has none.
        extra: of Windfall, which installs what it needs; empty if it needs nothing.
    """

    kind: PolicyKind
    name: str
    word: str
    place: str
    help: str
    kernel: KernelCode | None = None
    arguments: tuple[str, ...] = ()
    extra: str = ""


_SAVING = "windfall.policies.checkpointing.decision"
ENTRIES = (
    PolicyEntry(
        PolicyKind.SAVING,
        DEFAULT_SAVING,
        "auto",
        f"{_SAVING}:ADAPTIVE",
        "at the interval that loses least by what was measured, the first one early; rarer where notices suffice",
        KernelCode.ADAPTIVE,
    ),
    PolicyEntry(
        PolicyKind.SAVING,
        OPTIMAL,
        OPTIMAL,
        f"{_SAVING}:OPTIMAL",
        "by a schedule computed for each machine from the lifetimes of its kind",
        KernelCode.OPTIMAL,
    ),
    PolicyEntry(
        PolicyKind.SAVING,
        THESIS,
        THESIS,
        f"{_SAVING}:THESIS",
        "Algorithm 1 of the thesis: none where an emergency save fits the notice, otherwise at its equation 4.5",
        KernelCode.THESIS,
    ),
    PolicyEntry(
        PolicyKind.SAVING,
        YOUNG_DALY,
        YOUNG_DALY,
        "windfall.policies.checkpointing.rules:young_interval_s",
        "at the square root of 2 x stall x mean time to preemption, whatever the notice",
        KernelCode.YOUNG,
    ),
    PolicyEntry(
        PolicyKind.SAVING,
        NEVER,
        NEVER,
        f"{_SAVING}:NEVER",
        "only the script's own saves, and the save at a notice",
        KernelCode.NEVER,
    ),
    PolicyEntry(
        PolicyKind.SAVING,
        EVERY,
        "",
        f"{_SAVING}:EVERY",
        "at a given number of steps, or a given time",
        KernelCode.EVERY_S,
        ("100 steps", "10m"),
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        DEFAULT_FLEET,
        DEFAULT_FLEET,
        "windfall.policies.acquisition.fleet_policy:fixed",
        "the machines that the runtime needs, of the offers that rank best, each replaced when it ends",
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        BY_AGE,
        BY_AGE,
        "windfall.policies.replacement.retirement:by_age",
        "as fixed; also replaces a machine at whose age a new one would finish sooner; needs `insure: optimal`",
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        BIDBRAIN,
        BIDBRAIN,
        "windfall.policies.acquisition.bidbrain_settings:RULES",
        "as many machines, and of which offers, as cost least per work (Proteus' BidBrain); for runtimes whose jobs can "
        "use more or fewer machines",
        extra="control",
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        MIX,
        MIX,
        "windfall.policies.acquisition.mixed_fleet:RULES",
        "the number and mix of machines that `windfall plan` finds best for the work that is left, changed where a change "
        "gains more than it costs; for runtimes whose jobs can use more or fewer machines",
        extra="control",
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        SPOTDNN,
        SPOTDNN,
        "windfall.policies.acquisition.training_fleet:RULES",
        "the cheapest workers for the objective's training loss by its deadline; where machines are lost, at once those that "
        "are missing (spotDNN); for runtimes that predict the training on each machine type",
        extra="control",
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        OPTIMAL_DEADLINE,
        OPTIMAL_DEADLINE,
        "windfall.policies.acquisition.deadline_fleet:OPTIMAL_DEADLINE",
        "spot or on-demand machines, whichever is expected to cost least until the job's deadline, by how spot came and went "
        "elsewhere; on demand while nothing else is sure to be in time",
        extra="control",
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        UNIFORM_PROGRESS,
        UNIFORM_PROGRESS,
        "windfall.policies.acquisition.deadline_fleet:UNIFORM_PROGRESS",
        "spot machines, and on-demand ones whenever the job is behind an even pace to its deadline (Uniform Progress)",
        extra="control",
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        GREEDY_DEADLINE,
        GREEDY_DEADLINE,
        "windfall.policies.acquisition.deadline_fleet:GREEDY_DEADLINE",
        "spot machines as long as the deadline allows it, then on-demand ones to the end",
        extra="control",
    ),
    PolicyEntry(
        PolicyKind.FLEET,
        EXPLORE,
        EXPLORE,
        "windfall.policies.acquisition.exploring_fleet:RULES",
        "the first items of a bag on each candidate machine type, the others on the type that costs least an item (SciSpot); "
        "the default of bags",
        extra="control",
    ),
    PolicyEntry(
        PolicyKind.REPLACEMENT,
        BUYING,
        "",
        "windfall.policies.acquisition.ranking:choose",
        "for a slot without a machine: at once, of the best-ranked offer that is not blocked",
    ),
    PolicyEntry(
        PolicyKind.REPLACEMENT,
        SUCCESSION,
        "",
        "windfall.policies.replacement.successor:order_at",
        "for a machine whose end is announced: three replacement times before it, at least 300 s",
    ),
    PolicyEntry(
        PolicyKind.RUNTIME,
        DEFAULT_RUNTIME,
        DEFAULT_RUNTIME,
        "windfall.policies.layout.checkpoint_rules:RULES",
        "any script that saves its state; it resumes from its newest checkpoint on the next machine",
    ),
    PolicyEntry(
        PolicyKind.RUNTIME,
        BAG,
        BAG,
        "windfall.policies.layout.bag_rules:RULES",
        "one command with many parameters; each item of the job file's bag runs by itself, on whatever machine is free",
    ),
    PolicyEntry(
        PolicyKind.RUNTIME,
        PARAMSERVER,
        PARAMSERVER,
        "windfall.policies.layout.tier_rules:RULES",
        "workers of any speed train shared parameters, which survive on a reliable machine when all workers vanish",
    ),
    PolicyEntry(
        PolicyKind.RUNTIME,
        ELASTIC,
        ELASTIC,
        "windfall.policies.layout.shape_rules:RULES",
        "machines that come and go train one model, in pipelines whose number and depth follow them, without restarts",
    ),
)
"""Every policy of this package; the default one of each kind first."""

GROUPS: Mapping[PolicyKind, str] = {
    PolicyKind.FLEET: "windfall.fleet_policies",
    PolicyKind.RUNTIME: "windfall.runtimes",
}
"""Groups of entry points, by which other packages add policies of these kinds."""
_WORDS: Mapping[PolicyKind, str] = {
    PolicyKind.SAVING: "saving policy",
    PolicyKind.FLEET: "fleet policy",
    PolicyKind.REPLACEMENT: "replacement policy",
    PolicyKind.RUNTIME: "runtime",
}


def own(kind: PolicyKind) -> tuple[PolicyEntry, ...]:
    """Return this package's policies of a kind, the default one first."""
    return tuple(entry for entry in ENTRIES if entry.kind is kind)


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group, of all installed packages."""
    # Loaded here: it reads every installed package's description, which most commands need not wait for.
    from importlib import metadata  # noqa: PLC0415

    return metadata.entry_points(group=group)


@functools.cache
def entries(kind: PolicyKind) -> tuple[PolicyEntry, ...]:
    """Return all policies of a kind that are installed; this package's come first and keep their names."""
    ours = own(kind)
    if kind not in GROUPS:
        return ours
    known = {entry.name for entry in ours}
    points = sorted(entry_points(GROUPS[kind]), key=lambda point: point.name)
    others = (PolicyEntry(kind, point.name, point.name, point.value, "") for point in points if point.name not in known)
    return (*ours, *others)


def names(kind: PolicyKind) -> tuple[str, ...]:
    """Return the names of all policies of a kind that are installed and need no argument, the default one first."""
    return tuple(entry.name for entry in entries(kind) if not entry.arguments)


def find(kind: PolicyKind, name: str) -> PolicyEntry:
    """Return a policy's entry.

    Raises:
        Misuse: there is none of this name.
    """
    for entry in own(kind):
        if entry.name == name:
            return entry
    for entry in entries(kind):
        if entry.name == name:
            return entry
    raise Misuse(f"the {_WORDS[kind]} {name} is not installed; this installation has {', '.join(names(kind))}")


@functools.cache
def load(kind: PolicyKind, name: str) -> Any:
    """Return what a policy's entry names.

    Raises:
        Misuse: there is none of this name, or it cannot be loaded.
    """
    entry = find(kind, name)
    module, _, attribute = entry.place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise Misuse(f"the {_WORDS[kind]} {name} {_lacks(entry, error.name or module)}") from error
    except AttributeError as error:
        raise Misuse(f"the {_WORDS[kind]} {name} cannot be loaded: {module} has no {attribute}") from error


def _lacks(entry: PolicyEntry, package: str) -> str:
    with_extra = f"; Windfall's extra {entry.extra} has it" if entry.extra else ""
    return f"needs the package {package.partition('.')[0]}, which is not installed{with_extra}"


def described(kind: PolicyKind, name: str) -> str:
    """Return one sentence about a policy for users; empty if its package has none.

    Raises:
        Misuse: there is none of this name, or it cannot be loaded.
    """
    entry = find(kind, name)
    if entry.help:
        return entry.help
    found = load(kind, name)
    doc = found.__doc__ if callable(found) else None
    return str(getattr(found, "help", None) or (doc or "").strip().partition("\n")[0])


def simulated() -> tuple[PolicyEntry, ...]:
    """Return the saving policies that a simulation can run."""
    return tuple(entry for entry in own(PolicyKind.SAVING) if entry.kernel is not None)


def written() -> tuple[str, ...]:
    """Return the saving policies as a command line names them; one with an argument by its examples."""
    found: list[str] = []
    for entry in own(PolicyKind.SAVING):
        found += [f'"{entry.name} {argument}"' for argument in entry.arguments] or [entry.name]
    return tuple(found)
