"""What Debian's containerd needs to run beside any other containerd: its tools, its configuration, a pod network."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from qrm.demo.image import BUSYBOX, IMAGE, is_static

CNI_PLUGINS = Path("/usr/lib/cni")

_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "setpriv": "util-linux",
    "umount": "mount",
}
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CAP_SYS_RESOURCE = 24


def search_path(tools: Path | None = None) -> str:
    """PATH for containerd and its helpers: `tools` first, and the folders of root's tools, which users' PATHs lack."""
    return ":".join([*([str(tools)] if tools else []), os.environ.get("PATH", ""), _SYSTEM_FOLDERS])


def missing_tools(*, pod_network: bool = False, tools: Path | None = None) -> list[str]:
    """The Debian packages that are to be installed before a PrivateContainerd can run; sorted."""
    path = search_path(tools)
    missing = {package for tool, package in _PACKAGES.items() if shutil.which(tool, path=path) is None}
    if not is_static(BUSYBOX):
        missing.add("busybox-static")
    if pod_network and not all((CNI_PLUGINS / plugin).exists() for plugin in ("loopback", "ptp", "host-local")):
        missing.add("containernetworking-plugins")
    return sorted(missing)


def write_config(folder: Path, socket: Path, *, pod_subnet: str = "") -> Path:
    """Write containerd's configuration into `folder`, under which it keeps everything; return its path.

    Args:
        folder: Exists.
        socket: Where containerd is to listen.
        pod_subnet: Where pods with a network of their own get their addresses, such as "10.231.0.0/24"; empty for
            none: then only pods in the host's network can run.
    """
    cni = folder / "cni"
    cni.mkdir(exist_ok=True)
    if pod_subnet:
        (cni / "10-demo.conflist").write_text(json.dumps(_network(pod_subnet, folder / "addresses"), indent=2))
    config = folder / "config.toml"
    # A JSON string is also a TOML string.
    config.write_text(
        _CONFIG.format(
            root=json.dumps(str(folder / "root")),
            state=json.dumps(str(folder / "state")),
            socket=json.dumps(str(socket)),
            opt=json.dumps(str(folder / "opt")),
            image=json.dumps(IMAGE),
            restrict=json.dumps(not _may_lower_oom_score()),
            cni_plugins=json.dumps(str(CNI_PLUGINS)),
            cni=json.dumps(str(cni)),
            runc=json.dumps(str(folder / "runc")),
        )
    )
    return config


def _network(subnet: str, addresses: Path) -> dict[str, object]:
    """Point-to-point links: unlike a bridge, nothing of them is left when the last pod is gone."""
    ipam = {
        "type": "host-local",
        "dataDir": str(addresses),
        "ranges": [[{"subnet": subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": "0.4.0", "name": "qrm-demo", "plugins": [{"type": "ptp", "ipam": ipam}]}


def _may_lower_oom_score() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, without which runc fails on the negative scores of kubelet's pods."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _CAP_SYS_RESOURCE & 1)
    return False


# The native snapshotter copies the image, which is small, and works on every file system, on a guest's tmpfs too.
# The NRI plugin and the opt plugin would use folders that belong to the machine's own containerd.
_CONFIG = """\
version = 2
root = {root}
state = {state}
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.aufs", \
"io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = {socket}

[plugins."io.containerd.internal.v1.opt"]
  path = {opt}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {image}
  restrict_oom_score_adj = {restrict}
  disable_apparmor = true
  netns_mounts_under_state_dir = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {cni_plugins}
    conf_dir = {cni}

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = {runc}
        SystemdCgroup = false
"""
