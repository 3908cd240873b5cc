"""A provider's block in a job file: its own keys, refused like any other, and carried to its order."""

from __future__ import annotations

from pathlib import Path

import pytest

from windfall.errors import InvalidFile, Misuse
from windfall.jobs import Job, ProviderBlock, Resources
from windfall.providers.job_blocks import BlockKey, BlockKind, block_problem, problem_with
from windfall.spec.job_file import to_job
from windfall.spec.job_loader import load
from windfall.structs import replace
from windfall.wiring_control import _refuse_blocks


def job(tmp_path: Path, block: str) -> Job:
    """The job of a file with this text under `run`."""
    path = tmp_path / "job.yaml"
    path.write_text(f"run: x\n{block}\n")
    return to_job(load(str(path)), job_id="j", user="u", run_url="file:///r")


def test_a_block_becomes_part_of_the_job(tmp_path: Path) -> None:
    """What is written under a provider's name is kept for that provider; a job without a block has none."""
    assert job(tmp_path, "local: {speed: 0.5, uplink: 3MB/s}").blocks == (
        ProviderBlock("local", (("speed", 0.5), ("uplink", "3MB/s"))),
    )
    assert job(tmp_path, "").blocks == job(tmp_path, "local: {}").blocks == ()


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("local:\n  uplnk: 3", "job.yaml:3:3: local.uplnk is an unknown key; did you mean uplink?"),
        ("local: {uplink: 3}", "job.yaml:2:17: local.uplink must be text such as 20MB/s, not 3"),
        ("local: {uplink: 0MB/s}", "job.yaml:2:17: local.uplink must be written like 20MB/s, not '0MB/s'"),
        ("local: {speed: 7}", "job.yaml:2:16: local.speed must be from 0.01 to 1, not 7"),
        ("local: {speed: true}", "job.yaml:2:16: local.speed must be a number such as 0.5, not true"),
        ("local: 5", "job.yaml:2:8: local must be a map of keys and values, not 5"),
        ("local: {speed: }", "job.yaml:2:15: local.speed has no value"),
        ("lokal: {speed: 1}", "job.yaml:2:1: lokal is an unknown key; did you mean local?"),
        ("aws: {speed: 1}", "job.yaml:2:1: aws is a block for a provider, which is not supported"),
    ],
)
def test_a_wrong_block_is_refused_at_its_place(tmp_path: Path, block: str, says: str) -> None:
    """File, line, the key, what is wrong and what to write."""
    with pytest.raises(InvalidFile) as refused:
        job(tmp_path, block)

    assert says in str(refused.value)


KEYS = (
    BlockKey("qos", BlockKind.TEXT, "Class.", "high", choices=("high", "low")),
    BlockKey("nodes", BlockKind.WHOLE, "Count.", "2", least=1, most=8),
    BlockKey("exclusive", BlockKind.FLAG, "Alone.", "true"),
)


@pytest.mark.parametrize(
    ("key", "right", "wrong"), [(KEYS[0], "low", "lo"), (KEYS[1], 8, 2.5), (KEYS[1], 1, 9), (KEYS[2], False, 0)]
)
def test_each_kind_of_key_takes_its_values_alone(key: BlockKey, right: object, wrong: object) -> None:
    """A choice, a whole number within bounds, a flag."""
    assert problem_with(key, right) is None
    assert problem_with(key, wrong) is not None


def test_a_block_is_checked_again_at_the_controller() -> None:
    """A client that read no job file gets the same refusals: unknown provider, key, value, or two blocks of one."""
    fine = Job("j", "j", "u", "s3://b/r", ("x",), (Resources(),), blocks=(ProviderBlock("local", (("speed", 0.5),)),))
    _refuse_blocks(fine)

    for bad, says in (
        ((ProviderBlock("lokal"),), "did you mean local?"),
        ((ProviderBlock("local", (("sped", 1.0),)),), "local.sped is an unknown key; did you mean speed?"),
        ((ProviderBlock("local", (("speed", "fast"),)),), "local.speed must be a number"),
        ((ProviderBlock("local"), ProviderBlock("local")), "two blocks"),
    ):
        with pytest.raises(Misuse, match=says.replace("?", r"\?").replace(".", r"\.")):
            _refuse_blocks(replace(fine, blocks=bad))
    assert block_problem("toy", KEYS, {"qos": "high", "nodes": 3, "exclusive": True}) is None
