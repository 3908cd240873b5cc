"""What an earlier release stored: upgraded in one step or not at all, and refused where it is not known."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.make import FORMAT_4, opened
from windfall import codec, stored_forms
from windfall.errors import NewerFormat, OlderFormat
from windfall.linux.clock import SystemClock
from windfall.storage import database_schema
from windfall.storage.database import open_database
from windfall.stored_forms import Document, StoredForm
from windfall.structs import Tagged

OPEN = (
    "import sys; from windfall.linux.clock import SystemClock; from windfall.storage.database import open_database; "
    "open_database(sys.argv[1], SystemClock()).close()"
)
POINTS = ("database.upgrade:before", "database.upgrade:middle", "database.upgrade:after")


class Kept(Tagged, frozen=True):
    """A document of version 6, which three releases have changed."""

    name: str
    count: int


def renamed(document: Document) -> Document:
    """To version 5."""
    return {"type": "Kept", "name": document["word"]}


def counted(document: Document) -> Document:
    """To version 6."""
    return document | {"count": len(document["name"])}


FORM = StoredForm((renamed, counted))


def read(version: int, **value: object) -> Kept:
    """A document of a version, as a reader of version 6 sees it."""
    text = json.dumps({"version": version, "kept": value})
    found: Kept = codec.decode_stored(text, "kept", Kept, form=FORM, what="it")
    return found


def test_an_older_document_goes_through_every_version_to_the_present_one() -> None:
    """Each function sees what the one before it made; the present version goes through none."""
    assert FORM.version == 6
    assert read(4, type="Kept", word="abc") == Kept("abc", 3)
    assert read(5, type="Kept", name="abc") == Kept("abc", 3)
    assert read(6, type="Kept", name="abc", count=9) == Kept("abc", 9)


@pytest.mark.parametrize(("version", "refusal"), [(7, NewerFormat), (3, OlderFormat), (1, OlderFormat)])
def test_a_version_that_is_not_known_is_refused_in_a_sentence(version: int, refusal: type[Exception]) -> None:
    """Newer than the reader, or older than the first release."""
    with pytest.raises(refusal, match=f"it has version {version}"):
        read(version, type="Kept", name="abc", count=3)


@pytest.mark.parametrize("value", [{"type": "Kept"}, {"type": "Kept", "word": 7}, {"type": "Kept", "word": None}])
def test_a_damaged_older_document_is_damaged(value: dict[str, object]) -> None:
    """Whatever an upgrade trips over is an error of the document, never a traceback, and the result is checked."""
    with pytest.raises(ValueError, match=r"version 4|expected"):
        read(4, **value)


def test_every_row_of_version_4_is_read() -> None:
    """The journal of an installation and of a run as the release before wrote them."""
    assert stored_forms.ROW.oldest == 4
    line = codec.row_to_line(codec.row_from_line(_row(4)))
    assert json.loads(line)["version"] == stored_forms.ROW.version == 5
    with pytest.raises(OlderFormat, match="the journal has version 3"):
        codec.row_from_line(_row(3))
    with pytest.raises(NewerFormat, match="the journal has version 6, this Windfall reads up to 5: upgrade"):
        codec.row_from_line(_row(6))


def _row(version: int) -> str:
    row = {"type": "Row", "term": 1, "sequence": 1, "at": 0.0, "wall_time": 0.0, "facts": [{"type": "AgentResumed"}]}
    return json.dumps({"version": version, "row": row})


# ----------------------------------------------------------------------------------------------------- the database


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A database of version 4."""
    opened(FORMAT_4 / "installation.tar.gz", tmp_path)
    return tmp_path / "controller.db"


def version_and_tables(path: Path) -> tuple[int, frozenset[str]]:
    """The version of a database, and its tables."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("SELECT version FROM installation").fetchone()
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return version, frozenset(name for (name,) in names)


def content(path: Path) -> list[tuple[object, ...]]:
    """Everything that version 4 held."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [name for name in database_schema.METADATA.tables if name not in ("snapshots", "installation")]
        rows = [(name, *row) for name in sorted(tables) for row in connection.execute(f"SELECT * FROM {name}")]
        return [*rows, *connection.execute("SELECT term, key FROM installation")]


def test_a_database_of_version_4_is_upgraded_in_place(installation: Path) -> None:
    """Nothing in it changes but its version and the new table; opening it once more changes nothing."""
    before, (version, tables) = content(installation), version_and_tables(installation)
    assert (version, "snapshots" in tables) == (4, False)
    for _ in range(2):
        open_database(str(installation), SystemClock()).close()
        assert version_and_tables(installation) == (5, tables | {"snapshots"})
    assert content(installation) == before
    assert len(before) > 40


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_in_the_middle_leaves_one_version_or_the_other(installation: Path, point: str) -> None:
    """At each failpoint: version 4 with its tables alone or version 5 with the new one, and the next opening succeeds."""
    before, (_, tables) = content(installation), version_and_tables(installation)
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(installation)], env={**os.environ, "WINDFALL_FAILPOINT": point}, check=False
    )
    assert done.returncode == -signal.SIGKILL, f"{point} was not passed"
    version, now = version_and_tables(installation)
    assert (version, now - tables) in ((4, frozenset()), (5, frozenset({"snapshots"})))
    assert content(installation) == before

    open_database(str(installation), SystemClock()).close()
    assert version_and_tables(installation) == (5, tables | {"snapshots"})
    assert content(installation) == before


def test_the_release_before_refuses_an_upgraded_database(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no upgrade and version 4 alone: one sentence, and the tables stay as they are."""
    open_database(str(installation), SystemClock()).close()
    monkeypatch.setattr(database_schema, "UPGRADES", ())
    monkeypatch.setattr(database_schema, "VERSION", 4)
    with pytest.raises(NewerFormat, match="has version 5, this Windfall reads up to 4: upgrade Windfall"):
        open_database(str(installation), SystemClock())
    assert version_and_tables(installation)[0] == 5
