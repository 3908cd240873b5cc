"""What a user may call a job, and what is taken for a run's URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from windfall.cli import run_reference
from windfall.control.controller_views import JobView
from windfall.errors import Misuse
from windfall.fleet import JobPhase
from windfall.terms import WallTime


class Jobs:
    """A controller that knows some jobs: (id, name), each submitted a second after the one before."""

    def __init__(self, *jobs: tuple[str, str]) -> None:
        self._views = [
            JobView(job_id, name, "ada", JobPhase.RUNNING, "", "file:///r", WallTime(float(number)))
            for number, (job_id, name) in enumerate(jobs)
        ]

    def jobs(self) -> list[JobView]:
        return list(reversed(self._views))

    def job(self, job_id: str) -> JobView:
        return next(view for view in self._views if view.job_id == job_id)


def found(reference: str, *jobs: tuple[str, str]) -> str:
    return run_reference.find(Jobs(*jobs), reference).job_id  # type: ignore[arg-type]


TWO = (("gpt-aa11", "gpt"), ("gpt-bb22", "gpt"), ("bert-cc33", "bert"))


def test_a_job_is_named_by_id_by_name_or_by_how_its_id_begins() -> None:
    """Whatever is short and means one job."""
    assert found("gpt-aa11", *TWO) == "gpt-aa11"
    assert found("bert", *TWO) == "bert-cc33"
    assert found("gpt-b", *TWO) == "gpt-bb22"


def test_of_several_jobs_of_a_name_the_newest_is_meant_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The user is told which, on stderr."""
    assert found("gpt", *TWO) == "gpt-bb22"
    assert "2 jobs are named gpt; using the newest, gpt-bb22" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "says"),
    [("gpt-", "'gpt-' matches 2 jobs: gpt-"), ("gtp-aa11", "did you mean gpt-aa11?"), ("", "no job ''")],
)
def test_what_means_no_job_or_several_is_refused(reference: str, says: str) -> None:
    """With the ids that may have been meant."""
    with pytest.raises(Misuse, match=says.replace("?", r"\?")):
        found(reference, *TWO)


def test_a_url_a_path_and_a_folder_that_exists_are_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else is a job's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()

    assert [run_reference.is_url(name) for name in ("s3://lab/run", "runs/line", "./x", "here")] == [True] * 4
    assert [run_reference.is_url(name) for name in ("gpt", "gpt-aa11", "there")] == [False] * 3
