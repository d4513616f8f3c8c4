"""`python -m tests.bench`: what qrm costs on this machine, as tables or with --json.

Nothing is judged: the machine may be busy with something else.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.bench import crowd
from tests.bench.allocation import CONTAINERS, PODS, allocation
from tests.bench.idle import idle
from tests.bench.isolation import isolation
from tests.bench.latency import latency, populate
from tests.bench.merging import merging
from tests.bench.processes import Service, fake_runtime, memory_folder
from tests.bench.remote import remote
from tests.bench.report import Table, as_json, show
from tests.bench.restart import restart
from tests.bench.together import together
from tests.bench.transport import transport

_FEW_PODS = 100
_CPUS = 256


async def measure(folder: Path, disk: Path) -> AsyncIterator[Table]:
    """All tables, each as soon as it is there."""
    yield allocation(folder)
    yield merging()
    yield together(folder)
    yield await remote(folder)
    yield isolation()
    for table in await transport(folder):
        yield table
    layout = crowd.MACHINES[_CPUS]
    pods = crowd.crowd(PODS, CONTAINERS, _CPUS)
    async with fake_runtime(folder, layout) as endpoint:
        service = Service(folder, disk / "state", endpoint, layout)
        async with service.running() as process, service.kubelet() as kubelet:
            await populate(kubelet, pods[:_FEW_PODS])
            yield await latency(service, sum(len(pod.containers) for pod in pods[:_FEW_PODS]))
            await populate(kubelet, pods[_FEW_PODS:])
            yield await idle(service, process, PODS, CONTAINERS)
        yield await restart(service, CONTAINERS)


async def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    wants = parser.parse_args()
    tables = []
    with memory_folder() as folder, tempfile.TemporaryDirectory(prefix="qrm-") as disk:
        async for table in measure(folder, Path(disk)):
            tables.append(table)
            if not wants.json:
                show(table)
    if wants.json:
        sys.stdout.write(as_json(tables) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
