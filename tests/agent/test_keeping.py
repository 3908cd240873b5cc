"""Links to what was handed over: the script may delete it, the upload goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from windfall.agent.hard_links import link_handover, remove_links


def test_a_file_deleted_by_the_script_is_still_there(tmp_path: Path) -> None:
    """Under its own name, because the point will be restored under it."""
    (tmp_path / "a.pt").write_bytes(b"state")
    kept = Path(link_handover(str(tmp_path / "a.pt"), str(tmp_path / "held"), "10-0-1"))
    (tmp_path / "a.pt").unlink()
    assert (kept.name, kept.read_bytes()) == ("a.pt", b"state")


def test_a_folder_pruned_by_a_framework_is_still_there(tmp_path: Path) -> None:
    """With all that was in it."""
    (tmp_path / "checkpoint-5" / "deep").mkdir(parents=True)
    (tmp_path / "checkpoint-5" / "deep" / "w.bin").write_bytes(b"w")
    kept = Path(link_handover(str(tmp_path / "checkpoint-5"), str(tmp_path / "held"), "5-0-1"))
    shutil.rmtree(tmp_path / "checkpoint-5")
    assert (kept / "deep" / "w.bin").read_bytes() == b"w"


def test_where_links_cannot_be_made_the_path_itself_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system costs the protection, not the save."""
    (tmp_path / "a.pt").write_bytes(b"state")

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    assert link_handover(str(tmp_path / "a.pt"), str(tmp_path / "held"), "10-0-1") == str(tmp_path / "a.pt")
    assert not list((tmp_path / "held").iterdir())


@pytest.mark.parametrize("written", ["/whole", "a/w.bin", "../ck/a/w.bin", "../../{name}/ck/a/w.bin"])
def test_a_link_to_something_in_the_folder_leads_to_what_is_kept(tmp_path: Path, written: str) -> None:
    """However it is written: the script may delete the folder, and the link is still inside the checkpoint."""
    (tmp_path / "ck" / "a").mkdir(parents=True)
    (tmp_path / "ck" / "a" / "w.bin").write_bytes(b"w")
    whole = str(tmp_path / "ck" / "a" / "w.bin")
    (tmp_path / "ck" / "latest").symlink_to(whole if written == "/whole" else written.format(name=tmp_path.name))
    kept = Path(link_handover(str(tmp_path / "ck"), str(tmp_path / "held"), "5-0-1"))
    shutil.rmtree(tmp_path / "ck")
    assert (kept / "latest").readlink() == Path("a/w.bin")
    assert (kept / "latest").read_bytes() == b"w"


@pytest.mark.trial("A1")
def test_only_what_is_named_is_let_go(tmp_path: Path) -> None:
    """Other hand-overs of its step and of earlier ones stay for their own uploads; what was read in place is not touched."""
    held = tmp_path / "held"
    (tmp_path / "a.pt").write_bytes(b"x")
    kept = [link_handover(str(tmp_path / "a.pt"), str(held), name) for name in ("10-0-1", "20-0-2", "20-0-3")]
    remove_links(str(held), kept[1])
    remove_links(str(held), str(tmp_path / "a.pt"))
    assert sorted(path.name for path in held.iterdir()) == ["10-0-1", "20-0-3"]
    assert (tmp_path / "a.pt").exists()


@pytest.mark.trial("A4")
def test_a_folder_that_ranks_share_keeps_what_each_of_them_wrote(tmp_path: Path) -> None:
    """Kept again under one name it gains what has come, has the newest of what was replaced, and loses nothing."""
    folder, held = tmp_path / "ck", str(tmp_path / "held")
    folder.mkdir()
    (folder / "rank0").write_bytes(b"0")
    (folder / "meta").write_bytes(b"old")
    first = link_handover(str(folder), held, "10-0-1")
    (folder / "rank0").unlink()
    (folder / "rank1").write_bytes(b"1")
    (folder / "new").write_bytes(b"new")
    (folder / "new").replace(folder / "meta")
    assert link_handover(str(folder), held, "10-0-1") == first
    shutil.rmtree(folder)
    assert {path.name: path.read_bytes() for path in Path(first).iterdir()} == {
        "rank0": b"0",
        "rank1": b"1",
        "meta": b"new",
    }
