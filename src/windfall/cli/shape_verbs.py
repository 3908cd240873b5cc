"""What verbs show of an elastic training, from its run's store."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from windfall.cli import run_reference
from windfall.cli.locations import absolute_url
from windfall.errors import Misuse
from windfall.extras import install
from windfall.report import shape_page, shape_plot
from windfall.report.console import console
from windfall.report.shape_page import ShapeRecord
from windfall.runtimes import shape_product
from windfall.runtimes.shape_log import ShapeLog
from windfall.spelling import plain
from windfall.storage import object_stores
from windfall.structs import Struct
from windfall.units import size_text

GRID_WIDTH = 140
"""Of a grid in a file or pipe."""


class OpenShapes(Struct, frozen=True):
    """An elastic training's log, and what it says."""

    log: ShapeLog
    record: ShapeRecord


def find_shapes(url: str) -> OpenShapes | None:
    """Return the elastic training whose run is at a URL; None if there is none, or it has not begun.

    Raises:
        StoreError, LogDamaged: it cannot be read.
    """
    log = ShapeLog(object_stores.open_reader(absolute_url(url)).store)
    status, failures = log.status(), log.failures()
    if status is None and not failures:
        return None
    failure = log.failure(failures) if failures else None
    return OpenShapes(log, ShapeRecord(status, failure, failures, log.measured()))


def show(shapes: OpenShapes, *, json_: bool) -> None:
    """Print it."""
    record = shapes.record
    if json_:
        print(json.dumps({"shapes": shape_page.as_json(record)}))
        return
    for label, text in shape_page.lines(record):
        print(f"{label:<8}{plain(text)}")
    if record.status is None or record.status.over:
        return
    if others := shape_page.spares(record.status):
        print(f"{'spare':<8}{plain(others)}")
    heads = shape_page.columns(record.status)
    if not heads:
        return
    print()
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, no_wrap=True)
    for row in shape_page.rows(record.status):
        table.add_row(*map(plain, row))
    console(width=None if sys.stdout.isatty() else GRID_WIDTH).print(table)


def draw(shapes: OpenShapes, url: str, path: Path) -> None:
    """Draw shapes, machines and steps over time.

    Raises:
        Misuse: training has not begun, or matplotlib is not installed.
        StoreError, LogDamaged: it cannot be read.
    """
    points, status = shapes.log.history(), shapes.record.status
    if status is None or not points:
        raise Misuse(f"--plot: the training at {url} has not begun")
    shape_plot.draw((*points, status.point), path, title=url.rstrip("/").rpartition("/")[2])


def download(shapes: OpenShapes, url: str, folder: Path, *, json_: bool) -> None:
    """Write the model of the newest checkpoint into a folder, which exists; no file is replaced.

    Raises:
        Misuse: there is no checkpoint yet, or a file of that name is there.
        StoreError, LogDamaged: it cannot be read.
    """
    product = shape_product.write_product(object_stores.open_reader(absolute_url(url)).store, folder)
    if product is None:
        status = shapes.record.status
        if status is None:
            raise Misuse(f"the run at {url} has not begun, as its script fails: `windfall logs` says how")
        raise Misuse(
            f"the run at {url} is at step {status.step} of {status.steps}, and has no checkpoint yet: set save_every of the "
            "runtime, or `windfall stop` the job, which saves first"
        )
    file = folder / shape_product.FILE
    if json_:
        print(json.dumps({"step": product.step, "tensors": product.tensors, "files": [str(file)]}))
    else:
        print(f"step {product.step}: {product.tensors} tensors, {size_text(product.size_bytes)}: {file}")


def print_profile(runs: Sequence[str], state: Path | None, *, json_: bool) -> None:
    """Print what a training has measured of its layers, as a block of a job file.

    Raises:
        Misuse: there is not one elastic training, not every layer was measured yet, or numpy is not installed.
        StoreError: it cannot be read.
    """
    if len(runs) != 1:
        raise Misuse("--profile prints what one training has measured: name one job, or the URL of its run")
    url = run_reference.url_of(runs[0], state)
    shapes = find_shapes(url)
    if shapes is None:
        raise Misuse(f"--profile: the run at {url} is of no elastic training, or has not begun")
    found = shapes.log.measured()
    try:
        from windfall.models.elastic_profile import block_of  # noqa: PLC0415 - needs numpy, an extra
        from windfall.models.measured_profile import measured_profile, with_changes  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        raise Misuse(
            f"--profile needs the package {error.name}, which is not installed: {install('control')}"
        ) from None
    profile = None if found is None else measured_profile(found)
    if found is None or profile is None:
        known = 0 if found is None else sum(one is not None for one in found.layers)
        raise Misuse(
            f"--profile: the training at {url} has measured {known} of {len(found.layers) if found is not None else 'its'} "
            "layers until now: machines say what they measured after their third step of a shape"
        )
    block = block_of(with_changes(profile, found.changes))
    if json_:
        print(json.dumps(block))
        return
    for line in shape_page.block_lines(block):
        print(line)


def print_layouts(url: str) -> bool:
    """Print why each layout followed the one before; return whether the run at a URL is of an elastic training.

    Raises:
        StoreError, LogDamaged: it cannot be read.
    """
    shapes = find_shapes(url)
    if shapes is None:
        return False
    for layout in shapes.log.layouts():
        print(plain(shape_page.layout_line(layout)))
    return True


def print_failures(shapes: OpenShapes) -> None:
    """Print every failure of the script, oldest first."""
    for number in range(1, shapes.record.failures + 1):
        failure = shapes.log.failure(number)
        if failure is not None:
            print(f"{failure.machine} failed: {plain(failure.message)}")
