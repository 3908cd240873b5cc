"""The packages that reading a job file needs and a training environment does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windfall.errors import Misuse
from windfall.extras import install

PACKAGES = ("yaml", "pydantic")


@contextmanager
def needed() -> Iterator[None]:
    """Turn a missing package into a message; put the import of `spec`'s other modules inside.

    Raises:
        Misuse: a package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise Misuse(
            f"job files need the package {error.name}, which is not installed: {install('control')}"
        ) from error
