"""The rules by which disks are set, left alone and given back; the guest shows that a real kernel takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.config import parse
from qrm.enforcement.isolation.dimension import Dimension, NotEnforced, Sandbox
from qrm.enforcement.isolation.io_cost import dimension as subject
from qrm.enforcement.isolation.io_cost.before import FILE
from qrm.enforcement.isolation.io_cost.dimension import IoCostDimension
from qrm.enforcement.isolation.io_cost.disks import find
from qrm.enforcement.isolation.io_cost.measured import Measurement, path_of, save
from qrm.enforcement.isolation.io_cost.model import Model
from qrm.enforcement.isolation.kernel import KernelError
from qrm.enforcement.isolation.profile import DEFAULTS
from qrm.pods.model import PodIdentity, QosLevel
from tests.enforcement.isolation.io_cost.trees import SATA, Kernel, add_disk, host_in

FOREIGN = "enable=1 ctrl=user rpct=50.00 rlat=1 wpct=0.00 wlat=2 min=10.00 max=200.00"


class Node:
    """A node with one SATA disk sda (8:0), and processes of qrm on it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.host = host_in(folder)
        self.cgroup = folder / "cgroup"
        self.cgroup.mkdir()
        self.kernel = Kernel(self.cgroup)
        self.state = folder / "state"
        self.proc = folder / "proc"
        self.boot("one")
        add_disk(self.host, "sda", "8:0", device=SATA, files={"queue/rotational": "1"})

    def boot(self, boot_id: str) -> None:
        (self.proc / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
        (self.proc / "sys/kernel/random/boot_id").write_text(f"{boot_id}\n")

    def process(self, section: str = '[io_cost.devices."/dev/sda"]') -> Dimension:
        return IoCostDimension(
            parse(section).io_cost, cgroup=self.cgroup, state=self.state, host=self.host, proc=self.proc
        )

    def somebody_writes(self, file: str, line: str) -> None:
        self.kernel.write(self.cgroup / file, line)
        self.kernel.writes.clear()

    def line(self, file: str, number: str = "8:0") -> str:
        lines = dict(line.split(" ", 1) for line in (self.cgroup / file).read_text().splitlines())
        return lines.get(number, "")

    def measure(self) -> None:
        identity = find("sda", self.host).identity
        model = Model(1000, 20, 10, 2000, 40, 30)
        save(self.state, Measurement(1, identity, "sdz", "1:1", "file", 1.0, "", model, (), 5, 6))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path)
    monkeypatch.setattr(subject, "write", node.kernel.write)
    return node


def _sandbox() -> Sandbox:
    return Sandbox("s", PodIdentity("ns", "pod", "uid"), QosLevel.SHARED, DEFAULTS[QosLevel.SHARED], {}, 1, "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cgroup.controllers", "is cgroup v1, which has no io.cost"),
        ("io", "has no io controller"),
        ("io.cost.qos", "without CONFIG_BLK_CGROUP_IOCOST"),
    ],
)
def test_kernel_without_it(node: Node, change: str, said: str) -> None:
    """Where there is no io.cost, everything says why, and nothing fails in another way."""
    if change == "io":
        (node.cgroup / "cgroup.controllers").write_text("cpu memory\n")
        (node.cgroup / "io.cost.model").unlink()
    else:
        (node.cgroup / change).unlink()
        (node.cgroup / "io.cost.model").unlink()
    process = node.process()
    probe = process.probe()
    assert not probe.usable
    assert said in probe.why
    with pytest.raises(NotEnforced, match=said):
        process.prepare()
    assert said in process.repair(()).failed[""]
    with pytest.raises(NotEnforced, match=said):
        process.admit(_sandbox())
    assert process.explain(_sandbox()) == ()
    assert process.reset() == []


@pytest.mark.parametrize(
    ("section", "measured", "rbps"),
    [
        ("", False, None),
        ("", True, 1000),
        ('[io_cost]\nothers = "leave"', True, None),
        ('[io_cost]\nothers = "table"', False, 174_019_176),
        ('[io_cost]\nothers = "table"', True, 1000),
        ("[io_cost.devices.sda]", False, 174_019_176),
        ("[io_cost.devices.sda]", True, 1000),
        ('[io_cost.devices.sda]\nkind = "nvme"', True, 3_102_524_156),
    ],
)
def test_where_parameters_are_from(node: Node, section: str, measured: bool, rbps: int | None) -> None:
    """A kind that is named, else what was measured, else the table where it is to be used; otherwise nothing."""
    if measured:
        node.measure()
    node.process(section).prepare()
    assert (f"ctrl=user model=linear rbps={rbps} " in node.line("io.cost.model")) == (rbps is not None)
    assert len(node.kernel.writes) == (0 if rbps is None else 2)


def test_measured_again(node: Node) -> None:
    """A new measurement is in force after the next round, and no drift."""
    process = node.process()
    process.prepare()
    node.measure()
    assert process.repair(()).by_cause == {"disk": 2}
    assert "rpct=99.00 rlat=5 wpct=99.00 wlat=6 min=75.00 max=100.00" in node.line("io.cost.qos")


def test_only_disks(node: Node) -> None:
    """The rule for disks that are not named is for hardware that can be told apart, not for what stands on it."""
    add_disk(node.host, "loop0", "7:0")
    add_disk(node.host, "dm-0", "253:0", slaves=("sda",), requests=False)
    usb = SATA.replace("ata1", "usb1")
    add_disk(node.host, "sdb", "8:16", device=usb, files={"removable": "1", "queue/rotational": "1"})
    node.process('[io_cost]\nothers = "table"').prepare()
    assert {write.split()[1] for write in node.kernel.writes} == {"8:0"}


def test_somebody_elses_disk(node: Node) -> None:
    """A disk that somebody has set is left alone unless it is named; then it gets back what it had."""
    node.somebody_writes("io.cost.qos", f"8:0 {FOREIGN}")
    others = node.process('[io_cost]\nothers = "table"')
    others.prepare()
    assert node.kernel.writes == []
    assert node.line("io.cost.qos") == FOREIGN
    node.process().prepare()
    assert node.line("io.cost.qos") != FOREIGN
    node.process('[io_cost]\nothers = "leave"').prepare()
    assert node.line("io.cost.qos") == FOREIGN
    assert node.line("io.cost.model").startswith("ctrl=auto")


def test_steady_state(node: Node) -> None:
    """Nothing is written where nothing differs, also by a process that starts anew."""
    node.process().prepare()
    node.kernel.writes.clear()
    process = node.process()
    process.prepare()
    assert [process.repair((_sandbox(),)).by_cause for _ in range(3)] == [{}, {}, {}]
    assert node.kernel.writes == []


def test_drift_is_counted_by_file(node: Node) -> None:
    """What somebody changes is put back, and counted for the file that it was in."""
    process = node.process()
    process.prepare()
    before = process.explain(_sandbox())
    node.somebody_writes("io.cost.qos", "8:0 enable=0")
    assert [fact.wanted == fact.kernel for fact in process.explain(_sandbox())] == [True, False]
    assert process.repair(()).by_cause == {"qos": 1}
    assert process.explain(_sandbox()) == before


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("[io_cost.devices.sda]\n[io_cost.devices.'8:0']", "is named twice"),
        ("[io_cost.devices.sda1]", "is a partition of sda"),
        ("[io_cost.devices.dm-0]", "passes its I/O on"),
        ("[io_cost.devices.loop0]", "nothing is known about this disk"),
        ("[io_cost.devices.sda]\nqos = { min = 1000, max = 10 }", "above qos.max"),
    ],
)
def test_what_cannot_be(node: Node, section: str, said: str) -> None:
    """A disk that cannot have what it is to have is a failure that says why; others have theirs, absent ones come."""
    add_disk(node.host, "loop0", "7:0")
    add_disk(node.host, "sdb", "8:16", device=SATA.replace("ata1", "ata2"), partitions={"sda1": "8:1"})
    (node.host.sysfs / "class/block/sda1").unlink()
    partition = node.host.sysfs / "block/sda" / "sda1"
    partition.mkdir()
    (partition / "partition").write_text("1\n")
    (node.host.sysfs / "class/block/sda1").symlink_to(partition.resolve())
    add_disk(node.host, "dm-0", "253:0", requests=False)
    process = node.process(f'{section}\n[io_cost.devices."/dev/sdb"]\n[io_cost.devices."/dev/sdc"]')
    assert said in process.probe().why
    assert "not there now: /dev/sdc" in process.probe().why
    with pytest.raises(NotEnforced, match=said):
        process.prepare()
    assert node.line("io.cost.model", "8:16")
    with pytest.raises(NotEnforced, match=said):
        process.admit(_sandbox())


def test_refused_by_the_kernel(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal says what was refused; a disk that vanishes in the middle is no failure."""

    def refuse(path: Path, value: str, *, old: str | None = None) -> None:
        raise KernelError(path, value, number)

    monkeypatch.setattr(subject, "write", refuse)
    number = 22
    assert "'8:0 ctrl=user model=linear rbps=174019176" in node.process().repair(()).failed[""]
    number = 19
    assert node.process().repair(()).failed == {}


def test_not_taken(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is read back."""
    monkeypatch.setattr(subject, "write", lambda *_, **__: None)
    assert "the kernel made ('ctrl=auto', 'enable=0 ctrl=auto') of" in node.process().repair(()).failed[""]


def test_what_was_before_is_of_this_boot(node: Node) -> None:
    """After a reboot the kernel knows nothing of a disk, and so does reset."""
    node.somebody_writes("io.cost.qos", f"8:0 {FOREIGN}")
    node.process().prepare()
    node.boot("two")
    for file in ("io.cost.model", "io.cost.qos"):
        (node.cgroup / file).write_text("")
    assert node.process().reset() == []
    node.process().prepare()
    assert node.process().reset() == ["io.cost of sda (8:0): enable=0 ctrl=auto, ctrl=auto"]
    assert node.line("io.cost.qos").startswith("enable=0 ctrl=auto")
    assert not (node.state / FILE).exists()


def test_another_disk_under_the_number(node: Node) -> None:
    """A disk that went and came, or another one in its place, gets nothing back that was not its own."""
    node.somebody_writes("io.cost.qos", f"8:0 {FOREIGN}")
    node.process().prepare()
    (node.host.sysfs / "block/sda/diskseq").write_text("8\n")
    assert node.process().reset() == []
    assert not (node.state / FILE).exists()


def test_state_that_was_lost(node: Node) -> None:
    """A disk that has what it is to have before anything was written was set by qrm: reset makes it the kernel's."""
    node.process().prepare()
    (node.state / FILE).unlink()
    node.process().prepare()
    node.process().reset()
    assert node.line("io.cost.model").startswith("ctrl=auto")


def test_files_that_are_damaged(node: Node) -> None:
    """A file that cannot be read fails what needs it, with its path and what to do."""
    node.measure()
    path_of(node.state, find("sda", node.host).identity).write_text('{"format": 9')
    assert "measure again" in node.process().repair(()).failed[""]
    (node.state / FILE).write_text("{")
    failed = node.process('[io_cost.devices.sda]\nkind = "hdd"').repair(()).failed[""]
    assert FILE in failed
    assert "remove it" in failed
    assert node.kernel.writes == []


def test_state_directory_that_cannot_be_written(node: Node) -> None:
    """Nothing is written to the kernel that could not be taken back."""
    node.state.write_text("a file")
    assert "cannot" in node.process().repair(()).failed[""]
    assert node.kernel.writes == []
