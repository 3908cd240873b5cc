"""What `windfall ps JOB` shows of an elastic training: as lines and a grid for a terminal, and as data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from windfall import codec
from windfall.shape_layout import ShapeLayout
from windfall.shape_measurements import ShapeMeasurements
from windfall.shape_status import ShapeFailure, ShapeMachineStatus, ShapeStatus
from windfall.structs import Struct
from windfall.units import count_text


class ShapeRecord(Struct, frozen=True):
    """What the run's store says of an elastic training.

    Attributes:
        status: the newest; None before training has begun.
        failure: the newest failure of the script, and which one it is; None and 0 without one.
        measured: what training has measured of itself; None before it has.
    """

    status: ShapeStatus | None
    failure: ShapeFailure | None = None
    failures: int = 0
    measured: ShapeMeasurements | None = None


def lines(record: ShapeRecord) -> list[tuple[str, str]]:
    """Return labels and texts."""
    found = [] if record.status is None else _of_status(record.status)
    if record.measured is not None and record.measured.steps:
        found.append(("speed", measured_speeds(record.measured)))
    if record.failure is not None:
        found.append(
            ("failure", f"{record.failure.message} ({record.failure.machine}; the newest of {record.failures})")
        )
    return found


def measured_speeds(found: ShapeMeasurements) -> str:
    """Return what each shape that was trained trains, fastest first, and how long changes took."""
    rates = sorted(((found.batch / one.step_s, one) for one in found.steps), key=lambda pair: -pair[0])
    speeds = ", ".join(f"{one.pipelines}x{one.stages} {rate:.4g}" for rate, one in rates)
    changes = [one.seconds for one in found.changes if one.stages_before]
    if not changes:
        return f"{speeds} samples/s as measured"
    took = f"{statistics.median(changes):.2g} s in the median of {len(changes)}"
    return f"{speeds} samples/s as measured; changes of shape took {took}"


def layout_line(layout: ShapeLayout) -> str:
    """Return what a layout changed, and why."""
    shape = f"{layout.pipelines}x{layout.stages}" if layout.stages else "all wait"
    what = "all end" if layout.over else f"{shape} is given up" if layout.stop else shape
    return f"layout {layout.version}, term {layout.term}: {what}: {layout.because}"


def _of_status(status: ShapeStatus) -> list[tuple[str, str]]:
    steps = f" of {status.steps:,}" if status.steps else ""
    rate = "" if status.over or not status.stages else f", {status.steps_per_s:.3g} a second"
    shape = f"{status.pipelines}x{status.stages}" if status.stages else "none: all wait"
    numbers = (
        f"layout {status.layout}, term {status.term}, {count_text(status.coordinator, 'coordinator', 'coordinators')}"
    )
    lost = count_text(status.lost, "machine", "machines")
    backup = f"the state of every stage is on {status.backup}" if status.backup else "none"
    return [
        ("shape", f"{'none: training is over' if status.over else shape} ({numbers} so far)"),
        ("why", status.because),
        ("step", f"{status.step:,}{steps}{rate}; stored: {status.checkpoint:,}"),
        ("redone", f"{count_text(status.redone, 'step', 'steps')}; {lost} lost without notice"),
        ("backup", backup),
    ]


def columns(status: ShapeStatus | None) -> tuple[str, ...]:
    """Return the head of the grid: a column for each stage, with its layers."""
    stages = 0 if status is None else status.stages
    if status is None or not stages:
        return ()
    return (
        "pipeline",
        *(f"stage {stage}: layers {status.cut[stage]}..{status.cut[stage + 1] - 1}" for stage in range(stages)),
    )


def rows(status: ShapeStatus | None) -> list[tuple[str, ...]]:
    """Return a row for each pipeline, and in it the machine of each stage."""
    if status is None or not status.stages:
        return []
    at = {(one.pipeline, one.stage): one for one in status.machines}
    return [
        (str(pipeline), *(_machine(at.get((pipeline, stage))) for stage in range(status.stages)))
        for pipeline in range(status.pipelines)
    ]


def spares(status: ShapeStatus | None) -> str:
    """Return the machines that could train and have no place; empty if there are none."""
    found: Sequence[ShapeMachineStatus] = () if status is None or status.over else status.machines
    return ", ".join(_machine(one) for one in found if one.stage is None and not one.reliable)


def _machine(machine: ShapeMachineStatus | None) -> str:
    if machine is None:
        return "(lost)"
    step = f" {machine.step_s * 1000:.0f} ms" if machine.step_s else ""
    return f"{machine.name}{' (leaving)' if machine.leaving else ''}{step}"


def block_lines(block: Mapping[str, Any]) -> list[str]:
    """Return a profile's block as lines of a job file."""
    found = ["runtime:", "  elastic:", "    profile:"]
    for key, value in block.items():
        if key == "layers":
            found += [f"      {key}:", *(f"        - {_flow(row)}" for row in value)]
        else:
            found.append(f"      {key}: {_flow(value) if isinstance(value, Mapping) else _number(value)}")
    return found


def _flow(row: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {_number(value)}" for name, value in row.items()) + "}"


def _number(value: float) -> str:
    """Write a number as YAML reads it: `1e-05` would be a text there."""
    text = f"{value:.10g}"
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def as_json(record: ShapeRecord) -> dict[str, Any]:
    """Return it as data."""
    return {
        "status": None if record.status is None else codec.encode(record.status),
        "failure": None if record.failure is None else codec.encode(record.failure),
        "failures": record.failures,
        "measured": None if record.measured is None else codec.encode(record.measured),
    }
