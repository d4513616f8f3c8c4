"""What isolation adds to the calls that start a pod, on the real kernel of the guest.

The guest is emulated, so its milliseconds are not a machine's: they are shown beside what starting a process costs
there, of which the runtime needs a dozen for a pod.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path

from tests.bench.report import Table, millis, p50, p99
from tests.guest.vm import default_cache, prepare, run

PODS, SAMPLES = 250, 30
_TIMEOUT = 1800


def isolation() -> Table:
    """The table."""
    table = Table(
        f"Own time of isolation in an emulated guest, {PODS} pods resident",
        "In ms of the guest, by call and dimension; `process starts` is the ratio to a fork and exec of /bin/true in "
        "the same run. On cgroup v2 nothing is left to do about cgroup files when a container starts. A round is one "
        "of upkeep in which nothing differs.",
    )
    samples = defaultdict[tuple[str, str], list[float]](list)
    for what, dimension, seconds in _measured():
        samples[what, dimension].append(seconds)
    start = p50(samples["fork and exec", ""])
    for (what, dimension), found in samples.items():
        table.lines.append(
            {
                "call": what,
                "dimension": dimension,
                "samples": len(found),
                "p50": millis(p50(found)),
                "p99": millis(p99(found)),
                "process starts": round(p50(found) / start, 3),
            }
        )
    return table


def _measured() -> list[tuple[str, str, float]]:
    with tempfile.TemporaryDirectory(prefix="qrm-") as folder:
        script = Path(folder) / "cost.sh"
        script.write_text(f"exec python -m tests.guest.inside.cost {PODS} {SAMPLES}\n")
        with redirect_stdout(sys.stderr):  # the guest's console is no part of the report
            console = run(prepare(default_cache()), script, timeout=_TIMEOUT, resctrl=True).console
    (line,) = (line for line in console.splitlines() if line.startswith("COST="))
    found: list[tuple[str, str, float]] = json.loads(line.removeprefix("COST="))
    return found
