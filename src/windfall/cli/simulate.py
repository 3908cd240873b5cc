"""`windfall simulate`: a job's cost and finish under several policies, before anything is spent."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from windfall.cli.locations import state_folder
from windfall.cli.options import InjectSpec, Json, Plot, SetValues, StateFolder, Switch
from windfall.errors import Infeasible, Misuse, WindfallError
from windfall.extras import for_jobs, install
from windfall.policies import policy_registry
from windfall.policies.checkpointing.decision import parse_policy
from windfall.policies.policy_registry import EVERY, OPTIMAL, THESIS, YOUNG_DALY
from windfall.report.console import console
from windfall.structs import Struct, replace
from windfall.terms import DEFAULT_SAVING
from windfall.units import duration_s

if TYPE_CHECKING:
    from rich.console import Console

    from windfall.cli.job_submit import Draft
    from windfall.jobs import Job
    from windfall.market import Offer
    from windfall.policies.planning.estimates import PlanInputs
    from windfall.report.simulate_report import PolicyOutcome
    from windfall.simulation.lifetime_source import LifetimeSource, PriceSource
    from windfall.simulation.scenario import DurationRange
    from windfall.simulation.scenario_from_job import BuiltScenario, Overrides
    from windfall.simulation.simulated_policies import UserPolicy

TRIALS = 100_000
TRIALS_MAX = 5_000_000
COMPARED = (DEFAULT_SAVING, THESIS, YOUNG_DALY, OPTIMAL)
"""The policies that are compared with the job's own, by default."""
_SIMULATED = [entry.name for entry in policy_registry.simulated() if not entry.arguments]
_COMPARES = (
    f"policies to compare, separated by commas: {', '.join(_SIMULATED)}, {EVERY}:100 (steps), "
    f"{EVERY}:10m, or FILE.py:FUNCTION (default: the job's own, {', '.join(COMPARED[:-1])} and {COMPARED[-1]})."
)
_PLOTS = (".png", ".svg", ".pdf")

_OVERRIDES = "Override measured values (a duration such as 4.6s, or a range: 4.5s..4.8s)"
Length = Annotated[str | None, Parameter(group=_OVERRIDES, metavar="DURATION")]
Share = Annotated[float | None, Parameter(group=_OVERRIDES, metavar="SHARE")]
Price = Annotated[float | None, Parameter(group=_OVERRIDES, metavar="USD")]
Count = Annotated[int | None, Parameter(group=_OVERRIDES)]


class _NumberOptions(Struct, frozen=True):
    """The measured values that the user overrides, as written."""

    steps: int | None
    step: str | None
    save: str | None
    upload: str | None
    allocate: str | None
    prepare: str | None
    mttp: str | None
    notice: str | None
    announced: float | None
    price: float | None


def simulate(
    job_file: Path,
    /,
    *,
    trials: int = TRIALS,
    policy: Annotated[str | None, Parameter(metavar="LIST", help=_COMPARES)] = None,
    trace: Annotated[str | None, Parameter(metavar="TRACE")] = None,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
    steps: Count = None,
    step: Length = None,
    save: Length = None,
    upload: Length = None,
    allocate: Length = None,
    prepare: Length = None,
    mttp: Length = None,
    notice: Length = None,
    announced: Share = None,
    price: Price = None,
    unit: Annotated[str | None, Parameter(metavar="UNIT")] = None,
    set_: SetValues = (),
    inject: InjectSpec = None,
    seed: int = 0,
    history: Annotated[int | None, Parameter(metavar="SEED")] = None,
    machines: Switch = False,
    plot: Plot = None,
    dark: Switch = False,
    state: StateFolder = None,
    json_: Json = False,
) -> None:
    """Simulate a job many times: its cost, finish and risk under several saving policies.

    Never buys anything.  Uses the numbers of `windfall plan`: measurements of earlier runs and machines, the current
    offers, and what you override.  All policies get the same machines, trial by trial.

    With `--history SEED`, plays one simulated history instead, and shows it as `windfall cost` and `windfall explain` show a
    real job: its bill, its account, its timeline, its decisions.

    A bag of items is simulated on each machine type; `--step` is then how long an item takes where no run measured it.
    An elastic training with a profile of its layers is played beside a restart from a checkpoint and the best fixed shape.

    Example: `windfall simulate job.yaml --policy adaptive,young-daly,every:100 --model bathtub`

    Args:
        job_file: the job file (YAML).
        trials: number of simulated runs per policy.
        policy: policies to compare, separated by commas.
        trace: trace of availability, lifetimes or prices: FILE[:[TYPE@]ZONE][:FROM..TO].
        model: distribution of lifetimes: exponential, weibull, gompertz-makeham, blended, bathtub, piecewise or
            kaplan-meier.
        steps: number of steps of the run.
        step: length of a step.
        save: how long a save blocks the script.
        upload: time from the save until it is committed.
        allocate: time from an order to the machine's start.
        prepare: time from the machine's start to its first step.
        mttp: mean lifetime of a machine; lifetimes of --model or --trace are scaled to it.
        notice: notice before a machine is preempted; 0s for none.
        announced: share of losses with a notice, 0 to 1.
        price: price of a machine [USD/h].
        unit: unit of the trace's times, if the file does not say it: ms, s, m or h.
        set_: override a value of the job file: `--set resources.zone=zone-b`.  Repeatable.
        inject: simulate rehearsed preemptions: "mttp=90s+300s,seed=7,notice=10s".
        seed: random seed; the same seed gives the same result.
        history: show one history, that of this seed, under one policy (default: the job's own).
        machines: with --history: the decisions of the job's machines instead of the controller's.
        plot: draw the distributions, or with --history the timeline, to this file (.png, .svg or .pdf).
        dark: draw on a dark background.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object.
    """
    _check(trials, seed, plot, announced, price)
    _check_history(history, policy, trials=trials, seed=seed, machines=machines, dark=dark)
    numbers = _NumberOptions(steps, step, save, upload, allocate, prepare, mttp, notice, announced, price)
    with for_job_files(), for_jobs():
        from windfall.cli import job_submit  # noqa: PLC0415 - its packages are an extra
        from windfall.report import simulate_plot, simulate_report  # noqa: PLC0415 - need numpy, an extra
        from windfall.simulation import scenario_from_job  # noqa: PLC0415

        given, folder = _given(numbers), state or state_folder()
        draft = job_submit.read(job_file, set_, inject, folder)
        played = policy, model, history, machines, plot
        if _show_other(draft, folder, numbers, played, _Trials(trials, seed, named=False), trace=trace, json_=json_):
            return
        job = scenario_from_job.with_work(draft.job(), given)
        policies = _policies(policy, job.options.policy)
        setup = _build(job, given, folder, _LifetimeOptions(model, trace, unit))
        if history is not None:
            _show_history(setup, policies[0], history, machines=machines, plot=plot, json_=json_)
            return
        built, head = setup.built, setup.head
        answers, left_out = _simulate_policies(
            built, policies, _Trials(trials, seed, named=policy is not None), shown=not json_
        )
        built = replace(built, notes=(*built.notes, *left_out))
    if plot is not None:
        simulate_plot.draw(answers, job.objective, plot, title=head, dark=dark)
    if json_:
        print(json.dumps(simulate_report.as_json(built, answers, job.objective, seed=seed)))
        return
    _print_drawn(plot).print(simulate_report.render(f"{head}; {_counted(trials)} each", built, answers, job.objective))


def _print_drawn(plot: Path | None) -> Console:
    """Say where a plot is; return what the rest is printed on."""
    screen = console()
    if plot is not None:
        screen.print(f"plot: {plot}")
    return screen


@contextlib.contextmanager
def for_job_files() -> Iterator[None]:
    """Turn a missing numeric package into a message; put the imports that need it inside.

    Raises:
        Misuse: numpy or numba is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("numpy", "numba", "llvmlite"):
            raise
        raise Misuse(f"a simulation needs {package}, which is not installed: {install('control')}") from error


def _counted(trials: int) -> str:
    return f"{trials:,} trial{'' if trials == 1 else 's'}"


def _check(trials: int, seed: int, plot: Path | None, announced: float | None, price: float | None) -> None:
    if not 1 <= trials <= TRIALS_MAX:
        raise Misuse(f"--trials: must be 1 to {TRIALS_MAX:,}, not {trials:,}")
    if not 0 <= seed < 2**63:
        raise Misuse(f"--seed: must be 0 or more, not {seed}")
    if plot is not None and (plot.suffix not in _PLOTS or not os.access(plot.absolute().parent, os.W_OK)):
        raise Misuse(f"--plot: must be a .png, .svg or .pdf in an existing folder that you can write to, not {plot}")
    if announced is not None and not 0.0 <= announced <= 1.0:
        raise Misuse(f"--announced: must be 0 to 1, not {announced:g}")
    if price is not None and not (0.0 <= price < math.inf):
        raise Misuse(f"--price: must be 0 or more [USD/h], not {price:g}")


def _check_history(
    history: int | None, policy: str | None, *, trials: int, seed: int, machines: bool, dark: bool
) -> None:
    """Refuse options that do not fit to one history, and those that need one."""
    if history is None:
        if machines:
            raise Misuse("--machines: only a history has decisions to show; add --history SEED")
        return
    if not 0 <= history < 2**63:
        raise Misuse(f"--history: the seed must be 0 or more, not {history}")
    if policy is not None and "," in policy:
        raise Misuse(f"--history: one history has one policy: name one with --policy, not {policy}")
    without = {"--trials": trials != TRIALS, "--seed": seed != 0, "--dark": dark}
    if useless := [name for name, given in without.items() if given]:
        raise Misuse(f"{useless[0]}: leave it out with --history SEED, which shows one history, that of its own seed")


def _show_history(
    setup: SimulationSetup,
    policy: str | UserPolicy,
    seed: int,
    *,
    machines: bool,
    plot: Path | None,
    json_: bool,
) -> None:
    from windfall.cli import simulate_history  # noqa: PLC0415 - needs numba, an extra

    found = simulate_history.play(setup, policy, seed)
    simulate_history.show(found, machines=machines, plot=plot, json_=json_)


def _show_other(
    draft: Draft,
    folder: Path,
    numbers: _NumberOptions,
    played: tuple[object, ...],
    drawn: _Trials,
    *,
    trace: str | None,
    json_: bool,
) -> bool:
    """Show a job that does not restart from saves; return whether it is one."""
    if draft.rows is not None:
        _show_bag(draft.job(), folder, numbers, (played[0], trace, *played[1:]), seed=drawn.seed, json_=json_)
    elif draft.job().runtime.name == policy_registry.ELASTIC:
        _show_shapes(draft.job(), folder, numbers, played, drawn, trace=trace, json_=json_)
    else:
        return False
    return True


def _show_bag(
    job: Job, folder: Path, numbers: _NumberOptions, others: tuple[object, ...], *, seed: int, json_: bool
) -> None:
    """Show a bag on each machine type; of the numbers only the length of an item and the losses apply."""
    from windfall.cli import simulate_bag  # noqa: PLC0415 - needs numpy, an extra

    names = ("--policy", "--trace", "--model", "--history", "--machines", "--plot")
    useless: dict[str, object] = {
        "--steps": numbers.steps,
        "--save": numbers.save,
        "--upload": numbers.upload,
        "--allocate": numbers.allocate,
        "--prepare": numbers.prepare,
        "--notice": numbers.notice,
        "--announced": numbers.announced,
        "--price": numbers.price,
    }
    simulate_bag.refuse_options([*zip(names, others, strict=True), *useless.items()])
    given = simulate_bag.BagNumbers(_one(numbers.step, "--step"), _one(numbers.mttp, "--mttp"), seed)
    answers = simulate_bag.simulate_bag(job, folder, given)
    simulate_bag.show(job, answers, json_=json_, seed=seed)


def _show_shapes(
    job: Job,
    folder: Path,
    numbers: _NumberOptions,
    others: tuple[object, ...],
    drawn: _Trials,
    *,
    trace: str | None,
    json_: bool,
) -> None:
    """Show a training that changes its shape; of the numbers only those of machines and the steps apply."""
    from windfall.cli import simulate_shapes  # noqa: PLC0415 - needs numpy, an extra

    names = ("--policy", "--model", "--history", "--machines", "--plot")
    useless: dict[str, object] = {
        "--step": numbers.step,
        "--save": numbers.save,
        "--upload": numbers.upload,
        "--prepare": numbers.prepare,
        "--notice": numbers.notice,
        "--announced": numbers.announced,
    }
    simulate_shapes.refuse_options([*zip(names, others, strict=True), *useless.items()])
    given = simulate_shapes.ShapeNumbers(
        steps=numbers.steps,
        mttp_s=_one(numbers.mttp, "--mttp"),
        wait_s=_one(numbers.allocate, "--allocate"),
        usd_per_hour=numbers.price,
        trace=trace,
        trials=drawn.count,
        seed=drawn.seed,
    )
    simulate_shapes.show(simulate_shapes.simulate_shapes(job, folder, given), json_=json_)


def _given(options: _NumberOptions) -> Overrides:
    from windfall.simulation.scenario_from_job import Overrides  # noqa: PLC0415 - needs numpy, an extra

    if options.steps is not None and options.steps < 1:
        raise Misuse(f"--steps: must be 1 or more, not {options.steps}")
    step_s, mttp_s = _range(options.step, "--step"), _one(options.mttp, "--mttp")
    if step_s is not None and step_s.low_s <= 0.0:
        raise Misuse(f"--step: must be more than 0s, such as 4.6s, not {options.step}")
    if mttp_s is not None and mttp_s <= 0.0:
        raise Misuse("--mttp: must be more than 0s, for example 3h")
    return Overrides(
        steps=options.steps,
        step_s=step_s,
        stall_s=_range(options.save, "--save"),
        upload_s=_range(options.upload, "--upload"),
        allocate_s=_range(options.allocate, "--allocate"),
        prepare_s=_range(options.prepare, "--prepare"),
        mttp_s=mttp_s,
        notice_s=_one(options.notice, "--notice"),
        announced_share=options.announced,
        price_usd_per_hour=options.price,
    )


def _one(text: str | None, what: str) -> float | None:
    return None if text is None else float(duration_s(text, what))


def _range(text: str | None, what: str) -> DurationRange | None:
    from windfall.simulation.scenario import DurationRange  # noqa: PLC0415

    if text is None:
        return None
    low, dots, high = text.partition("..")
    low_s = float(duration_s(low, what))
    high_s = float(duration_s(high, what)) if dots else low_s
    if high_s < low_s:
        raise Misuse(f"{what}: the shorter time comes first: {high}..{low}, not {text}")
    return DurationRange(low_s, high_s)


# ------------------------------------------------------------------------------------------------------------ policies


def _policies(text: str | None, own: str) -> tuple[str | UserPolicy, ...]:
    """Return the policies that are asked about, each once."""
    options = [own, *COMPARED] if text is None else [word.strip() for word in text.split(",") if word.strip()]
    if not options:
        raise Misuse("--policy: the list is empty; write for example --policy adaptive,young-daly,every:100")
    found: dict[str, str | UserPolicy] = {}
    for word in options:
        if ".py:" in word or word.endswith(".py"):
            loaded = _injected(word)
            found.setdefault(loaded.name, loaded)
        else:
            name = parse_policy(word)
            found.setdefault(name, name)
    return tuple(found.values())


def _injected(text: str) -> UserPolicy:
    from windfall.simulation.simulated_policies import load  # noqa: PLC0415 - needs numba, an extra

    loaded = load(text)
    print(f"windfall: compiling {text}", file=sys.stderr)
    return loaded


# --------------------------------------------------------------------------------------------------------- the scenario


class SimulationSetup(Struct, frozen=True):
    """What is simulated.

    Attributes:
        name: of the job.
        head: the job in one line.
        built: its scenario.
        offer: its machines.
    """

    name: str
    head: str
    built: BuiltScenario
    offer: Offer


class _LifetimeOptions(Struct, frozen=True):
    """Where lifetimes come from, as the user wrote it."""

    model: str | None
    trace: str | None
    unit: str | None


def _build(job: Job, given: Overrides, folder: Path, options: _LifetimeOptions) -> SimulationSetup:
    """Return what is simulated."""
    from windfall.policies.planning.estimates import estimate_from  # noqa: PLC0415
    from windfall.simulation.scenario_from_job import build_scenario  # noqa: PLC0415

    offer, known = _query_controller(job, given, folder)
    lifetime_source, priced = _lifetime_inputs(options, job, given, offer, known)
    built = build_scenario(
        job,
        estimate_from(known, job, offer),
        known.measured,
        given,
        lifetime_source=lifetime_source,
        price_source=priced,
    )
    count = f"{job.nodes} x " if job.nodes > 1 else ""
    place = f" in {offer.zone}" if offer.zone else ""
    head = f"{job.name}: {built.scenario.steps} steps on {count}{offer.machine_type}{place} of {offer.provider}"
    return SimulationSetup(job.name, head, built, offer)


def _query_controller(job: Job, given: Overrides, folder: Path) -> tuple[Offer, PlanInputs]:
    """Return the best offer and what is known of the job; deadline and budget rule no offer out here."""
    from windfall.cli import client  # noqa: PLC0415
    from windfall.simulation import plan_odds  # noqa: PLC0415
    from windfall.simulation.scenario_from_job import made_offer  # noqa: PLC0415

    asked = replace(job, objective=replace(job.objective, deadline_s=None, budget_usd=None), max_duration_s=None)
    with client.planner(folder) as controller:
        known = controller.plan_inputs(job)
        try:
            return plan_odds.offer_of(controller.plan(asked)), known
        except Infeasible as error:
            offer = made_offer(job, given)
            if offer is None:
                raise Infeasible(
                    f"{error}; to simulate a machine that is not on offer, give its price: --price 0.50"
                ) from error
            return offer, known


def _lifetime_inputs(
    options: _LifetimeOptions, job: Job, given: Overrides, offer: Offer, known: PlanInputs
) -> tuple[LifetimeSource | None, PriceSource | None]:
    from windfall.simulation import lifetime_source as sources  # noqa: PLC0415

    lived: LifetimeSource | None = None
    priced: PriceSource | None = None
    if options.trace is not None:
        traced = sources.by_trace(options.trace, machines=job.nodes, unit=options.unit, mttp_s=given.mttp_s)
        lived, priced = traced.lifetime_source, traced.price_source
        if lived is not None and options.model is not None:
            raise Misuse("--trace already has lifetimes: leave out --model, or use a trace of prices")
    if options.model is not None:
        lived = sources.by_model(
            options.model, known.lifetimes, provider=offer.provider, now=known.now, mttp_s=given.mttp_s
        )
    return lived, priced


# ------------------------------------------------------------------------------------------------------------- playing


class _Trials(Struct, frozen=True):
    """Number of trials, their seed, and whether the user named the policies: named policies are never left out."""

    count: int
    seed: int
    named: bool


def _simulate_policies(
    built: BuiltScenario, policies: tuple[str | UserPolicy, ...], trials: _Trials, *, shown: bool
) -> tuple[list[PolicyOutcome], list[str]]:
    """Simulate all policies, with a progress bar on a terminal; return the answers, and why policies were left out."""
    from windfall.report import simulate_report  # noqa: PLC0415
    from windfall.simulation import kernels, outcomes  # noqa: PLC0415

    if kernels.compiles(built.scenario):
        print("windfall: compiling the simulation, once for this installation (about ten seconds)", file=sys.stderr)
    answers: list[PolicyOutcome] = []
    left_out: list[str] = []
    price = built.scenario.price_usd_per_hour
    with _bar(shown=shown) as track:
        for one in policies:
            injected = None if isinstance(one, str) else one
            name = one if isinstance(one, str) else one.name
            scenario = built.scenario if injected else replace(built.scenario, policy=name)
            progress = track(name)
            try:
                done = kernels.simulate(
                    scenario, trials=trials.count, seed=trials.seed, policy=injected, progress=progress
                )
            except WindfallError as error:
                if trials.named or not answers:
                    raise
                left_out.append(f"policy {name} left out: {error}")
                continue
            answers.append(simulate_report.policy_outcome(outcomes.summarise(name, done, price), done, price))
    return answers, left_out


Track = Callable[[int, int], None]


@contextlib.contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[str], Track | None]]:
    """Show the progress of a simulation on a terminal; yields a function that starts a bar and returns its updater."""
    screen = console(stderr=True)
    if not (shown and screen.is_terminal):
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:

        def start_bar(name: str) -> Track:
            task = progress.add_task(name, total=None)
            return lambda done, of: progress.update(task, completed=done, total=of)

        yield start_bar
