"""What an elastic training is doing, by its newest layout and what machines report."""

from __future__ import annotations

from windfall.core.shape_coordinator import ShapeCoordinator
from windfall.shape_layout import ShapeLayout, ShapeReport
from windfall.shape_status import ShapeMachineStatus, ShapePoint, ShapeStatus
from windfall.terms import WallTime


def shape_status(coordinator: ShapeCoordinator, stored: int, at: WallTime, rate: float) -> ShapeStatus:
    """Return the status.

    Args:
        coordinator: what it knows.
        stored: newest step that is whole in the store.
        at: now.
        rate: steps in a second.
    """
    layout, there = coordinator.layout, coordinator.there()
    return ShapeStatus(
        at=at,
        layout=layout.version,
        coordinator=layout.coordinator,
        term=layout.term,
        pipelines=0 if layout.stop else layout.pipelines,
        stages=0 if layout.stop else layout.stages,
        cut=layout.cut,
        step=coordinator.trained,
        steps=max([0, *(report.steps for report in there)]),
        steps_per_s=rate,
        redone=layout.redone,
        checkpoint=max(layout.checkpoint, stored),
        backup=layout.backup,
        lost=len(coordinator.lost - coordinator.dismissed),
        because=layout.because,
        over=layout.over,
        machines=tuple(_machine(report, layout) for report in there),
    )


def with_point(history: tuple[ShapePoint, ...], point: ShapePoint) -> tuple[ShapePoint, ...]:
    """Return a history with a point; the same one if neither shape nor machines have changed.

    With fewer machines than the shape has, a loss is not answered yet, or machines have not reported to a new coordinator.
    """
    last = history[-1] if history else None
    seen = (point.pipelines, point.stages, point.machines)
    same = last is not None and seen == (last.pipelines, last.stages, last.machines)
    return history if same or point.machines < point.pipelines * point.stages else (*history, point)


def _machine(report: ShapeReport, layout: ShapeLayout) -> ShapeMachineStatus:
    place = next((one for one in layout.places if one.machine == report.machine), None)
    return ShapeMachineStatus(
        report.machine,
        report.reliable,
        report.leaving,
        None if place is None else place.pipeline,
        None if place is None else place.stage,
        report.stopped,
        report.step_s,
    )
