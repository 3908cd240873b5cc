"""The forecast of a job: made from its plan before the first purchase, and scored when the job has ended by itself.

A run counts in the track record if it is done: one that was stopped, failed or was resumed ended for reasons
that no plan foresees.  Such runs are counted apart.  Runs whose forecast has no P90 are not scored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from windfall import codec
from windfall.fleet import JobPhase
from windfall.jobs import Forecast, ForecastBasis, Job
from windfall.structs import Struct
from windfall.terms import Reliability, Seconds, Usd, WallTime

KEY = "forecast"
"""Key in a job's stored summary."""
RUNS = 20
"""Runs in a track record."""
ENDED_MAX = 200
"""Most ended jobs that are read for it."""


class ForecastOutcome(Struct, frozen=True):
    """What a run came to, beside its forecast.

    Attributes:
        forecast: made before its first purchase; None if there is none.
        cost_usd: settled where the bill is closed, otherwise estimated.
        finish_s: from the submission to the end of the work [s]; None unless it is done.
        resumed: a user resumed it after a stop or a failure.
    """

    forecast: Forecast | None
    phase: JobPhase
    cost_usd: Usd
    finish_s: Seconds | None
    resumed: bool

    @property
    def ended_by_itself(self) -> bool:
        """Whether the run is scored, as far as its end is concerned."""
        return self.phase is JobPhase.DONE and self.finish_s is not None and not self.resumed

    @property
    def cost_inside(self) -> bool | None:
        """Whether it cost no more than P90; None if that is not scored, also where machines cost nothing."""
        promised = None if self.forecast is None else self.forecast.cost_p90_usd
        return self.cost_usd <= promised if promised and self.ended_by_itself else None

    @property
    def finish_inside(self) -> bool | None:
        """Whether it finished no later than P90; None if that is not scored."""
        promised = None if self.forecast is None else self.forecast.finish_p90_s
        return (
            None if promised is None or self.finish_s is None or not self.ended_by_itself else self.finish_s <= promised
        )


class TrackRecord(Struct, frozen=True):
    """How often the newest runs were inside P90.

    Attributes:
        runs: scored runs; at most `RUNS`.
        cost_inside, cost_runs: of those whose machines cost something, inside P90 and all.
        finish_inside, finish_runs: the same for the finish.
        left_out: runs among them that were stopped, failed or were resumed, and are not scored.
    """

    runs: int
    cost_inside: int
    cost_runs: int
    finish_inside: int
    finish_runs: int
    left_out: int


def of_plan(job: Job, plan: Mapping[str, Any], made_at: WallTime) -> Forecast | None:
    """Return the forecast that a plan makes; None if it knows neither cost nor finish.

    Args:
        job: what is planned.
        plan: as JSON, with `odds` if they were computed.
        made_at: now.
    """
    chosen = plan["chosen"]
    expected, offer = chosen["expected"], chosen["offer"]
    if expected is None:
        return None
    odds = plan.get("odds") or {}
    cost, finish = odds.get("cost_usd") or {}, odds.get("finish_s") or {}
    computed = bool(cost and finish)
    trials = int(odds.get("trials", 0)) if computed else 0
    known = ForecastBasis.TRIALS if trials else ForecastBasis.EXACT
    return Forecast(
        made_at=made_at,
        provider=offer["provider"],
        machine_type=offer["machine_type"],
        zone=offer["zone"],
        spot=offer["reliability"] == Reliability.TRANSIENT.value,
        machines=chosen["machines"],
        fleet=job.fleet,
        basis=known if computed else ForecastBasis.EXPECTED,
        trials=trials,
        expected_cost_usd=_usd(expected["cost_usd"]),
        expected_finish_s=_seconds(expected["wall_s"]),
        cost_p50_usd=_usd(cost.get("p50")),
        cost_p90_usd=_usd(cost.get("p90")),
        finish_p50_s=_seconds(finish.get("p50")),
        finish_p90_s=_seconds(finish.get("p90")),
    )


def _finite(value: float | None) -> float | None:
    """Return None for what cannot be written as JSON: a run that practically never ends."""
    return None if value is None or not math.isfinite(value) else float(value)


def _usd(value: float | None) -> Usd | None:
    found = _finite(value)
    return None if found is None else Usd(found)


def _seconds(value: float | None) -> Seconds | None:
    found = _finite(value)
    return None if found is None else Seconds(found)


def of_summary(summary: Mapping[str, Any]) -> Forecast | None:
    """Return the forecast in a job's stored summary; None if it has none, or another version wrote it."""
    stored = summary.get(KEY)
    if not isinstance(stored, Mapping):
        return None
    try:
        found: Forecast = codec.decode({"type": Forecast.__name__, **stored}, Forecast)
    except ValueError:
        return None
    return found


def track_record(ended: Iterable[tuple[JobPhase, str]]) -> TrackRecord | None:
    """Return how the newest runs compare with their forecasts; None if none of them is scored.

    Args:
        ended: phase and stored summary of ended jobs, newest first.
    """
    costs: list[bool] = []
    finishes: list[bool] = []
    runs = left_out = 0
    for phase, text in ended:
        found = _outcome(phase, text)
        if found is None or found.forecast is None or found.forecast.finish_p90_s is None:
            continue
        if not found.ended_by_itself:
            left_out += 1
            continue
        costs += [] if found.cost_inside is None else [found.cost_inside]
        finishes += [] if found.finish_inside is None else [found.finish_inside]
        runs += 1
        if runs == RUNS:
            break
    return TrackRecord(runs, sum(costs), len(costs), sum(finishes), len(finishes), left_out) if runs else None


def _outcome(phase: JobPhase, text: str) -> ForecastOutcome | None:
    """Read a stored summary; None if another version wrote it without what a score needs."""
    summary = json.loads(text)
    try:
        cost_usd, finish_s, resumed = summary["money"]["due_usd"], summary["finish_s"], summary["resumed"]
    except (KeyError, TypeError):
        return None
    return ForecastOutcome(of_summary(summary), phase, Usd(cost_usd), finish_s, bool(resumed))
