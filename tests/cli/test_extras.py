"""What a user is told to install is what works from where this Windfall was installed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT
from windfall import extras

CASES = {
    "an index": (None, "windfall[lab]"),
    "a clone": ({"url": "file:///opt/a%20b/wf", "dir_info": {}}, "/opt/a b/wf[lab]"),
    "a clone that is followed": ({"url": "file:///srv/wf", "dir_info": {"editable": True}}, "/srv/wf[lab]"),
    "a wheel": ({"url": "file:///t/windfall-1.whl", "archive_info": {}}, "windfall[lab] @ file:///t/windfall-1.whl"),
    "a repository": (
        {"url": "https://host/wf.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
        "windfall[lab] @ git+https://host/wf.git@ab12",
    ),
}


class Installed:
    """A distribution as its installer left it."""

    def __init__(self, origin: dict[str, object] | None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        """Return a file beside its metadata; None where there is none."""
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.mark.trial("F1")
@pytest.mark.parametrize("case", CASES)
def test_the_line_names_where_this_windfall_came_from(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index, a clone, one that is followed, an archive, a repository."""
    origin, what = CASES[case]
    monkeypatch.setattr(extras.metadata, "distribution", lambda _: Installed(origin))

    says = extras.install("lab")

    follows = "-e " if case == "a clone that is followed" else ""
    assert says.endswith(f"pip install {follows}'{what}'")


@pytest.mark.trial("F1")
def test_the_pip_that_is_named_is_this_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another environment's pip on PATH would install to where this Windfall does not look."""
    other = tmp_path / "bin" / "pip"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))

    assert extras.install("lab").startswith(f"{shlex.quote(f'{sys.prefix}/bin/python3')} -m pip install")

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert extras.install("lab").startswith("pip install")


@pytest.mark.trial("F1")
def test_nothing_else_says_what_to_install() -> None:
    """No sentence of the code and no page names an index that need not have Windfall."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    said = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if "pip install 'windfall[" in line or "pip install matplotlib" in line or "clone REPOSITORY" in line
    ]

    assert said == []
