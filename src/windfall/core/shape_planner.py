"""The policy for shapes as a coordinator asks it: which shapes a model can have, what they train, and what a change costs.

Until the model's layers are profiled, all layers are taken to be equal, and to be sent in no time: then pipelines side by side
train most, of as few stages as are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from windfall.core.shape_decisions import ShapeChoice, ShapeMoment
from windfall.errors import Infeasible
from windfall.models.migrations import GroupTimes, LinkTimes, MigrationTimes, even_cut
from windfall.models.pipeline_profile import LayerProfile, PipelineProfile, profiled_speeds
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import IDLE, Shape, ShapeSpeeds, all_shapes
from windfall.policies.shapes.shape_policy import ShapeSituation, decide, look_ahead_of

STEP_S = 0.1
"""How long a layer takes for a micro-batch, both passes, as long as it is not known [s]."""
CHANGE_S = 0.5
"""How long new connections take, as long as it is not known [s]."""


def possible_shapes(layers: int, micro_batches: int, machines: int, allowed: Sequence[Shape]) -> tuple[Shape, ...]:
    """Return the shapes that a model can have.

    Args:
        layers: of the model; each stage has one at least, and with several stages one has two.
        micro_batches: of a step; each pipeline has one at least.
        machines: the most that there can be.
        allowed: by the job; none: all.
    """
    depths = (1, *range(2, min(layers - 1, machines) + 1))
    found = all_shapes(machines, depths)
    return tuple(
        shape
        for shape in found
        if shape.pipelines <= max(micro_batches, 1) and (not allowed or shape in frozenset(allowed))
    )


def even_costs(layers: int, micro_batches: int, shapes: Sequence[Shape]) -> BoundedCosts:
    """Return throughput of shapes and costs of changes, as if all layers were equal."""
    link = LinkTimes((1.0,), (0.0,))
    layer = LayerProfile(STEP_S / 3.0, STEP_S * 2.0 / 3.0, 0.0, 0.0, 1.0)
    profile = PipelineProfile((layer,) * layers, max(micro_batches, 1), 1, link, float("inf"))
    depths = sorted({shape.stages for shape in shapes})
    times = MigrationTimes(
        link, GroupTimes(CHANGE_S), 0.0, 0.0, 0.0, dict.fromkeys(depths, 0.0), (1.0,) * layers,
        {depth: even_cut(layers, depth) for depth in depths},
    )  # fmt: skip
    speeds: ShapeSpeeds = profiled_speeds(profile, shapes)
    return BoundedCosts(times, speeds)


class ShapePlanner:
    """Chooses shapes; it remembers how often the count of machines has changed.

    Args:
        machines: the most that there can be.
        allowed: shapes, by the job; none: all.
        lookahead: intervals that a plan looks ahead; None: as far as counts last.
        now_s: a monotonic time [s].

    Attributes:
        resting: nothing is to be trained, whatever machines there are.
    """

    def __init__(self, machines: int, allowed: Sequence[Shape], lookahead: int | None, now_s: float) -> None:
        self._machines, self._allowed, self._lookahead = machines, tuple(allowed), lookahead
        self._since_s = self.now_s = now_s
        self.resting = False
        self._count, self._changes = 0, 0
        self._model: tuple[int, int] = (0, 0)
        self._costs: BoundedCosts | None = None
        self._asked: tuple[ShapeMoment, int] | None = None
        self._chosen = ShapeChoice(IDLE, "")

    def choose(self, moment: ShapeMoment) -> ShapeChoice:
        """Return the shape to train in.

        Raises:
            Infeasible: no shape that is allowed can be had with this model.
        """
        if self.resting:
            return ShapeChoice(IDLE, "training was asked to stop")
        if moment.ready != self._count:
            self._changes += self._count > 0
        lookahead = self._lookahead or look_ahead_of(self._changes, self.now_s - self._since_s)
        if (moment, lookahead) != self._asked:
            self._chosen = self._decided(moment, lookahead)
            self._asked, self._count = (moment, lookahead), moment.ready
        return self._chosen

    def _decided(self, moment: ShapeMoment, lookahead: int) -> ShapeChoice:
        costs = self._costs_of(moment)
        shape = moment.shape if moment.shape in costs.grid.shapes else IDLE
        ready = min(moment.ready, self._machines)
        decision = decide(
            ShapeSituation(shape, max(self._count, shape.machines, ready), ready), costs, look_ahead=lookahead
        )
        return ShapeChoice(decision.shape, decision.because)

    def _costs_of(self, moment: ShapeMoment) -> BoundedCosts:
        model = (moment.layers, moment.micro_batches)
        if self._costs is None or model != self._model:
            shapes = possible_shapes(*model, self._machines, self._allowed)
            if not shapes:
                raise Infeasible(
                    f"none of the shapes {', '.join(map(str, self._allowed))} can be had with {moment.layers} layers and "
                    f"{moment.micro_batches} micro-batches: with several stages there are more layers than stages, and "
                    "each pipeline has a micro-batch"
                )
            self._costs, self._model = even_costs(*model, shapes), model
        return self._costs
