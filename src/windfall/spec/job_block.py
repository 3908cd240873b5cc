"""The base of all maps of a job file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class JobFileBlock(BaseModel):
    """A map of the job file: no other keys, no other types of values, immutable once read."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )
