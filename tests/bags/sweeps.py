"""The examples of bags as a user runs them, on a real controller and a local market."""

from __future__ import annotations

import csv
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.live.rig import Rig
from windfall.bags import Bag, ItemEnd, ItemOutcome, Value
from windfall.linux.clock import SystemClock
from windfall.runtimes.item_dispatcher import read_records
from windfall.spec.bag_block import BagBlock
from windfall.spec.bag_rows import rows_of, to_bag
from windfall.storage import store_operations
from windfall.storage.object_stores import open_store


@dataclass
class RunBag:
    """A bag that has ended: its parameters, and the outcome of each item that is done."""

    url: str
    bag: Bag
    rows: tuple[tuple[Value, ...], ...]
    done: dict[int, ItemOutcome]
    took_s: float

    def file(self, item: int, path: str) -> str:
        """The content of a file that was kept of an item."""
        (key,) = [file.key for file in self.done[item].files if file.path == path]
        return (open_store(self.url).get(key) or b"").decode()

    def printed(self, item: int) -> str:
        """What an item printed."""
        output = self.done[item].output
        if output is None:
            return ""
        data = open_store(self.url).get(output.key) or b""
        return data[output.offset :][: output.size_bytes].decode(errors="replace")

    def write_csv(self, path: Path) -> None:
        """Write the table of results."""
        names = [rule.name for rule in self.bag.results]
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow((*self.bag.parameters, *names))
            for item, outcome in sorted(self.done.items()):
                writer.writerow((*self.rows[item], *(outcome.values[name] for name in names)))


def run_example(
    rig: Rig, example: Path, work: Path, inject: str | None, limit_s: float = 900.0, change: tuple[str, str] = ("", "")
) -> RunBag:
    """Run `bag.yaml` of an example in a copy of its folder, with a line changed if asked; wait until it is done."""
    shutil.copytree(example, work)
    text = (work / "bag.yaml").read_text()
    assert change[0] in text
    (work / "bag.yaml").write_text(text.replace(*change) if change[0] else text)
    # Of the undisturbed run, nothing is carried over.
    words = ("--again", "--inject", inject) if inject else ("--again",)
    started = time.monotonic()
    told = json.loads(rig.say("run", str(work / "bag.yaml"), "-y", "-d", "--json", *words).splitlines()[-1])
    ended = rig.ended(told["job_id"], limit_s)
    assert ended["phase"] == "done", ended
    url = rig.run_url(told["job_id"])
    records = store_operations.run(read_records(0), open_store(url), SystemClock())
    done = [outcome for record in records for _, outcome in record.outcomes if outcome.end is ItemEnd.DONE]
    assert len({outcome.lease.item for outcome in done}) == len(done), "an item is counted twice"
    block = BagBlock.model_validate(yaml.safe_load((work / "bag.yaml").read_text())["bag"])
    rows = rows_of(block, lambda _: None)
    return RunBag(
        url, to_bag(block, rows), rows.rows, {one.lease.item: one for one in done}, time.monotonic() - started
    )
