"""The results of a run: which there are, as a list, and downloaded."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from windfall import codec
from windfall.errors import Misuse
from windfall.report.console import console
from windfall.spelling import nearest
from windfall.storage import object_stores, restore
from windfall.terms import Result, RunState
from windfall.units import size_text


def select_results(state: RunState, names: Sequence[str], url: str) -> list[Result]:
    """Return the results with these names, or all of them if no name is given.

    Raises:
        Misuse: there is none, or none with that name.
    """
    known = {result.name for result in state.results}
    for name in names:
        if known and name not in known:
            raise Misuse(f"the run at {url} has no result {name!r}; {nearest(name, sorted(known))}")
    if not known:
        raise Misuse(f"the run at {url} has no results: a script stores one with wf.save_result(path)")
    return [result for result in state.results if not names or result.name in names]


def download_results(reader: object_stores.Reader, results: Sequence[Result], dest: Path, *, json_: bool) -> None:
    """Download results into a folder; if several ranks have a result with the same name, into a folder per rank.

    Raises:
        Misuse: a file with that name exists.
    """
    ranks = {name: [one.rank for one in results if one.name == name] for name in {one.name for one in results}}
    places = [dest if len(ranks[one.name]) == 1 else dest / f"rank-{one.rank}" for one in results]
    for result, place in zip(results, places, strict=True):
        if os.path.lexists(place / result.name):
            raise Misuse(f"{place / result.name} already exists: choose another folder")
    results_fetched = []
    for result, place in zip(results, places, strict=True):
        staging = dest / f".windfall-get-{os.getpid()}"
        found = reader.run(restore.restore((result.stored,), str(staging)))
        assert found.checkpoint is not None, "a result that is not intact is refused"
        try:
            (shard,) = found.checkpoint.shards
            place.mkdir(exist_ok=True)
            os.rename(staging / str(shard.rank) / shard.name, place / result.name)
        finally:
            shutil.rmtree(staging)
        size = result.stored.size_bytes
        file = str(place / result.name)
        results_fetched.append({"name": result.name, "rank": result.rank, "step": result.stored.step, "file": file})
        if not json_:
            print(f"{result.name}: {size_text(size)}, from step {result.stored.step}: {file}")
    if json_:
        print(json.dumps({"results": results_fetched}))


def show_results(state: RunState, *, json_: bool) -> None:
    """List the results of a run, newest first."""
    table = Table("name", "rank", "step", "size", "stored (UTC)", box=None)
    for result in reversed(state.results):
        if json_:
            print(json.dumps(codec.encode(result)))
        stored = result.stored
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(stored.committed_at))
        table.add_row(escape(result.name), str(result.rank), str(stored.step), size_text(stored.size_bytes), when)
    if not json_:
        console().print(table if state.results else "no results yet")
