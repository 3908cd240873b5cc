"""Random names from the kernel."""

from __future__ import annotations

import os


def new_nonce() -> str:
    """Return a new random name."""
    return os.urandom(8).hex()
