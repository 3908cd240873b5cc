"""Compiled loops that are cached on disk by what they were made of.

numba looks at the file of a cached function alone: it keeps an old formula of another file, and cannot read its own cache
where the class of an argument was renamed.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba import njit


def cached(*modules: ModuleType) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a loop at its first call, or reads it from the cache if all its sources are the same.

    Args:
        modules: those beside the loop's own whose functions and classes it uses.
    """

    def decorate(loop: Callable[..., Any]) -> Any:
        sources = [inspect.getsource(module) for module in (sys.modules[loop.__module__], *modules)]
        found = hashlib.sha256("".join(sources).encode())
        # The name is that of its file in numba's cache.
        loop.__qualname__ = f"{loop.__name__}_{found.hexdigest()[:12]}"
        return njit(cache=True, nogil=True, error_model="numpy")(loop)

    return decorate
