"""Runs, servers and a held run that all cases share; made once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bad_input.box import Box, Prepared
from tests.contracts.servers import fake_bucket, google_environment, s3_environment, s3_server
from tests.support.live import eventually, new_run


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """A run that waits with four points, a run that is done, one that is held, and servers that misbehave."""
    waiting = new_run(tmp_path_factory.mktemp("waiting"))
    held = new_run(tmp_path_factory.mktemp("held"))
    done = new_run(tmp_path_factory.mktemp("done"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(held.machine("sleep", "1000"))
        first = waiting.train(STEPS="1000", EVERY="5", options=("--lease", "3s", "--policy", "never"))
        last = done.train(STEPS="3", STEP_S="0")
        eventually(lambda: "step 25" in first.text, "some steps")
        assert waiting.say("stop", waiting.url).returncode == 0
        assert (first.code(), last.code()) == (6, 0), first.text + last.text
        assert len(waiting.state().checkpoints) >= 3
        eventually(lambda: "new run" in held.machines[0].text, "the run is held")
        folder = tmp_path_factory.mktemp("servers")
        honest = stack.enter_context(s3_server(folder))
        servers = {"s3": honest}
        for name in ("denies", "full", "dishonest"):
            endpoint, bucket = stack.enter_context(fake_bucket())
            bucket.denies, bucket.full, bucket.honest = name == "denies", name == "full", name != "dishonest"
            servers[name] = s3_environment(endpoint, secret="a-wrong-secret") | google_environment(endpoint)
        yield Prepared(waiting.folder / "run", done.folder / "run", held, servers)


@pytest.fixture
def box(prepared: Prepared, tmp_path: Path) -> Box:
    """A place for one case."""
    made = Box(tmp_path, prepared)
    made.here.mkdir()
    return made
