"""Which cgroup files a node has."""

from __future__ import annotations

from pathlib import Path

import pytest

from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.isolation import abilities
from qrm.enforcement.isolation.abilities import Abilities
from qrm.topology import attributes


def test_a_cgroup_that_vanishes_meanwhile_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was listed and is gone when it is looked into; the others are looked at."""
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    (tmp_path / "kubepods/pod1").mkdir(parents=True)
    (tmp_path / "kubepods/pod1/cpu.idle").touch()
    (tmp_path / "a.slice").mkdir()
    listed = attributes.children

    def children(folder: Path) -> list[str]:
        if folder.name == "a.slice":
            folder.rmdir()
        return listed(folder)

    monkeypatch.setattr(abilities, "children", children)
    assert Abilities(Cgroups(tmp_path, tmp_path)).files() == {"cpu.idle"}
