"""What the runtime is told of a container's cgroup files, and what is written beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.config import IsolationSection
from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.isolation import kernel
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.wire import cri_pb2 as cri

FIRST, SECOND = (f"8:{minor} rbps=max wbps=9 riops=max wiops=max" for minor in (0, 16))


class Processes:
    """One container, whose cgroup is a folder."""

    def __init__(self, folder: Path) -> None:
        self.cgroups = Cgroups(folder, folder)
        self._folder = folder

    async def folders(self, container_id: str) -> dict[str, Path]:
        return {"": self._folder}


async def test_limits_of_several_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime is told one, since runc before 1.2 cannot write more; the others come when it has started."""
    written: list[str] = []
    monkeypatch.setattr(kernel, "write", lambda _path, value, old: written.append(value))  # noqa: ARG005
    (tmp_path / "cgroup.controllers").write_text("io\n")
    (tmp_path / "io.max").write_text(f"{FIRST}\n")
    files = ContainerFiles(IsolationSection(), {}, Processes(tmp_path), lambda _: None)  # type: ignore[arg-type]
    resources = cri.LinuxContainerResources()
    files.put(resources, {"io.max": f"{FIRST}\n{SECOND}", "io.weight": "default 10"})
    assert resources.unified == {"io.max": FIRST, "io.weight": "default 10"}
    await files.started("c1", {"io.max": FIRST, "io.weight": "default 10"})
    assert written == []
    await files.started("c1", {"io.max": f"{FIRST}\n{SECOND}"})
    assert SECOND in written
