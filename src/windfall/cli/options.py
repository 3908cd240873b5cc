"""Options that several verbs share, with the placeholders that their help shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

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
OptionalUrl = Annotated[str | None, Parameter(metavar="URL")]
