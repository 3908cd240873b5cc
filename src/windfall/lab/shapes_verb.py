"""`windfall lab shapes`: which shapes a model can train in, and what it trains while machines come and go."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from windfall.cli.options import Json, OptionalDuration
from windfall.errors import Misuse
from windfall.extras import install
from windfall.report.console import console
from windfall.spec import yaml_positions
from windfall.structs import Struct
from windfall.units import duration_s

if TYPE_CHECKING:
    from windfall.models.elastic_profile import ElasticTraining
    from windfall.simulation.elastic_odds import ElasticArm, ElasticTerms

MACHINES_MAX, TRIALS_MAX, INTERVALS_MAX = 512, 1_000, 100_000
HOURS, TRIALS = 12.0, 20


class _Series(Struct, frozen=True):
    """Where series of machines come from: a trace, or draws."""

    trace: str | None
    mttp_s: float
    wait_s: float
    hours: float
    trials: int
    seed: int


def shapes(
    profile: Path,
    *,
    machines: int,
    counts: Annotated[str | None, Parameter(metavar="TRACE")] = None,
    mttp: OptionalDuration = None,
    wait: OptionalDuration = None,
    hours: float = HOURS,
    trials: int = TRIALS,
    seed: int = 0,
    interval: OptionalDuration = None,
    look_ahead: int | None = None,
    samples: float | None = None,
    usd_per_hour: float = 0.0,
    reliable_usd_per_hour: float = 0.0,
    json_: Json = False,
) -> None:
    """Show the shapes that a profiled model can train in, and what it trains while machines come and go.

    The profile is YAML: `batch`, `micro_batch`, `layers` (each with `forward_s`, `backward_s` and `parameters`; also
    `sent_bytes`, `held_bytes`, and `count` for equal ones), and if known `memory_bytes`, `link` (`latency_s`,
    `bytes_per_s`), `states`, `start_s`, `rendezvous_s`, `build_s`, `groups_s`.

    With a trace of counts, or with mean times to a preemption and to a new machine, the policy of elastic trainings is
    played beside the fastest shape of now, a restart from a checkpoint, and the best fixed shape.

    Example: `windfall lab shapes gpt.yaml --machines 16 --mttp 2h --wait 5m --usd-per-hour 0.91`

    Args:
        profile: the file.
        machines: the most that there can be.
        counts: a trace of machine counts: FILE[:[TYPE@]ZONE][:FROM..TO].
        mttp: mean time to the preemption of a machine, such as 2h.
        wait: mean time from an order to its machine; default: 5m.
        hours: how long drawn machines are played.
        trials: how many series of drawn machines.
        seed: of the draws.
        interval: how often a shape is chosen; default: 60s.
        look_ahead: intervals that plans look ahead; default: six times as far as counts last, 12 to 192.
        samples: play until this number is trained.
        usd_per_hour: price of a machine.
        reliable_usd_per_hour: price of the machine that keeps states for the elastic trainings.
        json_: print one JSON object.
    """
    if not 1 <= machines <= MACHINES_MAX:
        raise Misuse(f"--machines must be between 1 and {MACHINES_MAX}")
    if counts is not None and mttp is not None:
        raise Misuse("--counts and --mttp: write one of them; a trace already says which machines are lost")
    if not 1 <= trials <= TRIALS_MAX:
        raise Misuse(f"--trials must be between 1 and {TRIALS_MAX}")
    try:
        from windfall.models import elastic_profile  # noqa: PLC0415 - needs numpy, an extra
        from windfall.report import elastic_report  # noqa: PLC0415 - the same
        from windfall.simulation.elastic_odds import ElasticTerms  # noqa: PLC0415 - the same
    except ImportError as error:
        raise Misuse(f"this needs numpy, scipy and numba: {install('lab')}") from error
    document = yaml_positions.parse(yaml_positions.read(str(profile)), profile.name)
    training = elastic_profile.training_of(elastic_profile.profile_of(document.value, profile.name), machines)
    terms = ElasticTerms(
        interval_s=_seconds(interval, "--interval", 60.0),
        look_ahead=_at_least_one(look_ahead, "--look-ahead"),
        usd_per_hour=_price(usd_per_hour, "--usd-per-hour"),
        reliable_usd_per_hour=_price(reliable_usd_per_hour, "--reliable-usd-per-hour"),
        samples=samples,
    )
    if samples is not None and not 0.0 < samples < math.inf:
        raise Misuse(f"--samples is {samples:g}: write a number above 0")
    played: list[tuple[ElasticArm, ...]] = []
    if counts is not None or mttp is not None:
        times_s = (_seconds(mttp, "--mttp", 1.0), _seconds(wait, "--wait", 300.0))
        played = _played(training, machines, terms, _Series(counts, *times_s, hours, trials, seed))
    if json_:
        print(json.dumps(_as_json(training, machines, played)))
        return
    screen = console()
    screen.print(_shapes_table(training, machines))
    for reason, count in _reasons(training).items():
        screen.print(f"{count} shapes cannot be had: {reason}", soft_wrap=True)
    if played:
        screen.print(elastic_report.table(played, terms))


def _seconds(text: str | None, option: str, otherwise: float) -> float:
    seconds = otherwise if text is None else float(duration_s(text, option))
    if seconds <= 0.0:
        raise Misuse(f"{option} must be above 0, for example 5m")
    return seconds


def _at_least_one(number: int | None, option: str) -> int | None:
    if number is not None and number < 1:
        raise Misuse(f"{option} is {number}: write 1 or more; 1 looks at the present interval alone")
    return number


def _price(usd: float, option: str) -> float:
    if not 0.0 <= usd < math.inf:
        raise Misuse(f"{option} is {usd:g}: write a price of 0 or more")
    return usd


def _played(
    training: ElasticTraining, machines: int, terms: ElasticTerms, series: _Series
) -> list[tuple[ElasticArm, ...]]:
    """Return what each way to train comes to, by series of machines."""
    from windfall.simulation import elastic_odds, value_series  # noqa: PLC0415 - need numpy, an extra

    if series.trace is not None:
        held = value_series.capacity_of_trace(series.trace)
        if held.times_s[-1] - held.times_s[0] > INTERVALS_MAX * terms.interval_s:
            raise Misuse(
                f"--counts: {series.trace} has more than {INTERVALS_MAX} intervals: name a part of it, or a longer --interval"
            )
        return [elastic_odds.arms(elastic_odds.counted(held, machines, terms.interval_s), training, terms)]
    intervals = round(series.hours * 3_600.0 / terms.interval_s) if 0.0 < series.hours < math.inf else 0
    if not 1 <= intervals * series.trials <= INTERVALS_MAX:
        raise Misuse(
            f"--hours {series.hours:g} with --trials {series.trials}: write 1 to {INTERVALS_MAX} intervals in all"
        )
    drawn = (
        elastic_odds.drawn_counts(
            machines,
            intervals,
            series.seed + trial,
            mttp_s=series.mttp_s,
            wait_s=series.wait_s,
            interval_s=terms.interval_s,
        )
        for trial in range(series.trials)
    )
    return [elastic_odds.arms(counts, training, terms) for counts in drawn]


# ------------------------------------------------------------------------------------------------------------ what is shown


def _reasons(training: ElasticTraining) -> Mapping[str, int]:
    """Return how many shapes each kind of reason refuses, with its first example."""
    found: dict[str, tuple[str, int]] = {}
    for one in training.refused:
        kind = "".join(letter for letter in one.reason if not letter.isdigit())
        kind = kind.replace(".", "")
        first, count = found.get(kind, (f"{one.shape}: {one.reason}", 0))
        found[kind] = (first, count + 1)
    return dict(found.values())


def _shapes_table(training: ElasticTraining, machines: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("machines", "fastest shape", "samples/s"):
        table.add_column(name, justify="right", no_wrap=True)
    before = None
    for count in range(1, machines + 1):
        shape = training.speeds.best(count)
        if shape != before and shape.machines:
            table.add_row(str(count), str(shape), f"{training.speeds.rate(shape):.4g}")
        before = shape
    return table


def _as_json(training: ElasticTraining, machines: int, played: Sequence[tuple[ElasticArm, ...]]) -> dict[str, Any]:
    from windfall.report import elastic_report  # noqa: PLC0415 - needs numpy, an extra

    fastest = {count: training.speeds.best(count) for count in range(1, machines + 1)}
    return {
        "fastest": [
            {"machines": count, "shape": str(shape), "samples_per_s": training.speeds.rate(shape)}
            for count, shape in fastest.items()
        ],
        "shapes": [
            {"shape": str(shape), "samples_per_s": rate}
            for shape, rate in sorted(training.speeds.samples_per_s.items())
        ],
        "refused": [{"shape": str(one.shape), "reason": one.reason} for one in training.refused],
        "series": len(played),
        "arms": elastic_report.as_json(played),
    }
