"""A process that becomes another one in the middle of its work."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WORK = """
import asyncio, os, sys, uvloop
from qrm.service.detach import detach

async def work():
    before, (near, far) = os.getpid(), os.pipe()
    await asyncio.to_thread(int)
    came = asyncio.Event()
    asyncio.get_running_loop().add_reader(near, came.set)
    assert detach()
    os.write(far, b"x")
    async with asyncio.timeout(20):
        await came.wait()
        await asyncio.to_thread(print, os.getpid() != before, flush=True)
    os._exit(0)

(uvloop.run if sys.argv[1] == "uvloop" else asyncio.run)(work())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_what_becomes_of_a_process_has_its_loop_and_threads(loop: str) -> None:
    """Descriptors are watched as before, and what calls under way give to a thread is done, though threads are gone."""
    done = subprocess.run([sys.executable, "-c", _WORK, loop], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", done.stderr
