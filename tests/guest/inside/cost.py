"""Inside the guest: what each dimension adds to a pod's start, with many pods there already.

    python -m tests.guest.inside.cost PODS SAMPLES

Prints one line COST=JSON: a list of what, dimension, and seconds. Pods are namespaces with a veth, a process that is
called like a containerd shim, and one below it in a cgroup.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from qrm.config import Config, parse
from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.channel import open_channel
from qrm.enforcement.isolation.containers import ContainerFiles
from qrm.enforcement.isolation.dimension import Dimension, Sandbox
from qrm.enforcement.isolation.knobs import Amounts
from qrm.enforcement.isolation.profile import DEFAULTS
from qrm.enforcement.processes import Processes
from qrm.enforcement.runtime import RuntimeClient
from qrm.metrics import Metrics
from qrm.pods.model import PodIdentity, Qos, QosLevel
from qrm.service.isolation import dimensions, disk_number
from qrm.wire import cri_pb2 as cri

CGROUPS = Path("/sys/fs/cgroup")
LEVELS = tuple(QosLevel)
SETTINGS = """
[network]
rate_mbit = 1000
[io_cost.devices."/dev/nullb0"]
kind = "nvme"
"""


def name_of(number: int) -> str:
    return f"{number:032x}"


def networks(numbers: range) -> None:
    """A namespace with one veth for each pod."""
    lines = "".join(
        f"netns add n{each}\nlink add v{each} type veth peer name eth0 netns n{each}\nlink set v{each} up\n"
        for each in numbers
    )
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True, capture_output=True)


def pod(number: int) -> Sandbox:
    """The rest of a pod."""
    identity = PodIdentity(f"uid-{number}", "default", f"pod{number}")
    command = f"exec -a containerd-shim-runc-v2 sh -c 'sleep 99999 & wait' -id {name_of(number)}"
    shim = subprocess.Popen(["bash", "-c", command])
    children = Path(f"/proc/{shim.pid}/task/{shim.pid}/children")
    while not (found := children.read_text().split()):
        time.sleep(0.01)
    folder = CGROUPS / "kubepods" / f"pod{identity.uid}" / name_of(number)
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(found[0])
    level = LEVELS[number % len(LEVELS)]
    profile = DEFAULTS[level]
    return Sandbox(name_of(number), identity, level, profile, {}, int(found[0]), f"/var/run/netns/n{number}")


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


async def files(config: Config, samples: int) -> list[tuple[str, str, float]]:
    """What CreateContainer and StartContainer do about a reclaimed container's cgroup files, which on v2 is no I/O."""
    processes = Processes(RuntimeClient(open_channel("/run/nobody.sock", 4 << 20)), Cgroups(CGROUPS, Path("/proc")))
    made = ContainerFiles(config.isolation, config.profiles, processes, disk_number(config))
    qos, amounts = Qos(level=QosLevel.RECLAIMED), Amounts(100_000, 1 << 30)
    found = []
    for _ in range(samples):
        resources = cri.LinuxContainerResources()
        found.append(("CreateContainer", "cgroup", timed(lambda: made.put(resources, made.admit(qos, amounts)))))  # noqa: B023
        begun = time.perf_counter()
        await made.started("x", {"cpu.idle": "1"})
        found.append(("StartContainer", "cgroup", time.perf_counter() - begun))
    return found


def main(pods: int, samples: int) -> None:
    """All of it."""
    subprocess.run(["mount", "-t", "resctrl", "resctrl", "/sys/fs/resctrl"], check=True)
    subprocess.run(["modprobe", "null_blk"], check=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    config = parse(SETTINGS)
    networks(range(pods + samples))
    resident, coming = [pod(each) for each in range(pods)], [pod(each) for each in range(pods, pods + samples)]
    costs = [("fork and exec", "", timed(lambda: subprocess.run(["/bin/true"], check=True))) for _ in range(samples)]
    used: list[Dimension] = list(dimensions(config, Metrics()))
    for each in used:
        each.prepare()
        for sandbox in resident:
            each.admit(sandbox)
        each.repair(resident)
        costs += [("RunPodSandbox", each.name, timed(lambda: each.admit(sandbox))) for sandbox in coming]  # noqa: B023
        costs += [("a round", each.name, timed(lambda: each.repair([*resident, *coming]))) for _ in range(3)]  # noqa: B023
    costs += asyncio.run(files(config, samples))
    print(f"COST={json.dumps(costs)}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
