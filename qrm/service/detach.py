"""Goes on behind systemd's back: a restart starts the new process only when the old one's has ended (KillMode=process).

The calls that a retired process still has would hold that up. So it forks: what systemd knows ends, and the copy, which
has all sockets and the event loop as they were, finishes the calls.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import structlog

log = structlog.get_logger(__name__)


def detach() -> bool:
    """Become another process in the middle of a coroutine; returns whether that worked.

    To be called by a process that needs none of its other threads any more (nothing of gRPC, no executor of its own):
    they do not exist in the copy, which has another default executor. It must end with os._exit, because gRPC would
    wait for its threads, and it dies of the usual signals.
    """
    loop = asyncio.get_running_loop()
    sys.stderr.flush()
    try:
        child = os.fork()
    except OSError as error:
        log.error("cannot detach", error=str(error), next="calls under way end with this process")
        return False
    if child:
        os._exit(0)
    asyncio._set_running_loop(loop)  # which is the parent's, to asyncio
    loop.set_default_executor(ThreadPoolExecutor(1))  # the other one would wait for its threads to take work
    gc.disable()  # what it would collect of gRPC's would wait for threads
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    return True
