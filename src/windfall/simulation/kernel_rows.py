"""The rows that the kernels hand to each other: a trial each, how far it is, and what only the next kernel needs.

A row begins as zeros, `LAST` -1 and `KNOWN` what the scenario says.  Its first columns are the outcomes.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Final

import numpy as np

from windfall.simulation import chance
from windfall.simulation.kernel_world import part
from windfall.simulation.sampling import Floats, within

OUTCOMES: Final = 7
"""Finish, billed, redo, save, allocate, prepare [s], preemptions: as in `outcomes.Trials`."""
COMMITTED: Final = 7
LAST: Final = 8
KNOWN: Final = 9
STAGE: Final = 10
"""Newest safe step; the last machine that was lost, where there is but one; whether saves' costs are known; see below."""
LOSSES: Final = 11
ANNOUNCED: Final = 12
"""How often the run was lost, and how often with a notice."""
COLUMNS: Final = 13
JUMPING, WALKING, OVER, STUCK, REFUSED = 0.0, 1.0, 2.0, 3.0, 4.0
"""Goes on with `kernel_alone`; with `kernel_trial`; is over; needs too many machines; its policy gave no interval."""


def rows_of(trials: int, costs_known: bool, stage: float) -> Floats:
    """Return rows of trials that have not begun."""
    rows: Floats = np.zeros((trials, COLUMNS))
    rows[:, LAST], rows[:, KNOWN], rows[:, STAGE] = -1.0, costs_known, stage
    return rows


@part(forceinline=True)
def draw(w, s):
    """Draw what is drawn once in a trial."""
    s.step_s = within(w.step_low, w.step_high, s.key, chance.STEP, 0)
    s.stall_s = within(w.stall_low, w.stall_high, s.key, chance.STALL, 0)
    s.upload_s = within(w.upload_low, w.upload_high, s.key, chance.UPLOAD, 0)
    s.offset_s = w.start_s
    if math.isnan(w.start_s):
        s.offset_s = w.length_s * chance.uniform(s.key, chance.OFFSET, 0)


@part(inline="always")
def read(s, rows, place):
    """Take a trial up where its row says."""
    s.now, s.billed_s, s.redo_s, s.save_s = rows[place, 0], rows[place, 1], rows[place, 2], rows[place, 3]
    s.allocate_s, s.prepare_s, s.preemptions = rows[place, 4], rows[place, 5], int(rows[place, 6])
    s.committed, s.last, s.known = int(rows[place, COMMITTED]), int(rows[place, LAST]), rows[place, KNOWN] != 0.0
    s.losses, s.announced = int(rows[place, LOSSES]), int(rows[place, ANNOUNCED])
    s.done, s.stuck, s.saves, s.let_go = False, False, 0, 0.0


@part(inline="always")
def write(s, rows, place, stage):
    """Put a trial into its row."""
    rows[place, 0], rows[place, 1], rows[place, 2], rows[place, 3] = s.now, s.billed_s, s.redo_s, s.save_s
    rows[place, 4], rows[place, 5], rows[place, 6] = s.allocate_s, s.prepare_s, s.preemptions
    rows[place, COMMITTED], rows[place, LAST], rows[place, KNOWN] = s.committed, s.last, s.known
    rows[place, LOSSES], rows[place, ANNOUNCED] = s.losses, s.announced
    rows[place, STAGE] = stage
