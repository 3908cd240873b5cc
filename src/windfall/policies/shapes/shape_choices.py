"""Shapes chosen from the count of machines alone: baselines for plans, and what to do when a plan meets another count.

**Best now** takes the fastest shape that fits (Parcae's reactive baseline; Varuna's choice).  **Fixed depth** keeps the number
of stages and has as many whole pipelines as fit (Bamboo's rule, and Varuna as released).  **Adapted** keeps a planned shape as
far as the machines allow: with more machines it adds pipelines, with fewer it drops pipelines, and if not one whole
pipeline is left it takes fewer stages.

Source: Parcae (NSDI 2024), "parallelization adaptation"; its public program drops, but never adds.
"""

from __future__ import annotations

from windfall.models.shapes import IDLE, Shape, ShapeSpeeds


def fixed_depth(speeds: ShapeSpeeds, stages: int, machines: int) -> Shape:
    """Return the shape with most pipelines of this depth that fits; `IDLE` if none does.

    Example:
        With 4 stages and 30 machines 7x4, if it was profiled.
    """
    fitting = [shape for shape in speeds.fitting(machines) if shape.stages == stages]
    return max(fitting, default=IDLE)


def adapted(speeds: ShapeSpeeds, planned: Shape, expected: int, machines: int) -> Shape:
    """Return the shape for the machines that there are, by counts alone.

    Args:
        speeds: of all shapes.
        planned: the shape that was planned.
        expected: the count that it was planned for.
        machines: how many there are.
    """
    if machines >= expected and planned.machines <= machines:
        grown = fixed_depth(speeds, planned.stages, machines - (expected - planned.machines))
        return max(planned, grown, key=speeds.rate)
    if planned.machines <= machines:
        return planned
    dropped = fixed_depth(speeds, planned.stages, machines)
    if dropped != IDLE:
        return dropped
    shallower = [shape for shape in speeds.fitting(machines) if shape.stages < planned.stages]
    return max(shallower, key=lambda shape: (shape.stages, shape.pipelines), default=speeds.best(machines))
