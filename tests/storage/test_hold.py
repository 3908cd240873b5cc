"""A run in the hand of a machine: what its uploads remember from one try, and from one agent, to the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.storage.make import Bench
from tests.support.simulated_store import MemoryStore
from windfall.errors import ShardChanged, StoreUnreachable
from windfall.events import UploadShard
from windfall.storage.run_lease import LocalSession, StoreLease, reopen
from windfall.structs import replace
from windfall.terms import SaveKind

WISH = "00000010-1-1.1"


class AwayOnce(MemoryStore):
    """A store that does not answer the first stretch of a file."""

    def put_range(self, key: str, path: str, *rest: object) -> str:
        if not self.objects.get("away"):
            self.objects["away"] = b"no more"
            raise StoreUnreachable("away")
        return super().put_range(key, path, *rest)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, AwayOnce())


def local(bench: Bench) -> LocalSession:
    folder = bench.folder / "session"
    return LocalSession(bench.clock, bench.nonce, str(folder), str(folder / "lease.json"), str(folder / "output.log"))


def first_try(bench: Bench) -> tuple[StoreLease, UploadShard]:
    """An upload that failed: the store did not answer."""
    hold = StoreLease(bench.store, bench.acquire("mine").record, local(bench), "mine")
    hold.save()
    (bench.folder / "model.pt").write_bytes(b"after step 10")
    command = UploadShard(WISH, 0, str(bench.folder / "model.pt"), SaveKind.INSURANCE)
    with pytest.raises(StoreUnreachable):
        hold.upload(command, lambda: False)
    return hold, command


def write_again(path: str) -> None:
    """What a script does that has one name for all its saves."""
    with open(path, "wb") as file:
        file.write(b"after step 20")
    os.utime(path, ns=(1, 1))


def test_an_upload_is_tried_again(bench: Bench) -> None:
    """A part that nobody touched is stored at the second try."""
    hold, command = first_try(bench)
    assert hold.upload(command, lambda: False) is not None


@pytest.mark.parametrize("agent_restarts", [False, True])
def test_a_part_changed_between_two_tries_is_not_stored(bench: Bench, agent_restarts: bool) -> None:
    """It would be another step's state, or half of one, under the first one's name; also if the agent died meanwhile."""
    hold, command = first_try(bench)
    write_again(command.path)
    if agent_restarts:
        again = reopen(bench.store, local(bench))
        assert again is not None
        hold = again
    with pytest.raises(ShardChanged):
        hold.upload(command, lambda: False)


def test_a_part_changed_before_its_first_try_is_not_stored(bench: Bench) -> None:
    """While it waits for the uplink a script may already write its next state under the same name."""
    hold, command = first_try(bench)
    waiting = replace(command, checkpoint_id="00000011-1-2.2", identity=hold.identify(command.path))
    write_again(waiting.path)
    with pytest.raises(ShardChanged):
        hold.upload(waiting, lambda: False)


def test_a_name_that_goes_changes_nothing(bench: Bench) -> None:
    """A script that prunes its own saves takes away its name of a file of which the agent holds another."""
    hold, command = first_try(bench)
    os.link(command.path, f"{command.path}.kept")
    assert hold.upload(command, lambda: False) is not None
