"""A profile of a parameter server's training, as lines, as a block of the job file and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windfall.drill.busy_cores import BUSY_MAX
from windfall.errors import Misuse
from windfall.structs import Struct

if TYPE_CHECKING:
    from windfall.models.asp_fits import FittedConstant
    from windfall.models.asp_turn_fits import TurnFit
INDENT = "    "
"""Of the block, as it stands under `paramserver` in a job file."""
BLIND = (
    "machines that are further apart: small machines of one host have no network between them but their limits",
    "whether the loss continues as it began: what is far below the losses that were profiled is a guess",
    "intervals hold if the model's form does",
)
"""What no profile knows."""


class ProfiledTraining(Struct, frozen=True):
    """One training of a profile.

    Attributes:
        mix: its machines.
        turns: that it had.
        turns_per_s: as measured.
        predicted_per_s: by the fitted model.
        busy: share of the host's cores that was busy.
    """

    mix: str
    turns: int
    turns_per_s: float
    predicted_per_s: float
    busy: float

    @property
    def difference(self) -> float:
        """By how much of what was measured the prediction is off."""
        return self.predicted_per_s / self.turns_per_s - 1.0


class ProfileResult(Struct, frozen=True):
    """A profile.

    Attributes:
        job: its name.
        servers: in words, such as `1 small`.
        fit: the constants with their intervals.
        block: the job file's `profile`.
        trainings: that it was fitted to.
    """

    job: str
    servers: str
    fit: TurnFit
    block: Mapping[str, Mapping[str, Any]]
    trainings: tuple[ProfiledTraining, ...]


def lines(result: ProfileResult) -> Iterator[str]:
    """Yield the report, and the block to paste."""
    turns = sum(one.turns for one in result.trainings)
    yield f"Profile of {result.job}: {turns} turns in {len(result.trainings)} trainings, servers on {result.servers}"
    yield ""
    yield f"  {'trained on':<24} {'turns':>6} {'turns/s':>9} {'the model':>10} {'off by':>7} {'cores busy':>11}"
    for one in result.trainings:
        yield (
            f"  {one.mix:<24} {one.turns:>6} {one.turns_per_s:>9.3f} {one.predicted_per_s:>10.3f} {one.difference:>+7.1%} "
            f"{one.busy:>11.0%}"
        )
    yield ""
    yield f"  {'constant':<38} {'value':>12}   95 % interval"
    for words, constant, unit in _rows(result.fit):
        yield f"  {words:<38} {constant.value:>12.5g}   {_interval(constant)}{f' {unit}' if unit else ''}"
    yield ""
    yield from _notes(result)
    yield ""
    yield "Under paramserver in the job file:"
    yield ""
    yield from block_lines(result.block, INDENT)


def block_lines(block: Mapping[str, Mapping[str, Any]], indent: str = "") -> Iterator[str]:
    """Yield the job file's `profile` as YAML."""
    yield f"{indent}profile:"
    for name, values in block.items():
        yield f"{indent}  {name}:"
        for key, value in values.items():
            yield f"{indent}    {_key(key)}: {_map(value) if isinstance(value, Mapping) else _number(value)}"


def write(result: ProfileResult, path: Path) -> None:
    """Write the block into a file.

    Raises:
        Misuse: it cannot be written.
    """
    write_lines(block_lines(result.block), path)


def write_lines(block: Iterable[str], path: Path) -> None:
    """Write lines into the file of `--out`.

    Raises:
        Misuse: it cannot be written.
    """
    try:
        path.write_text("".join(f"{line}\n" for line in block), encoding="utf-8")
    except OSError as error:
        raise Misuse(f"--out {path} cannot be written: {error.strerror}") from error


def as_json(result: ProfileResult) -> dict[str, Any]:
    """Return the profile for programs."""
    constants = [
        {"constant": words, "value": one.value, "low": _finite(one.low), "high": _finite(one.high), "unit": unit}
        for words, one, unit in _rows(result.fit)
    ]
    trainings = [
        {
            "machines": one.mix,
            "turns": one.turns,
            "turns_per_s": one.turns_per_s,
            "predicted_turns_per_s": one.predicted_per_s,
            "cores_busy": one.busy,
        }
        for one in result.trainings
    ]
    return {
        "job": result.job,
        "servers": result.servers,
        "profile": {name: dict(values) for name, values in result.block.items()},
        "constants": constants,
        "trainings": trainings,
        "notes": list(_notes(result)),
    }


def _rows(fit: TurnFit) -> Iterator[tuple[str, FittedConstant, str]]:
    """Yield each constant: in words, with its interval, its unit."""
    yield "parameters_mb: S, half of a turn's bytes", fit.parameters_mb, "MB"
    for kind, constant in fit.compute_s.items():
        yield f"compute_s of {kind}", constant, "s"
    yield "required_mb_per_s: B_req, one worker", fit.required_mb_per_s, "MB/s"
    yield "server_mb_per_s: B_ps, all servers", fit.server_mb_per_s, "MB/s"
    yield "alpha1 of the contention", fit.alpha1, ""
    yield "beta1 of the contention", fit.beta1, ""
    yield "start_loss: before the first turn", fit.start_loss, ""
    yield "gamma5: the loss's floor", fit.gamma5, ""
    yield "gamma3 of the loss", fit.gamma3, ""
    yield "gamma2 of the batch", fit.gamma2, ""
    yield "workers_power: 0.5 in spotDNN", fit.workers_power, ""


def _interval(constant: FittedConstant) -> str:
    if not math.isfinite(constant.high - constant.low):
        return "not told by this profile"
    return f"{constant.low:.5g} to {constant.high:.5g}"


def _notes(result: ProfileResult) -> Iterator[str]:
    busiest = max(one.busy for one in result.trainings)
    if busiest > BUSY_MAX:
        yield (
            f"The cores were up to {busiest:.0%} busy: machines kept each other waiting as those of a cluster do not. "
            "Profile on a quieter host, or types with a lower kernel_speed."
        )
    if not result.fit.contended:
        yield "No cluster needed more than its servers carry: no contention was seen, and none is predicted."
    yield f"Not in it: {'; '.join(BLIND)}."


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _key(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").isalnum() and not name[0].isdigit()
    return name if plain else f'"{name}"'


def _map(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{_key(key)}: {_number(value)}" for key, value in values.items()) + "}"


def _number(value: float) -> str:
    """Return a number as YAML 1.1 reads one: with a point where it has an exponent."""
    text = f"{value}"
    mantissa, exponent, power = text.partition("e")
    if not exponent:
        return text
    sign = "" if power[0] in "+-" else "+"
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{sign}{power}"
