"""What users may say of Slurm, in the configuration file and in a job file, and how a mistake is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from windfall.errors import InvalidFile, Misuse
from windfall.providers import job_blocks
from windfall.providers.slurm import slurm_settings
from windfall.providers.slurm.slurm_settings import SlurmSettings, read_settings
from windfall.spec import config_file
from windfall.terms import BlockValue


def read(folder: Path, text: str) -> SlurmSettings:
    """The settings of a configuration file."""
    path = folder / "config.yaml"
    path.write_text(f"providers:\n  slurm:\n{text}")
    return read_settings(folder, config_file.load(str(path))["slurm"])


def test_everything_that_a_site_may_need(tmp_path: Path) -> None:
    """A login node, partitions, who pays, where machines start, and how often the site is asked."""
    text = """\
    login: me@login
    partitions: low,high
    account: lab
    qos: cheap
    folder: /home/me/machines
    python: /home/me/venv/bin/python
    poll: 1m
    queue_wait: 2h
    usd_per_unit_hour: 0.02
    limits: {machines: 5}
"""
    found = read(tmp_path, text)

    assert (found.login, found.partitions, found.account, found.qos) == ("me@login", {"low", "high"}, "lab", "cheap")
    assert (str(found.folder), found.python) == ("/home/me/machines", "/home/me/venv/bin/python")
    assert (found.poll_s, found.queue_wait_s, found.usd_per_unit_hour) == (60.0, 7200.0, 0.02)


def test_nothing_need_be_said(tmp_path: Path) -> None:
    """Every partition, free hours, two looks a minute, and a folder in the installation's own."""
    found = read(tmp_path, "    limits: {machines: 5}\n")

    assert (found.poll_s, found.queue_wait_s, found.usd_per_unit_hour) == (30.0, None, 0.0)
    assert (found.folder, found.partitions) == (tmp_path / "slurm", frozenset())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("partition: low", "config.yaml:3:5: providers.slurm.partition is an unknown key; did you mean partitions?"),
        ("poll: often", "config.yaml:3:11: providers.slurm.poll must be written like 30s, not 'often'"),
        ("login: a b", "config.yaml:3:12: providers.slurm.login must be written like me@login.example.org, not 'a b'"),
        ("login: -oProxyCommand=x", "providers.slurm.login must be written like me@login.example.org"),
        ("folder: machines", "providers.slurm.folder must be written like /home/me/windfall-machines, not 'machines'"),
        ("usd_per_unit_hour: free", "providers.slurm.usd_per_unit_hour must be a number such as 0.02, not 'free'"),
        ("credentials: {env: KEY}", "providers.slurm.credentials is an unknown key"),
    ],
)
def test_a_mistake_has_its_line(tmp_path: Path, line: str, says: str) -> None:
    """File, line, column, the key, and what to write."""
    with pytest.raises(InvalidFile) as error:
        read(tmp_path, f"    {line}\n")

    assert says in str(error.value)


def test_a_login_node_needs_a_folder_there(tmp_path: Path) -> None:
    """The installation's own folder is on another host."""
    with pytest.raises(Misuse, match=r"providers\.slurm needs folder beside login"):
        read(tmp_path, "    login: me@login\n")


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (
            {"account": "lab", "qos": "low", "gres": "gpu:a100:2", "constraint": "ib&a100", "time": "4h", "cpus": 8},
            None,
        ),
        ({"time": "04:00:00"}, None),
        ({"time": "30:00"}, None),
        ({"time": "1-12"}, None),
        ({"time": "0-00:00:00"}, "slurm.time must be written like 4h, not '0-00:00:00'"),
        ({"time": "30"}, "slurm.time must be written like 4h, not '30'"),
        ({"acount": "lab"}, "slurm.acount is an unknown key; did you mean account?"),
        ({"account": "lab --wrap=x"}, "slurm.account must be written like physics, not 'lab --wrap=x'"),
        ({"gres": "gpu:1;rm"}, "slurm.gres must be written like gpu:a100:1, not 'gpu:1;rm'"),
        ({"time": "soon"}, "slurm.time must be written like 4h, not 'soon'"),
        ({"cpus": 0}, "slurm.cpus must be from 1 to 100000, not 0"),
        ({"memory": "lots"}, "slurm.memory must be written like 32GB, not 'lots'"),
    ],
)
def test_a_block_is_strict(block: dict[str, BlockValue], problem: str | None) -> None:
    """Nothing reaches `sbatch` that is not what the key is for."""
    assert job_blocks.block_problem("slurm", slurm_settings.BLOCK, block) == problem


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [
        ("4h", 14_400.0),
        ("04:00:00", 14_400.0),
        ("30:00", 1800.0),
        ("1-12", 129_600.0),
        ("2-03:30", 185_400.0),
        ("90m", 5400.0),
    ],
)
def test_a_time_limit_is_written_as_here_or_as_slurm_does(text: str, limit_s: float) -> None:
    """A line copied from a batch script means what it meant there."""
    assert slurm_settings.time_limit_s({"time": text}) == limit_s
    assert slurm_settings.time_limit_s({}) is None
