"""kubelet's calls go on while qrm is replaced under them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from tests.support import PATIENCE, config_text, dedicated, pod, refused, until

from .load import Load
from .processes import succession

_STOP = 1.0
"""Seconds that every StopContainer takes."""


@pytest.mark.parametrize("activated", [False, True], ids=["take-over", "systemd"])
async def test_no_call_fails_while_qrm_is_replaced(tmp_path: Path, activated: bool) -> None:
    """Three times, with creations, execs, long stops, resizes and an event stream under way each time."""
    async with FakeRuntime(tmp_path, pod_updates=True) as fake:
        fake.faults.delay("StopContainer", _STOP)
        fake.faults.delay("CreateContainer", 0.05)
        text = config_text(tmp_path, fake.endpoint)
        async with (
            succession(tmp_path, text, activated=activated) as qrm,
            KubeletClient(f"unix://{tmp_path}/run/qrm.sock", connect=PATIENCE) as kubelet,
        ):
            load = Load(kubelet, lambda name: pod(name, 500), lambda name: dedicated(name, 1), grace=2)
            async with load.running() as tally:
                sizes = []
                for _ in range(3):
                    before = qrm.now
                    await asyncio.sleep(0.5)
                    await qrm.replace()
                    sizes.append(qrm.now.size)
                    await before.said("stopped")
                await until(lambda: len(tally.streams) == 3)
                seen = tally.events
                await until(lambda: tally.events > seen)
        print(dict(tally.done), dict(tally.slowest), tally.streams, sizes)
        assert [str(each) for each in tally.failures] == []
        assert not qrm.trouble
        assert not fake.store.pods


async def test_a_second_signal_ends_what_is_under_way(tmp_path: Path) -> None:
    """At the first one qrm leaves the node and waits for its calls; who does not want to wait says so again."""
    async with FakeRuntime(tmp_path) as fake:
        text = config_text(tmp_path, fake.endpoint)
        async with succession(tmp_path, text) as qrm, KubeletClient(f"unix://{tmp_path}/run/qrm.sock") as kubelet:
            started = await kubelet.start_pod(pod("web"))
            hang = fake.faults.hang("StopContainer")
            stop = asyncio.ensure_future(kubelet.stop_container(started.containers["c0"]))
            await hang.entered.wait()
            qrm.now.process.terminate()
            await qrm.now.said("retired")
            assert not stop.done()
            qrm.now.process.terminate()
            assert "UNAVAILABLE" in await refused(stop)
            assert await qrm.now.process.wait() == 0
