"""A drill for people and for programs."""

from __future__ import annotations

import dataclasses
import socket
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from windfall.jobs import DRILL, Measured
from windfall.report import drill_effects as effects
from windfall.report.drill_effects import Look
from windfall.report.drill_trace import Finding, Trace
from windfall.terms import Seconds, Unit
from windfall.units import size_text

BLIND = (
    "what goes wrong only with another number of ranks, or on another kind of machine",
    "an end of an epoch, and anything else that does not happen within the steps of the drill (--steps)",
    (
        "state that no variable, module, optimizer or random generator of the script's own Python shows: in C "
        "extensions, in other processes, in iterators such as itertools.cycle"
    ),
    "whether data that the script reads elsewhere is the same tomorrow",
)
"""What no drill sees."""
_FIRST, _SECOND = 30, 9
_THIRD = _FIRST + _SECOND + 3
_NO_TORCH = "losses, learning rates, data and optimizers: this script does not use torch; its variables were compared"


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured.

    Attributes:
        stall_s: from the end of the step to the hand-over, the longest of all ranks.
        restore_s: from the store to this machine.
        start_s: from the start of the script to its first step, that step left out.
        store: where the checkpoint was stored; None for a folder of this machine.
    """

    step_s: float
    stall_s: float
    size_bytes: int
    upload_s: float
    commit_s: float
    restore_s: float
    start_s: float
    store: str | None

    def measured(self) -> Measured:
        """Return this as plans keep it."""
        return Measured(
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
class Drilled:
    """Everything that came of a drill.

    Attributes:
        saved_at: number of the step at which the save was.
        further: how many steps were compared.
        kept: whether the costs are there for plans.
        folder: of the drill, if it was kept.
        left_out: what of the job was not tried.
    """

    findings: tuple[Finding, ...]
    costs: Costs
    a: tuple[Trace, ...]
    b1: tuple[Trace, ...]
    b2: tuple[Trace, ...]
    saved_at: int
    further: int
    kept: bool = False
    folder: str | None = None
    left_out: tuple[str, ...] = ()

    @property
    def losses(self) -> tuple[float, float] | None:
        """The largest relative difference of a loss from the continuation, and between the two restored runs."""
        ended = next(trace.saved[0] for trace in self.a if trace.saved is not None)
        rows = [
            found
            for a, b1, b2 in zip(self.a, self.b1, self.b2, strict=True)
            if (found := effects.loss_apart(Look(a, b1, b2, ended))) is not None
        ]
        return (max(row[0] for row in rows), max(row[1] for row in rows)) if rows else None

    @property
    def torch(self) -> bool:
        """Whether the script showed anything of torch."""
        return any(trace.updates or trace.begins for trace in self.a)

    @property
    def blind(self) -> tuple[str, ...]:
        """What this drill could not see."""
        return (*self.left_out, *(() if self.torch else (_NO_TORCH,)), *BLIND)

    @property
    def wrote(self) -> tuple[str, ...]:
        """Files outside the drill's folder that the script opened for writing."""
        return tuple(dict.fromkeys(path for trace in (*self.a, *self.b1, *self.b2) for path in trace.wrote))


def as_json(drilled: Drilled) -> dict[str, Any]:
    """Return a drill as plain values."""
    apart = drilled.losses
    return {
        "resumes": not any(one.forgotten for one in drilled.findings),
        "saved_at": drilled.saved_at,
        "steps_compared": drilled.further,
        "ranks": len(drilled.a),
        "forgotten": [dataclasses.asdict(one) for one in drilled.findings if one.forgotten],
        "notes": [dataclasses.asdict(one) for one in drilled.findings if not one.forgotten],
        "loss_difference": None if apart is None else {"continuation": apart[0], "noise": apart[1]},
        "costs": dataclasses.asdict(drilled.costs),
        "kept_for_plans": drilled.kept,
        "wrote_outside": list(drilled.wrote),
        "not_seen": list(drilled.blind),
        "folder": drilled.folder,
    }


def folded(line: str, width: int) -> str:
    """Return a line of `lines` in as many as fit into a width; what follows the first is set in."""
    mark = len(line) - len(line.lstrip(" -"))
    indent = " " * (_THIRD if line[_THIRD - 2 : _THIRD] == "  " and not mark else mark)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def lines(drilled: Drilled) -> Iterator[str]:
    """Yield a drill as lines for people."""
    forgotten = [one for one in drilled.findings if one.forgotten]
    notes = [one for one in drilled.findings if not one.forgotten]
    if forgotten:
        yield "It does not resume as it was.  Forgotten:"
        yield from (f"  - {_told(one, drilled)}" for one in forgotten)
    else:
        ranks = f" on {len(drilled.a)} ranks" if len(drilled.a) > 1 else ""
        yield (
            f"It resumes: {drilled.further} steps after the save at step {drilled.saved_at}, restored twice{ranks}, "
            "are those of the continuation."
        )
    if (apart := drilled.losses) is not None:
        yield f"losses: {_percent(apart[0])} from the continuation, {_percent(apart[1])} between the two restored runs"
    if notes:
        yield "Not held against it:"
        yield from (f"  - {_told(one, drilled)}" for one in notes)
    if drilled.wrote:
        yield f"It wrote outside its copy of the folder: {', '.join(drilled.wrote[:3])}"
    yield ""
    yield from _costs(drilled.costs)
    if drilled.kept:
        yield "`windfall plan` now knows these."
    yield ""
    yield "A drill does not see:"
    yield from (f"  - {one}" for one in drilled.blind)
    if drilled.folder:
        yield f"kept: {drilled.folder}"


def _told(finding: Finding, drilled: Drilled) -> str:
    several = len(drilled.a) > 1 and finding.rank > 0 and finding.code != "one-rank"
    return f"rank {finding.rank}: {finding.sentence}" if several else finding.sentence


def _percent(share: float) -> str:
    return "0" if share == 0.0 else f"{share * 100:.0f} %" if share > 0.1 else f"{share * 100:.2g} %"


def _costs(costs: Costs) -> Iterator[str]:
    where = costs.store or "a folder of this machine; name your store with --store"
    rows = (
        ("step", _short(costs.step_s) if costs.step_s else "not seen", ""),
        ("save: the script stands still", _short(costs.stall_s), size_text(costs.size_bytes)),
        ("upload", _short(costs.upload_s), f"to {where}"),
        ("commit", _short(costs.commit_s), ""),
        ("restore", _short(costs.restore_s), "from there"),
        ("start of the script", _short(costs.start_s), "to its first step"),
    )
    for name, value, more in rows:
        yield f"{name:<{_FIRST}} {value:>{_SECOND}}  {more}".rstrip()


def _short(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"
