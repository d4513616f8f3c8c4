"""CreateContainer: placed before it exists, and nothing lost however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from qrm.allocation.remote.errors import PluginUnavailable
from qrm.allocation.telling import ShrinkFailed
from qrm.allocator import Allocation, PodIdentity, ResourceRequest
from qrm.cpuset import CPUSet
from qrm.demo.pods import ContainerSpec, Pod, container_config, sandbox_config
from qrm.enforcement.runtime import SERVICE
from qrm.errors import LedgerError
from qrm.ledger.annotation import KEY, read_annotation
from qrm.ledger.record import Mark, Record
from qrm.pods.model import QosLevel
from qrm.shim.create import place
from qrm.shim.failpolicy import TABLE, Action, Cause, as_markdown
from qrm.wire import cri_pb2 as cri
from tests.support import MIB, UnderTest, dedicated, pod, refused, under_test, until

QUIET = "[upkeep]\ndrift_seconds = 3600\n"
UNKNOWN = grpc.StatusCode.UNKNOWN


async def test_the_runtime_gets_our_cpuset_and_everything_else_of_kubelets(under: UnderTest) -> None:
    """Only cpuset, quota and our annotation differ from what kubelet sent, unknown fields included."""
    asking = dedicated("db", 2)
    sandbox = await under.kubelet.run_pod(asking)
    message = cri.CreateContainerRequest(
        pod_sandbox_id=sandbox,
        config=container_config(asking, asking.containers[0]),
        sandbox_config=sandbox_config(asking),
    )
    message.config.linux.resources.MergeFromString(b"\x42\x07\x0a\x032MB\x10\x05")  # hugepage_limits, field 8
    message.config.MergeFromString(b"\x90\x01\x0f")  # stop_signal, field 18
    reply = await under.kubelet.call("CreateContainer", message, cri.CreateContainerResponse)

    (call,) = under.fake.calls_of("CreateContainer")
    sent = cri.CreateContainerRequest()
    sent.CopyFrom(call.message)
    assert sent.config.linux.resources.cpuset_cpus == under.ledger_cpus(reply.container_id)
    assert sent.config.linux.resources.cpu_quota == -1
    assert read_annotation(sent.config.annotations.pop(KEY)) is not None
    sent.config.linux.resources.cpuset_cpus = ""
    sent.config.linux.resources.cpu_quota = message.config.linux.resources.cpu_quota
    assert sent == message


def test_what_allocators_tell_goes_before_the_pods_own_words() -> None:
    """Of two variables with the same name the runtime takes the last, so the pod's spec wins; so do its annotations."""
    config = cri.ContainerConfig(envs=[cri.KeyValue(key="A", value=b"pod"), cri.KeyValue(key="B", value=b"\xff")])
    config.annotations["x"] = "pod"
    told = Allocation(
        "eth0", envs={"A": "qrm", "C": "qrm"}, annotations={"x": "qrm", "y": "qrm"}, oci={"memory_limit_in_bytes": 5}
    )
    request = ResourceRequest(PodIdentity("u", "n", "p"), "c")
    place(config, Record(request.key, request, "s", allocations={"nic": told}))
    assert [(each.key, each.value) for each in config.envs] == [
        ("A", b"qrm"),
        ("C", b"qrm"),
        ("A", b"pod"),
        ("B", b"\xff"),
    ]
    assert dict(config.annotations) == {"x": "pod", "y": "qrm"}
    assert config.linux.resources.memory_limit_in_bytes == 5


async def test_others_shrink_before_the_new_container_exists(under: UnderTest) -> None:
    """A running shared container has left the CPUs when the runtime hears of the dedicated one."""
    shared = await under.kubelet.start_pod(pod("web"))
    before = under.kernel_cpus(shared.containers["c0"])
    new = await under.kubelet.start_pod(dedicated("db", 3))
    methods = [call.method for call in under.fake.calls]
    assert methods.index("UpdateContainerResources") < len(methods) - methods[::-1].index("CreateContainer") - 1
    assert before == "0-7"
    await under.settled()
    under.check()
    mine = CPUSet.parse(under.kernel_cpus(new.containers["c0"]))
    theirs = CPUSet.parse(under.kernel_cpus(shared.containers["c0"]))
    assert len(mine) == 3
    assert theirs == CPUSet(range(8)) - mine


async def test_what_was_taken_is_given_back_when_the_pod_goes(under: UnderTest) -> None:
    """Shared containers grow again after a dedicated pod was stopped."""
    shared = await under.kubelet.start_pod(pod("web"))
    new = await under.kubelet.start_pod(dedicated("db", 3))
    assert under.kernel_cpus(shared.containers["c0"]) != "0-7"
    await under.kubelet.end_pod(new)
    await under.settled()
    assert under.kernel_cpus(shared.containers["c0"]) == "0-7"


async def test_a_request_that_does_not_fit_is_refused_with_the_numbers(under: UnderTest) -> None:
    """kubelet's users read what was asked, what is free by NUMA node, and what would fit; nothing has changed."""
    text = await refused(under.kubelet.start_pod(dedicated("big", 8)))
    assert text.startswith("RESOURCE_EXHAUSTED: qrm: cpu: asked 8")
    assert "0: " in text
    assert "1: " in text
    assert under.fake.calls_of("CreateContainer") == []
    assert len(under.node.book.ledger) == 0


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("katalyst.kubewharf.io/qos_level", "best_cores"),
        ("katalyst.kubewharf.io/cpu_enhancement", "{not json"),
        ("katalyst.kubewharf.io/memory_enhancement", '{"numa_bindung":"true"}'),
    ],
)
async def test_an_annotation_that_makes_no_sense_is_refused_at_the_sandbox(
    under: UnderTest, annotation: str, value: str
) -> None:
    """The pod never gets as far as a network, and the message names the annotation."""
    text = await refused(under.kubelet.start_pod(pod("odd", annotations={annotation: value})))
    assert text.startswith("INVALID_ARGUMENT: qrm: " + annotation)
    assert under.fake.calls_of("RunPodSandbox") == []


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "UpdateContainerResources"])
async def test_text_that_is_not_utf_8_is_refused(under: UnderTest, method: str) -> None:
    """containerd takes it, so that the container would run as kubelet made it; the message says where it is."""
    made = dedicated("latin", 1, annotations={"note": "MARK"})
    sandbox = sandbox_config(made)
    config = container_config(made, made.containers[0])
    linux = cri.LinuxContainerResources(unified={"note": "MARK"})
    request: Message = {
        "RunPodSandbox": cri.RunPodSandboxRequest(config=sandbox),
        "CreateContainer": cri.CreateContainerRequest(pod_sandbox_id="s", config=config, sandbox_config=sandbox),
        "UpdateContainerResources": cri.UpdateContainerResourcesRequest(container_id="c", linux=linux),
    }[method]
    async with grpc.aio.insecure_channel(f"unix://{under.config.shim.socket}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SERVICE + method)
        text = await refused(call(request.SerializeToString().replace(b"MARK", b"caf\xe9")))
    assert text.startswith("INVALID_ARGUMENT: qrm: ")
    assert "[note] has b'caf\\xe9', which is not UTF-8" in text
    assert under.fake.calls_of(method) == []


async def test_a_creation_that_the_runtime_refuses_is_undone(under: UnderTest) -> None:
    """The runtime's error passes unchanged, and the others have their CPUs again."""
    shared = await under.kubelet.start_pod(pod("web"))
    under.fake.faults.fail("CreateContainer", UNKNOWN, "failed to unpack image")
    assert await refused(under.kubelet.start_pod(dedicated("db", 3))) == "UNKNOWN: failed to unpack image"
    await under.settled()
    assert under.kernel_cpus(shared.containers["c0"]) == "0-7"
    assert {record.key.container for record in under.node.book.ledger} == {"c0"}


async def test_a_creation_without_an_answer_keeps_its_cpus_until_a_list_tells(under: UnderTest) -> None:
    """The reply was lost but the container exists: nobody else gets its CPUs, and it is known after the next list."""
    asking = dedicated("db", 4)
    sandbox = await under.kubelet.run_pod(asking)
    under.fake.faults.drop("CreateContainer", after=True)
    text = await refused(under.kubelet.create_container(sandbox, asking, asking.containers[0]))
    assert text.startswith("UNAVAILABLE")
    (line,) = [record for record in under.node.book.ledger if not record.is_pod]
    assert line.pending
    assert "asked 4" in await refused(under.kubelet.start_pod(dedicated("rival", 4)))

    (container,) = await under.kubelet.containers()
    assert under.record(container.id).attempt == 0
    await under.kubelet.start_container(container.id)
    await under.settled()
    under.check()


async def test_a_retry_that_finds_its_name_taken_frees_nothing(under: UnderTest) -> None:
    """After a lost reply, "name is reserved" means that the first try has worked."""
    asking = dedicated("db", 4)
    sandbox = await under.kubelet.run_pod(asking)
    under.fake.faults.drop("CreateContainer", after=True)
    await refused(under.kubelet.create_container(sandbox, asking, asking.containers[0]))
    text = await refused(under.kubelet.create_container(sandbox, asking, asking.containers[0]))
    assert "reserve" in text
    (container,) = await under.kubelet.containers()
    assert len(under.record(container.id).cpus or ()) == 4


async def test_a_creation_that_never_happened_is_forgotten_after_its_time(tmp_path: Path) -> None:
    """What the runtime does not list for long enough is free again."""
    async with under_test(tmp_path, more="[upkeep]\nuncertain_seconds = 0.3\ndrift_seconds = 0.1\n") as under:
        asking = dedicated("db", 4)
        sandbox = await under.kubelet.run_pod(asking)
        under.fake.faults.drop("CreateContainer")
        await refused(under.kubelet.create_container(sandbox, asking, asking.containers[0]))
        assert len(under.node.book.ledger) == 2
        await until(lambda: len(under.node.book.ledger) == 0)


async def test_kubelet_giving_up_leaves_the_container_reserved(under: UnderTest) -> None:
    """A cancelled call says nothing about what the runtime has done."""
    asking = dedicated("db", 4)
    sandbox = await under.kubelet.run_pod(asking)
    hang = under.fake.faults.hang("CreateContainer", after=True)
    creating = asyncio.create_task(under.kubelet.create_container(sandbox, asking, asking.containers[0]))
    await hang.entered.wait()
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    await until(lambda: not under.node.placements.in_flight)
    hang.release()
    (container,) = await under.kubelet.containers()
    assert len(under.record(container.id).cpus or ()) == 4


async def test_a_container_that_restarts_keeps_its_cpus(under: UnderTest) -> None:
    """It ends by itself, kubelet sees it in a list and makes the next attempt: same set, old instance forgotten."""
    asking = dedicated("db", 3)
    running = await under.kubelet.start_pod(asking)
    old = running.containers["c0"]
    cpus = under.ledger_cpus(old)
    under.fake.exit_container(old, 1)
    await under.kubelet.containers()
    assert not under.record(old).running
    rival = await under.kubelet.start_pod(dedicated("rival", 3))
    new = await under.kubelet.create_container(running.sandbox_id, asking, asking.containers[0], attempt=1)
    await under.kubelet.start_container(new)
    await under.kubelet.remove_container(old)
    assert under.ledger_cpus(new) == cpus
    assert under.record(new).running
    assert under.ledger_cpus(rival.containers["c0"]) != cpus
    under.check()


async def test_containers_of_a_pod_do_not_steal_from_each_other(under: UnderTest) -> None:
    """Two containers of a dedicated pod have disjoint sets within the pod's, and a sidecar stays on the pod's."""
    specs = (
        ContainerSpec("a", cpu_request=2000, cpu_limit=2000, memory_limit=MIB),
        ContainerSpec("b", cpu_request=2000, cpu_limit=2000, memory_limit=MIB),
        ContainerSpec("side", cpu_request=100),
    )
    level = {"katalyst.kubewharf.io/qos_level": "dedicated_cores"}
    running = await under.kubelet.start_pod(Pod("db", specs, annotations=level))
    a, b, side = (under.record(running.containers[name]).cpus for name in ("a", "b", "side"))
    whole = next(record.cpus for record in under.node.book.ledger if record.is_pod)
    assert a is not None
    assert b is not None
    assert side is not None
    assert whole is not None
    assert (len(a), len(b), len(whole)) == (2, 2, 5)
    assert a.isdisjoint(b)
    assert side <= whole
    under.check()


async def test_an_init_container_leaves_its_cpus_to_the_next(under: UnderTest) -> None:
    """Init containers run one after the other on the pod's CPUs, which do not add up."""
    level = {"katalyst.kubewharf.io/qos_level": "dedicated_cores"}
    init = ContainerSpec("init", cpu_request=4000, cpu_limit=4000, memory_limit=MIB)
    main = ContainerSpec("main", cpu_request=4000, cpu_limit=4000, memory_limit=MIB)
    told = Pod("db", (main,), annotations=level)
    sandbox = await under.kubelet.run_pod(told)
    first = await under.kubelet.create_container(sandbox, told, init)
    await under.kubelet.start_container(first)
    cpus = under.ledger_cpus(first)
    under.fake.exit_container(first, 0)
    await under.kubelet.containers()
    second = await under.kubelet.create_container(sandbox, told, main)
    assert under.ledger_cpus(second) == cpus


FAILURES: dict[Cause, Callable[[UnderTest, pytest.MonkeyPatch], None]] = {}


def _fails(cause: Cause) -> Callable[[Callable[[UnderTest, pytest.MonkeyPatch], None]], None]:
    def note(break_it: Callable[[UnderTest, pytest.MonkeyPatch], None]) -> None:
        FAILURES[cause] = break_it

    return note


@_fails(Cause.ALLOCATOR)
def _(under: UnderTest, patch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    patch.setattr(type(under.node.planner.allocators[0]), "hints", broken)


@_fails(Cause.PLUGIN)
def _(under: UnderTest, patch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise PluginUnavailable("no plugin for cpu is registered")

    patch.setattr(under.node.crew, "hints", away)


@_fails(Cause.LEDGER)
def _(under: UnderTest, patch: pytest.MonkeyPatch) -> None:
    async def full() -> None:
        raise LedgerError("database or disk is full")

    patch.setattr(under.node.book.ledger, "flush", full)


@_fails(Cause.BUDGET)
def _(under: UnderTest, patch: pytest.MonkeyPatch) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    patch.setattr(under.node.book.ledger, "flush", slow)


@_fails(Cause.SHRINK)
def _(under: UnderTest, patch: pytest.MonkeyPatch) -> None:
    async def stuck(*_: object) -> None:
        raise ShrinkFailed("cannot take CPUs back from x")

    patch.setattr(under.node.placements.teller, "shrink", stuck)


@pytest.mark.parametrize("level", list(QosLevel))
@pytest.mark.parametrize("cause", list(Cause))
async def test_the_fail_table_is_what_happens(tmp_path: Path, cause: Cause, level: QosLevel) -> None:
    """For each of qrm's own failures and each level: refused with the reason, or passed on unmodified and marked."""
    with pytest.MonkeyPatch.context() as patch:
        async with under_test(tmp_path, more=QUIET) as under:
            under.node.context.budget_seconds = 0.3 if cause is Cause.BUDGET else 60.0
            asking = pod("any", 1000, level=level)
            sandbox = await under.kubelet.run_pod(asking)
            FAILURES[cause](under, patch)
            creating = under.kubelet.create_container(sandbox, asking, asking.containers[0])
            if TABLE[cause, level] is Action.REFUSE:
                assert (await refused(creating)).startswith("UNAVAILABLE: qrm: cannot place the container now: ")
                assert under.fake.calls_of("CreateContainer") == []
                assert len(under.node.book.ledger) == 0
            else:
                container = await creating
                (call,) = under.fake.calls_of("CreateContainer")
                assert call.message.config.linux.resources.cpuset_cpus == ""
                assert KEY not in call.message.config.annotations
                assert under.record(container).mark is Mark.UNMANAGED
            counted = under.node.metrics.failures.labels(cause, level, TABLE[cause, level])
            assert counted._value.get() == 1
            patch.undo()


async def test_what_passed_unmanaged_is_placed_later(tmp_path: Path) -> None:
    """Once qrm works again, upkeep gives the container a place and the runtime is told."""
    with pytest.MonkeyPatch.context() as patch:
        async with under_test(tmp_path, more="[upkeep]\ndrift_seconds = 0.1\n") as under:
            FAILURES[Cause.ALLOCATOR](under, patch)
            running = await under.kubelet.start_pod(pod("web"))
            assert under.record(running.containers["c0"]).mark is Mark.UNMANAGED
            patch.undo()
            await until(lambda: under.record(running.containers["c0"]).mark is Mark.NONE)
            await under.settled()
            assert under.kernel_cpus(running.containers["c0"]) == "0-7"


def test_the_documented_table_is_the_one_in_force() -> None:
    """docs/fail-policy.md ends with what the table in the code says."""
    text = (Path(__file__).parents[2] / "docs" / "fail-policy.md").read_text()
    assert text.endswith("\n\n" + as_markdown())


async def test_a_stopped_pod_frees_what_it_held_whatever_comes_late(under: UnderTest) -> None:
    """Stop, late stops and removals of its containers, and a removal of the sandbox: freed once, nobody else hurt."""
    asking = dedicated("db", 4)
    running = await under.kubelet.start_pod(asking)
    await under.kubelet.stop_pod(running.sandbox_id)
    rival = await under.kubelet.start_pod(dedicated("rival", 4))
    await under.kubelet.stop_container(running.containers["c0"])
    await under.kubelet.remove_container(running.containers["c0"])
    await under.kubelet.stop_pod(running.sandbox_id)
    await under.kubelet.remove_pod(running.sandbox_id)
    assert under.record(rival.containers["c0"]).running
    under.check()
    await under.kubelet.end_pod(rival)
    assert len(under.node.book.ledger) == 0
