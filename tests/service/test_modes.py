"""What a node lacks: with `auto` pods run without it and it is said why, with `required` qrm does not start.

The nodes are folders; what they lack for real is seen in the guest (resctrl, CLOSIDs) and by the traffic's own tests
(modules, on this machine's kernel).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.traffic import dimension as traffic
from qrm.metrics import Metrics
from qrm.service.doctor import OFF, examine
from qrm.service.node import Node
from qrm.service.serve import running
from tests.enforcement.isolation.rdt.fake import INTEL, ROOTS, Kernel
from tests.support import config, dedicated, pod, refused, under_test

Arrange = Callable[[Path], str]
"""Makes the node lack something; returns more of the configuration."""


def no_rdt(folder: Path) -> str:
    """A processor, or a kernel, without it."""
    return ""


def unmounted(folder: Path) -> str:
    """The kernel has resctrl, and nobody has mounted it."""
    (folder / "proc").mkdir()
    (folder / "proc/filesystems").write_text("nodev\tresctrl\n")
    (folder / "proc/mounts").write_text("proc /proc proc rw 0 0\n")
    return ""


def taken(folder: Path) -> str:
    """Three of four CLOSIDs are somebody else's groups, beside the default one."""
    kernel = Kernel(folder)
    kernel.mount({"L3": {**INTEL["L3"], "num_closids": "4"}}, "L3:0=7ff\n")
    for name in ("theirs", "others", "more"):
        (kernel.root / name).mkdir()
        (kernel.root / name / "schemata").write_text("L3:0=7ff\n")
    return ""


def too_many_classes(folder: Path) -> str:
    """More classes than the hardware has CLOSIDs."""
    Kernel(folder).mount({"L3": {**INTEL["L3"], "num_closids": "2"}}, "L3:0=7ff\n")
    return '[rdt.classes.online]\nl3 = "50%"\n[profiles.shared_cores]\nrdt = "online"\n'


def no_io_controller(folder: Path) -> str:
    (folder / "cgroup").mkdir()
    (folder / "cgroup/cgroup.controllers").write_text("cpuset cpu memory pids\n")
    return ""


def no_io_cost(folder: Path) -> str:
    """The fake kernel has the controller, and no io.cost."""
    return ""


CASES: list[tuple[str, Arrange, str]] = [
    ("rdt", no_rdt, "offers no resctrl"),
    ("rdt", unmounted, "not mounted"),
    ("rdt", taken, "CLOSIDs"),
    ("rdt", too_many_classes, "CLOSIDs"),
    ("io_cost", no_io_cost, "CONFIG_BLK_CGROUP_IOCOST"),
]


def state(node: Node, name: str) -> tuple[bool, str]:
    """Whether a dimension is on, and why."""
    return next((on, why) for each, on, why, _ in node.enforcer.states() if each == name)


@pytest.mark.parametrize(("name", "arrange", "why"), CASES)
async def test_auto_does_without(tmp_path: Path, name: str, arrange: Arrange, why: str) -> None:
    """Pods of every kind start, and `qrm doctor` has the reason."""
    async with under_test(tmp_path, more=arrange(tmp_path)) as under:
        await under.kubelet.start_pod(pod("batch", level="reclaimed_cores"))
        await under.kubelet.start_pod(dedicated("db", 1))
        on, told = state(under.node, name)
        assert (on, why in told) == (False, True), told
        (feature,) = (each for each in (await examine(under.node)).features if each.name == f"isolation {name}")
        assert (feature.state, feature.why) == (OFF, told)


@pytest.mark.parametrize(("name", "arrange", "why"), CASES)
async def test_required_does_not_start(tmp_path: Path, name: str, arrange: Arrange, why: str) -> None:
    """The message has the setting, the same reason, and the way out."""
    more = f'{arrange(tmp_path)}[isolation]\n{name} = "required"\n'
    with pytest.raises(NotEnforced, match=rf'isolation.{name} is required and cannot be: .*{why}.*"auto" does without'):
        async with under_test(tmp_path, more=more):
            raise AssertionError("it has started")
    assert not (tmp_path / "run/qrm.sock").exists()


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_somebody_elses_groups_beside_ours(tmp_path: Path, mode: str) -> None:
    """As long as there are CLOSIDs, theirs stay as they are and ours are made."""
    kernel = Kernel(tmp_path)
    kernel.mount(INTEL, ROOTS["intel"])
    (kernel.root / "theirs").mkdir()
    (kernel.root / "theirs/schemata").write_text("L3:0=7\n")
    (kernel.root / "qrm-reclaimed").mkdir()
    for group in ("qrm-reclaimed",):
        (kernel.root / group / "schemata").write_text(ROOTS["intel"])
        (kernel.root / group / "tasks").touch()
    async with under_test(tmp_path, more=f'[isolation]\nrdt = "{mode}"\n') as under:
        on, told = state(under.node, "rdt")
        assert on, told
        assert "theirs" in told
    assert (kernel.root / "theirs/schemata").read_text() == "L3:0=7\n"
    assert "7" in (kernel.root / "qrm-reclaimed/schemata").read_text()


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_pod_that_cannot_be_put_in_its_group(tmp_path: Path, mode: str) -> None:
    """It starts and is said not to be isolated, or is refused and nothing is left of it; others are not concerned."""
    Kernel(tmp_path).mount(INTEL, ROOTS["intel"])  # the fake runtime's processes have no parent to be looked at
    async with under_test(tmp_path, more=f'[isolation]\nrdt = "{mode}"\n') as under:
        await under.kubelet.start_pod(pod("web"))
        if mode == "required":
            text = await refused(under.kubelet.run_pod(pod("batch", level="reclaimed_cores")))
            assert text.startswith("UNAVAILABLE: qrm: default/batch cannot be put into ")
            assert [each.message.pod_sandbox_id for each in under.fake.calls_of("RemovePodSandbox")]
            assert len(await under.node.runtime.list_sandboxes()) == 1
        else:
            await under.kubelet.start_pod(pod("batch", level="reclaimed_cores"))
        failed = next(failed for name, _, _, failed in under.node.enforcer.states() if name == "rdt")
        assert ["cannot be put into" in why for why in failed.values()] == [True]


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize(("arrange", "why"), [(lambda _: "", "cgroup v1"), (no_io_controller, "no io controller")])
async def test_cgroups_that_have_no_io(tmp_path: Path, mode: str, arrange: Arrange, why: str) -> None:
    """cgroup v1, and v2 without the controller: a node without a runtime yet, since the fake one has all of v2."""
    more = arrange(tmp_path) + f'[isolation]\nio_cost = "{mode}"\n'
    settings = config(tmp_path, f"unix://{tmp_path}/nobody.sock", more=more)
    if mode == "required":
        with pytest.raises(NotEnforced, match=f"isolation.io_cost is required and cannot be: .*{why}"):
            async with running(settings, metrics=Metrics()):
                raise AssertionError("it has started")
        return
    async with running(settings, metrics=Metrics()) as node:
        on, told = state(node, "io_cost")
        assert (on, why in told) == (False, True), told


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_kernel_without_tc_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """They are named; nothing of the network is touched."""
    monkeypatch.setattr(traffic, "missing", lambda *_: ["act_skbedit", "cls_matchall"])
    more = f'[isolation]\nnetwork = "{mode}"\nrdt = "off"\nio_cost = "off"\n[network]\nrate_mbit = 1000\n'
    settings = config(tmp_path, f"unix://{tmp_path}/nobody.sock", more=more, layout=None)
    if mode == "required":
        with pytest.raises(NotEnforced, match=r"isolation.network is required and cannot be: .*act_skbedit, cls_match"):
            async with running(settings, metrics=Metrics()):
                raise AssertionError("it has started")
        return
    async with running(settings, metrics=Metrics()) as node:
        on, told = state(node, "network")
        assert (on, "act_skbedit, cls_matchall" in told) == (False, True)
