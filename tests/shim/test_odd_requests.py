"""Whatever a request says, it is refused or placed: nothing in it makes qrm fail and let a container pass unplaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from qrm.ledger.record import Mark
from qrm.wire import cri_pb2 as cri
from tests.odd import ANNOTATIONS, NASTY, Scene, containers, resources, sandboxes
from tests.support import UnderTest

EXAMPLES = 40
"""Thousands have been tried, with other policies and levels too, and found no more."""
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
Asked = tuple[cri.ContainerConfig, list[cri.LinuxContainerResources]]
"""A container, and how it is to be updated."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("n")) as made:
        yield made


async def call(under: UnderTest, method: str, request: Message, reply: type[Message]) -> Any:
    """The reply; None where qrm or the runtime refused it."""
    before = len(under.fake.calls_of(method))
    try:
        return await under.kubelet.call(method, request, reply)
    except grpc.aio.AioRpcError as error:
        refusal = error
    if len(under.fake.calls_of(method)) == before:
        assert refusal.code() in REFUSED, refusal
        assert (refusal.details() or "").startswith("qrm: ")
    return None


def check_placed(under: UnderTest, container_id: str) -> None:
    """The ledger has the container, and the runtime has what the ledger says."""
    record = under.record(container_id)
    assert record.mark is Mark.NONE
    has = under.fake.store.containers[container_id].resources
    assert (has.cpuset_cpus, has.cpuset_mems) == (str(record.cpus), str(record.mems))


async def live_and_die(under: UnderTest, container_id: str, updates: list[cri.LinuxContainerResources]) -> None:
    check_placed(under, container_id)
    start = cri.StartContainerRequest(container_id=container_id)
    assert await call(under, "StartContainer", start, cri.StartContainerResponse)
    for linux in updates:
        update = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        await call(under, "UpdateContainerResources", update, cri.UpdateContainerResourcesResponse)
        await under.settled()
        check_placed(under, container_id)
    status = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
    assert await call(under, "ContainerStatus", status, cri.ContainerStatusResponse)
    await under.kubelet.containers()
    await under.kubelet.pods()
    await under.node.upkeep.cycle()
    await under.node.isolation.cycle()
    check_placed(under, container_id)
    stop = cri.StopContainerRequest(container_id=container_id)
    assert await call(under, "StopContainer", stop, cri.StopContainerResponse)


async def live(under: UnderTest, pod: cri.PodSandboxConfig, told: cri.PodSandboxConfig, asked: list[Asked]) -> None:
    """A pod from its beginning to its end. `told` is what its containers' creations say about it."""
    run = cri.RunPodSandboxRequest(config=pod)
    ran = await call(under, "RunPodSandbox", run, cri.RunPodSandboxResponse)
    if ran is None:
        ran = await call(under, "RunPodSandbox", cri.RunPodSandboxRequest(), cri.RunPodSandboxResponse)
    for config, updates in asked:
        request = cri.CreateContainerRequest(pod_sandbox_id=ran.pod_sandbox_id, config=config, sandbox_config=told)
        if made := await call(under, "CreateContainer", request, cri.CreateContainerResponse):
            await live_and_die(under, made.container_id, updates)
    await under.kubelet.stop_pod(ran.pod_sandbox_id)
    await under.kubelet.remove_pod(ran.pod_sandbox_id)
    await under.settled()
    assert len(under.node.book.ledger) == 0


@pytest.mark.parametrize("name", sorted(ANNOTATIONS))
def test_each_annotation_with_each_nasty_text(scene: Scene, name: str) -> None:
    """In the pod's own configuration, and only in what a creation says about it."""
    container = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="c0"))
    for text in NASTY:
        pod = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="p", uid="u"), annotations={name: text})
        scene.run(live(scene.under, pod, pod, [(container, [])]))


@given(
    pod=sandboxes(),
    told=st.one_of(st.none(), sandboxes()),
    asked=st.lists(st.tuples(containers(), st.lists(resources(), max_size=2)), min_size=1, max_size=3),
)
@hypothesis_settings(max_examples=EXAMPLES, deadline=None)
def test_whatever_is_asked_is_refused_or_placed(
    scene: Scene, pod: cri.PodSandboxConfig, told: cri.PodSandboxConfig | None, asked: list[Asked]
) -> None:
    """Nothing passes as kubelet made it, no loop fails, and ledger and runtime agree after each call."""
    scene.run(live(scene.under, pod, told or pod, asked))
