"""What verbs show and bring of a parameter server in tiers, from its run's store."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rich.table import Table

from windfall.cli.locations import absolute_url
from windfall.errors import LogDamaged, Misuse
from windfall.report import tier_page, tier_plot
from windfall.report.console import console
from windfall.report.tier_page import TierRecord
from windfall.runtimes.tier_log import TierLog
from windfall.spelling import plain
from windfall.storage import object_stores
from windfall.structs import Struct
from windfall.units import size_text

WIDTH = 140
"""Of a table in a file or pipe."""


class OpenTiers(Struct, frozen=True):
    """A parameter server's store, and what it says."""

    log: TierLog
    record: TierRecord


def find_tiers(url: str) -> OpenTiers | None:
    """Return the parameter server whose run is at a URL; None if there is none, or it has not begun.

    Raises:
        StoreError, LogDamaged: it cannot be read.
    """
    log = TierLog(object_stores.open_reader(absolute_url(url)).store)
    status, failures = log.status(), log.failures()
    if status is None and not failures:
        return None
    return OpenTiers(
        log, TierRecord(status, log.product(), log.failure(failures) if failures else None, failures, log.history())
    )


def show(tiers: OpenTiers, *, json_: bool) -> None:
    """Print it."""
    if json_:
        print(json.dumps({"tiers": tier_page.as_json(tiers.record)}))
        return
    for label, text in tier_page.lines(tiers.record):
        print(f"{label:<8}{plain(text)}")
    machines = tier_page.rows(tiers.record.status)
    if not machines or tiers.record.status is None or tiers.record.status.over:
        return
    print()
    table = Table(box=None, pad_edge=False)
    for name in tier_page.COLUMNS:
        table.add_column(
            name, justify="left" if name in ("machine", "serves", "backs up", "data") else "right", no_wrap=True
        )
    for row in machines:
        table.add_row(*row)
    console(width=None if sys.stdout.isatty() else WIDTH).print(table)


def draw(tiers: OpenTiers, url: str, path: Path) -> None:
    """Draw loss, machines and stage over time.

    Raises:
        Misuse: there is no checkpoint yet, or matplotlib is not installed.
    """
    if not tiers.record.history:
        raise Misuse(f"--plot: the run at {url} has no checkpoint yet")
    tier_plot.draw(tiers.record.history, path, title=url.rstrip("/").rpartition("/")[2])


def print_failures(tiers: OpenTiers) -> None:
    """Print every failure of the program, oldest first."""
    for number in range(1, tiers.record.failures + 1):
        failure = tiers.log.failure(number)
        if failure is not None:
            print(f"{failure.machine}: {plain(failure.message)}")


def download(tiers: OpenTiers, url: str, folder: Path, *, json_: bool) -> None:
    """Write what training was for into a folder, which exists; no file is replaced.

    Raises:
        Misuse: it is not there yet, or a file of that name is.
        StoreError, LogDamaged: it cannot be read.
    """
    product = tiers.record.product
    if product is None:
        status = tiers.record.status
        if status is None:
            raise Misuse(f"the run at {url} has not begun, as its program fails: `windfall logs` says how")
        raise Misuse(
            f"the run at {url} is at clock {status.clock:,} of {status.clocks:,}: its product is there when it is done"
        )
    for name in product.files:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise LogDamaged(f"the product names a file {plain(name)!r}, which is no plain name")
        if os.path.lexists(folder / name):
            raise Misuse(f"{folder / name} already exists: choose another folder")
    for name in product.files:
        (folder / name).write_bytes(tiers.log.product_file(name))
        if not json_:
            print(f"{name}: {size_text(product.files[name])}: {folder / name}")
    if json_:
        files = [str(folder / name) for name in product.files]
        print(json.dumps({"files": files, "loss": product.loss}))
