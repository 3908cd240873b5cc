"""The result of a drill, as lines and as JSON."""

from __future__ import annotations

import dataclasses
import socket
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from windfall.drill import effects
from windfall.drill.drill_trace import Finding, ScriptTrace
from windfall.drill.effects import RankComparison
from windfall.jobs import DRILL, Measurement
from windfall.terms import Seconds, Unit
from windfall.units import size_text

BLIND = (
    "errors that only occur with another number of ranks, or on another kind of machine",
    "the end of an epoch, and anything else that does not occur within the steps of the drill (--steps)",
    (
        "state outside the variables, modules, optimizers and random generators of the script's own Python: in C "
        "extensions, in other processes, in iterators such as itertools.cycle"
    ),
    "whether data that the script reads elsewhere stays the same",
)
"""What no drill checks."""
_FIRST, _SECOND = 30, 9
_THIRD = _FIRST + _SECOND + 3
_NO_TORCH = "losses, learning rates, data and optimizers: the script does not use torch, so its variables were compared"


@dataclass(frozen=True, slots=True)
class DrillCosts:
    """The measured costs.

    Attributes:
        stall_s: from the end of the step to the hand-over, the longest of all ranks [s].
        restore_s: download from the store to this machine [s].
        start_s: from the start of the script to its first step, without that step [s].
        store: where the checkpoint was stored; None for a folder on this machine.
    """

    step_s: float
    stall_s: float
    size_bytes: int
    upload_s: float
    commit_s: float
    restore_s: float
    start_s: float
    store: str | None

    def measured(self) -> Measurement:
        """Return the costs in the form that plans use."""
        return Measurement(
            provider=DRILL,
            machine_type=socket.gethostname(),
            unit=Unit.STEP,
            work_per_s=1.0 / self.step_s,
            prepare_s=Seconds(self.restore_s + self.start_s),
            allocate_s=Seconds(0.0),
            runs=1,
            stall_s=Seconds(self.stall_s),
            size_bytes=self.size_bytes,
            upload_s=Seconds(self.upload_s),
            commit_s=Seconds(self.commit_s),
        )


@dataclass(frozen=True, slots=True)
class DrillResult:
    """Everything that a drill found.

    Attributes:
        saved_at: step of the save.
        further: how many steps were compared.
        kept: whether the costs were saved for plans.
        folder: the drill's folder, if it was kept.
        left_out: the parts of the job that were not tested.
    """

    findings: tuple[Finding, ...]
    costs: DrillCosts
    a: tuple[ScriptTrace, ...]
    b1: tuple[ScriptTrace, ...]
    b2: tuple[ScriptTrace, ...]
    saved_at: int
    further: int
    kept: bool = False
    folder: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def losses(self) -> tuple[float, float] | None:
        """The largest relative difference of a loss from the continuation's, and between the two restored runs."""
        ended = next(trace.saved[0] for trace in self.a if trace.saved is not None)
        rows = [
            found
            for a, b1, b2 in zip(self.a, self.b1, self.b2, strict=True)
            if (found := effects.loss_apart(RankComparison(a, b1, b2, ended))) is not None
        ]
        return (max(row[0] for row in rows), max(row[1] for row in rows)) if rows else None

    @property
    def torch(self) -> bool:
        """Whether the script used torch."""
        return any(trace.updates or trace.begins for trace in self.a)

    @property
    def blind(self) -> tuple[str, ...]:
        """What this drill did not check."""
        return (*self.left_out, *(() if self.torch else (_NO_TORCH,)), *BLIND)

    @property
    def wrote(self) -> tuple[str, ...]:
        """Files outside the drill's folder that the script opened for writing."""
        return tuple(dict.fromkeys(path for trace in (*self.a, *self.b1, *self.b2) for path in trace.wrote))


def as_json(drilled: DrillResult) -> dict[str, Any]:
    """Return a drill as plain values."""
    apart = drilled.losses
    return {
        "resumes": not any(one.forgotten for one in drilled.findings),
        "saved_at": drilled.saved_at,
        "steps_compared": drilled.further,
        "ranks": len(drilled.a),
        "forgotten": [_finding_json(one) for one in drilled.findings if one.forgotten],
        "notes": [_finding_json(one) for one in drilled.findings if not one.forgotten],
        "loss_difference": None if apart is None else {"continuation": apart[0], "noise": apart[1]},
        "costs": dataclasses.asdict(drilled.costs),
        "kept_for_plans": drilled.kept,
        "wrote_outside": list(drilled.wrote),
        "not_seen": list(drilled.blind),
        "folder": drilled.folder,
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return dataclasses.asdict(finding) | {"message": finding.message}


def folded(line: str, width: int) -> str:
    """Wrap a line of `lines` to a width; continuation lines are indented."""
    mark = len(line) - len(line.lstrip(" -"))
    indent = " " * (_THIRD if line[_THIRD - 2 : _THIRD] == "  " and not mark else mark)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def lines(drilled: DrillResult) -> Iterator[str]:
    """Yield a drill as lines for people."""
    forgotten = [one for one in drilled.findings if one.forgotten]
    notes = [one for one in drilled.findings if not one.forgotten]
    if forgotten:
        yield "The script does not resume exactly.  Not restored:"
        yield from (f"  - {_finding_line(one, drilled)}" for one in forgotten)
    else:
        ranks = f" on {len(drilled.a)} ranks" if len(drilled.a) > 1 else ""
        yield (
            f"The script resumes: {drilled.further} steps after the save at step {drilled.saved_at}, restored twice{ranks}, "
            "equal those of the continuation."
        )
    if (apart := drilled.losses) is not None:
        yield (
            f"difference of losses: {_percent(apart[0])} from the continuation, {_percent(apart[1])} between the two "
            "restored runs"
        )
    if notes:
        yield "Notes, not counted as errors:"
        yield from (f"  - {_finding_line(one, drilled)}" for one in notes)
    if drilled.wrote:
        yield f"It wrote files outside its copy of the folder: {', '.join(drilled.wrote[:3])}"
    yield ""
    yield from _costs(drilled.costs)
    if drilled.kept:
        yield "`windfall plan` now uses these costs."
    yield ""
    yield "Not checked:"
    yield from (f"  - {one}" for one in drilled.blind)
    if drilled.folder:
        yield f"kept folder: {drilled.folder}"


def _finding_line(finding: Finding, drilled: DrillResult) -> str:
    several = len(drilled.a) > 1 and finding.rank > 0 and finding.code != "one-rank"
    return f"rank {finding.rank}: {finding.message}" if several else finding.message


def _percent(share: float) -> str:
    return "0" if share == 0.0 else f"{share * 100:.0f} %" if share > 0.1 else f"{share * 100:.2g} %"


def _costs(costs: DrillCosts) -> Iterator[str]:
    where = costs.store or "a folder on this machine; measure your store with --store"
    rows = (
        ("step", _short(costs.step_s) if costs.step_s else "unknown", ""),
        ("save: the script is blocked", _short(costs.stall_s), size_text(costs.size_bytes)),
        ("upload", _short(costs.upload_s), f"to {where}"),
        ("commit", _short(costs.commit_s), ""),
        ("restore", _short(costs.restore_s), "from there"),
        ("start of the script", _short(costs.start_s), "to its first step"),
    )
    for name, value, more in rows:
        yield f"{name:<{_FIRST}} {value:>{_SECOND}}  {more}".rstrip()


def _short(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"
