"""`python -m tests.lifecycle [SECONDS [TOOLS]]`: kubelet's load on the real containerd while qrm is replaced for ever.

containerd itself is restarted twice; TOOLS is a folder with another one than the installed. Every call that fails is
printed. The exit code is 1 where one did not because of containerd's restarts, or where something was left behind.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from qrm.demo.cgroups import PodCgroups
from qrm.demo.containerd import PrivateContainerd
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import ContainerSpec, Pod
from tests.crash.world import lines_of
from tests.support import HOSTS_OWN, config_text

from .load import STUBBORN, Failure, Load, Tally
from .processes import Succession, succession

_PERIOD = 10.0
"""Seconds between two processes of qrm."""
_GRACE = 12
"""Seconds that a long StopContainer takes: longer than a process of qrm serves."""
_AFTER = 1.0
"""Seconds after containerd answers again in which its refusals are still its own."""


@dataclass
class _Away:
    """When containerd was restarted, by the monotonic clock."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def explains(self, failure: Failure) -> bool:
        """Whether the call was under way while containerd was not there."""
        return any(failure.begun < end + _AFTER and begin < failure.ended for begin, end in self.spans)


async def _replace(qrm: Succession, seconds: float) -> None:
    """Replace qrm every few seconds, and say how large the new one and the one before it are."""
    print("  after s   until ready s   fds   MiB   older ones left")
    begun = time.monotonic()
    while time.monotonic() + _PERIOD < begun + seconds:
        await asyncio.sleep(_PERIOD)
        (fds, bytes_), took = qrm.now.size, await qrm.replace()
        left = sum(each.process.returncode is None for each in qrm.all) - 1
        print(f"{time.monotonic() - begun:9.1f} {took:15.2f} {fds:5} {bytes_ >> 20:5} {left:17}", flush=True)


async def _restart(containerd: PrivateContainerd, seconds: float, away: _Away) -> None:
    """Restart containerd twice."""
    for _ in range(2):
        await asyncio.sleep(seconds / 3)
        begun = time.monotonic()
        await containerd.restart()
        away.spans.append((begun, time.monotonic()))
        print(f"containerd was away for {time.monotonic() - begun:.2f} s", flush=True)


def _told(tally: Tally, away: _Away) -> bool:
    """Print what came of it; whether all is well."""
    print("\ncalls that ended well, and the slowest of each in ms:")
    for method, count in sorted(tally.done.items()):
        print(f"  {method:26}{count:8}{tally.slowest[method] * 1000:10.0f}")
    print(f"  {'GetContainerEvents':26}{len(tally.streams):8} streams ended, {tally.events} events")
    own = [each for each in tally.failures if not away.explains(each)]
    print(f"\ncalls that failed while containerd was away: {len(tally.failures) - len(own)}")
    for each in tally.failures:
        if each not in own:
            print(f"  {each}")
    print(f"calls that failed otherwise: {len(own)}")
    for each in own:
        print(f"  {each}")
    return not own


def _pod(name: str) -> Pod:
    return Pod(name, (ContainerSpec("c0", 100),))


def _stubborn(name: str) -> Pod:
    return Pod(name, (ContainerSpec("c0", 100, command=STUBBORN),))


async def main(seconds: float, tools: Path | None) -> int:
    """The command."""
    folder = Path(f"/run/qrm-lifecycle-{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="qrm-") as own, PodCgroups(f"/qrm-lifecycle-{os.getpid()}") as cgroups:
        async with PrivateContainerd(folder, tools=tools) as containerd:
            text = config_text(Path(own), containerd.endpoint, more=HOSTS_OWN, layout=None)
            async with (
                succession(Path(own), text) as qrm,
                KubeletClient(f"unix://{own}/run/qrm.sock", cgroups=cgroups) as kubelet,
            ):
                load, away = Load(kubelet, _pod, _stubborn, _GRACE), _Away()
                async with load.running() as tally:
                    await asyncio.gather(_replace(qrm, seconds), _restart(containerd, seconds, away))
            well = _told(tally, away)
            for line in qrm.trouble:
                print(line)
            async with KubeletClient(containerd.endpoint) as direct:
                left = await direct.pods()
            lines = len(lines_of(Path(own) / "state/ledger.db"))
            print(f"left: {len(left)} pods, {lines} lines in the ledger; processes of qrm: {len(qrm.all)}, all ended")
            return 0 if well and not left and not lines else 1


if __name__ == "__main__":
    _seconds, _tools = [*sys.argv[1:], None, None][:2]
    sys.exit(asyncio.run(main(float(_seconds or 300), Path(_tools) if _tools else None)))
