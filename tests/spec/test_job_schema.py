"""The job file's JSON Schema and the loader say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bad_input.job_files import CASES, BadFile
from tests.house.source import ROOT
from windfall.cli.main import main
from windfall.report.json_schema import schema
from windfall.spec import yaml_positions
from windfall.spec.job_loader import FILE, LINK, load

jsonschema = pytest.importorskip("jsonschema")
EXAMPLES = sorted((ROOT / "examples" / "jobs").glob("*.yaml"))


def fits(text: str) -> bool:
    """Whether a file fits the schema."""
    return bool(jsonschema.Draft202012Validator(schema("job")).is_valid(yaml_positions.parse(text, "job.yaml").value))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_fit_the_schema_and_load(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example is valid for both, without a warning, and leads editors to the schema beside it."""
    monkeypatch.chdir(ROOT)
    said: list[str] = []

    load(str(path), warn=said.append)

    assert said == []
    assert fits(path.read_text())
    assert path.read_text().startswith(LINK)


def test_the_schema_beside_the_examples_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """`windfall schema job` prints what lies beside the examples."""
    assert main(["schema", "job"]) == 0

    printed = json.loads(capsys.readouterr().out)
    beside = (ROOT / "examples" / "jobs" / FILE).read_text()
    assert json.loads(beside) == printed, f"run: windfall schema job > examples/jobs/{FILE}"


@pytest.mark.parametrize("case", [case for case in CASES if case.schema], ids=lambda case: case.name)
def test_the_schema_refuses_what_the_loader_refuses(case: BadFile) -> None:
    """An editor marks the bad files, as far as a schema can know."""
    assert not fits(case.text)


@pytest.mark.parametrize(
    "text",
    [
        "run: x",
        "runtime: {paramserver: {workers: 2..8, clocks: 5, staleness: none, app: windfall.apps.mf, settings: {rank: 3}}}",
        "run: x\nresources: {accelerators: {A100: 8}, cpus: 4, memory: 16GB+, any_of: [{infra: local/a/b}]}",
        "run: x\nresources: {accelerators: [A100, H100:2], cpus: 0.5, zone: a, job_recovery: {recover_on_exit_codes: 7}}",
        "run: x\nresources: {zone: [a, b], instance_type: t, exclude: {zone: c, instance_type: [u, v]}, pool_max: 1}",
        "run: x\nwork: {steps: 3e9}\nmax_price: 1\nsecrets: {A: null}",
        "run: x\nwork: {items: 1.5}\nsecrets: [A]\nenvs: {A_1: true, B: 1.5, C: x}".replace("secrets: [A]\n", ""),
        "run: x\ncheckpoint: {insure: thesis}",
        "run: x\nobjective: {deadline: 2d 6h}",
        "run: x\nobjective: {deadline: FRI  9:00 Europe/Berlin}",
        "run: x\nobjective: {deadline: 9:00}",
        "run: x\nobjective: {deadline: Thursday 9:30 pm}",
        "run: x\nobjective: {deadline: 2027-01-31T18:00:00.5+01:00}",
        "run: x\nobjective: {deadline: 2027-01-31 18:00:00 Z}",
        "run: x\nobjective: {deadline: tomorrow 9am}",
        "run: x\ncheckpoint: {insure: young-daly}",
        "run: x\ncheckpoint: {store: /runs, from: 'az://a/b', insure: 200 steps, keep_every: 1h, save_timeout: 1h30m}",
        "run: x\nevent_callback: echo",
        "run: x\nnotify: {webhook: 'http://localhost:80/a?b=c'}\nspot_policy: on-demand",
    ],
)
def test_the_schema_takes_what_the_loader_takes(text: str, tmp_path: Path) -> None:
    """Every way to write a value that the loader reads is valid for an editor too."""
    path = tmp_path / "job.yaml"
    path.write_text(text)

    load(str(path))

    assert fits(text)


def test_every_key_is_described() -> None:
    """An editor has a sentence to show for each key."""
    made = schema("job")
    blocks = [made, *made["$defs"].values()]

    assert [
        name for block in blocks for name, key in block["properties"].items() if not {"description", "$ref"} & set(key)
    ] == []
