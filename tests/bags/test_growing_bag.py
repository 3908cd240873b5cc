"""A bag that grows, end to end on the local market: a trial, the bag, more rows, and a reduce step whose runner is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shop import Shop, shop
from windfall.bags import ItemEnd, ItemOutcome
from windfall.runtimes.item_dispatcher import read_records
from windfall.storage.object_stores import Reader, open_reader
from windfall.storage.store_operations import get

BAG = """
name: grow
workdir: .
run: echo {{{{T}}}} >> {log}; echo "y = $(({{{{T}}}} * 2))"
bag:
  rows: rows.csv
  order: given
  results: {{y: {{regex: "y = (.*)"}}}}
  reduce: |
    echo reduced >> {log}
    test "$(grep -c reduced {log})" -ne {killed} || kill -9 $PPID
    tail -n +2 results.csv | sort > sorted.csv
"""


class Growing:
    """One who runs the same bag with more and more rows; the job file and the rows are beside the code."""

    def __init__(self, here: Shop) -> None:
        self.here, self.log = here, here.folder / "log"

    def run(self, rows: int, *options: str, killed: int = 99) -> tuple[str, Path]:
        """Run the bag to its end; return what the command said, and the folder of its run."""
        code, runs = self.here.folder / "code", self.here.state / "runs"
        (code / "rows.csv").write_text("T\n" + "".join(f"{number}\n" for number in range(rows)))
        (code / "bag.yaml").write_text(BAG.format(log=self.log, killed=killed))
        before = set(runs.glob("grow-*"))
        ran = self.here.say("run", "-y", "bag.yaml", *options, timeout_s=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        (made,) = set(runs.glob("grow-*")) - before
        return ran.stderr, made

    @property
    def started(self) -> list[str]:
        """What has started, in all runs."""
        return sorted(self.log.read_text().split())


def reduced(reader: Reader) -> list[ItemOutcome]:
    """Return the outcomes of the reduce step: it is the one that keeps a file."""
    outcomes = [outcome for record in reader.run(read_records(0)) for _, outcome in record.outcomes]
    return [outcome for outcome in outcomes if outcome.files]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bag_that_grows_runs_each_row_once(tmp_path: Path) -> None:
    """Two rows, then four, then six: each row runs once, each run has all results, a reduce step that is killed runs again."""
    with shop(tmp_path) as here:
        growing = Growing(here)
        growing.run(4, "--limit", "2")
        assert growing.started == ["0", "1", "reduced"]

        said, _ = growing.run(4)
        assert "2 of 4 items were done by grow-" in said
        assert growing.started == ["0", "1", "2", "3", "reduced", "reduced"]

        said, folder = growing.run(6, killed=3)
        assert "4 of 6 items were done by grow-" in said
        assert growing.started == ["0", "1", "2", "3", "4", "5", *["reduced"] * 4]
        reader = open_reader(f"file://{folder}")
        (once,) = reduced(reader)
        assert (once.end, once.lease.number) == (ItemEnd.DONE, 2)
        assert reader.run(get(once.files[0].key)) == b"".join(b"%d,%d,%d\n" % (n, n, 2 * n) for n in range(6))

        again = here.say("run", "-y", "bag.yaml")
        assert (again.returncode, "nothing to run" in again.stderr) == (0, True)
