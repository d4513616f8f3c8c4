"""`python -m tests.bench.runtime FOLDER CPUS NODES`: a fake runtime until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from qrm.cpuset import CPUSet, NodeSet
from qrm.demo.fake_runtime import FakeRuntime


async def main(folder: str, cpus: str, nodes: str) -> None:
    """Serve; what the runtime remembers of calls for tests is thrown away."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with FakeRuntime(Path(folder), cpus=CPUSet.parse(cpus), nodes=NodeSet.parse(nodes), pod_updates=True) as fake:
        while not stopping.is_set():
            fake.calls.clear()
            try:
                await asyncio.wait_for(stopping.wait(), 5)
            except TimeoutError:
                continue


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
