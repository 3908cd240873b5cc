"""`windfall lab shapes`: shapes from a profile, what is trained while machines come and go, and every bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windfall.cli.main import main

PROFILE = """
batch: 64
micro_batch: 4
memory_bytes: 81e6
link: {bytes_per_s: 1e9}
layers:
  - {count: 9, forward_s: 0.01, backward_s: 0.02, parameters: 1e6}
start_s: 5
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "gpt.yaml"
    path.write_text(PROFILE)
    return path


def test_shapes_and_what_does_not_fit(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fastest shape by machines, and one line for each kind of reason, with an example."""
    assert main(["lab", "shapes", str(profile), "--machines", "4"]) == 0

    told = capsys.readouterr().out
    assert ["2", "1x2", "25.7"] in [line.split() for line in told.splitlines()]
    assert "4 shapes cannot be had: 1x1: its fullest stage needs 0.144 GB of memory, and a machine has 0.081 GB" in told
    assert "way to train" not in told


def test_a_trace_is_played(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten minutes of 4 machines, then ten of 3, at 6 USD/h: 7 USD, and 4 of 8 machines are what is asked for at most."""
    trace = tmp_path / "seen_seconds_count.csv"
    trace.write_text("0,8\n600,3\n1200,3\n")

    assert (
        main(
            ["lab", "shapes", str(profile), "--machines", "4", "--counts", str(trace), "--usd-per-hour", "6", "--json"]
        )
        == 0
    )

    found = json.loads(capsys.readouterr().out)
    arms = {arm["name"]: arm for arm in found["arms"]}
    assert list(arms) == [
        "shapes that follow", "fastest shape of now", "restart from checkpoint", "fixed shape", "if changes were free",
    ]  # fmt: skip
    assert [arm["cost_usd"] for arm in arms.values()] == pytest.approx([7.0] * 5)
    assert (
        arms["if changes were free"]["samples"]
        > arms["shapes that follow"]["samples"]
        > arms["restart from checkpoint"]["samples"]
    )
    assert arms["shapes that follow"]["usd_per_million"] == pytest.approx(7e6 / arms["shapes that follow"]["samples"])
    assert {one["shape"] for one in found["refused"]} == {"1x1", "2x1", "3x1", "4x1"}


def test_drawn_machines_are_played(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three series of an hour, the same for the same seed, and whether a training ends."""
    asked = ["lab", "shapes", str(profile), "--machines", "6", "--mttp", "30m", "--hours", "1", "--trials", "3"]
    shown = []
    for more in ([], [], ["--seed", "9"], ["--samples", "1e9"]):
        assert main([*asked, *more]) == 0
        shown.append(capsys.readouterr().out)

    assert shown[0] == shown[1] != shown[2]
    assert "unfinished" in shown[3]
    assert "shapes that follow" in shown[0]
    assert "unfinished" not in shown[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--machines", "0"], "--machines must be between 1 and 512"),
        (["--machines", "1"], "none of 1 shapes of up to 1 machines can be trained"),
        (["--machines", "4", "--mttp", "0s"], "--mttp must be above 0"),
        (["--machines", "4", "--mttp", "soon"], "'soon' is not a duration"),
        (["--machines", "4", "--mttp", "1h", "--counts", "x.csv"], "--counts and --mttp: write one of them"),
        (["--machines", "4", "--counts", "none.csv"], "none.csv"),
        (["--machines", "4", "--mttp", "1h", "--hours", "1e9"], "write 1 to 100000 intervals in all"),
        (["--machines", "4", "--mttp", "1h", "--trials", "0"], "--trials must be between 1 and 1000"),
        (["--machines", "4", "--look-ahead", "0"], "--look-ahead is 0: write 1 or more"),
        (["--machines", "4", "--samples", "0"], "--samples is 0: write a number above 0"),
        (["--machines", "4", "--usd-per-hour", "-1"], "--usd-per-hour is -1: write a price of 0 or more"),
        (["--machines", "4", "--interval", "0s"], "--interval must be above 0"),
    ],
)
def test_bad_options_are_refused(
    profile: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that names the option, a status of refusal, and no traceback."""
    assert main(["lab", "shapes", str(profile), *more]) in {2, 3}

    told = " ".join(capsys.readouterr().err.split())
    assert message in told
    assert "Traceback" not in told


def test_a_bad_profile_is_refused_by_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that is misspelt, with the file's name; a file that is not there."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(PROFILE.replace("forward_s", "forwards"))

    assert main(["lab", "shapes", str(bad), "--machines", "4"]) == 2
    assert "bad.yaml: layer 1 of 1: unknown key 'forwards'; did you mean forward_s?" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main(["lab", "shapes", str(tmp_path / "none.yaml"), "--machines", "4"]) == 2
    assert "none.yaml" in capsys.readouterr().err
