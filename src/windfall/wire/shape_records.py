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

from windfall import codec, shape_measurements, shape_status
from windfall.shape_layout import VERSION, ShapeLayout
from windfall.shape_measurements import ShapeMeasurements
from windfall.shape_status import ShapeFailure, ShapePoint, ShapeStatus

STATUS_KEY, HISTORY_KEY, MEASURED_KEY = "shapes/status", "shapes/history", "shapes/measured"
STOP, STOPPED, DONE = "shapes/stop", "shapes/stopped", "shapes/done"


def layout_key(record: int) -> str:
    """Return the key of a layout."""
    return f"shapes/log/{record:08d}"


def failure_key(number: int) -> str:
    """Return the key of a failure, from 1."""
    return f"shapes/failures/{number:08d}"


def layout_to_bytes(layout: ShapeLayout) -> bytes:
    """Write a layout."""
    return codec.encode_document(VERSION, "layout", layout)


def layout_from_bytes(data: bytes) -> ShapeLayout:
    """Read a layout; raises as `codec.decode_document`."""
    layout: ShapeLayout = codec.decode_document(
        data, "layout", ShapeLayout, version=VERSION, what="an elastic training's log"
    )
    return layout


def status_to_bytes(status: ShapeStatus) -> bytes:
    """Write a status."""
    return codec.encode_document(shape_status.VERSION, "status", status)


def status_from_bytes(data: bytes) -> ShapeStatus:
    """Read a status; raises as `codec.decode_document`."""
    status: ShapeStatus = codec.decode_document(
        data, "status", ShapeStatus, version=shape_status.VERSION, what="an elastic training's status"
    )
    return status


def history_to_bytes(points: tuple[ShapePoint, ...]) -> bytes:
    """Write a history, oldest point first."""
    return codec.encode_document(shape_status.VERSION, "history", points)


def history_from_bytes(data: bytes) -> tuple[ShapePoint, ...]:
    """Read a history; raises as `codec.decode_document`."""
    points: tuple[ShapePoint, ...] = codec.decode_document(
        data, "history", tuple[ShapePoint, ...], version=shape_status.VERSION, what="an elastic training's history"
    )
    return points


def measured_to_bytes(found: ShapeMeasurements) -> bytes:
    """Write what was measured."""
    return codec.encode_document(shape_measurements.VERSION, "measured", found)


def measured_from_bytes(data: bytes) -> ShapeMeasurements:
    """Read what was measured; raises as `codec.decode_document`."""
    found: ShapeMeasurements = codec.decode_document(
        data,
        "measured",
        ShapeMeasurements,
        version=shape_measurements.VERSION,
        what="an elastic training's measurements",
    )
    return found


def number_to_bytes(number: int) -> bytes:
    """Write the number of a coordinator, or of a step."""
    return codec.encode_document(VERSION, "number", number)


def number_from_bytes(data: bytes) -> int:
    """Read a number; raises as `codec.decode_document`."""
    number: int = codec.decode_document(data, "number", int, version=VERSION, what="a request to an elastic training")
    return number


def failure_to_bytes(failure: ShapeFailure) -> bytes:
    """Write a failure."""
    return codec.encode_document(shape_status.VERSION, "failure", failure)


def failure_from_bytes(data: bytes) -> ShapeFailure:
    """Read a failure; raises as `codec.decode_document`."""
    failure: ShapeFailure = codec.decode_document(
        data, "failure", ShapeFailure, version=shape_status.VERSION, what="a failure of an elastic training's script"
    )
    return failure
