"""From a profile block to what a plan of shapes needs: throughput of each shape, times of changes, and which shapes do not fit.

The block is plain data, as `runtime: {elastic: {profile: ...}}` has it, or as a file of its own:

    batch: 256                  # samples of a step
    micro_batch: 4
    memory_bytes: 16e9          # of one machine; without it memory is not judged
    link: {latency_s: 1e-4, bytes_per_s: 1.1e9}
    layers:                     # in order; times and sizes of one micro-batch
      - {count: 12, forward_s: 0.011, backward_s: 0.022, parameters: 7.1e6, sent_bytes: 3.1e6, held_bytes: 9e7}
    states: 2                   # optimiser's numbers per parameter
    beside_s: 0.004             # of a step beside passes, sending, sums and the layers' update_s: data, the vote
    start_s: 0.2                # a process; rendezvous_s, build_s, groups_s likewise: where they were measured

Without measured times a change costs its transfers alone.  `block_of` writes a profile as such a block.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from windfall.errors import Infeasible, Misuse
from windfall.models.migrations import GroupTimes, LinkTimes, MigrationTimes
from windfall.models.pipeline_profile import LayerProfile, PipelineProfile, cut_of, needed_bytes, step_s
from windfall.models.shapes import Shape, ShapeSpeeds, all_shapes
from windfall.structs import Struct

LAYERS_MAX: Final = 10_000
_LAYER: Final = ("forward_s", "backward_s", "parameters", "sent_bytes", "held_bytes", "update_s", "count")
_TIMES: Final = ("start_s", "rendezvous_s", "build_s", "groups_s")
_KEYS: Final = ("batch", "micro_batch", "memory_bytes", "link", "layers", "states", "beside_s", *_TIMES)
_LINK: Final = ("latency_s", "bytes_per_s")
_GIGA: Final = 1e9


class ElasticProfile(Struct, frozen=True):
    """A training that can change its shape.

    Attributes:
        pipeline: layers, batch, link and memory.
        start_s: of a process [s].
        rendezvous_s: if machines are added [s].
        build_s: of a stage [s].
        groups_s: of all communication groups [s].
    """

    pipeline: PipelineProfile
    start_s: float = 0.0
    rendezvous_s: float = 0.0
    build_s: float = 0.0
    groups_s: float = 0.0


class RefusedShape(Struct, frozen=True):
    """A shape that cannot be had, and why."""

    shape: Shape
    reason: str


class ElasticTraining(Struct, frozen=True):
    """What a plan of shapes needs.

    Attributes:
        speeds: of the shapes that can be had.
        times: of changes; every stage is charged.
        refused: the other ones.
    """

    speeds: ShapeSpeeds
    times: MigrationTimes
    refused: tuple[RefusedShape, ...]


def training_of(profile: ElasticProfile, machines: int, shapes: Sequence[Shape] | None = None) -> ElasticTraining:
    """Return throughput and costs of the shapes of at most this many machines.

    Args:
        profile: of the training.
        machines: the most that there can be.
        shapes: those that are allowed; None: every one.

    Raises:
        Infeasible: no shape can be had; the message says what the nearest one lacks.
        Misuse: there is no machine, or an allowed shape needs more.
    """
    if machines < 1:
        raise Misuse(f"{machines} machines: write at least 1")
    pipeline, depths = profile.pipeline, range(1, machines + 1)
    asked = all_shapes(machines, depths) if shapes is None else tuple(dict.fromkeys(shapes))
    for shape in asked:
        if not 0 < shape.machines <= machines:
            raise Misuse(f"shape {shape} needs {shape.machines} machines, of at most {machines}: write one that fits")
    judged = {shape: _refusal(pipeline, shape) for shape in asked}
    rates = {shape: pipeline.batch / step_s(pipeline, shape) for shape, reason in judged.items() if not reason}
    refused = tuple(RefusedShape(shape, reason) for shape, reason in judged.items() if reason)
    if not rates:
        nearest = min(refused, key=lambda one: (_lack(pipeline, one.shape), one.shape.machines))
        raise Infeasible(
            f"none of {len(asked)} shapes of up to {machines} machines can be trained; the nearest, {nearest.shape}: "
            f"{nearest.reason}; allow more machines, or machines with more memory"
        )
    return ElasticTraining(ShapeSpeeds(rates), _times(profile, {shape.stages for shape in rates}), refused)


def _refusal(pipeline: PipelineProfile, shape: Shape) -> str:
    """Return why a shape cannot be had; empty if it can."""
    layers, parts = len(pipeline.layers), pipeline.batch // pipeline.micro_batch
    if shape.stages > layers:
        return f"{shape.stages} stages need at least {shape.stages} layers, and there are {layers}"
    if shape.pipelines > parts:
        return f"a step has {parts} micro-batches, so that {shape.pipelines - parts} of {shape.pipelines} pipelines have none"
    needs = needed_bytes(pipeline, shape)
    if needs > pipeline.memory_bytes:
        has = pipeline.memory_bytes / _GIGA
        return f"its fullest stage needs {needs / _GIGA:.3g} GB of memory, and a machine has {has:.3g} GB"
    return ""


def _lack(pipeline: PipelineProfile, shape: Shape) -> float:
    """Return the memory that a shape needs; infinite if it lacks something else [bytes]."""
    if shape.pipelines > pipeline.batch // pipeline.micro_batch or shape.stages > len(pipeline.layers):
        return math.inf
    return needed_bytes(pipeline, shape)


def _times(profile: ElasticProfile, depths: Iterable[int]) -> MigrationTimes:
    layers = profile.pipeline.layers
    return MigrationTimes(
        link=profile.pipeline.link,
        groups=GroupTimes(profile.groups_s),
        start_s=profile.start_s,
        rendezvous_s=profile.rendezvous_s,
        extra_s=0.0,
        build_s=dict.fromkeys(depths, profile.build_s),
        parameters=tuple(layer.parameters for layer in layers),
        cuts={stages: cut_of(profile.pipeline, stages) for stages in depths},
        states=profile.pipeline.states,
    )


# --------------------------------------------------------------------------------------------------------------- a block


def profile_of(block: object, where: str = "profile") -> ElasticProfile:
    """Return a block as a profile.

    Args:
        block: mappings, lists and numbers, such as YAML has.
        where: it stands, for messages.

    Raises:
        Misuse: a key is missing or unknown, or a value is not what it must be; the message says where.
    """
    found = _mapping(block, where, _KEYS, ("batch", "micro_batch", "layers"))
    link = _mapping(found.get("link", {}), f"{where}: link", _LINK, ())
    rows = found["layers"]
    if not isinstance(rows, (list, tuple)) or not rows:
        raise Misuse(
            f"{where}: layers: write a list of at least one layer, each with forward_s, backward_s and parameters"
        )
    layers: list[LayerProfile] = []
    for place, row in enumerate(rows, 1):
        layers += _layers(row, f"{where}: layer {place} of {len(rows)}")
    if len(layers) > LAYERS_MAX:
        raise Misuse(f"{where}: {len(layers)} layers: write at most {LAYERS_MAX}")
    memory = _number(found, "memory_bytes", where, math.inf)
    if memory <= 0.0:
        raise Misuse(f"{where}: memory_bytes is 0: write the memory of a machine, or leave it out")
    return ElasticProfile(
        PipelineProfile(
            layers=tuple(layers),
            batch=_whole(found, "batch", where, 1),
            micro_batch=_whole(found, "micro_batch", where, 1),
            link=_link(link, f"{where}: link"),
            memory_bytes=memory,
            states=_whole(found, "states", where, 2, least=0),
            beside_s=_number(found, "beside_s", where, 0.0),
        ),
        **{name: _number(found, name, where, 0.0) for name in _TIMES},
    )


def even_profile(layers: int, batch: int, micro_batch: int, step_s: float) -> ElasticProfile:
    """Return the profile of equal layers that are sent in no time: what is taken before anything was measured.

    Args:
        layers: how many.
        batch: samples of a step.
        micro_batch: samples of a micro-batch.
        step_s: of one machine [s].
    """
    if layers < 1:
        raise Misuse(f"{layers} layers: write at least 1")
    pass_s = step_s * micro_batch / batch / layers / 3.0  # a backward pass takes two forward passes
    layer = LayerProfile(pass_s, 2.0 * pass_s, 0.0, 0.0, 1.0)
    return ElasticProfile(PipelineProfile((layer,) * layers, batch, micro_batch, LinkTimes((1.0,), (0.0,)), math.inf))


def block_of(profile: ElasticProfile) -> dict[str, Any]:
    """Return a profile as a block, which `profile_of` reads; what is not known is left out.  Numbers have four digits."""
    pipeline = profile.pipeline
    found: dict[str, Any] = {"batch": pipeline.batch, "micro_batch": pipeline.micro_batch, "states": pipeline.states}
    if math.isfinite(pipeline.memory_bytes):
        found["memory_bytes"] = _rounded(pipeline.memory_bytes)
    first_s, last_s = (pipeline.link.seconds(size) for size in (1.0, _GIGA))
    if last_s > first_s:
        rate = (_GIGA - 1.0) / (last_s - first_s)
        found["link"] = {"latency_s": _rounded(max(first_s - 1.0 / rate, 0.0)), "bytes_per_s": _rounded(rate)}
    times = {"beside_s": pipeline.beside_s, **{name: getattr(profile, name) for name in _TIMES}}
    found |= {name: _rounded(seconds) for name, seconds in times.items() if seconds}
    found["layers"] = [
        {name: _rounded(getattr(layer, name)) for name in _LAYER if name != "count"} for layer in pipeline.layers
    ]
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _layers(row: object, where: str) -> list[LayerProfile]:
    found = _mapping(row, where, _LAYER, ("forward_s", "backward_s", "parameters"))
    count = _whole(found, "count", where, 1)
    if count > LAYERS_MAX:
        raise Misuse(f"{where}: count is {count}: write at most {LAYERS_MAX}")
    forward_s, backward_s = (_number(found, name, where, 0.0) for name in ("forward_s", "backward_s"))
    if forward_s + backward_s == 0.0:
        raise Misuse(f"{where}: both passes take 0 s: write the measured times of a micro-batch")
    sizes = (_number(found, name, where, 0.0) for name in ("sent_bytes", "held_bytes", "parameters", "update_s"))
    return [LayerProfile(forward_s, backward_s, *sizes)] * count


def _link(found: Mapping[str, Any], where: str) -> LinkTimes:
    rate = _number(found, "bytes_per_s", where, math.inf)
    latency_s = _number(found, "latency_s", where, 0.0)
    if rate <= 0.0:
        raise Misuse(f"{where}: bytes_per_s is 0: write the rate between two machines, or leave it out")
    return LinkTimes((1.0, _GIGA), (latency_s + 1.0 / rate, latency_s + _GIGA / rate))


def _mapping(block: object, where: str, known: Sequence[str], needed: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(block, Mapping):
        raise Misuse(f"{where}: write keys and values: {', '.join(known)}")
    for key in block:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            instead = f"did you mean {near[0]}?" if near else f"write {', '.join(known)}"
            raise Misuse(f"{where}: unknown key {key!r}; {instead}")
    for key in needed:
        if key not in block:
            raise Misuse(f"{where}: {key} is missing")
    return block


def _number(block: Mapping[str, Any], key: str, where: str, otherwise: float) -> float:
    value = block.get(key, otherwise)
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # YAML reads 1e9 as text
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 0.0 or (math.isinf(number) and key in block):
        raise Misuse(f"{where}: {key} is {value!r}: write a number, 0 or more")
    return number


def _whole(block: Mapping[str, Any], key: str, where: str, otherwise: int, least: int = 1) -> int:
    number = _number(block, key, where, float(otherwise))
    if number != int(number) or number < least:
        raise Misuse(f"{where}: {key} is {block.get(key)!r}: write a whole number, {least} or more")
    return int(number)
