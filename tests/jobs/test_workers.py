"""Scripts with helper processes: their sockets lie in the machine's folder for temporary files."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests.jobs.conftest import User

SOCKET = """
    import multiprocessing, os, tempfile
    from multiprocessing.connection import Listener

    with Listener(family="AF_UNIX") as listener:
        print("socket of", len(listener.address), "characters")
    print("folder", tempfile.gettempdir(), oct(os.stat(tempfile.gettempdir()).st_mode & 0o777), flush=True)
    """
LOADER = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=1)
    print("sum", sum(float(batch.sum()) for (batch,) in data), flush=True)
    """


def _run(user: User, script: str) -> str:
    folder = user.home / "job"
    folder.mkdir()
    (folder / "train.py").write_text(textwrap.dedent(script))
    text = "run: python train.py\nworkdir: .\nmax_duration: 80s\n"
    (folder / "job.yaml").write_text(text)
    user.variables = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    told = user.say("run", "-y", "job.yaml", cwd=folder)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.mark.real
@pytest.mark.trial("B1")
def test_sockets_of_helper_processes_fit_where_the_home_is_long(user: User) -> None:
    """A plain multiprocessing socket can be made on a machine of the local market, and its folder goes with the machine."""
    out = _run(user, SOCKET)

    folder, mode = next(line.split()[1:] for line in out.splitlines() if line.startswith("folder"))
    assert mode == "0o700", "nobody else reads a machine's temporary files"
    assert "socket of" in out
    assert not Path(folder).exists(), "the machine is gone, and its temporary files with it"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.trial("B1")
def test_a_data_loader_with_workers_trains_where_the_home_is_long(user: User) -> None:
    """torch's DataLoader with a worker process reads its data under `windfall run`."""
    pytest.importorskip("torch")

    assert "sum 28.0" in _run(user, LOADER)
