"""The block `bag` of a job file: the parameter space, what an item is, and when the bag is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from windfall.bags import RETRIES_MAX, STOP_ITEMS_MIN
from windfall.core import item_commands
from windfall.models.parameter_space import ListedParameter, RangedParameter
from windfall.spec import fields
from windfall.spec.bag_fields import EXAMPLE, ITEMS_MAX, ItemCpus, ItemMemory, Parameters, Patterns, Results, Share
from windfall.spec.fields import Duration
from windfall.spec.job_block import JobFileBlock
from windfall.spec.stop_item_block import StopItemBlock, stop_item_problems
from windfall.spec.stop_rules import metric_problems, one_rule
from windfall.spelling import nearest


class StopWhenBlock(JobFileBlock):
    """When the bag is over before `finish`, by a result of the items that are done; it has one of four rules."""

    metric: fields.Words
    """The result that decides; an item whose result is no number does not count."""
    above: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Over once an item has a larger value."""
    below: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Over once an item has a smaller value."""
    no_gain: Annotated[int, Field(ge=1, le=ITEMS_MAX)] | None = None
    """Over once this number of items in turn did not improve the best."""
    goal: Literal["min", "max"] | None = None
    """Of no_gain: whether small or large values are good (default: min)."""
    standard_error: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Over once the standard error of the mean is no larger; needs order: random."""
    min_items: Annotated[int, Field(ge=1, le=ITEMS_MAX)] = STOP_ITEMS_MIN
    """The bag ends at no fewer done items (default: 5)."""

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that are set."""
        return tuple(name for name in _STOP_RULES if getattr(self, name) is not None)


_STOP_RULES = ("above", "below", "no_gain", "standard_error")


class BagBlock(JobFileBlock):
    """Many items that run the same command with different parameters, each written as {{NAME}} in run."""

    parameters: Parameters | None = None
    """Values of each parameter; all combinations run. A list, linspace, logspace or range; uniform, loguniform or integers
    are sampled."""
    rows: fields.Words | None = None
    """A CSV file with one row of parameters for each item, names in its first line; combined with parameters."""
    samples: Annotated[int, Field(ge=1, le=ITEMS_MAX)] | None = None
    """How many samples of the parameters that are sampled."""
    sampling: Literal["latin-hypercube", "random"] = "latin-hypercube"
    """How they are sampled."""
    repeats: Annotated[int, Field(ge=1, le=ITEMS_MAX)] = 1
    """How often each combination runs, each time with another seed."""
    seed: Annotated[int, Field(ge=0, le=2**62)] = 0
    """Of the samples, the order, and the seed of each item ({{seed}})."""
    order: Literal["random", "given"] = "random"
    """In which order items run: random, so that what is done is an even sample, or as given."""
    finish: Share = 1.0
    """The share of the items that must be done; then the others are given up."""
    stop_when: StopWhenBlock | None = None
    """When the bag is over before that, by a result of the items that are done."""
    stop_item: StopItemBlock | None = None
    """When one running item is stopped, by a result that it reports on the way; what it has by then are its results."""
    item_timeout: Duration | None = None
    """How long an item may run before it is killed and counts as failed."""
    retries: Annotated[int, Field(ge=0, le=1000)] = RETRIES_MAX
    """How often an item that failed is tried again (default: 2)."""
    retry_codes: fields.ExitCodes = ()
    """Exit codes after which an item is always tried again."""
    at_once: Annotated[int, Field(ge=1, le=ITEMS_MAX)] | None = None
    """The most items on all machines at once, for example for a licence (default: no limit)."""
    cpus_per_item: ItemCpus | None = None
    """How many processors an item needs, on all its nodes (default: ranks, or else 1); as many items run at once as fit. A
    list such as [4, 2, 1]: it wants 4, and may run on 2 or 1 after a preemption; {{cpus}} says on how many."""
    memory_per_item: ItemMemory | None = None
    """How much memory an item needs, such as 1.5GB or 500MB, on all its nodes; as many items run at once as fit."""
    ranks: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """How many MPI ranks an item has: mpirun -n {{ranks}}; all on one machine, or the same number on each of its nodes."""
    nodes_per_item: Annotated[int, Field(ge=1, le=1000)] = 1
    """On how many nodes of one allocation an item's ranks run; more than 1 needs a provider with such allocations (Slurm)."""
    weights: fields.Words | None = None
    """The parameter, or column of rows, that says how much an item counts towards finish (default: all the same)."""
    results: Results = ()
    """Results by name: {file: log.txt, regex: 'energy = (.*)'} (the last match counts) or {json: out.json, key: energy}."""
    collect: Patterns = ()
    """Patterns of files that are kept of each item that is done."""
    reduce: fields.Words | None = None
    """Shell commands that run once at the end, in a folder with results.csv and the files that were kept."""
    restart: Patterns = ()
    """Patterns of files that the command writes and can continue from: an item that is preempted finds the newest whole file
    of each in its folder, and {{restart}} is 1."""
    restart_signal: Literal["HUP", "INT", "TERM", "USR1", "USR2"] | None = None
    """Signal that makes the command save when its machine's end is announced."""
    save_time: Duration | None = None
    """How long the command takes to save, for {{save_every_s}} (default: as long as it takes to store the files)."""

    @property
    def cpus(self) -> float:
        """How many processors an item needs."""
        return self.cpus_per_item[0] if self.cpus_per_item else float(self.ranks or 1)

    @property
    def smaller(self) -> tuple[float, ...]:
        """The smaller numbers of processors with which an item can run too."""
        return self.cpus_per_item[1:] if self.cpus_per_item else ()

    @property
    def cpus_each(self) -> float:
        """How many processors an item needs of each of its machines."""
        return self.cpus / self.nodes_per_item

    @property
    def memory_each_gib(self) -> float | None:
        """How much memory an item needs of each of its machines [GiB]; None if that limits nothing."""
        return None if self.memory_per_item is None else self.memory_per_item / self.nodes_per_item

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its own parameters, listed ones first, without those of `rows`."""
        return (*(one.name for one in self.listed), *(one.name for one in self.ranged))

    @property
    def listed(self) -> tuple[ListedParameter, ...]:
        """Parameters with given values."""
        return tuple(one for one in self.parameters or () if isinstance(one, ListedParameter))

    @property
    def ranged(self) -> tuple[RangedParameter, ...]:
        """Parameters that are sampled."""
        return tuple(one for one in self.parameters or () if isinstance(one, RangedParameter))


def own_names(block: BagBlock) -> tuple[str, ...]:
    """Return the names that a command may use beside the parameters."""
    ranks = () if block.ranks is None else (item_commands.RANKS,)
    sizes = (item_commands.SIZE,) if block.smaller else ()
    return (*item_commands.OWN, *ranks, *sizes, *((item_commands.REPEAT,) if block.repeats > 1 else ()))


def problems(block: BagBlock, command: str, columns: Sequence[str]) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield what is wrong between the keys of a block, each with its path below the job file, and a sentence.

    Args:
        block: of the job file.
        command: what each item runs.
        columns: the names in the file of `rows`.
    """
    if block.parameters is None and block.rows is None:
        example = EXAMPLE.partition(" or")[0]
        yield ("bag",), f"bag needs parameters or rows, for example bag: {{parameters: {{{example}}}}}"
        return
    if block.ranged and block.samples is None:
        yield ("bag",), f"bag.samples is missing: how many samples of {block.ranged[0].name}, for example samples: 64"
    if block.samples is not None and not block.ranged:
        yield ("bag", "samples"), "bag.samples: no parameter is sampled; write for example T: {uniform: [0.8, 2.0]}"
    if block.nodes_per_item > 1 and (block.ranks is None or block.ranks % block.nodes_per_item):
        has = "is missing" if block.ranks is None else f"is {block.ranks}"
        example = f"for example ranks: {2 * block.nodes_per_item}"
        yield (
            ("bag", "nodes_per_item"),
            f"bag.ranks {has}: with nodes_per_item: {block.nodes_per_item} it must be a multiple of that, {example}",
        )
    yield from _sizes(block)
    if block.restart_signal is not None and not block.restart:
        yield ("bag", "restart_signal"), "bag.restart_signal needs bag.restart: which files the command writes then"
    yield from _stops(block)
    yield from stop_item_problems(block.stop_item, block.results)
    yield from _names(block, (*block.names, *columns))
    known = (*block.names, *columns, *own_names(block))
    for name, _ in item_commands.places(command):
        if name not in known:
            yield ("run",), f"run uses {{{{{name}}}}}, which is no parameter; {nearest(name, known)}"
    for name in (found for found, _ in item_commands.places(block.reduce or "") if found in known):
        yield ("bag", "reduce"), f"bag.reduce uses {{{{{name}}}}}, but runs once for all items; read results.csv there"


def _sizes(block: BagBlock) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with smaller numbers of processors."""
    place, listed = ("bag", "cpus_per_item"), [f"{cpus:g}" for cpus in block.cpus_per_item or ()]
    if block.smaller and block.nodes_per_item > 1:
        yield (
            place,
            f"bag.cpus_per_item lists {', '.join(listed)}; an item on several nodes has one number: write {listed[0]}",
        )
    for cpus in block.smaller if block.ranks is not None else ():
        assert block.ranks is not None
        ranks = item_commands.ranks_of(block.ranks, block.cpus, cpus)
        if not ranks.is_integer() or ranks < 1:
            each = f"{block.ranks} ranks on {block.cpus:g} CPUs are {ranks:.3g} on {cpus:g}"
            yield place, f"bag.cpus_per_item: {each}; write numbers on which the ranks are whole"


def _stops(block: BagBlock) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with `stop_when`."""
    rule, place = block.stop_when, ("bag", "stop_when")
    if rule is None:
        return
    yield from metric_problems(place, rule.metric, block.results)
    yield from one_rule(place, rule.rules, _STOP_RULES, f"{{metric: {rule.metric}, below: -5}}")
    if rule.goal is not None and rule.no_gain is None:
        yield (*place, "goal"), "bag.stop_when.goal needs no_gain: how many items in turn do not improve the best"
    if rule.standard_error is not None and block.order != "random":
        yield (
            (*place, "standard_error"),
            "bag.stop_when.standard_error needs order: random, so that what is done is an even sample",
        )


def _names(block: BagBlock, parameters: Sequence[str]) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with names: one name must not stand for two things."""
    if block.repeats > 1 and item_commands.REPEAT in block.names:
        yield (
            ("bag", "parameters", item_commands.REPEAT),
            "bag.parameters.repeat is also what bag.repeats counts; choose another name",
        )
    if block.smaller and item_commands.SIZE in parameters:
        yield (
            ("bag", "cpus_per_item"),
            "bag.cpus_per_item is {{cpus}} in run, which is also a parameter; rename the parameter",
        )
    if block.ranks is not None and item_commands.RANKS in parameters:
        yield ("bag", "ranks"), "bag.ranks is also a parameter; choose another name for the parameter"
    for rule in block.results:
        if rule.name in (*parameters, *own_names(block)):
            yield ("bag", "results", rule.name), f"bag.results.{rule.name} is also a parameter; choose another name"
    if block.weights is not None and block.weights not in parameters:
        found = nearest(block.weights, parameters)
        yield ("bag", "weights"), f"bag.weights names {block.weights}, which is no parameter; {found}"
