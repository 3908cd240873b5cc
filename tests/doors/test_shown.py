"""What somebody else wrote is shown to whoever looks, and does nothing to their terminal."""

from __future__ import annotations

import json
import os
import pwd
import re
import sys
from pathlib import Path

import pytest

from tests.control.fake import job
from tests.doors.controllers import put_job, serving, windfall
from windfall import codec

ME = pwd.getpwuid(os.getuid()).pw_name
SCRIPT = (
    "import windfall as wf, os\nwf.last()\nos.makedirs('ck', exist_ok=True)\nfor i in range(3):\n    wf.step()\n"
    "    path = f'ck/{i}.pt'\n    open(path, 'w').write(str(i))\n    wf.backup(path)\n"
)


@pytest.mark.trial("G13")
def test_a_path_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[/x]` ends no verb, and `lr[small]` is not `lr`."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "lr[small]" / "[/x]" / ":smile:"
    env = {"WINDFALL_CONTROLLER": "", "XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "400"}
    done = windfall("exec", str(run), "--", sys.executable, str(tmp_path / "train.py"), **env)
    assert done.returncode == 0, done.stderr
    shown = windfall("ps", str(run), **env)
    assert shown.returncode == 0, shown.stderr
    assert "lr[small]/[/x]/:smile:" in re.sub(r"\s+", "", shown.stdout)
    for verb in ("checkpoints", "events", "explain", "cost", "logs", "replay"):
        said = windfall(verb, str(run), **env)
        assert said.returncode == 0, said.stderr
        assert "Traceback" not in said.stderr


@pytest.mark.trial("G13")
def test_escapes_and_line_breaks_of_a_job_do_not_reach_a_terminal(tmp_path: Path) -> None:
    """Also of a row that is in the database already: they are shown as what they are."""
    nasty = "a\x1b[31m\x1b]0;mine\x07\nb [/x] \u202eright\x9b2J"
    one = codec.encode(job("good-1", ME))
    assert isinstance(one, dict)
    settled = json.dumps({"settled": True, "phase": "done", "message": nasty})
    put_job(tmp_path / "state", one | {"job_id": f"x-{nasty}", "name": nasty}, summary=settled)
    put_job(tmp_path / "state", one, summary=settled)
    with serving(tmp_path / "state") as controller:
        env = {
            "WINDFALL_CONTROLLER": controller.url,
            "WINDFALL_TOKEN": (tmp_path / "state" / "token").read_text().strip(),
        }
        for words in (("ps",), ("ps", "good-1"), ("stop", "good-1"), ("events", "good-1"), ("cost", "good-1")):
            said = windfall(*words, **env, COLUMNS="400")
            assert "Traceback" not in said.stderr
            both = said.stdout + said.stderr
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", both), (words, both)
        listed = windfall("ps", **env, COLUMNS="400")
        assert listed.returncode == 0, listed.stderr
        assert "[/x]" in listed.stdout


@pytest.mark.trial("G13")
def test_markup_is_made_in_one_place() -> None:
    """No verb makes a console of its own: one that takes markup would show other words than it was given."""
    source = Path(__file__).parents[2] / "src" / "windfall"
    makers = [
        path.name
        for path in source.rglob("*.py")
        if re.search(r"\bConsole\(|from_markup|rich\.print", path.read_text())
    ]
    assert makers == []


@pytest.mark.trial("G15")
def test_halves_of_surrogate_pairs_are_shown(tmp_path: Path) -> None:
    """A file name that is no Unicode text is part of a sentence, not the end of the program."""
    name = os.fsdecode(b"job-\xff\xfe.yaml")
    done = windfall("plan", str(tmp_path / name), WINDFALL_CONTROLLER="")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "Unicode" not in done.stderr
