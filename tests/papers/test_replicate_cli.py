"""`windfall lab replicate` as its users see it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.papers import public_lives
from windfall.cli.main import main
from windfall.lab import parcae, scispot, spotdnn, thesis
from windfall.lab.published_rows import Options
from windfall.lab.replicate_report import render

KEYS = {"source", "item", "quantity", "unit", "published", "ours", "difference_pct", "verdict", "reason", "method"}
TABLE = "machine_type,zone,lifetime_s,end_event\n"


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def run(*words: object) -> int:
    return main(["lab", "replicate", *map(str, words)])


def rows(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    assert run(*words, "--json") == 0
    told = capsys.readouterr()
    assert told.err == ""
    found: list[dict[str, Any]] = json.loads(told.out)
    return found


def test_the_table_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Source, method, numbers, verdicts, and below them the wrapped reasons by number; how many match at the end."""
    assert run("thesis", "--item", "table-6.2", "--item", "slips", "--trials", "0") == 0

    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert "total [s] 473,488 474,019 +0.11 match" in lines
    assert "cost [USD]" in told
    assert "2 a misprint: the cell repeats the total; 488135 - 2549 - 6362 - 7363 = 471861" in lines
    assert lines[-1].endswith("differ, 0 cannot be compared")


def test_every_part_fits_eighty_columns() -> None:
    """No line is longer, whatever the reason or the item, and no word of an item, a method or a reason is cut."""
    for part in (*thesis.PARTS.values(), *scispot.PARTS.values(), *spotdnn.PARTS.values(), *parcae.PARTS.values()):
        found = part.rows(Options(0), lambda words: None)
        out = io.StringIO()
        Console(file=out, width=80).print(render(found))

        assert found or part in (
            spotdnn.PARTS["simulated"],
            *(parcae.PARTS[name] for name in ("elsewhere", "look-ahead")),
        )
        assert max(map(len, out.getvalue().splitlines())) <= 80
        shown = set(out.getvalue().split())
        for row in found:
            assert set(f"{row.source} {row.item} {row.quantity} {row.verdict} {row.reason}".split()) <= shown


def test_json_is_one_array_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row has the ten named values; nothing else is printed, no progress into a pipe."""
    found = rows(capsys, "thesis", "--item", "table-6.1", "--item", "interval")

    assert {frozenset(row) for row in found} == {frozenset(KEYS)}
    assert {row["verdict"] for row in found} == {"match", "differs", "cannot"}


def test_a_simulated_table_says_how_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    """Trials and the totals' standard error are in the method of each simulated row."""
    found = rows(capsys, "thesis", "--item", "table-6.2", "--trials", "4")

    methods = {row["method"] for row in found if row["method"].startswith("simulation")}
    assert len(methods) == 1
    assert "4 trials, standard error of totals at most" in methods.pop()


@pytest.mark.parametrize(
    ("item", "sources"),
    [
        ("table-6.3", {"thesis, Table 6.3"}),
        ("Table 6.3", {"thesis, Table 6.3"}),
        ("figure", {"thesis, Figure 6.1", "thesis, Figure 6.2", "thesis, Figure 6.3"}),
    ],
)
def test_an_item_begins_the_name_of_a_part(item: str, sources: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A name or its beginning, in any case, with blanks or dashes."""
    assert {row["source"] for row in rows(capsys, "thesis", "--item", item, "--trials", "0")} == sources


def test_an_item_may_be_that_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """`adaptive` is a column of both tables and a bar of both figures; its simulated rows come, too, and no others."""
    found = rows(capsys, "thesis", "--item", "per51", "--trials", "2")

    assert {row["item"] for row in found} == {"per51", "GPT-117M, per51"}
    assert {row["source"] for row in found} == {"thesis, Table 6.2", "thesis, Figure 6.1", "thesis, section 6.3.1"}
    assert any(row["method"].startswith("simulation") for row in found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["thesis", "--item", "tabel"], "--item: no part or item starts with 'tabel'; did you mean table-6.1?"),
        (["scispot", "--item", "frontir"], "--item: no part or item starts with 'frontir'; did you mean frontier?"),
        (["thesis", "--item", "zzz"], "choose one of table-6.1, table-6.2"),
        (["tesis"], "unknown paper 'tesis'; did you mean thesis?"),
        (["thesis", "--trials", "-1"], "--trials must be between 0 and"),
        (["scispot", "--data", "/nowhere.csv"], "--data: /nowhere.csv does not exist"),
        (["thesis", "--plot", "/dev/null/plots"], "--plot: cannot create the folder /dev/null/plots"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, nothing on the standard output, one line that says what to write instead."""
    assert run(*words) == 2

    told = capsys.readouterr()
    assert told.out == ""
    assert message in told.err
    assert len(told.err.splitlines()) == 1


def test_lives_are_given_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --data the fits are computed for the groups that the table has; the others say how many machines it has."""
    lines = [f"n1-highcpu-16,us-east1-b,{600 * place},preempted" for place in range(1, 31)]
    path = tmp_path / "lives.csv"
    path.write_text(TABLE + "\n".join(lines) + "\n")

    found = {(row["item"], row["quantity"]): row for row in rows(capsys, "scispot", "--item", "fits", "--data", path)}
    for group in ("all", "n1-highcpu-16", "us-east1-b"):
        assert found[f"{group}, blended", "R2"]["ours"] is not None
    assert found["n1-highcpu-2, blended", "R2"]["verdict"] == "cannot"
    assert "the data have 0 preempted machines" in found["n1-highcpu-2, blended", "R2"]["reason"]


def test_a_wrong_table_of_lives_is_refused_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A life that is no number: file, line and column."""
    path = tmp_path / "lives.csv"
    path.write_text(TABLE + "n1-highcpu-16,us-east1-b,soon,preempted\n")

    assert run("scispot", "--data", path) == 2
    assert "lives.csv:2:3: 'soon' is not a lifetime" in capsys.readouterr().err


def test_the_public_lives_are_read_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """The data set as it was published serves as it is."""
    public_lives.lifetimes()  # skips where it is not at hand
    path = public_lives.SHARED / "data" / "gcp_preemptible_lifetimes" / "lifetimes.csv"

    found = rows(capsys, "scispot", "--item", "all, blended", "--data", path)
    assert [row["verdict"] for row in found] == ["match", "match"]


def test_figures_are_drawn_on_light_and_dark_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each figure that was asked for is in the folder twice, and named on the screen; others are not."""
    folder = tmp_path / "plots"
    assert run("thesis", "--item", "figure-6.1", "--item", "figure-6.3", "--trials", "0", "--plot", folder) == 0
    assert run("scispot", "--item", "frontier", "--plot", folder) == 0
    assert run("spotdnn", "--item", "figure-6", "--item", "figure-7", "--plot", folder) == 0

    names = ("thesis-figure-6.1", "thesis-figure-6.3", "scispot-frontier", "spotdnn-figure-6", "spotdnn-figure-7")
    wanted = {f"{name}{paper}.png" for name in names for paper in ("", "-dark")}
    assert {path.name for path in folder.iterdir()} == wanted
    told = capsys.readouterr().out.replace("\n", "")
    assert all(f"picture: {folder / name}" in told for name in wanted)


def test_no_figure_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A part without a figure draws nothing, and says so."""
    assert run("thesis", "--item", "slips", "--plot", tmp_path) == 0

    assert "no picture" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
