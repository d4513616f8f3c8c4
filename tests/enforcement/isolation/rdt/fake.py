"""A resctrl tree, processes and cgroups in a folder, for hardware that the guest does not have."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qrm.config import Profile, RdtClass, RdtSection
from qrm.enforcement.isolation.dimension import Dimension, Sandbox
from qrm.enforcement.isolation.profile import profile_for
from qrm.enforcement.isolation.rdt.dimension import RdtDimension
from qrm.enforcement.isolation.rdt.tree import MON_GROUPS, Tree
from qrm.pods.model import PodIdentity, QosLevel

INTEL = {
    "L3": {"cbm_mask": "7ff", "min_cbm_bits": "1", "num_closids": "16", "shareable_bits": "600", "sparse_masks": "0"},
    "MB": {"bandwidth_gran": "10", "min_bandwidth": "10", "delay_linear": "1", "num_closids": "8"},
    "L3_MON": {"num_rmids": "6", "mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config"},
}
AMD = {
    "L3": {"cbm_mask": "ffff", "min_cbm_bits": "1", "num_closids": "16", "shareable_bits": "0"},
    "MB": {"bandwidth_gran": "1", "min_bandwidth": "0", "delay_linear": "0", "num_closids": "16"},
    "SMBA": {"bandwidth_gran": "1", "min_bandwidth": "0", "delay_linear": "0", "num_closids": "16"},
}
CDP = {
    **{name: {**INTEL["L3"], "num_closids": "4"} for name in ("L3CODE", "L3DATA")},
    "L2": {"cbm_mask": "ff", "min_cbm_bits": "1", "num_closids": "8", "shareable_bits": "0"},
}
ROOTS = {
    "intel": "    L3:0=7ff;2=7ff\n    MB:0=100;2=100\n",
    "amd": "    L3:0=ffff;1=ffff\n    MB:0=2048;1=2048\n  SMBA:0=2048;1=2048\n",
    "cdp": "L3CODE:0=7ff\nL3DATA:0=7ff\n    L2:0=ff;1=ff\n",
}
"""Cache ids have gaps, and names are padded, as the kernel does both."""


@dataclass
class Kernel:
    """What stands in a folder like the kernel's files."""

    folder: Path
    groups: dict[int, tuple[str, str]] = field(default_factory=dict)
    """The control and the monitoring group of each thread."""
    writes: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "resctrl"

    @property
    def proc(self) -> Path:
        return self.folder / "proc"

    @property
    def cgroup(self) -> Path:
        return self.folder / "cgroup"

    def mount(self, info: Mapping[str, Mapping[str, str]], schemata: str, options: str = "rw") -> None:
        """Let resctrl be mounted, with what the hardware has."""
        for resource, files in info.items():
            (self.root / "info" / resource).mkdir(parents=True)
            for name, text in files.items():
                (self.root / "info" / resource / name).write_text(f"{text}\n")
        (self.root / "info/last_cmd_status").write_text("ok\n")
        (self.root / "schemata").write_text(schemata)
        (self.root / "tasks").touch()
        (self.root / MON_GROUPS).mkdir()
        self.proc.mkdir(exist_ok=True)
        (self.proc / "mounts").write_text(f"none {self.root} resctrl {options},relatime 0 0\n")
        self.cgroup.mkdir(exist_ok=True)
        (self.cgroup / "cgroup.controllers").write_text("cpu\n")

    def process(self, pid: int, parent: int, *, threads: int = 1, cgroup: str = "", command: str = "sleep") -> None:
        """A process born in the groups of its parent; the ids of its threads follow its own."""
        for thread in range(pid, pid + threads):
            (self.proc / str(pid) / "task" / str(thread)).mkdir(parents=True)
            self.groups[thread] = self.groups.get(parent, ("", ""))
            (self.proc / str(thread)).mkdir(exist_ok=True)
            (self.proc / str(thread) / "status").write_text(f"Name:\ta\nTgid:\t{pid}\n")
            (self.proc / str(thread) / "cgroup").write_text(f"0::{cgroup}\n")
        (self.proc / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} {'1 ' * 17}{len(self.groups)} 1\n")
        (self.proc / str(pid) / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        if cgroup:
            home = self.cgroup / cgroup.lstrip("/")
            home.mkdir(parents=True, exist_ok=True)
            with (home / "cgroup.threads").open("a") as file:
                file.writelines(f"{thread}\n" for thread in range(pid, pid + threads))
        self.show()

    def pod(self, number: int, profile: str = "reclaimed", *, shim: str | None = None, parent: int = 0) -> Sandbox:
        """A pod with its shim, pause and one container of 2 threads; `shim` is the sandbox that the shim names."""
        sandbox_id, uid, first = f"sandbox{number}", f"aaaa-{number}", number * 100
        if not parent:
            parent = first
            named = sandbox_id if shim is None else shim
            self.process(parent, 1, threads=5, command=f"/usr/bin/containerd-shim-runc-v2 -id {named} -address x")
        self.process(first + 10, parent, cgroup=f"/kubepods/pod{uid}/{sandbox_id}")
        self.process(first + 20, parent, threads=2, cgroup=f"/kubepods/pod{uid}/container{number}")
        level = QosLevel.RECLAIMED if profile == "reclaimed" else QosLevel.SHARED
        return Sandbox(
            sandbox_id, PodIdentity(uid, "ns", f"p{number}"), level, profile_for(level, "", {}), {}, first + 10, ""
        )

    def dimension(self, *, monitoring: bool = True, **classes: RdtClass) -> RdtDimension:
        """What is tested, on this kernel."""
        section = RdtSection(classes=classes or {"reclaimed": RdtClass(l3="30%")}, monitoring=monitoring)
        profiles = {
            "reclaimed_cores": Profile(rdt=""),
            **{name: Profile(rdt=name) for name in classes or ["reclaimed"]},
        }
        made = RdtDimension(section, profiles, self.proc, self.cgroup, lambda root: FakeTree(root, self))
        dimension: Dimension = made
        assert dimension.name == "rdt"
        return made

    def show(self) -> None:
        """Bring the tasks files and those of processes up to date."""
        for file in self.root.rglob("tasks"):
            group = _names(file.parent, self.root)
            inside = [thread for thread, has in self.groups.items() if (has if group[1] else (has[0], "")) == group]
            file.write_text("".join(f"{thread}\n" for thread in inside))
        for thread, (control, monitored) in self.groups.items():
            if (self.proc / str(thread)).is_dir():
                (self.proc / str(thread) / "cpu_resctrl_groups").write_text(f"res:/{control}\nmon:{monitored}\n")


class FakeTree(Tree):
    """Behaves as the kernel does where a folder would not (resctrl.rst)."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        super().__init__(root)
        self._kernel = kernel

    def set_schemata(self, group: Path, text: str, old: str) -> None:
        self._kernel.writes.append(f"{group.name} {text.strip()}")
        now = [line.strip() for line in (group / "schemata").read_text().splitlines()]
        for line in text.splitlines():
            name, _, values = line.partition(":")
            at = next(number for number, each in enumerate(now) if each.startswith(f"{name}:"))
            pairs = dict(pair.split("=") for pair in now[at].partition(":")[2].split(";"))
            pairs |= dict(pair.split("=") for pair in values.split(";"))
            now[at] = f"{name}:{';'.join(f'{domain}={value}' for domain, value in pairs.items())}"
        (group / "schemata").write_text("\n".join(now) + "\n")

    def make(self, group: Path) -> None:
        self._kernel.writes.append(f"mkdir {group.name}")
        monitored = group.parent.name == MON_GROUPS
        used = sum(1 for _ in self.root.rglob("tasks"))
        limit = (self.root / "info/L3_MON/num_rmids").read_text() if self._monitors() else "1000"
        if used >= int(limit):
            (self.root / "info/last_cmd_status").write_text("Out of RMIDs\n")
            raise self._refused(group, "mkdir", errno.ENOSPC)
        group.mkdir()
        (group / "tasks").touch()
        if self._monitors():
            for domain in ("00", "02"):
                data = group / "mon_data" / f"mon_L3_{domain}"
                data.mkdir(parents=True)
                (data / "llc_occupancy").write_text("4096\n")
                (data / "mbm_total_bytes").write_text("Unavailable\n" if domain == "02" else "123456\n")
        if not monitored:
            (group / MON_GROUPS).mkdir()
            shutil.copy(self.root / "schemata", group / "schemata")

    def remove(self, group: Path) -> bool:
        self._kernel.writes.append(f"rmdir {group.name}")
        if not group.exists():
            return False
        control, monitored = _names(group, self.root)
        for thread, has in self._kernel.groups.items():
            if has[0] == control and (not monitored or has[1] == monitored):
                self._kernel.groups[thread] = (control, "") if monitored else ("", "")
        shutil.rmtree(group)
        self._kernel.show()
        return True

    def move(self, group: Path, threads: Iterable[int]) -> int:
        control, monitored = _names(group, self.root)
        moved = 0
        for thread in threads:
            has = self._kernel.groups.get(thread)
            if has is None:
                continue
            if monitored and has[0] != control:
                (self.root / "info/last_cmd_status").write_text("Can't move task to different control group\n")
                raise self._refused(group / "tasks", str(thread), errno.EINVAL)
            self._kernel.writes.append(f"{thread} to {control}/{monitored}")
            self._kernel.groups[thread] = (control, monitored)
            moved += 1
        self._kernel.show()
        return moved

    def _monitors(self) -> bool:
        return (self.root / "info/L3_MON").exists()


def _names(group: Path, root: Path) -> tuple[str, str]:
    """A directory as control and monitoring group."""
    parts = group.relative_to(root).parts
    if MON_GROUPS in parts:
        return (parts[0] if parts[0] != MON_GROUPS else "", parts[-1])
    return ("".join(parts), "")
