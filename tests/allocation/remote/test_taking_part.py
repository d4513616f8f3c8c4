"""Plugins behind the shim: the same placements as in process, and trouble that stays their own pods'."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from qrm.allocation.registry import load_allocators
from qrm.allocation.remote.client import Options, Plugin, Timeouts
from qrm.allocation.remote.crew import Crew
from qrm.allocation.remote.server import serve_plugin
from qrm.allocator import ContainerKey
from qrm.cpuset import CPUSet
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import Pod
from qrm.ledger.record import Mark
from qrm.service.doctor import examine
from qrm.service.node import Node
from qrm.service.serve import running
from qrm.topology.sysfs import read_machine
from tests.support import PATIENCE, UnderTest, config, dedicated, pod, under_test, until, wait_ready

THREE = ("cpu", "memory", "nic")
LOCAL = "[allocators.cpu]\n[allocators.memory]\n[allocators.nic]\n"


def remote(folder: Path, *required: str) -> str:
    wanted = ", ".join(f'"{each}"' for each in required)
    return f'[plugins]\ndirectory = "{folder}/plugins"\nrequired = [{wanted}]\n[upkeep]\ndrift_seconds = 0.2\n'


@asynccontextmanager
async def served(folder: Path, *names: str) -> AsyncIterator[None]:
    """These allocators as plugins, each on a socket of its own."""
    machine = read_machine(folder / "sys")
    (folder / "plugins").mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        for allocator in load_allocators({name: {} for name in names}):
            await stack.enter_async_context(serve_plugin(allocator, machine, folder / "plugins"))
        yield


@asynccontextmanager
async def with_plugins(folder: Path, *names: str, local: str = "") -> AsyncIterator[UnderTest]:
    """A node whose allocators `names` are plugins, with `local` settings besides."""
    async with FakeRuntime(folder, pod_updates=True) as fake:
        resources = [each.resource for each in load_allocators({name: {} for name in names})]
        settings = config(folder, fake.endpoint, more=remote(folder, *resources) + (local or "[allocators]\n"))
        async with (
            served(folder, *names),
            running(settings) as node,
            KubeletClient(f"unix://{settings.shim.socket}") as kubelet,
        ):
            await wait_ready(node)
            await until(lambda: registered(node) >= set(resources))
            yield UnderTest(node, kubelet, fake, settings)


def registered(node: Node) -> set[str]:
    assert node.registry is not None
    return {name for name, each in node.registry.plugins.items() if each.state == "registered"}


def generated(count: int) -> list[Pod]:
    """Pods of every kind; what does not fit is refused alike by both."""
    dice = random.Random(7)  # noqa: S311 - no secret
    levels = ["", "shared_cores", "reclaimed_cores", "system_cores"]
    bound = {"katalyst.kubewharf.io/memory_enhancement": '{"numa_binding":"true"}'}
    made = []
    for number in range(count):
        if dice.random() < 0.4:
            made.append(dedicated(f"d{number}", dice.randint(1, 2), annotations=dice.choice([{}, bound])))
        else:
            made.append(pod(f"s{number}", dice.choice([0, 100, 500, 1500]), level=dice.choice(levels)))
    return made


async def placements(under: UnderTest, pods: list[Pod]) -> list[str]:
    """What each pod got, with every third one going again later."""
    outcome, started = [], []
    for number, each in enumerate(pods):
        try:
            started.append(await under.kubelet.start_pod(each))
        except grpc.aio.AioRpcError as error:
            outcome.append(f"{each.name}: {error.code().name}")
        if number % 3 == 2 and started:
            await under.kubelet.end_pod(started.pop(0))
            await under.node.placements.reconcile()
        await under.settled()
        held = {record.key: record for record in under.node.book.ledger if not record.is_pod}
        outcome.append(
            "; ".join(
                f"{record.request.pod.name} {record.cpus} {record.mems}"
                for record in sorted(held.values(), key=lambda record: record.request.pod.name)
            )
        )
    return outcome


@pytest.mark.parametrize("scope", ["container", "pod"])
async def test_three_plugins_place_as_three_allocators_in_process(tmp_path: Path, scope: str) -> None:
    """The same pods come and go before both; after each step every container is on the same CPUs and memory nodes."""
    pods = generated(30)
    topology = f'[topology]\nscope = "{scope}"\n'
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with under_test(tmp_path / "a", more=LOCAL + topology) as under:
        local = await placements(under, pods)
    async with with_plugins(tmp_path / "b", *THREE, local="[allocators]\n" + topology) as under:
        distant = await placements(under, pods)
        under.check()
    assert distant == local
    assert any("RESOURCE_EXHAUSTED" in each for each in local)


async def test_a_plugins_changes_reach_running_containers_before_the_new_one_exists(tmp_path: Path) -> None:
    """A remote CPU allocator shrinks the shared pool: the runtime hears of that before the new container."""
    async with with_plugins(tmp_path, "cpu") as under:
        shared = await under.kubelet.start_pod(pod("web"))
        new = await under.kubelet.start_pod(dedicated("db", 3))
        methods = [call.method for call in under.fake.calls]
        assert methods.index("UpdateContainerResources") < len(methods) - methods[::-1].index("CreateContainer") - 1
        theirs = CPUSet.parse(under.kernel_cpus(shared.containers["c0"]))
        assert theirs == CPUSet(range(8)) - CPUSet.parse(under.kernel_cpus(new.containers["c0"]))
        await under.kubelet.end_pod(new)
        await until(lambda: under.kernel_cpus(shared.containers["c0"]) == "0-7")


async def test_people_are_told_what_plugins_say(tmp_path: Path) -> None:
    """doctor has each plugin with what it can give, explain what it says that a container holds."""
    async with with_plugins(tmp_path, "cpu") as under:
        started = await under.kubelet.start_pod(dedicated("db", 2))
        features = {each.name: each for each in (await examine(under.node)).features}
        assert features["plugin cpu"].state == "on"
        assert features["plugin cpu"].why.endswith("allocatable: 8000")
        held = await under.node.crew.held(under.record(started.containers["c0"]).key)
        assert held == {"cpu": "2000"}


async def test_a_plugin_that_is_away_costs_its_pods_what_the_table_says(tmp_path: Path) -> None:
    """Dedicated pods are refused with the reason, others run unmanaged, and are placed when it comes."""
    async with FakeRuntime(tmp_path) as fake:
        settings = config(tmp_path, fake.endpoint, more=remote(tmp_path, "cpu") + "[allocators]\n")
        async with running(settings) as node, KubeletClient(f"unix://{settings.shim.socket}") as kubelet:
            await wait_ready(node)
            under = UnderTest(node, kubelet, fake, settings)
            with pytest.raises(grpc.aio.AioRpcError, match="no plugin for cpu is registered"):
                await kubelet.start_pod(dedicated("db", 2))
            started = await kubelet.start_pod(pod("web"))
            assert under.record(started.containers["c0"]).mark is Mark.UNMANAGED
            async with served(tmp_path, "cpu"):
                await until(lambda: under.record(started.containers["c0"]).mark is Mark.NONE)
                await kubelet.start_pod(dedicated("db2", 2))
                await under.settled()
                under.check()


async def test_a_restarted_plugin_is_found_again(tmp_path: Path) -> None:
    """Its socket goes and comes: containers keep what they have, and new ones are placed."""
    async with with_plugins(tmp_path, "nic", local="[allocators.cpu]\n") as under:
        assert under.node.registry is not None
        before = next(iter(under.node.registry.plugins.values())).since
        async with served(tmp_path, "nic"):
            await until(lambda: next(iter(under.node.registry.plugins.values())).since != before)  # type: ignore[union-attr]
            await under.kubelet.start_pod(dedicated("db", 2))


async def test_a_plugin_that_hangs_costs_nobody_else_time(tmp_path: Path) -> None:
    """Pods that ask for its resource wait for it and no longer than its timeout; others do not notice."""
    path = tmp_path / "hang.sock"
    release = asyncio.Event()
    hanging: list[asyncio.StreamWriter] = []

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.append(writer)
        await release.wait()
        writer.close()
        await writer.wait_closed()
        hanging.remove(writer)

    server = await asyncio.start_unix_server(hang, str(path))
    async with under_test(tmp_path) as under:
        waiting = await _wants_slow(under, "patient", path, PATIENCE)
        await until(lambda: bool(hanging))
        for number in range(5):
            await under.kubelet.start_pod(pod(f"quick{number}"))
        assert not waiting.done()
        waiting.cancel()
        await under.node.crew.close()
        container = await (await _wants_slow(under, "hasty", path, 1.0))
        assert under.record(container).mark is Mark.UNMANAGED
    release.set()
    server.close()
    await until(lambda: not hanging)


async def _wants_slow(under: UnderTest, name: str, path: Path, timeout: float) -> asyncio.Task[str]:
    """The creation, under way, of a container that wants something of the plugin at `path`."""
    under.node.crew._plugins["example.com/slow"] = Plugin(
        "example.com/slow",
        f"unix://{path}",
        Options(pre_start=False, alignment=True, reconcile=False),
        lambda: under.node.planner.machine,
        timeouts=Timeouts(call=timeout, pre_start=timeout),
    )
    slow = pod(name, annotations={"qrm.io/resources": '{"c0": {"example.com/slow": "1"}}'})
    sandbox = await under.kubelet.run_pod(slow)
    return asyncio.create_task(under.kubelet.create_container(sandbox, slow, slow.containers[0]))


async def test_exclusive_cpus_given_twice_are_an_error_of_the_plugin(tmp_path: Path) -> None:
    """A plugin that gives one pod's CPUs to another is told apart from a refusal, and nobody runs on them."""
    async with with_plugins(tmp_path, "cpu") as under:
        first = await under.kubelet.start_pod(dedicated("db", 2))
        record = under.record(first.containers["c0"])
        with pytest.MonkeyPatch.context() as patch:

            async def twice(*_: object) -> object:
                return {"cpu": record.allocations["cpu"]}

            patch.setattr(Crew, "allocate", twice)
            with pytest.raises(grpc.aio.AioRpcError, match=r"gave out CPUs .*, which default/db has for itself"):
                await under.kubelet.start_pod(dedicated("rival", 2))
        assert under.node.book.ledger.get(ContainerKey(first.pod.uid, "c0")) == record
        await under.kubelet.start_pod(dedicated("third", 2))
        await under.settled()
        under.check()


async def test_pods_that_are_gone_are_removed_from_plugins_after_a_restart_too(tmp_path: Path) -> None:
    """A pod that ended while qrm was away is forgotten by the plugin once qrm is back."""
    async with FakeRuntime(tmp_path) as fake:
        settings = config(tmp_path, fake.endpoint, more=remote(tmp_path, "cpu") + "[allocators]\n")
        async with served(tmp_path, "cpu"):
            async with running(settings) as node, KubeletClient(f"unix://{settings.shim.socket}") as kubelet:
                await wait_ready(node)
                await until(lambda: bool(registered(node)))
                started = await kubelet.start_pod(dedicated("db", 6))
            async with KubeletClient(fake.endpoint) as direct:
                await direct.end_pod(started)
            async with running(settings) as node, KubeletClient(f"unix://{settings.shim.socket}") as kubelet:
                await wait_ready(node)
                await until(lambda: bool(registered(node)))
                async with asyncio.timeout(PATIENCE):
                    while True:
                        try:
                            await kubelet.start_pod(dedicated("next", 6))
                            break
                        except grpc.aio.AioRpcError:
                            await asyncio.sleep(0.2)
