"""Goals of time and training loss, kept by live runs; the fixtures are those of `tests.live`."""

from __future__ import annotations

from tests.live.conftest import new_rig, tickets_installed

__all__ = ("new_rig", "tickets_installed")
