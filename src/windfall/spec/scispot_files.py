"""SciSpot's files: a parameter space in JSON, or the settings that name one and the script of a job.

    {"Z": {"type": "range", "values": [3.0, 4.0]}, "p": {"type": "set", "values": [1, 2, 3]}}
    {"runfile": "/scispot/job.sh", "param_exporation_file": "config/space.json", "zone": "us-east1-b", ...}

SciSpot runs `sbatch RUNFILE -Z 3.5 -p 1` for each point.  A range has as many points, at equal distances, as the number of
jobs holds combinations of the sets (prateek-s/scispot, code/jobgen.py); that number is an argument there, by default 100.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from windfall.errors import Misuse
from windfall.spec import yaml_positions
from windfall.spec.fields import shown
from windfall.spec.import_draft import Carry, Imported, document_of, finish
from windfall.spec.job_loader import FILL_IN
from windfall.spec.yaml_positions import YamlDocument

JOBS = 100
"""How many jobs SciSpot runs, if it is not told otherwise."""
_SPACE, _RUNFILE = "param_exporation_file", "runfile"
_FINISH = 0.9
"""The share of the jobs after which SciSpot ends a bag, if it is not told otherwise."""
_REASONS: Mapping[str, str] = {
    "current_mtype": "is not carried over: any machine type on which an item fits is used",
    "zone": "is a zone of Google's, which is not supported yet",
    "username": "is for SciSpot's own cluster",
    "key_filename": "is for SciSpot's own cluster",
    "current_master": "is for SciSpot's own cluster",
}


def is_scispot(value: Mapping[Any, Any]) -> bool:
    """Return whether a file's content is SciSpot's: a parameter space, or the settings that name one."""
    spaces = [isinstance(one, dict) and set(one) == {"type", "values"} for one in value.values()]
    return _SPACE in value or (bool(spaces) and all(spaces))


def import_scispot(text: str, name: str) -> Imported:
    """Return the job file for a bag of SciSpot's.

    Args:
        text: the parameter space or the settings.
        name: its path; the file that settings name is looked for beside it, and in the folder above, where SciSpot runs.

    Raises:
        InvalidFile: something in it is wrong.
        Misuse: the file with the parameter space cannot be read.
    """
    document = document_of(text, name)
    if _SPACE not in document.value:
        carry = Carry(document)
        _space(carry, document.value)
        carry.put(("envs", "PROGRAM"), FILL_IN, ())
        carry.waiting["PROGRAM"] = "run"
        _run(carry, '"$PROGRAM"', document.value)
        return finish(carry)
    settings, written = document.value, document.value[_SPACE]
    if not isinstance(written, str):
        raise Carry(document).refuse((_SPACE,), f"must be the path of a file, not {shown(written)}")
    space = _beside(name, written, document)
    carry = Carry(space)
    _space(carry, space.value)
    runfile = settings.get(_RUNFILE)
    if not isinstance(runfile, str) or not runfile:
        raise Carry(document).refuse((_RUNFILE,), "is missing: the script that SciSpot gives to sbatch")
    _run(carry, f"bash {runfile}", space.value)
    outer = Carry(document)
    for key in settings:
        if key not in (_SPACE, _RUNFILE):
            outer.drop((key,), _REASONS.get(key, "has no counterpart in a job file"))
    carry.dropped += outer.dropped
    return finish(carry)


def _beside(name: str, written: str, document: YamlDocument) -> YamlDocument:
    here = os.path.dirname(os.path.abspath(name))
    places = [os.path.normpath(os.path.join(folder, written)) for folder in (here, os.path.dirname(here))]
    found = next((place for place in places if os.path.isfile(place)), None)
    if found is None:
        place = document.position((_SPACE,))
        raise Misuse(f"{place}: {_SPACE}: there is no file {written} in {here} or the folder above")
    return document_of(yaml_positions.read(found), found)


def _space(carry: Carry, space: Mapping[Any, Any]) -> None:
    for name, one in space.items():
        values = one.get("values") if isinstance(one, dict) else None
        kinds = ("set", "range")
        if not isinstance(one, dict) or one.get("type") not in kinds or not isinstance(values, list) or not values:
            raise carry.refuse(
                (name,), 'must be {"type": "set", "values": [...]} or {"type": "range", "values": [...]}'
            )
        if one["type"] == "range" and len(values) < 2:
            raise carry.refuse((name,), "is a range, and must have its two ends as values")
    sets = math.prod(len(one["values"]) for one in space.values() if one["type"] == "set")
    points = max(JOBS // sets, 1)
    for name, one in space.items():
        values = one["values"]
        spread = {"linspace": [values[0], values[-1], points]} if one["type"] == "range" else values
        carry.put(("bag", "parameters", name), spread, (name,))
        if one["type"] == "range":
            words = f"has {points} points, as SciSpot gives it for {JOBS} jobs; `windfall run --limit {JOBS}` runs that many"
            carry.drop((name,), words)
    carry.put(("bag", "finish"), _FINISH, ())


def _run(carry: Carry, program: str, space: Mapping[Any, Any]) -> None:
    carry.put(("run",), " ".join([program, *(f"-{name} {{{{{name}}}}}" for name in space)]), ("run",))
