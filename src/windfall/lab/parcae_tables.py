"""Parcae's public tables, read from a folder: throughputs, migration times, the trace of machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from windfall.errors import Misuse
from windfall.lab import parcae_published as paper
from windfall.models.migrations import GroupTimes, LinkTimes, MigrationTimes, even_cut
from windfall.models.shapes import Shape, ShapeSpeeds
from windfall.structs import Struct

FILES: Final = ("throughput_profiles.json", "cost_model.json", "trace_p3.json", "published_decisions.json")
INSIDE: Final = Path("reference") / "parcae"
"""Where the tables are, if they lie with others."""
_GROUPS: Final[Mapping[str, GroupTimes]] = {
    "gpt-1.5b": GroupTimes(0.035, per_group_s=(0.5, 0.0393)),
    "gpt-6.7b": GroupTimes(0.035, per_group_s=(0.5, 0.1156)),
    "vgg19": GroupTimes(0.035, per_machine_s=(0.44, 0.34)),
    **dict.fromkeys(
        ("bert", "resnet152"), GroupTimes(0.035, by_pipelines_s=((1, 1.0), (6, 1.5), (12, 2.0)), adding_factor=1.5)
    ),
}
"""Given in words in the tables."""


class ParcaeModel(Struct, frozen=True):
    """A model of the paper with what was measured of it.

    Attributes:
        speeds: of its shapes.
        times: of its migrations, as published: the last stage is charged.
        units: images or tokens of a sample.
        counts: machines in each interval of its trace.
        micro_batches: of a step.
    """

    speeds: ShapeSpeeds
    times: MigrationTimes
    units: int
    counts: tuple[int, ...]
    micro_batches: int


def tables(folder: Path) -> Path:
    """Return where the tables are.

    Raises:
        Misuse: one of them is not there.
    """
    place = folder if (folder / FILES[0]).is_file() else folder / INSIDE
    for name in FILES:
        if not (place / name).is_file():
            raise Misuse(
                f"--data: {folder} has no {name}: pass the folder of Parcae's tables, or one with {INSIDE} in it"
            )
    return place


def read(folder: Path, name: str) -> Any:
    """Return what a file of the tables holds.

    Raises:
        Misuse: it is missing, or is not JSON.
    """
    path = tables(folder) / name
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise Misuse(f"--data: {path} does not exist") from error
    except (OSError, ValueError) as error:
        raise Misuse(f"--data: cannot read {path}: {error}") from error


def read_model(folder: Path, name: str, *, every_stage: bool = False) -> ParcaeModel:
    """Return a model by its name in the rows.

    Args:
        folder: of the tables.
        name: such as `GPT-2`.
        every_stage: charge what every new stage lacks, not the last one alone.
    """
    key = paper.MODELS[name]
    try:
        profile = read(folder, "throughput_profiles.json")["models"][key]
        costs = read(folder, "cost_model.json")
        # GPT-3 needs 12 machines, so that its trace keeps a few more; the others run on the trace as it is.
        if name == "GPT-3":
            edited = read(folder, "published_decisions.json")["models"][key]["prevN_in_out"]
            counts = tuple(before + added - lost for before, added, lost in edited)
        else:
            counts = tuple(row[2] for row in read(folder, "trace_p3.json")["added_removed_available"])
        speeds = ShapeSpeeds({Shape(row["D"], row["P"]): float(row["samples_per_s"]) for row in profile["profile"]})
        parts = int(profile["global_batch"]) // int(profile["micro_batch"])
        return ParcaeModel(speeds, _times(costs, key, every_stage), int(profile["units_per_sample"]), counts, parts)
    except (KeyError, TypeError, IndexError) as error:
        raise Misuse(
            f"--data: the tables in {tables(folder)} have no {error} of {key}: pass the published ones"
        ) from error


@cache
def kept_model(folder: Path, name: str, *, every_stage: bool = False) -> ParcaeModel:
    """Return a model as `read_model` does, read once."""
    return read_model(folder, name, every_stage=every_stage)


def _times(costs: Any, key: str, every_stage: bool) -> MigrationTimes:
    found = costs["models"][key]
    parameters = tuple(float(count) for count in found["params_per_layer"])
    builds = {int(stages): millis / 1e3 for stages, millis in found["model_build_ms_by_P"].items()}
    link = costs["p2p_us_by_bytes"]
    return MigrationTimes(
        link=LinkTimes(tuple(map(float, link)), tuple(micros / 1e6 for micros in link.values())),
        groups=_GROUPS[key],
        start_s=found["process_start_ms"] / 1e3,
        rendezvous_s=found["rendezvous_ms"] / 1e3,
        extra_s=(found["restart_extra_ms"] or 0.0) / 1e3,
        build_s=builds,
        parameters=parameters,
        cuts={stages: even_cut(len(parameters), stages) for stages in builds if stages < len(parameters)},
        states=found["optimizer_state_multiplier"],
        every_stage=every_stage,
    )
