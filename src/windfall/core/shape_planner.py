"""The policy for shapes as a coordinator asks it: which shapes a model can have, what they train, and what a change costs.

Without a profile all layers are taken to be equal, and to be sent in no time: then pipelines side by side train most, of as few
stages as are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from windfall.core.shape_decisions import ShapeChoice, ShapeMoment
from windfall.errors import Misuse
from windfall.models.elastic_profile import ElasticProfile, even_profile, training_of
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import IDLE, Shape
from windfall.policies.shapes.shape_policy import ShapeSituation, decide, look_ahead_of
from windfall.structs import replace

STEP_S = 1.0
"""How long a step takes one machine, as long as it is not known [s]."""
CHANGE_S = 0.5
"""How long new connections take, as long as it is not known [s]."""


class ShapePlanner:
    """Chooses shapes; it remembers how often the count of machines has changed.

    Args:
        machines: the most that there can be.
        allowed: shapes, by the job; none: all.
        profile: of the model's layers; None: not known.
        lookahead: intervals that a plan looks ahead; None: as far as counts last.
        now_s: a monotonic time [s].

    Attributes:
        resting: nothing is to be trained, whatever machines there are.
    """

    def __init__(
        self,
        machines: int,
        allowed: Sequence[Shape],
        lookahead: int | None,
        now_s: float,
        *,
        profile: ElasticProfile | None = None,
    ) -> None:
        self._machines, self._lookahead, self._profile = machines, lookahead, profile
        self._allowed = tuple(shape for shape in allowed if shape.machines <= machines) or None
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
            Misuse: the profile is of another one.
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
            training = training_of(self._profile_of(*model), self._machines, self._allowed)
            self._costs, self._model = BoundedCosts(training.times, training.speeds), model
        return self._costs

    def _profile_of(self, layers: int, micro_batches: int) -> ElasticProfile:
        if self._profile is None:
            return replace(even_profile(layers, max(micro_batches, 1), 1, STEP_S), groups_s=CHANGE_S)
        pipeline = self._profile.pipeline
        parts = pipeline.batch // pipeline.micro_batch
        if len(pipeline.layers) != layers or parts != micro_batches:
            raise Misuse(
                f"the profile has {len(pipeline.layers)} layers and {parts} micro-batches, and the script's model has "
                f"{layers} layers and {micro_batches} micro-batches: profile this model, or leave the profile out"
            )
        return self._profile
