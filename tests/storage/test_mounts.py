"""Which file system a folder is on."""

from __future__ import annotations

from pathlib import Path

import pytest

from windfall.storage import object_stores

INFO = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /shared rw - nfs4 server:/export rw
31 30 0:41 / /shared/my\\040scratch rw - tmpfs tmpfs rw
32 22 0:42 / /a/very/long/place/elsewhere rw - lustre pool rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/home/user", "ext4"), ("/shared/runs", "nfs4"), ("/shared/my scratch/run", "tmpfs"), ("/sharedrive", "ext4")],
)
def test_the_longest_mount_point_above_a_folder_counts(
    folder: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that is only longer, nor one whose name only begins alike."""
    (tmp_path / "mountinfo").write_text(INFO)
    monkeypatch.setattr(object_stores, "_MOUNTS", str(tmp_path / "mountinfo"))
    assert object_stores.file_system_of(folder) == kind
