"""The policy for shapes as a coordinator asks it: which shapes a model can have, what they train, and what a change costs.

**Layers.**  Those of the job file's profile count; else those that running stages have measured; until each layer was measured
all are taken to be equal, and to be sent in no time: then pipelines side by side train most, of as few stages as are allowed.

**Changes** cost what they were measured to cost, whatever a profile says.

**Noise.**  Measured times are never twice the same, and shapes may be equally good.  So while no machine comes or goes another
shape is taken only if it is expected to train more by `LEAST_GAIN`; and one that was trained is judged by its own steps, so
that a shape that was tried, and is slower than it seemed, is not tried again.

**Cuts.**  Layers are cut so that the slowest stage is fastest, as far as they were measured; a shape that stays is cut
differently if a step gets shorter by more than noise, and no machine of it is lost or to leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from windfall.core.shape_decisions import ShapeChoice, ShapeMoment
from windfall.errors import Misuse
from windfall.models.elastic_profile import ElasticProfile, ElasticTraining, even_profile, training_of
from windfall.models.measured_profile import (
    measured_profile,
    notice_s,
    with_changes,
    with_link_and_memory,
    with_measured_steps,
)
from windfall.models.pipeline_profile import PipelineProfile, cut_step_s, state_bytes
from windfall.models.shape_costs import BoundedCosts
from windfall.models.shapes import IDLE, Shape, speeds_of
from windfall.policies.shapes.shape_choices import fixed_depth
from windfall.policies.shapes.shape_policy import (
    LEAST_GAIN,
    ShapeDecision,
    ShapeSituation,
    decide,
    look_ahead_of,
    recut_pays,
)
from windfall.shape_measurements import ShapeMeasurements

ANY_STEP_S: Final = 1.0
"""Of one machine, while no layer was measured: shapes are compared by their ratio, and nothing shows it [s]."""
ADOPT_EVERY_S: Final = 10.0
"""Between two decisions by new measurements [s]."""


class ShapePlanner:
    """Chooses shapes; it remembers how often the count of machines has changed.

    Args:
        machines: the most that there can be.
        allowed: shapes, by the job; none: all.
        lookahead: intervals that a plan looks ahead; None: as far as counts last.
        now_s: a monotonic time [s].
        profile: of the model's layers, by the job; None: it is measured.

    Attributes:
        now_s: a monotonic time [s].
        resting: nothing is to be trained, whatever machines there are.
        measured: of the training until now; None: nothing.
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
        self.measured: ShapeMeasurements | None = None
        self._adopted: ShapeMeasurements | None = None
        self._adopted_s = now_s
        self._count, self._changes = 0, 0
        self._model: tuple[int, int] = (0, 0)
        self._costs: BoundedCosts | None = None
        self._cuts: Mapping[int, tuple[int, ...]] = {}
        self._pipeline: PipelineProfile | None = None
        self._equal = False
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
        if self._adopts(moment) or (moment, lookahead) != self._asked:
            self._chosen = self._decided(moment, lookahead)
            self._asked, self._count = (moment, lookahead), moment.ready
        return self._chosen

    def _decided(self, moment: ShapeMoment, lookahead: int) -> ShapeChoice:
        costs = self._costs_of(moment)
        shape = moment.shape if moment.shape in costs.grid.shapes else IDLE
        ready = min(moment.ready, self._machines)
        same = moment.ready == self._count and shape != IDLE
        decision = decide(
            ShapeSituation(shape, max(self._count, shape.machines, ready), ready),
            costs,
            look_ahead=lookahead,
            least_gain=LEAST_GAIN if same else 0.0,
        )
        whole = moment.whole * shape.stages
        dropped = fixed_depth(speeds_of(costs.grid), shape.stages, whole) if whole else IDLE
        cut, why = self._cut(moment, decision.shape)
        return ShapeChoice(
            decision.shape,
            f"{self._because(moment, decision)}{why}",
            self._notice_s(costs, shape, decision.shape),
            dropped,
            self._notice_s(costs, shape, dropped),
            cut,
            () if self._pipeline is None else state_bytes(self._pipeline),
        )

    def _cut(self, moment: ShapeMoment, shape: Shape) -> tuple[tuple[int, ...], str]:
        """Return where layers are cut; and why, if they are cut differently in a shape that stays."""
        if shape == IDLE or self._pipeline is None:
            return (), ""
        best, old = self._cuts[shape.stages], moment.cut
        if shape.stages != moment.shape.stages or not old or old[-1] != moment.layers:
            return best, ""
        now_s, then_s = (cut_step_s(self._pipeline, shape, cut) for cut in (old, best))
        if not recut_pays(now_s, then_s, all_stay=moment.whole == moment.shape.pipelines):
            return old, ""
        return (
            best,
            f"; its stages begin at layers {_named(best)} for {_named(old)}, a step is {1 - then_s / now_s:.0%} shorter",
        )

    def _notice_s(self, costs: BoundedCosts, before: Shape, after: Shape) -> float | None:
        """Return how much time a change needs inside a notice; None if that is not known, or nothing is trained [s]."""
        if IDLE in (before, after) or self.measured is None:
            return None
        grid = costs.grid
        planned_s = float(costs.row(grid.place(before), before.machines, 0)[grid.place(after)])
        return notice_s(before, after, self.measured.changes, planned_s)

    def _because(self, moment: ShapeMoment, decision: ShapeDecision) -> str:
        if self._equal and decision.shape != IDLE:
            return f"{moment.ready} machines: {decision.shape}; the layers are not measured yet, and taken to be equal"
        return decision.because

    # ------------------------------------------------------------------------------------------------ what shapes come to

    def _adopts(self, moment: ShapeMoment) -> bool:
        """Take over what was measured since, if it is time; return whether there was something."""
        found = self.measured
        first = self._adopted is None or (self._equal and self._measured_profile(moment) is not None)
        if found is None or found is self._adopted or not (first or self.now_s - self._adopted_s >= ADOPT_EVERY_S):
            return False
        self._adopted, self._adopted_s, self._costs = found, self.now_s, None
        return True

    def _costs_of(self, moment: ShapeMoment) -> BoundedCosts:
        model = (moment.layers, moment.micro_batches)
        if self._costs is None or model != self._model:
            self._model = model
            training, self._pipeline = self._training(moment)
            self._costs, self._cuts = BoundedCosts(training.times, training.speeds), training.times.cuts
        return self._costs

    def _training(self, moment: ShapeMoment) -> tuple[ElasticTraining, PipelineProfile]:
        """Return what a plan needs, and the layers of which it was made."""
        layers, micro_batches, found = moment.layers, moment.micro_batches, self._adopted
        changes = found.changes if found is not None else ()
        self._equal = False
        if self._profile is not None:
            self._check(self._profile, layers, micro_batches)
            profile = with_link_and_memory(self._profile, found) if found is not None else self._profile
            return training_of(with_changes(profile, changes), self._machines, self._allowed), profile.pipeline
        measured = self._measured_profile(moment)
        if measured is not None and found is not None:
            training = training_of(with_changes(measured, changes), self._machines, self._allowed)
            return with_measured_steps(training, found), measured.pipeline
        self._equal = True
        even = even_profile(layers, max(micro_batches, 1), 1, ANY_STEP_S)
        return training_of(with_changes(even, changes), self._machines, self._allowed), even.pipeline

    def _measured_profile(self, moment: ShapeMoment) -> ElasticProfile | None:
        """Return the profile of what was measured; None while a layer was not, or if it is of another model."""
        found = self.measured
        if found is None or len(found.layers) != moment.layers or None in found.layers:
            return None
        return measured_profile(found) if found.batch // found.micro_batch == moment.micro_batches else None

    @staticmethod
    def _check(profile: ElasticProfile, layers: int, micro_batches: int) -> None:
        parts = profile.pipeline.batch // profile.pipeline.micro_batch
        if len(profile.pipeline.layers) != layers or parts != micro_batches:
            raise Misuse(
                f"the profile has {len(profile.pipeline.layers)} layers and {parts} micro-batches, and the script's model has "
                f"{layers} layers and {micro_batches} micro-batches: profile this model, or leave the profile out"
            )


def compile_plans() -> None:
    """Plan for a loss once: what plans need is compiled then, and not after the first real loss, where all would wait."""
    planner = ShapePlanner(3, (Shape(1, 2), Shape(1, 3)), None, 0.0)
    choice = ShapeChoice(IDLE, "")
    for ready in (3, 2):
        choice = planner.choose(ShapeMoment(choice.shape, ready, 4, 4, choice.shape.pipelines, choice.cut))


def _named(cut: tuple[int, ...]) -> str:
    """Return the first layers of the stages, for a sentence."""
    return ", ".join(str(layer) for layer in cut[:-1])
