"""The constants of spotDNN's model in a job's settings of the runtime `paramserver`, under `profile`.

    profile:
      workload: {parameters_mb: 0.6, required_mb_per_s: 4.8, alpha1: 0.1, beta1: 0.2, gamma2: -1e-4, gamma3: 900, gamma5: 0.2,
                 start_loss: 1.1}                     # the fields of AspWorkload, but for its name
      platform: {server_mb_per_s: 5, pcie_mb_per_s: 1e9}           # of AspPlatform
      workers: {small: {batch: 3000, compute_s: 0.2}}              # of AspWorker, by machine type; `gpus` is 1 by default

An iteration of the model is a turn: one data partition's clock.  Here the map
becomes the model that predicts time and loss on any machines of these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windfall.errors import Misuse

if TYPE_CHECKING:
    # Needs numpy, which a controller need not have.
    from windfall.models.asp import AspModel

PROFILE: Final = "profile"
"""The setting's name."""
_BLOCKS: Final = ("workload", "platform", "workers")
_WORKLOAD: Final = ("parameters_mb", "required_mb_per_s", "alpha1", "beta1", "gamma2", "gamma3", "gamma5")
_LOSS_FORMS: Final = ("gamma1", "gamma4", "start_loss", "workers_power")
_PLATFORM: Final = ("server_mb_per_s", "pcie_mb_per_s")
_WORKER: Final = ("batch", "compute_s")


def model_of(profile: object, name: str = "job") -> AspModel:
    """Return the model that a profile has the constants of.

    Args:
        profile: the setting's value.
        name: of the workload, for messages.

    Raises:
        Misuse: what is wrong with it, in words that follow `profile`.
    """
    from windfall.models import asp  # noqa: PLC0415 - needs numpy, which a controller need not have

    blocks = _fields(profile, "", _BLOCKS)
    if not all(isinstance(blocks[key], Mapping) for key in _BLOCKS):
        raise Misuse("needs a map under each of " + ", ".join(_BLOCKS))
    workload = {"gamma1": None, "gamma4": None, **_numbers(blocks["workload"], ".workload", _WORKLOAD, _LOSS_FORMS)}
    platform = _numbers(blocks["platform"], ".platform", _PLATFORM, ("servers", "margin"))
    workers = {
        str(kind): {"gpus": 1, **_numbers(one, f".workers.{kind}", _WORKER, ("gpus",))}
        for kind, one in blocks["workers"].items()
    }
    try:
        types = tuple(asp.AspWorker(kind, **one) for kind, one in workers.items())
        return asp.AspModel(asp.AspWorkload(name, **workload), asp.AspPlatform(**platform), types)
    except Misuse as error:
        raise Misuse(f"predicts nothing: {error}") from error


def block_of(model: AspModel) -> dict[str, dict[str, Any]]:
    """Return the setting's value for a model, its numbers with six digits: what `model_of` makes the model of again.

    Raises:
        Misuse: the model is none that a profile has.
    """
    load, platform = model.workload, model.platform
    found: dict[str, dict[str, Any]] = {
        "workload": {key: _short(getattr(load, key)) for key in (*_WORKLOAD, *_LOSS_FORMS)},
        "platform": {key: _short(getattr(platform, key)) for key in (*_PLATFORM, "servers", "margin")},
        "workers": {one.name: {key: _short(getattr(one, key)) for key in (*_WORKER, "gpus")} for one in model.types},
    }
    found["workload"] = {key: value for key, value in found["workload"].items() if value is not None}
    model_of(found, load.name)
    return found


def problem(profile: object) -> str | None:
    """Return what is wrong with a profile, in words that follow `profile`; None if nothing is."""
    try:
        model_of(profile)
    except Misuse as error:
        return str(error)
    return None


def _fields(value: object, place: str, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return a map that has the keys that it needs, and no unknown ones."""
    if not isinstance(value, Mapping):
        raise Misuse(f"has {value!r} where a map of {', '.join(needed)} must be{f' ({place[1:]})' if place else ''}")
    for key in value:
        if key not in (*needed, *others):
            raise Misuse(f"has no {place[1:] + '.' if place else ''}{key}; there are {', '.join((*needed, *others))}")
    missing = [key for key in needed if value.get(key) is None]
    if missing:
        raise Misuse(
            f"needs {place[1:] + '.' if place else ''}{missing[0]}: the how-to of the parameter server shows a whole profile"
        )
    return value


def _numbers(value: object, place: str, needed: tuple[str, ...], others: tuple[str, ...]) -> dict[str, Any]:
    found = {key: _number(one) for key, one in _fields(value, place, needed, others).items() if one is not None}
    for key, one in found.items():
        whole = key in ("gpus", "servers")
        if isinstance(one, bool) or not isinstance(one, int if whole else int | float):
            raise Misuse(f"has {place[1:]}.{key} {one!r}: write a {'whole number' if whole else 'number'}")
    return found


def _short(value: float | None) -> float | None:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _number(value: object) -> Any:
    """Return a number that YAML 1.1 reads as text, such as 1e9; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value
