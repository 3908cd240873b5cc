"""The user's code: what travels, what does not, and which files changed between attempts."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.storage.make import Bench, tree
from windfall.errors import Misuse, StoreError
from windfall.storage import bundle


def project(root: Path) -> Path:
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("print(1)")
    (root / "run.sh").write_text("#!/bin/sh")
    (root / "run.sh").chmod(0o755)
    (root / "pkg" / "model.py").write_text("x = 1")
    for made in (".git/config", ".venv/lib.py", "venv/lib.py", "node_modules/a.js", "pkg/__pycache__/a.pyc", "b.pyc"):
        (root / made).parent.mkdir(parents=True, exist_ok=True)
        (root / made).write_text("made by a tool")
    return root


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


def git(root: Path, *words: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(("git", "-C", str(root), *words), check=True, capture_output=True, env=environment)


def test_the_code_travels_without_what_tools_made(tmp_path: Path) -> None:
    """Environments, caches and git's own files stay behind."""
    assert names(bundle.pack(str(project(tmp_path / "p")))) == ["pkg/model.py", "run.sh", "train.py"]


@pytest.mark.parametrize("versioned", [False, True])
def test_a_virtual_environment_stays_behind_whatever_its_name(versioned: bool, tmp_path: Path) -> None:
    """What tells it is the file that Python puts there."""
    root = project(tmp_path / "p")
    (root / "mine" / "lib").mkdir(parents=True)
    (root / "mine" / "pyvenv.cfg").write_text("home = /usr")
    (root / "mine" / "lib" / "torch.py").write_text("large")
    if versioned:
        shutil.rmtree(root / ".git")
        git(root, "init")
    assert names(bundle.pack(str(root))) == ["pkg/model.py", "run.sh", "train.py"]


def test_what_is_named_is_left_out(tmp_path: Path) -> None:
    """A file or a folder, and nothing whose name only begins alike."""
    root = project(tmp_path / "p")
    assert names(bundle.pack(str(root), without=["pkg", "train"])) == ["run.sh", "train.py"]


def test_the_same_code_gives_the_same_bytes(tmp_path: Path) -> None:
    """Another folder, another time, other owners: the bundle is stored once."""
    one, two = project(tmp_path / "one"), project(tmp_path / "two")
    os.utime(two / "train.py", (1, 1))
    packed = bundle.pack(str(one))
    assert packed == bundle.pack(str(two))
    assert packed[4:8] == bytes(4), "gzip's own time stamp is not set"


def test_in_a_git_tree_git_decides(tmp_path: Path) -> None:
    """Committed and new files travel, ignored and deleted ones do not; below the top folder too."""
    root = tmp_path / "p"
    (root / "sub").mkdir(parents=True)
    for name in ("train.py", "gone.py", "sub/a.py", "data.bin"):
        (root / name).write_text(name)
    (root / ".gitignore").write_text("data.bin\n")
    git(root, "init")
    git(root, "add", "train.py", "gone.py")
    (root / "gone.py").unlink()
    assert names(bundle.pack(str(root))) == [".gitignore", "sub/a.py", "train.py"]
    assert names(bundle.pack(str(root / "sub"))) == ["a.py"]


def test_what_git_was_told_to_keep_travels_although_a_pattern_ignores_it(tmp_path: Path) -> None:
    """Added by force: the tree has it, so the run has it."""
    root = tmp_path / "p"
    root.mkdir()
    (root / ".gitignore").write_text("*.bin\n")
    (root / "table.bin").write_text("of the model")
    git(root, "init")
    git(root, "add", "--force", "table.bin")
    assert names(bundle.pack(str(root))) == [".gitignore", "table.bin"]


def test_a_folder_that_git_ignores_still_travels(tmp_path: Path) -> None:
    """Code in a folder that the tree around it ignores is code: git lists nothing there, and that is no answer."""
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text("out/")
    inside = tmp_path / "out" / "job"
    inside.mkdir(parents=True)
    (inside / "train.py").write_text("print(1)")
    assert names(bundle.pack(str(inside))) == ["train.py"]


def test_code_arrives_as_it_left(bench: Bench, tmp_path: Path) -> None:
    """Through the store and unpacked: names, bytes, execute permission, links."""
    root = tmp_path / "p"
    (root / "d").mkdir(parents=True)
    (root / "d" / "a.py").write_text("a")
    (root / "run.sh").write_text("b")
    (root / "run.sh").chmod(0o700)
    (root / "link.py").symlink_to(root / "d" / "a.py")
    sent = bench.run(bundle.store(bundle.pack(str(root))))
    bundle.unpack(bench.run(bundle.fetch(sent)), str(tmp_path / "there"))
    there = tree(tmp_path / "there")
    assert {path: content for path, (_, content) in there.items()} == {
        "d": None, "d/a.py": b"a", "link.py": b"a", "run.sh": b"b",
    }  # fmt: skip
    assert there["run.sh"][0] & 0o100
    assert os.readlink(tmp_path / "there" / "link.py") == "d/a.py"


def test_a_link_outside_is_refused(tmp_path: Path) -> None:
    """Code that another machine could not have is named before it is packed."""
    root = project(tmp_path / "p")
    (root / "data").symlink_to("/etc")
    with pytest.raises(Misuse, match=r"data is a link to /etc, outside the code folder"):
        bundle.pack(str(root))


def test_data_is_not_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too much, or too many files: one sentence that names the largest, or the folder."""
    root = project(tmp_path / "p")
    (root / "weights.bin").write_bytes(bytes(5000))
    monkeypatch.setattr(bundle, "SIZE_BYTES_MAX", 4000)
    with pytest.raises(
        Misuse, match=r"add data and checkpoints to .windfallignore \(the largest file is weights.bin\)"
    ):
        bundle.pack(str(root))
    monkeypatch.setattr(bundle, "FILES_MAX", 3)
    with pytest.raises(Misuse, match="more than 3 files, too many for code"):
        bundle.pack(str(root))
    assert set(bundle.listing(str(root))) == {"train.py", "run.sh"}


def evil(name: str, **fields: object) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as squeezed, tarfile.open(fileobj=squeezed, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        for field, value in fields.items():
            setattr(entry, field, value)
        archive.addfile(entry)
    return packed.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"no archive",
        evil("../outside"),
        evil("link", type=tarfile.SYMTYPE, linkname="/etc"),
        evil("device", type=tarfile.CHRTYPE),
        gzip.compress(b"x")[:-4],
        evil("fine")[:12] + b"\xff" * 20,
    ],
    ids=["no archive", "outside", "link", "device", "cut", "scrambled"],
)
def test_a_bundle_cannot_leave_its_folder(tmp_path: Path, data: bytes) -> None:
    """A damaged or hostile archive is refused in one sentence, and nothing lies outside."""
    with pytest.raises(StoreError, match="--new-code"):
        bundle.unpack(data, str(tmp_path / "in"))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_lost_or_changed_bundle_is_named(bench: Bench) -> None:
    """Another machine never runs code that is not the run's."""
    sent = bench.run(bundle.store(b"code"))
    bench.store.put(sent.key, b"other")
    with pytest.raises(StoreError, match="is damaged in the store"):
        bench.run(bundle.fetch(sent))
    bench.store.delete(sent.key)
    with pytest.raises(StoreError, match="is missing in the store"):
        bench.run(bundle.fetch(sent))


def test_changes_between_attempts_are_told_by_file(bench: Bench, tmp_path: Path) -> None:
    """Added, changed and removed code files; results that the script writes are no code."""
    root = project(tmp_path / "p")
    old = bench.run(bundle.store_listing(bundle.listing(str(root))))
    (root / "train.py").write_text("print(2)")
    (root / "run.sh").unlink()
    (root / "new.yaml").touch()
    (root / "metrics.json").write_text("{}")
    before = bench.run(bundle.read_listing(old))
    assert before is not None
    assert bundle.changed(before, bundle.listing(str(root))) == ("new.yaml added", "run.sh removed", "train.py changed")
    assert bench.run(bundle.read_listing("absent")) is None
