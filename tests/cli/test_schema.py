"""`windfall schema`: what is printed and stored has the shape that the schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import Run
from windfall.cli.main import main
from windfall.report.json_schema import DOCUMENTS, schema

jsonschema = pytest.importorskip("jsonschema")
STORED = {
    "journal": "spool/*/*",
    "record": "log/*",
    "manifest": "checkpoints/*/manifest.json",
    "marker": "windfall.json",
    "heartbeat": "heartbeats/*",
}
PRINTED = {
    "journal": ["events"],
    "ps": ["ps"],
    "checkpoints": ["checkpoints"],
    "explain": ["explain"],
    "cost": ["cost"],
    "replay": ["replay"],
    "doctor": ["doctor", "--size", "1MB"],
}


def checked(name: str, lines: list[str]) -> int:
    """Hold every line against the schema; return how many there were."""
    validator = jsonschema.Draft202012Validator(schema(name))
    for line in lines:
        validator.validate(json.loads(line))
    return len(lines)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_schema_is_a_schema(name: str) -> None:
    """Every document's schema is valid by draft 2020-12's own schema, and all its references lead somewhere."""
    made = schema(name)

    jsonschema.Draft202012Validator.check_schema(made)
    references = {value for value in _strings(made) if value.startswith("#/$defs/")}
    assert {reference.removeprefix("#/$defs/") for reference in references} <= set(made.get("$defs", {}))


def _strings(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [text for value in node.values() for text in _strings(value)]
    if isinstance(node, list):
        return [text for value in node for text in _strings(value)]
    return [node] if isinstance(node, str) else []


@pytest.mark.real
@pytest.mark.parametrize("name", STORED)
def test_the_store_holds_what_its_schema_says(finished: Run, name: str) -> None:
    """Every object of a real run fits its schema."""
    paths = sorted(Path(finished.url.removeprefix("file://")).glob(STORED[name]))

    assert checked(name, [line for path in paths for line in path.read_text().splitlines()]) > 0


@pytest.mark.real
@pytest.mark.parametrize("name", PRINTED)
def test_json_output_is_what_its_schema_says(finished: Run, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line that a verb prints with `--json` about a real run fits its schema."""
    assert main([*PRINTED[name], finished.url, "--json"]) == 0

    assert checked(name, capsys.readouterr().out.splitlines()) > 0


@pytest.mark.real
def test_what_get_prints_is_what_its_schema_says(
    finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`get --json` names the step, the point and the files."""
    assert main(["get", finished.url, str(tmp_path), "--json"]) == 0

    assert checked("get", capsys.readouterr().out.splitlines()) == 1


@pytest.mark.real
def test_a_word_that_is_not_ours_does_not_fit(finished: Run) -> None:
    """The schema tells a damaged row from a good one: an unknown fact, a missing field, a wrong type."""
    path = min(Path(finished.url.removeprefix("file://")).glob("spool/*/*"))
    good = path.read_text().splitlines()[0]
    damages = [('"type":"Row"', '"type":"Unknown"'), ('"term":1', '"term":"one"'), ('"facts":[', '"facts":[1,')]
    for old, new in [*damages, ('"sequence":1,', "")]:
        bad = good.replace(old, new, 1)
        assert bad != good
        with pytest.raises(jsonschema.ValidationError):
            checked("journal", [bad])


def test_without_a_name_the_documents_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """`windfall schema` says what there is; with a name it prints JSON."""
    assert main(["schema"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(DOCUMENTS)
    assert main(["schema", "journal"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("journal")
