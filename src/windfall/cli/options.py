"""Options that several verbs share, with the placeholders that their help shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from windfall.policies import policy_registry
from windfall.policies.policy_registry import PolicyKind

Json = Annotated[bool, Parameter(name="--json", negative="")]
Switch = Annotated[bool, Parameter(negative="")]
Yes = Annotated[bool, Parameter(name=("--yes", "-y"), negative="")]
Detach = Annotated[bool, Parameter(name=("--detach", "-d"), negative="")]
StateFolder = Annotated[Path | None, Parameter(name="--state", metavar="FOLDER")]
SetValues = Annotated[tuple[str, ...], Parameter(name="--set", metavar="KEY=VALUE")]
InjectSpec = Annotated[str | None, Parameter(name="--inject", metavar="SPEC")]
Plot = Annotated[Path | None, Parameter(name="--plot", metavar="FILE")]
Duration = Annotated[str, Parameter(metavar="DURATION")]
OptionalDuration = Annotated[str | None, Parameter(metavar="DURATION")]
if TYPE_CHECKING:
    SavingName = str
else:
    # The names are for completion: a policy with an argument is not in them, and `parse_policy` knows it.
    SavingName = Literal[policy_registry.names(PolicyKind.SAVING)] | str
*_others, _last = policy_registry.written()
SavingChoice = Annotated[
    SavingName,
    Parameter(
        metavar="POLICY",
        show_choices=False,
        help=f"when to save against losses without a notice: {', '.join(_others)} or {_last}.",
    ),
]
"""One saving policy; a name, or one with its argument."""
OptionalUrl = Annotated[str | None, Parameter(metavar="URL")]
