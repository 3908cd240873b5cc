"""`windfall simulate`: what a job would cost and when it would be done, under several policies, before anything is spent."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from windfall.cli.exec import state_folder
from windfall.cli.named import extra
from windfall.cli.runs import Json
from windfall.errors import Infeasible, Misuse, WindfallError
from windfall.extras import install
from windfall.policies.saving.decide import parse_policy
from windfall.report.showing import console
from windfall.units import duration_s

if TYPE_CHECKING:
    from windfall.control.service import KnownView
    from windfall.jobs import Job
    from windfall.market import Offer
    from windfall.report.simulated import Answer
    from windfall.simulation.from_job import Given, Posed
    from windfall.simulation.living import Living, Priced
    from windfall.simulation.policies import Injected
    from windfall.simulation.scenario import Range

TRIALS_MAX = 5_000_000
COMPARED = ("adaptive", "thesis", "young-daly", "optimal")
"""With the job's own policy, what is compared where none is named."""
_PLOTS = (".png", ".svg", ".pdf")

Switch = Annotated[bool, Parameter(negative="")]
Length = Annotated[str | None, Parameter(group="Instead of what was measured (4.6s, or a range: 4.5s..4.8s)")]
Number = Annotated[float | None, Parameter(group="Instead of what was measured (4.6s, or a range: 4.5s..4.8s)")]
Count = Annotated[int | None, Parameter(group="Instead of what was measured (4.6s, or a range: 4.5s..4.8s)")]


@dataclass(frozen=True, slots=True)
class _Words:
    """The numbers as the user wrote them."""

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
    file: Path,
    *,
    trials: int = 100_000,
    policy: str | None = None,
    trace: str | None = None,
    model: str | None = None,
    steps: Count = None,
    step: Length = None,
    save: Length = None,
    upload: Length = None,
    allocate: Length = None,
    prepare: Length = None,
    mttp: Length = None,
    notice: Length = None,
    announced: Number = None,
    price: Number = None,
    unit: str | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    inject: str | None = None,
    seed: int = 0,
    plot: Path | None = None,
    dark: Switch = False,
    state: Path | None = None,
    json_: Json = False,
) -> None:
    """Play a job many times, and say what it costs, when it is done, how sure that is, and under which policy it is best.

    Nothing is bought.  The numbers are those of `windfall plan`: what earlier runs of the job, and this installation's
    machines, have shown; what the market offers; what you say.  All policies meet the same machines, trial by trial.

    Example: `windfall simulate job.yaml --policy adaptive,young-daly,every:100 --model bathtub`

    Args:
        file: the job file.
        trials: how often the job is played under each policy.
        policy: a list: adaptive, optimal, thesis, young-daly, never, every:100 (steps), every:10m, or FILE.py:FUNCTION;
            without it, the job's own and adaptive, thesis, young-daly, optimal.
        trace: when machines can be had, how long they live, or what they cost: FILE[:[TYPE@]ZONE][:FROM..TO].
        model: a law of lifetimes: exponential, weibull, gompertz-makeham, blended, bathtub, piecewise, kaplan-meier.
        steps: of the run.
        step: how long a step takes.
        save: how long the script stands still for a save.
        upload: from there until the save is in the store.
        allocate: from an order to the machine's start.
        prepare: from there to the first step.
        mttp: mean life of a machine; with --model or --trace, their lives are stretched to it.
        notice: before a machine is taken; 0s for none.
        announced: share of losses that come with the notice, 0 to 1.
        price: of a machine [USD per hour].
        unit: of the trace's times, where neither file nor name says it: ms, s, m or h.
        set_: replace a value of the file: `--set resources.zone=zone-b`.
        inject: rehearse preemptions: "mttp=90s+300s,seed=7,notice=10s".
        seed: of the draws; the same seed gives the same answer.
        plot: draw the distributions to this file (PNG, SVG or PDF).
        dark: draw on dark paper.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object.
    """
    _check(trials, seed, plot, announced, price)
    words = _Words(steps, step, save, upload, allocate, prepare, mttp, notice, announced, price)
    with needed(), extra():
        from windfall.cli import starting  # noqa: PLC0415 - its packages are an extra
        from windfall.report import simulated, simulated_plot  # noqa: PLC0415 - need numpy, an extra
        from windfall.simulation import from_job  # noqa: PLC0415

        given = _given(words)
        folder = state or state_folder()
        draft = starting.read(file, set_, inject, folder)
        job = from_job.with_work(draft.job(), given)
        policies = _policies(policy, job.checkpointing.policy)
        posed, head = _posed(job, given, folder, _Lives(model, trace, unit))
        answers, left_out = _played(posed, policies, _Trials(trials, seed, named=policy is not None), shown=not json_)
        posed = replace(posed, notes=(*posed.notes, *left_out))
    if plot is not None:
        simulated_plot.draw(answers, job.objective, plot, title=head, dark=dark)
    if json_:
        print(json.dumps(simulated.as_json(posed, answers, job.objective, seed=seed)))
        return
    screen = console()
    screen.print(simulated.whole(f"{head}; {trials} trials each", posed, answers, job.objective))
    if plot is not None:
        screen.print(f"picture: {plot}")


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Turn a missing numeric package into a sentence; put the imports that need it inside.

    Raises:
        Misuse: numpy or numba is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("numpy", "numba", "llvmlite"):
            raise
        raise Misuse(f"a simulation needs {package}, which is not installed here: {install('control')}") from error


def _check(trials: int, seed: int, plot: Path | None, announced: float | None, price: float | None) -> None:
    if not 1 <= trials <= TRIALS_MAX:
        raise Misuse(f"--trials: {trials} trials cannot be played; give a number from 1 to {TRIALS_MAX}")
    if not 0 <= seed < 2**63:
        raise Misuse(f"--seed: {seed} is no seed; give a whole number, 0 or more")
    if plot is not None and (plot.suffix not in _PLOTS or not os.access(plot.absolute().parent, os.W_OK)):
        raise Misuse(f"--plot: {plot} must be a .png, .svg or .pdf in a folder that exists and is yours")
    if announced is not None and not 0.0 <= announced <= 1.0:
        raise Misuse(f"--announced: {announced:g} is no share; give a number from 0 to 1")
    if price is not None and not (0.0 <= price < math.inf):
        raise Misuse(f"--price: {price:g} is no price; give USD per hour, 0 or more")


def _given(words: _Words) -> Given:
    from windfall.simulation.from_job import Given  # noqa: PLC0415 - needs numpy, an extra

    if words.steps is not None and words.steps < 1:
        raise Misuse(f"--steps: {words.steps} steps are no work; give 1 or more")
    step_s, mttp_s = _range(words.step, "--step"), _one(words.mttp, "--mttp")
    if step_s is not None and step_s.low_s <= 0.0:
        raise Misuse(f"--step: {words.step} is no length of a step; give a time above 0, such as 4.6s")
    if mttp_s is not None and mttp_s <= 0.0:
        raise Misuse("--mttp: machines live longer than 0 s on average; give a mean life such as 3h")
    return Given(
        steps=words.steps,
        step_s=step_s,
        stall_s=_range(words.save, "--save"),
        upload_s=_range(words.upload, "--upload"),
        allocate_s=_range(words.allocate, "--allocate"),
        prepare_s=_range(words.prepare, "--prepare"),
        mttp_s=mttp_s,
        notice_s=_one(words.notice, "--notice"),
        announced_share=words.announced,
        price_usd_per_hour=words.price,
    )


def _one(text: str | None, what: str) -> float | None:
    return None if text is None else float(duration_s(text, what))


def _range(text: str | None, what: str) -> Range | None:
    from windfall.simulation.scenario import Range  # noqa: PLC0415

    if text is None:
        return None
    low, dots, high = text.partition("..")
    low_s = float(duration_s(low, what))
    high_s = float(duration_s(high, what)) if dots else low_s
    if high_s < low_s:
        raise Misuse(f"{what}: {text} begins with the longer one; write {high}..{low}")
    return Range(low_s, high_s)


# ------------------------------------------------------------------------------------------------------------ policies


def _policies(text: str | None, own: str) -> tuple[str | Injected, ...]:
    """Return the policies that are asked about, each once."""
    words = [own, *COMPARED] if text is None else [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise Misuse("--policy: no policy is named; write for example --policy adaptive,young-daly,every:100")
    found: dict[str, str | Injected] = {}
    for word in words:
        if ".py:" in word or word.endswith(".py"):
            loaded = _injected(word)
            found.setdefault(loaded.name, loaded)
        else:
            name = parse_policy(word)
            found.setdefault(name, name)
    return tuple(found.values())


def _injected(text: str) -> Injected:
    from windfall.simulation.policies import load  # noqa: PLC0415 - needs numba, an extra

    loaded = load(text)
    print(f"windfall: compiling {text}", file=sys.stderr)
    return loaded


# --------------------------------------------------------------------------------------------------------- the scenario


@dataclass(frozen=True, slots=True)
class _Lives:
    """Where lives come from, in the user's words."""

    model: str | None
    trace: str | None
    unit: str | None


def _posed(job: Job, given: Given, folder: Path, words: _Lives) -> tuple[Posed, str]:
    """Return the scenario, and the job in a line."""
    from windfall.cli.odds import believed  # noqa: PLC0415
    from windfall.simulation.from_job import pose  # noqa: PLC0415

    offer, known = _asked(job, given, folder)
    living, priced = _lived(words, job, given, offer, known)
    posed = pose(job, believed(job, offer, known), known.measured, given, living=living, priced=priced)
    count = f"{job.nodes} x " if job.nodes > 1 else ""
    place = f" in {offer.zone}" if offer.zone else ""
    return posed, f"{job.name}: {posed.scenario.steps} steps on {count}{offer.machine_type}{place} of {offer.provider}"


def _asked(job: Job, given: Given, folder: Path) -> tuple[Offer, KnownView]:
    """Ask the controller for the best offer and for what is known; deadline and budget do not rule an offer out here."""
    from windfall.cli import client  # noqa: PLC0415
    from windfall.simulation.from_job import made_offer  # noqa: PLC0415

    asked = replace(job, objective=replace(job.objective, deadline_s=None, budget_usd=None), max_duration_s=None)
    with client.connect(folder, start=True) as controller:
        known = controller.known(job)
        try:
            return client.offer_of(controller.plan(asked)), known
        except Infeasible as error:
            offer = made_offer(job, given)
            if offer is None:
                raise Infeasible(
                    f"{error}; a machine that is not for sale here is simulated with --price 0.50"
                ) from error
            return offer, known


def _lived(
    words: _Lives, job: Job, given: Given, offer: Offer, known: KnownView
) -> tuple[Living | None, Priced | None]:
    from windfall.simulation import living, living_traced  # noqa: PLC0415

    lived: Living | None = None
    priced: Priced | None = None
    if words.trace is not None:
        traced = living_traced.by_trace(words.trace, machines=job.nodes, unit=words.unit, mttp_s=given.mttp_s)
        lived, priced = traced.living, traced.priced
        if lived is not None and words.model is not None:
            raise Misuse("--trace already says how long machines live: leave out --model, or take a trace of prices")
    if words.model is not None:
        lived = living.by_model(
            words.model, known.lifetimes, provider=offer.provider, now=known.now, mttp_s=given.mttp_s
        )
    return lived, priced


# ------------------------------------------------------------------------------------------------------------- playing


@dataclass(frozen=True, slots=True)
class _Trials:
    """How often to play, with which draws, and whether the user named the policies: what is named is not left out."""

    count: int
    seed: int
    named: bool


def _played(
    posed: Posed, policies: tuple[str | Injected, ...], trials: _Trials, *, shown: bool
) -> tuple[list[Answer], list[str]]:
    """Play all policies; a line of progress on a terminal.  Returns the answers, and why a policy was left out."""
    from windfall.report import simulated  # noqa: PLC0415
    from windfall.simulation import kernels, outcomes  # noqa: PLC0415

    if kernels.compiles(posed.scenario):
        print(
            "windfall: the simulation is compiled first, once for this installation (some ten seconds)", file=sys.stderr
        )
    answers: list[Answer] = []
    left_out: list[str] = []
    price = posed.scenario.price_usd_per_hour
    with _bar(shown=shown) as track:
        for one in policies:
            injected = None if isinstance(one, str) else one
            name = one if isinstance(one, str) else one.name
            scenario = posed.scenario if injected else replace(posed.scenario, policy=name)
            progress = track(name)
            try:
                done = kernels.simulate(
                    scenario, trials=trials.count, seed=trials.seed, policy=injected, progress=progress
                )
            except WindfallError as error:
                if trials.named or not answers:
                    raise
                left_out.append(f"policy {name} is left out: {error}")
                continue
            answers.append(simulated.answer(outcomes.summarise(name, done, price), done, price))
    return answers, left_out


Track = Callable[[int, int], None]


@contextlib.contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[str], Track | None]]:
    """Show how far a simulation is, on a terminal; yields what begins a line and returns what moves it on."""
    screen = console(stderr=True)
    if not (shown and screen.is_terminal):
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:

        def begin(name: str) -> Track:
            task = progress.add_task(name, total=None)
            return lambda done, of: progress.update(task, completed=done, total=of)

        yield begin
