"""What a drill has measured of an elastic training, as lines, as a block of the job file and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from windfall.drill.busy_cores import BUSY_MAX
from windfall.drill.profile_report import write_lines
from windfall.models.elastic_profile import ElasticProfile, block_of
from windfall.models.measured_profile import ChangeKind, ninetieth_percentile, seconds_of
from windfall.report.shape_page import block_lines
from windfall.shape_measurements import ChangeMeasurement
from windfall.structs import Struct

KINDS = {
    ChangeKind.START: "nothing was trained before",
    ChangeKind.ADDED: "a machine joins as one more pipeline",
    ChangeKind.DEEPER: "another number of stages",
    ChangeKind.KEPT: "a spare takes a place",
}
BLIND = (
    "links between machines that are further apart: write link under profile if yours are slower than this host's loopback",
    "the memory of your machines: write memory_bytes if a stage may not fit",
    "the time of a faster or slower processor",
)
"""What no drill on one host knows."""


class DrilledShape(Struct, frozen=True):
    """A shape that was trained.

    Attributes:
        shape: as `4x2`.
        step_s: as measured [s].
        profile_s: by the profile [s].
    """

    shape: str
    step_s: float
    profile_s: float


class ElasticDrillResult(Struct, frozen=True):
    """What was measured.

    Attributes:
        job: its name.
        profile: of the layers, links and changes.
        shapes: that were trained.
        changes: in order.
        busy: share of the host's cores that was busy.
    """

    job: str
    profile: ElasticProfile
    shapes: tuple[DrilledShape, ...]
    changes: tuple[ChangeMeasurement, ...]
    busy: float

    @property
    def block(self) -> dict[str, Any]:
        """The job file's `profile`."""
        return block_of(self.profile)


def lines(result: ElasticDrillResult) -> Iterator[str]:
    """Yield the report, and the block to paste."""
    yield f"Profile of {result.job}: {len(result.profile.pipeline.layers)} layers, {len(result.shapes)} shapes"
    yield ""
    yield f"  {'shape':<8} {'a step took':>12} {'the profile':>12}"
    for one in result.shapes:
        yield f"  {one.shape:<8} {one.step_s:>10.3g} s {one.profile_s:>10.3g} s"
    yield ""
    yield f"  {'change':<38} {'median':>10} {'9 of 10':>10} {'seen':>5}"
    for kind, words in KINDS.items():
        if found := seconds_of(kind, result.changes):
            yield (
                f"  {words:<38} {statistics.median(found):>8.3g} s {ninetieth_percentile(found):>8.3g} s {len(found):>5}"
            )
    yield ""
    yield from _notes(result)
    yield ""
    yield from block_lines(result.block)


def write(result: ElasticDrillResult, path: Path) -> None:
    """Write the block into a file.

    Raises:
        Misuse: it cannot be written.
    """
    write_lines(block_lines(result.block), path)


def as_json(result: ElasticDrillResult) -> dict[str, Any]:
    """Return it for programs."""
    return {
        "job": result.job,
        "profile": result.block,
        "shapes": [
            {"shape": one.shape, "step_s": one.step_s, "profile_step_s": one.profile_s} for one in result.shapes
        ],
        "changes": [_change(kind, seconds_of(kind, result.changes)) for kind in KINDS],
        "cores_busy": result.busy,
        "notes": list(_notes(result)),
    }


def _change(kind: ChangeKind, found: Sequence[float]) -> dict[str, Any]:
    median_s = statistics.median(found) if found else None
    return {
        "kind": kind.value,
        "seen": len(found),
        "median_s": median_s,
        "p90_s": ninetieth_percentile(found) if found else None,
    }


def _notes(result: ElasticDrillResult) -> Iterator[str]:
    if result.busy > BUSY_MAX:
        yield (
            f"The cores were {result.busy:.0%} busy: machines kept each other waiting as those of a cluster do not. Times of "
            "shapes with several machines are too long: drill on a quieter host, or one with more cores."
        )
    yield f"Not in it: {'; '.join(BLIND)}."
