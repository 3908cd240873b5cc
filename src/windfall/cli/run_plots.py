"""`windfall ps --plot`: a training over time, of whichever runtime it is."""

from __future__ import annotations

import os
from pathlib import Path

from windfall.cli import shape_verbs, tier_verbs
from windfall.errors import Misuse


def draw(url: str, path: Path) -> None:
    """Draw a training over time.

    Raises:
        Misuse: the run is of no training that is drawn, has nothing to draw yet, or the picture cannot be written.
        StoreError, LogDamaged: it cannot be read.
    """
    if path.suffix not in (".png", ".svg"):
        raise Misuse(f"--plot: {path} must end in .png or .svg")
    if not os.access(path.absolute().parent, os.W_OK):
        raise Misuse(f"--plot: cannot write {path}: choose a file in an existing folder that you can write to")
    if (tiers := tier_verbs.find_tiers(url)) is not None:
        tier_verbs.draw(tiers, url, path)
    elif (shapes := shape_verbs.find_shapes(url)) is not None:
        shape_verbs.draw(shapes, url, path)
    else:
        raise Misuse(
            f"--plot: the run at {url} is of no parameter server or elastic training, or has not begun; `windfall cost` draws "
            "others"
        )
