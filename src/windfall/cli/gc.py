"""`windfall gc`: machines that nobody needs any more, given back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.prompt import Confirm
from rich.table import Table

from windfall import codec
from windfall.cli import named
from windfall.cli.run import Json
from windfall.control.service import GcView
from windfall.errors import EXIT_FAILED, Misuse
from windfall.report.showing import console


def gc(
    *,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False,
    state: Path | None = None,
    json_: Json = False,
) -> int:
    """List machines of this installation that no job needs, ask, and give them back.

    Only machines that carry this installation's tag are listed or touched.  What uploads that were never committed left in
    a run's store is cleared by the run itself, with its next commits.

    Example: `windfall gc`

    Args:
        yes: do not ask.
        state: this installation's folder (default: $XDG_STATE_HOME/windfall).
        json_: one JSON object: the machines, those that were given back, and providers that did not answer.
    """
    with named.controller(state) as client:
        found = client.unneeded()
        ids = [machine.machine_id for machine in found.machines]
        asked = bool(ids) and (yes or _confirmed(found, json_=json_))
        given = client.collect(ids) if asked else GcView(())
    troubles = {(one.provider, one.sentence): one for one in (*found.troubles, *given.troubles)}
    if json_:
        print(
            json.dumps(
                {
                    "machines": [codec.encode(machine) for machine in found.machines],
                    "released": [machine.machine_id for machine in given.machines],
                    "troubles": [{"provider": provider, "sentence": sentence} for provider, sentence in troubles],
                }
            )
        )
        return EXIT_FAILED if troubles else 0
    for one in troubles.values():
        print(f"windfall: {one.provider} did not answer, it may have more: {one.sentence}", file=sys.stderr)
    if not ids:
        print("no machine of this installation is without a job")
    elif asked:
        if yes:
            _list(found)
        print(f"given back: {', '.join(machine.machine_id for machine in given.machines) or 'none'}")
    return EXIT_FAILED if troubles else 0


def _list(found: GcView) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("machine", "type", "zone", "state", "USD/h", "of job"):
        table.add_column(name, no_wrap=True)
    for machine in found.machines:
        price = f"{machine.price_usd_per_hour:.4g}"
        table.add_row(
            machine.machine_id, machine.machine_type, machine.zone, str(machine.life), price, machine.job_id or "none"
        )
    console().print(table)


def _confirmed(found: GcView, *, json_: bool) -> bool:
    if json_:
        return False
    _list(found)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse("nobody is here to say yes: add --yes (-y) to give these machines back")
    count = len(found.machines)
    return Confirm.ask(f"Give {'it' if count == 1 else f'these {count}'} back?", default=False, console=console())
