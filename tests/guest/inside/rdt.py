"""Inside the guest: RDT on the kernel's own resctrl, with pods of a real containerd.

    python -m tests.guest.inside.rdt

Prints what it finds as NAME=VALUE; test_rdt.py judges. `NAME.first` is what a pod's container found of itself as it
began, `NAME.exec` what a command found that was run in it later. The dimension is called as the enforcer calls it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from qrm.config import Profile, RdtClass, RdtSection
from qrm.demo.cgroups import PodCgroups
from qrm.demo.containerd import PrivateContainerd
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import ContainerSpec, Pod
from qrm.enforcement.isolation.dimension import NotEnforced, Sandbox
from qrm.enforcement.isolation.profile import profile_for
from qrm.enforcement.isolation.rdt.dimension import RdtDimension
from qrm.enforcement.isolation.rdt.tree import Tree
from qrm.pods.model import PodIdentity, QosLevel
from tests.guest.inside.pinning import PATIENCE, say

ROOT = Path("/sys/fs/resctrl")
CGROUP = Path("/sys/fs/cgroup")
LENT, ONLINE = QosLevel.RECLAIMED, QosLevel.SHARED
CLASSES = {"reclaimed": RdtClass(l3="30%"), "batch": RdtClass(l3="0x3c00"), "empty": RdtClass()}
LOOK = "cat /proc/self/cpu_resctrl_groups"
TELL = ("/bin/sh", "-c", f'{LOOK} >/tmp/first; trap "exit 0" TERM; while :; do sleep 9; done')
FORKING = """
import os, threading, time
for _ in range(2):
    os.fork()
threads = [threading.Thread(target=time.sleep, args=(600,)) for _ in range(3)]
for thread in threads:
    thread.start()
print("ready", flush=True)
while True:
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        time.sleep(0.2)
        os._exit(0)
"""
"""4 processes of 4 threads, each with a child that lives for a moment, again and again."""
WRITES: Counter[str] = Counter()


class Counting(Tree):
    """The real one, and what was written through it."""

    def set_schemata(self, group: Path, text: str, old: str) -> None:
        WRITES["schemata"] += 1
        super().set_schemata(group, text, old)

    def make(self, group: Path) -> None:
        WRITES["make"] += 1
        super().make(group)

    def remove(self, group: Path) -> bool:
        WRITES["remove"] += 1
        return super().remove(group)

    def move(self, group: Path, threads: Iterable[int]) -> int:
        threads = list(threads)
        WRITES["move"] += len(threads)
        return super().move(group, threads)


def dimension(**classes: RdtClass) -> RdtDimension:
    """With the classes of this story or with others; a profile names each."""
    classes = classes or CLASSES
    profiles = {"reclaimed_cores": Profile(rdt=next(iter(classes))), **{name: Profile(rdt=name) for name in classes}}
    return RdtDimension(RdtSection(classes=classes), profiles, Path("/proc"), CGROUP, Counting)


def sandbox(pod: Pod, sandbox_id: str, pid: int, level: QosLevel) -> Sandbox:
    identity = PodIdentity(pod.uid, pod.namespace, pod.name)
    return Sandbox(sandbox_id, identity, level, profile_for(level, "", {}), {}, pid, "")


def repaired(name: str, rdt: RdtDimension, pods: list[Sandbox]) -> None:
    """Say what a round of repair did, and what it could not."""
    repairs = rdt.repair(pods)
    say(f"{name}.repaired", json.dumps(dict(repairs.by_cause), sort_keys=True))
    say(f"{name}.failed", json.dumps(dict(repairs.failed)))


def tree() -> str:
    """All groups with their schemata."""
    return " ".join(
        f"{path.parent.relative_to(ROOT)}:{path.read_text().split()}" for path in sorted(ROOT.rglob("schemata"))
    )


class Story:
    """Pods, and the dimension that isolates them."""

    def __init__(self, kubelet: KubeletClient, rdt: RdtDimension) -> None:
        self.kubelet = kubelet
        self.rdt = rdt

    async def start(self, name: str, level: QosLevel) -> tuple[Sandbox, str]:
        """A pod whose sandbox is admitted before its container is created; says what the container sees."""
        pod = Pod(name, (ContainerSpec("c0", 100, command=TELL),))
        sandbox_id = await self.kubelet.run_pod(pod)
        status = await self.kubelet.pod_status(sandbox_id, verbose=True)
        made = sandbox(pod, sandbox_id, json.loads(status.info["info"])["pid"], level)
        self.rdt.admit(made)
        container = await self.kubelet.create_container(sandbox_id, pod, pod.containers[0])
        await self.kubelet.start_container(container)
        said = await self.kubelet.exec_sync(
            container, ("/bin/sh", "-c", f"until test -s /tmp/first; do sleep 1; done; cat /tmp/first; {LOOK}")
        )
        words = said.stdout.decode().split()
        say(f"{name}.first", words[0])
        say(f"{name}.exec", words[2])
        for fact in self.rdt.explain(made):
            say(f"{name}.{fact.name}", f"{fact.wanted}|{fact.kernel}")
        return made, container

    async def process(self, container: str) -> int:
        """The pid of a container."""
        status = await self.kubelet.container_status(container, verbose=True)
        return int(json.loads(status.info["info"])["pid"])


def tell_mounting() -> None:
    """What is said before there is a mount, and after."""
    say("unmounted", dimension().probe().why)
    try:
        dimension().prepare()
    except NotEnforced as error:
        say("unmounted.prepare", error)
    say("unmounted.reset", dimension().reset())
    subprocess.run(["mount", "-t", "resctrl", "resctrl", ROOT], check=True)
    (ROOT / "theirs").mkdir()
    (ROOT / "theirs/schemata").write_text("L3:0=ff\n")
    say("before", tree())
    say("mounted", dimension().probe().why)
    say("short", dimension(a=RdtClass(l3="1%"), b=RdtClass(l3="2%"), c=RdtClass(l3="3%")).probe().why)
    say("unfit", dimension(a=RdtClass(l3="0x5")).probe().why)
    say("bandwidth", dimension(a=RdtClass(memory_bandwidth="40%")).probe().why)


async def tell_pods(story: Story) -> None:
    """Pods of both kinds, and what happens to them."""
    rdt = story.rdt
    rdt.prepare()
    say("prepared", tree())
    WRITES.clear()
    rdt.prepare()
    say("prepared.again", sum(WRITES.values()))
    lent, container = await story.start("lent", LENT)
    online, _ = await story.start("online", ONLINE)
    pods = [lent, online]
    repaired("fresh", rdt, pods)
    WRITES.clear()
    repaired("steady", rdt, pods)
    say("steady.writes", sum(WRITES.values()))

    (ROOT / "qrm-reclaimed/schemata").write_text("L3:1=fffff\n")
    repaired("schemata", rdt, pods)
    say("schemata.now", (ROOT / "qrm-reclaimed/schemata").read_text().strip())
    (ROOT / "tasks").write_text(str(await story.process(container)))
    repaired("left", rdt, pods)
    (ROOT / "qrm-batch/tasks").write_text(str(online.pid))
    repaired("strayed", rdt, pods)
    (ROOT / "qrm-reclaimed").rmdir()
    repaired("removed", rdt, pods)
    said = await story.kubelet.exec_sync(container, ("/bin/sh", "-c", LOOK))
    say("removed.exec", said.stdout.decode().split()[0])

    (ROOT / "qrm-reclaimed").rmdir()
    (ROOT / "more").mkdir()
    repaired("exhausted", rdt, pods)
    (ROOT / "more").rmdir()
    repaired("freed", rdt, pods)
    WRITES.clear()
    repaired("vanished", rdt, [*pods, Sandbox("gone", lent.pod, LENT, lent.profile, {}, 2**22, "")])
    say("vanished.writes", sum(WRITES.values()))
    for each in pods:
        rdt.forget(each.id)


def tell_moving(rdt: RdtDimension) -> None:
    """A pod whose parent is no shim: all that it consists of is moved, and again what comes later."""
    pod = Pod("conmon", ())
    home = CGROUP / f"pod{pod.uid}" / "crio-abc.scope"
    home.mkdir(parents=True)
    shell = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'
    command = ["bash", "-c", shell, "bash", str(home), sys.executable, "-c", FORKING]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        made = sandbox(pod, "abc", process.pid, LENT)
        rdt.admit(made)
        for fact in rdt.explain(made):
            say(f"moved.{fact.name}", f"{fact.wanted}|{fact.kernel}")
        with subprocess.Popen(["bash", "-c", shell, "bash", str(home), "sleep", "600"]) as later:
            while Path(f"/proc/{later.pid}/comm").read_text() != "sleep\n":
                pass
            WRITES.clear()
            rdt.started(made)
            say("moved.later", WRITES["move"])
            say("moved.later.group", Path(f"/proc/{later.pid}/cpu_resctrl_groups").read_text().split()[0])
            (home / "cgroup.kill").write_text("1")
    while "populated 1" in (home / "cgroup.events").read_text():
        time.sleep(0.05)
    home.rmdir()
    home.parent.rmdir()


async def main() -> None:
    """Before there are pods, with pods, and after qrm."""
    tell_mounting()
    rdt = dimension()
    with PodCgroups() as cgroups:
        async with (
            PrivateContainerd(Path("/run/qrm-e2e"), patience=PATIENCE) as containerd,
            KubeletClient(containerd.endpoint, timeout=120, cgroups=cgroups) as kubelet,
        ):
            await tell_pods(Story(kubelet, rdt))
            tell_moving(rdt)
            say("reset", json.dumps(dimension().reset()))
    say("after", tree())


if __name__ == "__main__":
    asyncio.run(main())
