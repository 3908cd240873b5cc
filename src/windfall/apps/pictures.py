"""Labelled pictures: the letters of fonts that are installed with matplotlib, a file of the user's, or generated ones.

The letters are real ones, not generated: 52 of the Latin alphabet, in 22 fonts and four sizes, as Pillow draws them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import string
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windfall.errors import Misuse
from windfall.spelling import plain
from windfall.structs import Struct

STORED_DIGESTS = {"3.11.2": "f3ccdfe47fb89f2f0056591d2d25e19c134f8439f61bbc73a7cb20fc736f58ff"}
"""Of the letters, by the version of matplotlib: with these pictures the published curves were made."""
LETTER_SIZES = (12, 13, 14, 15)
LETTER_SIDE = 16
_FONTS = ("DejaVuSans*.ttf", "DejaVuSerif*.ttf", "STIXGeneral*.ttf", "cm*10.ttf")
_NO_LETTERS = frozenset({"cmex10", "cmsy10", "DejaVuSansDisplay", "DejaVuSerifDisplay"})


class Pictures(Struct, frozen=True, eq=False):
    """Pictures and their classes.

    Attributes:
        pictures: shape (pictures, channels, height, width), from 0 to 1.
        classes: of each picture, from 0.
        class_names: of all classes.
        origin: where the pictures are from.
    """

    pictures: NDArray[np.float32]
    classes: NDArray[np.int64]
    class_names: tuple[str, ...]
    origin: dict[str, object]


def generated(pictures: int, side: int, classes: int, *, seed: int = 0) -> Pictures:
    """Return generated pictures: a pattern of each class, moved by up to two pixels, under noise.

    Args:
        pictures: how many.
        side: of each [pixels].
        classes: how many.
        seed: of chance.
    """
    rng = np.random.default_rng(seed)
    patterns = (rng.random((classes, side, side)) < 0.3).astype(np.float32)
    chosen = rng.integers(0, classes, pictures)
    moves = rng.integers(-2, 3, (pictures, 2))
    clear = np.stack([np.roll(patterns[kind], tuple(move), (0, 1)) for kind, move in zip(chosen, moves, strict=True)])
    noisy = np.clip(0.6 * clear + 0.4 * rng.random(clear.shape), 0.0, 1.0).astype(np.float32)
    names = tuple(str(number) for number in range(classes))
    origin: dict[str, object] = {"source": "generated", "pictures": pictures, "side": side, "seed": seed}
    return Pictures(noisy[:, None], chosen, names, origin)


def letters(digest: str | None = None) -> Pictures:
    """Return the letters of the fonts that matplotlib brings; a letter's class is which one it is, capital or not.

    Args:
        digest: that the pictures must have; None for any.

    Raises:
        Misuse: they have another one, or the fonts, or Pillow, are not there.
    """
    found = importlib.util.find_spec("matplotlib")
    folder = Path(str(found.origin if found else "")).parent / "mpl-data" / "fonts" / "ttf"
    fonts = sorted(path for pattern in _FONTS for path in folder.glob(pattern) if path.stem not in _NO_LETTERS)
    if not fonts:
        raise Misuse(
            "settings.source: letters are drawn from matplotlib's fonts, which are not here; install matplotlib"
        )
    drawn = np.stack(
        [_drawn(path, size, letter) for path in fonts for size in LETTER_SIZES for letter in string.ascii_letters]
    )
    classes = np.tile(np.arange(26), 2 * len(LETTER_SIZES) * len(fonts))
    sha256 = hashlib.sha256(drawn.tobytes() + classes.tobytes()).hexdigest()
    matplotlib = version("matplotlib")
    if digest is not None and digest != sha256:
        raise Misuse(
            f"settings.digest: the letters of matplotlib {matplotlib} have the digest {sha256}, not {plain(digest)}; "
            "install the version that the digest is of, or leave digest out"
        )
    stored = STORED_DIGESTS.get(matplotlib)
    origin: dict[str, object] = {
        "source": "letters",
        "matplotlib": matplotlib,
        "pillow": version("pillow"),
        "pictures": len(drawn),
        "digest": sha256,
        "stored digest": stored,
        "same pictures": sha256 == stored,
    }
    return Pictures(drawn[:, None].astype(np.float32) / 255.0, classes, tuple(string.ascii_lowercase), origin)


def read_pictures(path: Path) -> Pictures:
    """Return the pictures of a file of numpy's: `pictures`, (pictures, height, width) or with channels second, and `classes`.

    Whole numbers are taken for shades from 0 to 255.

    Raises:
        Misuse: it cannot be read, its arrays do not fit, a number is not finite, or there is one class only.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            shades, given = np.asarray(file["pictures"]), np.asarray(file["classes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misuse(
            f"settings.file: cannot read {path}: {error}; write it by numpy.savez(FILE, pictures=..., classes=...)"
        ) from error
    if shades.ndim == 3:
        shades = shades[:, None]
    if shades.ndim != 4 or given.shape != shades.shape[:1] or shades.dtype.kind not in "uif" or 0 in shades.shape:
        raise Misuse(
            f"settings.file: {path} has pictures of shape {shades.shape} and classes of shape {given.shape}; it must have "
            "numbers of shape (pictures, height, width), or with channels second, and a class for each picture"
        )
    pictures = shades.astype(np.float32) / np.float32(1.0 if shades.dtype.kind == "f" else 255.0)
    if not np.isfinite(pictures).all():
        raise Misuse(f"settings.file: {path} has a picture with a number that is not finite")
    names, classes = np.unique(given, return_inverse=True)
    if len(names) < 2:
        raise Misuse(
            f"settings.file: {path} has pictures of one class only, {plain(str(names[0]))}; add some of another"
        )
    digest = hashlib.sha256(pictures.tobytes() + classes.astype(np.int64).tobytes()).hexdigest()
    origin: dict[str, object] = {"source": "file", "file": str(path), "digest": digest}
    return Pictures(pictures, classes.astype(np.int64), tuple(str(name) for name in names), origin)


def _drawn(path: Path, size: int, letter: str) -> NDArray[np.uint8]:
    """Return a letter in the middle of a picture."""
    try:
        from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415 - other sources need no Pillow
    except ModuleNotFoundError:
        raise Misuse("settings.source: letters are drawn by Pillow, which is not here; install pillow") from None
    picture: Any = Image.new("L", (LETTER_SIDE, LETTER_SIDE), 0)
    font = ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
    middle = (LETTER_SIDE / 2, LETTER_SIDE / 2)
    ImageDraw.Draw(picture).text(middle, letter, fill=255, font=font, anchor="mm")
    return np.asarray(picture)
