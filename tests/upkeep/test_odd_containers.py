"""Whatever a container from before qrm says, it is adopted, and neither its neighbours nor qrm suffer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from qrm.cpuset import CPUSet
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient, RunningPod
from qrm.ledger.annotation import KEY
from qrm.ledger.record import CPU, Mark
from qrm.wire import cri_pb2 as cri
from tests.odd import LARGEST, RESOURCES, TEXTS, Scene, containers, sandboxes
from tests.support import HOSTS_OWN, UnderTest, dedicated, pod, under_test

EXAMPLES = 25
SETS = st.sampled_from(["", "0", "0-3", "2-5", "4-7", "0-7", "63", "999999", "1-0", "x"])
WHOLE = st.sampled_from([0, 1, 1, 1000, 2000, LARGEST, -1, LARGEST + 1, 10**30, "1", None, 1.5])
KEPT = st.fixed_dictionaries(
    {"v": st.just(1), "cpus": SETS, "pool": st.sampled_from(["share", "dedicated", "reclaim", "share-NUMA0", ""])},
    optional={
        "exclusive": st.booleans(),
        "pod_cpu": WHOLE,
        "quantities": st.dictionaries(st.sampled_from(RESOURCES), WHOLE, max_size=2),
        "others": st.dictionaries(
            st.sampled_from(["memory", "nic", "x"]),
            st.fixed_dictionaries(
                {"pool": st.just("m")},
                optional={
                    "nodes": SETS,
                    "device": TEXTS,
                    "amounts": st.dictionaries(
                        st.sampled_from(["memory", "x"]),
                        st.dictionaries(st.sampled_from(["0", "7", "-1"]), WHOLE, max_size=2),
                        max_size=1,
                    ),
                },
            ),
            max_size=2,
        ),
        "asked": st.sampled_from(["", "////", "GAQ=", "é", "x"]),
    },
).map(json.dumps)
"""The annotation that qrm leaves at the runtime, damaged."""

UNREADABLE = '{"v":1,"pool":"share","cpus":"0-3","asked":"////"}'
"""As qrm writes it, but for what should be a message."""
HALF_ALONE = '{"v":1,"pool":"share","cpus":"","exclusive":true}'
"""A pool that is everybody's, for one alone."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("n")) as made:
        yield made


async def started(direct: KubeletClient, config: cri.PodSandboxConfig, made: cri.ContainerConfig) -> RunningPod | None:
    """A pod at the runtime itself; None where that does not take it."""
    ran = await direct.call("RunPodSandbox", cri.RunPodSandboxRequest(config=config), cri.RunPodSandboxResponse)
    request = cri.CreateContainerRequest(pod_sandbox_id=ran.pod_sandbox_id, config=made, sandbox_config=config)
    found = (await direct.call("CreateContainer", request, cri.CreateContainerResponse)).container_id
    running = RunningPod(pod("odd"), ran.pod_sandbox_id, {"c0": found})
    try:
        await direct.start_container(found)
    except grpc.aio.AioRpcError:
        await direct.end_pod(running)
        return None
    return running


async def adopt(under: UnderTest, direct: KubeletClient, odd: RunningPod | None) -> None:
    """An odd container and a plain one are found, and a dedicated one comes."""
    plain = await direct.start_pod(pod("plain"))
    assert not (await under.node.upkeep.cycle()).startswith("the runtime")
    await under.settled()
    assert under.record(plain.containers["c0"]).mark is Mark.ADOPTED
    assert odd is None or under.record(odd.containers["c0"])
    try:
        await under.kubelet.start_pod(dedicated("own", 1))
    except grpc.aio.AioRpcError as error:
        code = error.code()
    else:
        code = grpc.StatusCode.OK
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)
    await under.node.upkeep.cycle()
    await under.node.isolation.cycle()
    await under.settled()
    check(under)


def check(under: UnderTest) -> None:
    """What one pod has for itself no other runs on, and everybody runs where the ledger says."""
    ledger = [record for record in under.node.book.ledger if not record.is_pod]
    for record in ledger:
        assert record.cpus == effective(under, record.container_id)
        for other in ledger:
            if record.key.pod_uid != other.key.pod_uid:
                assert record.cpus.isdisjoint(other.allocations[CPU].exclusive)


def effective(under: UnderTest, container_id: str) -> CPUSet:
    """Where the kernel lets it run."""
    return CPUSet.parse((under.fake.cgroup_of(container_id) / "cpuset.cpus.effective").read_text())


async def come_and_go(under: UnderTest, config: cri.PodSandboxConfig, made: cri.ContainerConfig) -> None:
    """All of it, and nothing left afterwards."""
    async with KubeletClient(under.fake.endpoint) as direct:
        try:
            await adopt(under, direct, await started(direct, config, made))
        finally:
            for each in await direct.pods():
                await direct.stop_pod(each.id)
                await direct.remove_pod(each.id)
    for _ in "ended", "gone":
        await under.node.upkeep.cycle()
    await under.settled()
    assert len(under.node.book.ledger) == 0


@given(config=sandboxes(), made=containers(), kept=st.one_of(st.none(), KEPT, KEPT, TEXTS))
@hypothesis_settings(max_examples=EXAMPLES, deadline=None)
@example(config=cri.PodSandboxConfig(), made=cri.ContainerConfig(), kept=UNREADABLE)
@example(config=cri.PodSandboxConfig(), made=cri.ContainerConfig(), kept='{"a":' * 3000)
@example(config=cri.PodSandboxConfig(), made=cri.ContainerConfig(), kept=HALF_ALONE)
def test_whatever_runs_is_adopted(
    scene: Scene, config: cri.PodSandboxConfig, made: cri.ContainerConfig, kept: str | None
) -> None:
    """Odd annotations of the pod, odd numbers, and qrm's own annotation damaged: each round goes on to its end."""
    asked = cri.ContainerConfig()
    asked.CopyFrom(made)
    if kept is not None:
        asked.annotations[KEY] = kept
    scene.run(come_and_go(scene.under, config, asked))


@pytest.mark.parametrize("method", ["ContainerStatus", "PodSandboxStatus"])
async def test_one_of_which_the_runtime_cannot_tell_holds_up_nobody(tmp_path: Path, method: str) -> None:
    """qrm gets ready and knows the others; the one is adopted as soon as the runtime tells of it."""
    async with FakeRuntime(tmp_path) as fake, KubeletClient(fake.endpoint) as direct:
        broken, *others = [(await direct.start_pod(pod(name))).containers["c0"] for name in ("a", "b", "c")]
        fake.faults.fail(method, grpc.StatusCode.INTERNAL, "its shim is gone")
        async with under_test(tmp_path, fake=fake, more=f"{HOSTS_OWN}[upkeep]\ndrift_seconds = 3600\n") as under:
            assert all(under.record(each).mark is Mark.ADOPTED for each in others)
            assert under.node.book.ledger.find(broken) is None
            assert await under.node.upkeep.cycle() == "adopted 1"
            assert under.record(broken).mark is Mark.ADOPTED
