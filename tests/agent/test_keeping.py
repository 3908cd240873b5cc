"""Links to what was handed over: the script may delete it, the upload goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from windfall.agent.keeping import keep, let_go


def test_a_file_deleted_by_the_script_is_still_there(tmp_path: Path) -> None:
    """Under its own name, because the point will be restored under it."""
    (tmp_path / "a.pt").write_bytes(b"state")
    kept = Path(keep(str(tmp_path / "a.pt"), str(tmp_path / "held"), 10, 1))
    (tmp_path / "a.pt").unlink()
    assert (kept.name, kept.read_bytes()) == ("a.pt", b"state")


def test_a_folder_pruned_by_a_framework_is_still_there(tmp_path: Path) -> None:
    """With all that was in it."""
    (tmp_path / "checkpoint-5" / "deep").mkdir(parents=True)
    (tmp_path / "checkpoint-5" / "deep" / "w.bin").write_bytes(b"w")
    kept = Path(keep(str(tmp_path / "checkpoint-5"), str(tmp_path / "held"), 5, 1))
    shutil.rmtree(tmp_path / "checkpoint-5")
    assert (kept / "deep" / "w.bin").read_bytes() == b"w"


def test_where_links_cannot_be_made_the_path_itself_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system costs the protection, not the save."""
    (tmp_path / "a.pt").write_bytes(b"state")

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    assert keep(str(tmp_path / "a.pt"), str(tmp_path / "held"), 10, 1) == str(tmp_path / "a.pt")
    assert not list((tmp_path / "held").iterdir())


def test_a_commit_lets_go_of_everything_up_to_its_step(tmp_path: Path) -> None:
    """Older hand-overs go, a newer one stays for its own upload."""
    held = tmp_path / "held"
    for step in (10, 20, 30):
        (tmp_path / "a.pt").write_bytes(b"x")
        keep(str(tmp_path / "a.pt"), str(held), step, step)
    let_go(str(held), 20)
    assert [path.name for path in held.iterdir()] == ["30-30"]
