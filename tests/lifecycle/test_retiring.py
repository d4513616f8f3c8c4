"""What a process leaves behind when another one takes its place, and what it still does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from qrm.config import Config
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.metrics import Metrics
from qrm.service import node, server
from qrm.service.entrance import enter
from qrm.service.server import Server, start
from tests.crash.world import lines_of
from tests.enforcement.isolation.test_enforcer import Faulty
from tests.support import answering, config, dedicated, pod, refused, until, wait_ready

MORE = "[upkeep]\ndrift_seconds = 3600\n"
"""What happens is not to be the next round's doing."""


@asynccontextmanager
async def serving(settings: Config) -> AsyncIterator[tuple[Server, KubeletClient]]:
    """A server that is ready for pods, to be retired by the test, with a connection of kubelet's."""
    made = await start(settings, enter(settings), Metrics())
    try:
        async with KubeletClient(f"unix://{settings.shim.socket}") as kubelet:
            await wait_ready(made.node)
            yield made, kubelet
    except BaseException:
        await made.retire()
        raise
    finally:
        await made.drain()


async def test_a_creation_under_way_is_the_successors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its CPUs are nobody else's, and it is known, and moved if need be, before it runs.

    What the old process learns of it is not written any more.
    """
    monkeypatch.setattr(server, "_SETTLE", 0.05)
    async with FakeRuntime(tmp_path) as fake:
        settings = config(tmp_path, fake.endpoint, more=MORE + "uncertain_seconds = 0.1\n")
        ledger = Path(settings.state.directory) / "ledger.db"
        async with serving(settings) as (old, kubelet):
            own, other = dedicated("own", 2), pod("shared", 500)
            sandboxes = [await kubelet.run_pod(each) for each in (own, other)]
            hang = fake.faults.hang("CreateContainer", times=2)
            creations = [
                asyncio.ensure_future(kubelet.create_container(sandbox_id, each, each.containers[0]))
                for sandbox_id, each in zip(sandboxes, (own, other), strict=True)
            ]
            await until(lambda: sum(call.method == "CreateContainer" for call in fake.calls) == 2)
            await old.retire()
            async with serving(settings) as (new, again):
                await asyncio.sleep(0.2)  # for longer than outcomes may usually be uncertain
                await new.node.upkeep.cycle()
                third = await again.start_pod(dedicated("third", 2))
                hang.release()
                ids = [await each for each in creations]
                await new.node.book.ledger.flush()
                lines = lines_of(ledger)
                assert {each.container_id for each in lines if not each.is_pod} == {"", third.containers["c0"]}
                for each in ids:
                    await again.start_container(each)
                held = [new.node.book.ledger.find(each) for each in (*ids, third.containers["c0"])]
                assert [str(each and each.cpus) for each in held] == ["0-1", "4-7", "2-3"]
                for each, record in zip(ids, held, strict=False):
                    assert record is not None
                    assert (fake.cgroup_of(each) / "cpuset.cpus").read_text().strip() == str(record.cpus)
                await new.retire()


async def test_who_is_not_sent_yet_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation that still waits for its turn is refused, so that kubelet asks the next process, and holds nothing."""
    monkeypatch.setattr(server, "_SETTLE", 0.05)
    async with FakeRuntime(tmp_path) as fake:
        settings = config(tmp_path, fake.endpoint, more=MORE)
        async with serving(settings) as (old, kubelet):
            await kubelet.start_pod(pod("shared", 500))
            wanted = dedicated("wanted", 2)
            sandbox_id = await kubelet.run_pod(wanted)
            hang = fake.faults.hang("UpdateContainerResources")
            creation = asyncio.ensure_future(kubelet.create_container(sandbox_id, wanted, wanted.containers[0]))
            await hang.entered.wait()
            retiring = asyncio.ensure_future(old.retire())
            assert "UNAVAILABLE: qrm: this process has retired" in await refused(creation)
            await retiring
            hang.release()
        created = [call.message.config.metadata.name for call in fake.calls if call.method == "CreateContainer"]
        assert created == ["c0"]
        assert {each.request.pod.name for each in lines_of(Path(settings.state.directory) / "ledger.db")} == {"shared"}


async def test_only_what_is_endless_is_cut_short(tmp_path: Path) -> None:
    """A long stop ends well in the old process, and the event stream is kept until then."""
    async with FakeRuntime(tmp_path) as fake:
        settings = config(tmp_path, fake.endpoint, more=MORE)
        async with serving(settings) as (old, kubelet):
            events = kubelet.events()
            first = asyncio.ensure_future(anext(events))
            started = await kubelet.start_pod(pod("web"))
            await first
            hang = fake.faults.hang("StopContainer")
            stop = asyncio.ensure_future(kubelet.stop_container(started.containers["c0"]))
            await hang.entered.wait()
            await old.retire()
            draining = asyncio.ensure_future(old.drain())
            async with KubeletClient(fake.endpoint) as direct:
                other = await direct.start_pod(pod("other"))
            await until(lambda: old.streams == 2)
            assert other.containers["c0"] in [(await anext(events)).container_id for _ in range(3)]
            assert not draining.done()
            hang.release()
            await stop
            await draining
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                async for _ in events:
                    pass


async def test_the_old_process_does_not_stay_for_ever(tmp_path: Path) -> None:
    """What takes longer than is configured fails, as if the runtime had gone."""
    async with FakeRuntime(tmp_path) as fake:
        settings = config(tmp_path, fake.endpoint, more=MORE)
        settings = replace(settings, shim=replace(settings.shim, drain_seconds=0.2))
        async with serving(settings) as (old, kubelet):
            started = await kubelet.start_pod(pod("web"))
            hang = fake.faults.hang("StopContainer")
            stop = asyncio.ensure_future(kubelet.stop_container(started.containers["c0"]))
            await hang.entered.wait()
            await old.retire()
            await old.drain()
            assert "UNAVAILABLE" in await refused(stop)


async def test_the_return_of_the_runtime_is_noticed_once(tmp_path: Path) -> None:
    """Calls fail at once while it is away; when it is back they pass, and what came about unseen is adopted, once."""
    async with FakeRuntime(tmp_path) as fake, KubeletClient(fake.endpoint) as direct:
        settings = config(tmp_path, fake.endpoint, more=MORE)
        async with serving(settings) as (under, kubelet):
            ledger = under.node.book.ledger
            for number in range(2):
                unseen = await direct.start_pod(pod(f"unseen-{number}"))
                await fake.stop()
                assert "UNAVAILABLE: the container runtime cannot be reached" in await refused(kubelet.version())
                fake.calls.clear()
                await fake.start()
                await kubelet.version()
                await until(lambda each=unseen: ledger.find(each.containers["c0"]) is not None)  # type: ignore[misc]
                await answering(direct)
                await kubelet.end_pod(await kubelet.start_pod(pod("later")))
                assert len(fake.calls_of("ListContainers")) == 1
            await under.retire()


async def test_a_pod_of_the_old_process_is_isolated_in_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox that comes about after its process has retired has its isolation before its first container."""
    monkeypatch.setattr(server, "_SETTLE", 0.05)
    rdt = Faulty()
    monkeypatch.setattr(node, "dimensions", lambda *_: [rdt])
    async with FakeRuntime(tmp_path) as fake:
        settings = config(tmp_path, fake.endpoint, more=MORE)
        async with serving(settings) as (old, kubelet):
            wanted = pod("web")
            hang = fake.faults.hang("RunPodSandbox")
            running = asyncio.ensure_future(kubelet.run_pod(wanted))
            await hang.entered.wait()
            await old.retire()
            async with serving(settings) as (new, again):
                await until(lambda: "repair " in rdt.seen)
                hang.release()
                sandbox_id = await running
                assert f"admit {sandbox_id}" not in rdt.seen
                await again.create_container(sandbox_id, wanted, wanted.containers[0])
                assert rdt.seen[-1] == f"admit {sandbox_id}"
                await new.retire()
