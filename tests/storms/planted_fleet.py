"""Bugs that a fleet must not have, planted one at a time to see that the storm catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from tests.storms.fleet import Fleet

Patch = tuple[object, str, object]

BUGS: dict[str, Callable[[], tuple[Patch, ...]]] = {}


@contextmanager
def bug(name: str, world: Fleet) -> Iterator[None]:
    """Plant one bug."""
    del world
    with ExitStack() as stack:
        for target, attribute, wrong in BUGS[name]():
            stack.enter_context(patch.object(target, attribute, wrong))
        yield
