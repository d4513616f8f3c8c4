"""The service as a process of its own that kills itself, as `kill -9` does, at a chosen step of design section 5.

    python -m tests.crash.service CONFIG [STEP before|after TRIGGER]

It dies where it enters or leaves STEP, once the file TRIGGER exists: what comes before that is not hit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from qrm.config import load
from qrm.metrics import Metrics
from qrm.service import logs
from qrm.service.serve import serve

STEPS = ("read", "plan", "record", "shrink", "forward", "commit", "grow")
MOMENTS = ("before", "after")


class Deadly(Metrics):
    """Metrics whose `step` ends the process at one step."""

    def __init__(self, step: str, moment: str, trigger: Path) -> None:
        super().__init__()
        if step not in STEPS or moment not in MOMENTS:
            raise ValueError(f"no such step: {moment} {step}")
        self._point = (step, moment)
        self._trigger = trigger

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step, or die before or after it."""
        self._die_at(name, "before")
        with super().step(name):
            yield
        self._die_at(name, "after")

    def _die_at(self, step: str, moment: str) -> None:
        if (step, moment) == self._point and self._trigger.exists():
            os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, *point: str) -> None:
    """Serve until SIGTERM, or until the point is reached."""
    config = load(Path(path))
    logs.configure(config.log)
    metrics = Metrics()
    if point:
        step, moment, trigger = point
        metrics = Deadly(step, moment, Path(trigger))
    uvloop.run(serve(config, metrics=metrics))


if __name__ == "__main__":
    main(*sys.argv[1:])
