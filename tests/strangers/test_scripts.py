"""Scripts as twelve kinds of user write them, lost at the start, in the middle and at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strangers.support import KINDS, Stranger, seeds

IN_EVERY_RUN = ("arrays", "plain", "shell")


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
    print(f"{kind}, seed {seed}: {', '.join(user.losses)}")
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
