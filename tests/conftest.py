"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is not a slow function: no example has to be done within a time.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")
