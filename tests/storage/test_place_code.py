"""Where a run's command is started: in the folder as it is, or beside it, with the code that the run brings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.storage.make import Bench, claim
from windfall.storage import acquire_run, bundle, run_log
from windfall.storage.run_lease import LocalSession
from windfall.structs import replace
from windfall.terms import RunState


@dataclass
class Machine:
    """A folder, and what its user is told."""

    bench: Bench
    folder: Path
    told: list[str] = field(default_factory=list)

    def place(self, state: RunState) -> Path:
        local = LocalSession(self.bench.clock, self.bench.nonce, "spool", "state_file", "output")
        return Path(acquire_run.place_code(self.bench.store, local, state, str(self.folder), self.told.append))

    @property
    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


def machine(bench: Bench, name: str, **files: str) -> Machine:
    folder = bench.folder / name
    folder.mkdir()
    for stem, text in files.items():
        (folder / f"{stem}.py").write_text(text)
    return Machine(bench, folder)


def run_of(bench: Bench, folder: Path, *, packed: bool = True, listed: bool = True) -> RunState:
    """The state of a run whose code is that of a folder."""
    acquired = bench.run(run_log.acquire(claim("n"), holder_is_dead=lambda _: True, wall_time=bench.clock.wall_time))
    assert isinstance(acquired, run_log.AcquiredTerm)
    code = bench.run(bundle.store_listing(bundle.listing(str(folder)))) if listed else None
    packed_code = bench.run(bundle.store(bundle.pack(str(folder)))) if packed else None
    return replace(acquired.record.state, bundle=packed_code, code=code)


def test_a_run_without_a_bundle_is_started_where_the_user_stands(bench: Bench) -> None:
    """Whatever the folder holds, and whatever code the run had before: nothing is fetched, written or said."""
    first, here = machine(bench, "first", train="print(1)"), machine(bench, "here", other="print(2)")
    assert here.place(run_of(bench, first.folder, packed=False)) == here.folder
    assert (here.files, here.told) == (["other.py"], [])


def test_the_bundle_comes_into_an_empty_folder_itself(bench: Bench) -> None:
    """A fresh machine gets the run's code where it stands, and is told so."""
    first, here = machine(bench, "first", train="print(1)"), machine(bench, "here")
    assert here.place(run_of(bench, first.folder)) == here.folder
    assert (here.files, len(here.told)) == (["train.py"], 1)


def test_the_bundle_never_mixes_with_other_files(bench: Bench) -> None:
    """A folder that holds something else keeps it; the code comes into a folder of the run's own below."""
    first, here = machine(bench, "first", train="print(1)"), machine(bench, "here", train="mine")
    state = run_of(bench, first.folder)
    place = here.place(state)
    assert place.parent == here.folder
    assert (place / "train.py").read_text() == "print(1)"
    assert (here.folder / "train.py").read_text() == "mine"


def test_the_same_code_is_not_unpacked_again(bench: Bench) -> None:
    """A folder that already holds the run's code is used as it is; without a listing nobody knows, and it is unpacked."""
    first, here = machine(bench, "first", train="print(1)"), machine(bench, "here", train="print(1)")
    assert here.place(run_of(bench, first.folder)) == here.folder
    assert here.told == []
    assert here.place(run_of(bench, first.folder, listed=False)) != here.folder


def test_of_many_changed_files_five_are_named_and_the_others_counted() -> None:
    """A line that can be read, whatever was changed."""
    assert acquire_run._named(("a.py", "b.py")) == "a.py, b.py"
    assert acquire_run._named(tuple("abcdefg")) == "a, b, c, d, e and 2 more"
