"""The units that are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qrm.config import ShimSection

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNIT, SOCKET, DROP_IN = "qrm.service", "qrm.socket", "kubelet.service.d/10-qrm.conf"
EXPOSED = 3.0
"""How exposed the service may be by systemd's own measure, from 0 (not at all) to 10."""

KUBELET = """
[Unit]
Description=kubelet
[Service]
ExecStart=/bin/true $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A folder with the units as they are installed, for commands that are on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    unit = (SYSTEMD / UNIT).read_text()
    changed = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit, flags=re.MULTILINE)
    assert changed != unit
    (tmp_path / UNIT).write_text(changed)
    shutil.copy(SYSTEMD / SOCKET, tmp_path / SOCKET)
    (tmp_path / "kubelet.service").write_text(KUBELET)
    (tmp_path / DROP_IN).parent.mkdir()
    shutil.copy(SYSTEMD / DROP_IN, tmp_path / DROP_IN)
    return tmp_path


def _analyze(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = f"{folder}:/usr/lib/systemd/system:/lib/systemd/system"
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, env={"SYSTEMD_UNIT_PATH": paths}
    )


@pytest.mark.parametrize("name", [UNIT, SOCKET, "kubelet.service"])
def test_verify(units: Path, name: str) -> None:
    """Systemd understands every line, and has nothing to say about it."""
    result = _analyze(units, "verify", "--man=no", str(units / name))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_verify_sees_the_drop_in(units: Path) -> None:
    """The check above would find a mistake in the drop-in."""
    with (units / DROP_IN).open("a") as file:
        file.write("NoSuchSetting=1\n")
    assert "NoSuchSetting" in _analyze(units, "verify", "--man=no", str(units / "kubelet.service")).stderr


def test_hardening(units: Path) -> None:
    """The service can do little besides its job."""
    result = _analyze(units, "security", "--offline=true", "--no-pager", str(units / UNIT))
    found = re.search(r"Overall exposure level for qrm\.service: ([\d.]+)", result.stdout)
    assert found is not None, result.stderr
    assert float(found[1]) <= EXPOSED


def _settings(name: str) -> dict[str, list[str]]:
    lines = [line for line in (SYSTEMD / name).read_text().splitlines() if "=" in line and not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition("=")
        found.setdefault(key, []).append(value)
    return found


def test_what_the_job_needs() -> None:
    """Nothing is restricted that would keep qrm from its files, its sockets and the kernel's answers."""
    unit = _settings(UNIT)
    assert unit["Type"] == ["notify"]
    assert unit["RuntimeDirectory"] == unit["StateDirectory"] == ["qrm"]
    assert {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"} == set(unit["RestrictAddressFamilies"][0].split())
    assert not {"User", "DynamicUser", "ProtectControlGroups", "ProtectKernelTunables", "ProtectProc", "ProcSubset"} & {
        *unit
    }
    assert not {"PrivateNetwork", "PrivateUsers", "IPAddressDeny", "InaccessiblePaths"} & {*unit}


def test_order() -> None:
    """Containerd, then qrm, then kubelet; and kubelet is told qrm's socket."""
    unit, drop_in = _settings(UNIT), _settings(DROP_IN)
    assert (unit["After"], unit["Before"]) == (["qrm.socket", "containerd.service"], ["kubelet.service"])
    assert (drop_in["Requires"], drop_in["After"]) == (["qrm.socket"], ["qrm.socket qrm.service"])
    assert drop_in["Environment"] == ['"KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix:///run/qrm/qrm.sock"']


def test_the_socket_outlives_the_service() -> None:
    """systemd's socket is the one that qrm expects; what the service does at its end leaves it and its folder alone."""
    unit, socket = _settings(UNIT), _settings(SOCKET)
    assert socket["ListenStream"] == [ShimSection().socket]
    assert (socket["SocketMode"], socket["DirectoryMode"]) == (["0600"], ["0700"])
    assert unit["Requires"] == unit["After"][:1] == [SOCKET]
    assert (unit["RuntimeDirectoryPreserve"], unit["KillMode"]) == (["yes"], ["process"])
