"""Bad input: one clear sentence, the right exit code, nothing started, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input import places, scripts, words
from tests.bad_input.box import Box, Case, Said, run_process
from tests.support.live import contents
from windfall.cli.main import main

CASES = (*words.CASES, *places.CASES, *scripts.CASES)


def test_there_are_enough_cases() -> None:
    """Every case has a name of its own, and there are at least 45."""
    names = {case.name for case in CASES}

    assert len(names) == len(CASES)
    assert len(CASES) >= 45


@pytest.mark.real
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_told_in_one_sentence(
    case: Case, box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong, where, and what to write instead; the exit code says the same; nothing started, nothing lost."""
    argv = case.arrange(box)
    before = contents(box.store)

    said = run_process(box, argv) if case.process else _call(box, argv, monkeypatch, capsys)

    _is_one_sentence(case, said)
    assert said.code == case.code, said
    assert box.started.exists() == case.starts
    assert not list(box.folder.rglob(".windfall-get*")), "a half-fetched point was left behind"
    after = contents(box.store)
    if case.starts:
        # The run went on to its end: it reads its inbox, and what was superseded goes.
        before = {
            name: data for name, data in before.items() if not name.startswith(("inbox/", "checkpoints/", "shards/"))
        }
    assert {name: data for name, data in after.items() if name in before} == before, "what was stored has changed"
    assert case.adds or after == before, sorted(set(after) - set(before))


def _call(box: Box, argv: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    assert isinstance(argv, list)
    for name, value in box.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(box.folder / "state"))
    monkeypatch.setattr("os.execv", _never)
    monkeypatch.chdir(box.here)
    code = main(argv)
    printed = capsys.readouterr()
    return Said(code, printed.out, printed.err)


def _never(path: str, argv: list[str]) -> None:
    raise AssertionError(f"the line was accepted: {argv}")


def _is_one_sentence(case: Case, said: Said) -> None:
    assert "Traceback" not in said.out + said.err, said.err
    ours = [line for line in said.sentences if line.startswith("windfall: ")]
    assert case.talks or ours == said.sentences, said.err
    assert 1 <= len(ours) <= case.after + 1, said.err
    missing = [fragment for fragment in case.says if fragment not in ours[-1]]
    assert missing == [], f"{missing} not in: {ours[-1]}"
    assert "hunter2" not in said.err
    assert len(ours[-1]) < 420, f"too long to be read: {ours[-1]}"


def test_a_secret_in_a_url_is_written_nowhere(
    box: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Credentials in a URL are refused before anything is written down on this machine."""
    said = _call(box, ["exec", "s3://key:hunter2@lab/run", "--", "true"], monkeypatch, capsys)

    assert said.code == 2
    assert not _holds(box.folder, b"hunter2")


def _holds(folder: Path, secret: bytes) -> bool:
    return any(secret in path.read_bytes() for path in folder.rglob("*") if path.is_file())
