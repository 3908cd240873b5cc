"""Keys of what an elastic training has in its run's store beside checkpoints (`shape_files`), and their documents.

shapes/log/00000001 ...       the create-only sequence of layouts
shapes/status                 what training is doing; each takes the place of the last
shapes/history                training whenever its shape or its machines changed; each takes the place of the last
shapes/measured               what training has measured of itself; each takes the place of the last
shapes/stop                   the newest coordinator that is asked to stop; overwritten
shapes/stopped                the newest one that has; overwritten
shapes/done                   written once training is over and every script has ended
shapes/failures/00000001 ...  a failure of the user's script, each
"""

from __future__ import annotations

from typing import Final

from windfall import shape_measurements, shape_status
from windfall.codec import Document
from windfall.shape_layout import VERSION, ShapeLayout
from windfall.shape_measurements import ShapeMeasurements
from windfall.shape_status import ShapeFailure, ShapePoint, ShapeStatus

STATUS_KEY, HISTORY_KEY, MEASURED_KEY = "shapes/status", "shapes/history", "shapes/measured"
STOP, STOPPED, DONE = "shapes/stop", "shapes/stopped", "shapes/done"

LAYOUT_FORM: Final = Document[ShapeLayout]("layout", ShapeLayout, VERSION, "an elastic training's log")
STATUS_FORM: Final = Document[ShapeStatus]("status", ShapeStatus, shape_status.VERSION, "an elastic training's status")
HISTORY_FORM: Final = Document[tuple[ShapePoint, ...]](
    "history", tuple[ShapePoint, ...], shape_status.VERSION, "an elastic training's history"
)
MEASURED_FORM: Final = Document[ShapeMeasurements](
    "measured", ShapeMeasurements, shape_measurements.VERSION, "an elastic training's measurements"
)
NUMBER_FORM: Final = Document[int]("number", int, VERSION, "a request to an elastic training")
"""Of a coordinator, or of a step."""
FAILURE_FORM: Final = Document[ShapeFailure](
    "failure", ShapeFailure, shape_status.VERSION, "a failure of an elastic training's script"
)


def layout_key(record: int) -> str:
    """Return the key of a layout."""
    return f"shapes/log/{record:08d}"


def failure_key(number: int) -> str:
    """Return the key of a failure, from 1."""
    return f"shapes/failures/{number:08d}"
