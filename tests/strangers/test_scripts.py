"""Scripts as twelve kinds of user write them, lost at the start, in the middle and at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strangers.support import KINDS, Stranger, seeds

IN_EVERY_RUN = ("arrays", "plain", "shell")
KINDS_A_SEED = 3


def outlives(folder: Path, kind: str, seed: int, middle: int) -> None:
    """Whatever is lost: the result is that of the undisturbed script, no step is missing, and the account agrees."""
    if kind in ("plain", "gan", "average", "workers", "ddp", "trainer", "lightning_fit"):
        pytest.importorskip("torch")
    user = Stranger(folder, kind)
    try:
        expected = user.undisturbed()
        user.live(seed, middle)
    finally:
        user.finish()
    is_whole(user, expected)


def is_whole(user: Stranger, expected: str) -> None:
    """The result is the undisturbed one, no step is missing, and the account is that of the script's own log."""
    print(f"{user.kind}: {', '.join(user.losses)}")
    assert user.results(user.printed) == {expected}, f"lost: {user.losses}\n{user.printed[-3000:]}"
    assert set(user.lines()) == set(range(1, user.steps + 1)), f"steps missing in the script's log; lost: {user.losses}"
    assert not user.disagreements()


@pytest.mark.real
@pytest.mark.parametrize("kind", IN_EVERY_RUN)
def test_a_users_script_outlives_losses_at_start_and_end(kind: str, tmp_path: Path) -> None:
    """numpy, shell, plain torch: taken away in the first second, once on the way, and at the very end."""
    outlives(tmp_path, kind, 0, middle=1)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("seed", seeds())
def test_twelve_kinds_of_user_outlive_their_losses(kind: str, seed: int, tmp_path: Path) -> None:
    """Every kind under every seed of SEEDS."""
    outlives(tmp_path, kind, seed, middle=2)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", range(KINDS_A_SEED))
@pytest.mark.parametrize("seed", seeds())
def test_under_windfall_run_machines_are_taken_and_nothing_is_lost(seed: int, place: int, tmp_path: Path) -> None:
    """Bought machines, one dies and one is taken with a notice: four seeds go through all twelve kinds."""
    kind = sorted(KINDS)[(KINDS_A_SEED * seed + place) % len(KINDS)]
    user = Stranger(tmp_path, kind)
    try:
        expected = user.undisturbed()
        user.live_as_a_job(seed)
        is_whole(user, expected)
    finally:
        user.finish()
