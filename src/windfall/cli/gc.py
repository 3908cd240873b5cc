"""`windfall gc`: release machines that no job needs."""

from __future__ import annotations

import json
import sys

from rich.prompt import Confirm
from rich.table import Table

from windfall import codec
from windfall.cli import run_reference
from windfall.cli.options import Json, StateFolder, Yes
from windfall.control.controller_views import GcView
from windfall.errors import EXIT_FAILED, Misuse
from windfall.report.console import console


def gc(
    *,
    yes: Yes = False,
    state: StateFolder = None,
    json_: Json = False,
) -> int:
    """Release machines of this installation that no job needs.

    Lists them and asks first.  Only machines that carry this installation's tag are listed or released.  Uploads that
    were never committed are deleted by the run itself, at its next commits.

    Example: `windfall gc`

    Args:
        yes: release them without asking.
        state: folder for Windfall's own files (default: $XDG_STATE_HOME/windfall).
        json_: print one JSON object: the machines, the released ones, and the providers that did not answer.
    """
    with run_reference.controller(state) as client:
        found = client.unneeded()
        ids = [machine.machine_id for machine in found.machines]
        asked = bool(ids) and (yes or _confirmed(found, json_=json_))
        given = client.collect(ids) if asked else GcView(())
    provider_errors = {(one.provider, one.message): one for one in (*found.provider_errors, *given.provider_errors)}
    if json_:
        print(
            json.dumps(
                {
                    "machines": [codec.encode(machine) for machine in found.machines],
                    "released": [machine.machine_id for machine in given.machines],
                    "provider_errors": [
                        {"provider": provider, "message": message} for provider, message in provider_errors
                    ],
                }
            )
        )
        return EXIT_FAILED if provider_errors else 0
    for one in provider_errors.values():
        print(f"windfall: {one.provider} did not answer, and may have more machines: {one.message}", file=sys.stderr)
    if not ids:
        print("nothing to release: every machine of this installation has a job")
    elif asked:
        if yes:
            _list(found)
        print(f"released: {', '.join(machine.machine_id for machine in given.machines) or 'none'}")
    return EXIT_FAILED if provider_errors else 0


def _list(found: GcView) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("machine", "type", "zone", "state", "USD/h", "job"):
        table.add_column(name, no_wrap=True)
    for machine in found.machines:
        price = f"{machine.price_usd_per_hour:.4g}"
        table.add_row(
            machine.machine_id,
            machine.machine_type,
            machine.zone,
            str(machine.lifecycle),
            price,
            machine.job_id or "none",
        )
    console().print(table)


def _confirmed(found: GcView, *, json_: bool) -> bool:
    if json_:
        return False
    _list(found)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse("not a terminal: pass --yes (-y) to release these machines")
    count = len(found.machines)
    return Confirm.ask(f"Release {'it' if count == 1 else f'these {count}'}?", default=False, console=console())
