"""What all sections of the configuration file are made of."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Level = Literal["dedicated_cores", "shared_cores", "reclaimed_cores", "system_cores"]
Positive = Annotated[float, Meta(gt=0, le=86400)]
"""Seconds."""
Mode = Literal["off", "auto", "required"]
"""off: not touched; auto: used where the node can; required: without it qrm does not start, or the pod does not."""


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and a key that it does not know is an error."""
