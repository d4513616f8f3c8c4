"""`python -m tests.bench.service SETTINGS STAGES`: qrm, which also writes down what its start spends time on.

STAGES becomes a JSON object of seconds: `python` is a moment of the monotonic clock, when the interpreter was up; the
others are durations.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import ParamSpec, TypeVar
from unittest.mock import patch

P = ParamSpec("P")
T = TypeVar("T")


class Stages:
    """The stages of a start."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._told = {"python": time.monotonic()}

    def imported(self) -> None:
        """All modules are loaded."""
        self._told["imports"] = time.monotonic() - self._told["python"]

    def timed(self, name: str, work: Callable[P, T]) -> Callable[P, T]:
        """`work`, whose duration is kept as `name`."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            begun = time.monotonic()
            done = work(*args, **kwargs)
            self._told[name] = time.monotonic() - begun
            return done

        return timed

    def last(self, name: str, work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """As `timed`, for a coroutine function; all stages are written once it is done."""

        async def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            begun = time.monotonic()
            done = await work(*args, **kwargs)
            self._told[name] = time.monotonic() - begun
            self._file.write_text(json.dumps(self._told))
            return done

        return timed


def main(settings: str, file: str) -> None:
    """As `qrm serve --config SETTINGS`."""
    stages = Stages(Path(file))
    from qrm.cli.main import cli
    from qrm.ledger.store import open_ledger
    from qrm.topology.sysfs import read_machine
    from qrm.upkeep.cycle import Upkeep

    import_module("qrm.service.serve")  # the command itself waits with that until it is to serve
    stages.imported()
    with (
        patch("qrm.service.node.open_ledger", stages.timed("ledger", open_ledger)),
        patch("qrm.service.node.read_machine", stages.timed("machine", read_machine)),
        patch.object(Upkeep, "compare_with_runtime", stages.last("compare", Upkeep.compare_with_runtime)),
    ):
        cli(["serve", "--config", settings])


if __name__ == "__main__":
    main(*sys.argv[1:])
