"""Our allocators over a real socket answer as they do in process."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qrm_cpu import create

from qrm.allocation.remote.calls import RESOURCE_PLUGIN
from qrm.allocation.remote.client import Amount, Options, Part, Plugin
from qrm.allocation.remote.errors import PluginError
from qrm.allocation.remote.server import serve_plugin
from qrm.allocation.remote.shelf import Shelf
from qrm.allocator import (
    BadRequest,
    ContainerKey,
    ContainerKind,
    DoesNotFit,
    QosLevel,
    ResourceRequest,
    TopologyHint,
)
from qrm.allocator.testing import Harness, machine, request
from qrm.cpuset import NodeSet
from qrm.errors import QrmError
from qrm.topology.machine import Machine
from qrm.wire import resource_plugin_pb2 as wire
from tests.plugins.qrm_cpu import strategies

NODE = machine(sockets=2, cores_per_l3=4, threads=2)
ALIGNED = Options(alignment=True)
DEDICATED = QosLevel.DEDICATED


@asynccontextmanager
async def served(folder: Path, node: Machine = NODE, **more: object) -> AsyncIterator[tuple[Plugin, Shelf]]:
    async with serve_plugin(create(more), node, folder) as (path, shelf):
        plugin = Plugin("cpu", str(path), ALIGNED, lambda: node)
        try:
            yield plugin, shelf
        finally:
            await plugin.close()


async def offered(plugin: Plugin, asked: ResourceRequest) -> list[TopologyHint] | str:
    """The hints, or the refusal."""
    try:
        return list(await plugin.hints(asked) or [])
    except (DoesNotFit, BadRequest) as error:
        return f"{type(error).__name__}: cpu plugin: {error}".replace("cpu plugin: ", "", 1)


def expected(harness: Harness, asked: ResourceRequest) -> list[TopologyHint] | str:
    """What the allocator says in this process."""
    try:
        return list(harness.allocator.hints(asked, harness.state))
    except (DoesNotFit, BadRequest) as error:
        return f"{type(error).__name__}: cpu plugin: {error}"


@settings(max_examples=25, deadline=None)
@given(st.data())
async def test_random_requests_are_answered_as_in_process(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    node, chosen = data.draw(strategies.machines()), data.draw(strategies.settings())
    harness = Harness(create(chosen), node)
    async with served(tmp_path_factory.mktemp("p"), node, **chosen) as (plugin, shelf):
        for number in range(data.draw(st.integers(1, 6))):
            if data.draw(st.integers(0, 3)) == 0 and harness.holdings:
                pod = data.draw(st.sampled_from(sorted({key.pod_uid for key in harness.holdings})))
                await plugin.remove_pod(pod)
                harness.remove(pod)
            asked = data.draw(strategies.requests(f"p{number}", "main", node))
            asked = replace(asked, kind=ContainerKind.MAIN)
            hints = expected(harness, asked)
            assert await offered(plugin, asked) == hints
            if isinstance(hints, str):
                continue
            choice = data.draw(st.integers(0, len(hints) - 1))
            wanted = harness.create(asked, choice=choice)
            found = await plugin.allocate(asked, hints[choice])
            assert found["cpu"].allocation == wanted
            assert found["cpu"].hints == (hints[choice],)
            held = await plugin.resources_allocation()
            assert {key: each["cpu"].allocation for key, each in held.items()} == {
                key: each.allocation for key, each in harness.holdings.items() if key.container
            }
            assert shelf.holdings == harness.holdings


async def test_the_socket_is_for_its_owner_and_goes_with_the_server(tmp_path: Path) -> None:
    async with serve_plugin(create({}), NODE, tmp_path) as (path, _):
        assert path == tmp_path / "qrm-cpu.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(tmp_path.iterdir()) == [path]
    assert list(tmp_path.iterdir()) == []


async def test_a_successor_keeps_its_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, _):
        successor = served(tmp_path)
        plugin, _ = await successor.__aenter__()
    assert await plugin.ask_options() == Options(alignment=True, reconcile=True)
    await successor.__aexit__(None, None, None)


async def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    with pytest.raises(QrmError, match="too long for a unix socket"):
        async with serve_plugin(create({}), NODE, folder):
            pass


async def test_refusals_carry_the_words(tmp_path: Path) -> None:
    async with served(tmp_path) as (plugin, _):
        with pytest.raises(DoesNotFit, match=r"cpu plugin: .*99"):
            await plugin.hints(request("p", 99000, DEDICATED))
        with pytest.raises(BadRequest, match="numa_ids"):
            await plugin.hints(request("p", 1000, DEDICATED, numa_binding=True, numa_ids="7"))
        with pytest.raises(BadRequest, match="qos_level"):
            await plugin._judged(
                "Allocate",
                wire.ResourceRequest(
                    pod_uid="p", container_name="c", annotations={"katalyst.kubewharf.io/qos_level": "x"}
                ),
                wire.ResourceAllocationResponse,
            )


async def test_a_wrong_resource_and_a_wrong_hint(tmp_path: Path) -> None:
    async with served(tmp_path) as (plugin, shelf):
        other = Plugin("memory", plugin.endpoint, ALIGNED, lambda: NODE)
        with pytest.raises(BadRequest, match="this is the plugin for cpu, not for memory"):
            await other.hints(request("p", 1000))
        await other.close()
        with pytest.raises(BadRequest, match=r"the hint: NUMA nodes \[9\]"):
            await plugin.allocate(request("p", 1000), TopologyHint(NodeSet((9,)), preferred=True))
        assert shelf.holdings == {}


async def test_without_a_hint_the_best_place_is_taken(tmp_path: Path) -> None:
    async with served(tmp_path) as (plugin, _):
        asked = request("p", 2000, DEDICATED, numa_binding=True)
        best = (await plugin.hints(asked) or [])[0]
        found = await plugin.allocate(asked, None)
        assert found["cpu"].allocation.nodes == best.nodes


async def test_init_containers_share_with_those_after_them(tmp_path: Path) -> None:
    async with served(tmp_path, machine(cores_per_l3=4)) as (plugin, shelf):
        asked = request("p", 3000, DEDICATED, pod_millis=3000)
        first = await plugin.allocate(replace(asked, container="i", kind=ContainerKind.INIT), None)
        second = await plugin.allocate(replace(asked, container="m", kind=ContainerKind.MAIN), None)
        assert first["cpu"].allocation.exclusive == second["cpu"].allocation.exclusive
        assert not shelf.holdings[ContainerKey("p", "i")].running
        await plugin.remove_pod("p")
        assert shelf.holdings == {}


async def test_others_change_with_an_allocation(tmp_path: Path) -> None:
    async with served(tmp_path) as (plugin, _):
        before = (await plugin.allocate(request("s", 1000), None))["cpu"].allocation.cpus
        taken = (await plugin.allocate(request("d", 4000, DEDICATED), None))["cpu"].allocation.exclusive
        held = await plugin.resources_allocation()
        assert not taken.isdisjoint(before)
        assert held[ContainerKey("s", "main")]["cpu"].allocation.cpus.isdisjoint(taken)


async def test_what_there_is_and_what_one_has(tmp_path: Path) -> None:
    async with served(tmp_path, reserved=2) as (plugin, _):
        stock = (await plugin.topology_aware_allocatable())["cpu"]
        assert stock.capacity == Amount(16000, (Part("numa", 0, 8000), Part("numa", 1, 8000)))
        assert stock.allocatable.total == 14000
        await plugin.allocate(request("d", 2000, DEDICATED, numa_binding=True, numa_ids="1"), None)
        assert await plugin.topology_aware_resources("d", "main") == {"cpu": Amount(2000, (Part("numa", 1, 2000),))}
        with pytest.raises(PluginError, match="has no container 'x' here"):
            await plugin.topology_aware_resources("d", "x")


async def test_calls_for_whole_pods_are_not_there(tmp_path: Path) -> None:
    async with served(tmp_path) as (plugin, _), grpc.aio.insecure_channel(f"unix:{plugin.endpoint}") as channel:
        for method in ("GetPodTopologyHints", "AllocateForPod"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(RESOURCE_PLUGIN + method, wire.Empty.SerializeToString)(wire.Empty())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_allocator_that_fails_is_not_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as (plugin, shelf):

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(shelf, "hints", broken)
        with pytest.raises(PluginError, match="ZeroDivisionError"):
            await plugin.hints(request("p", 1000))
