"""Inside the guest: pods that are network namespaces with veths at a bridge, and the dimension `network` on them.

    python -m tests.guest.inside.traffic

Prints what it finds as NAME=VALUE; test_traffic.py judges. Rates are in Mbit/s by the guest's clock, which is also the
one that the kernel's shapers go by.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from qrm.config import NetworkClass, NetworkSection
from qrm.enforcement.isolation.dimension import NotEnforced, Sandbox
from qrm.enforcement.isolation.profile import DEFAULTS
from qrm.enforcement.isolation.traffic import Traffic
from qrm.pods.model import PodIdentity, QosLevel
from tests.guest.inside.transfer import Flow, arrives, measure

MODULES = "sch_htb sch_fq_codel sch_ingress sch_tbf cls_matchall cls_u32 act_skbedit act_mirred act_gact veth bridge"
MODULES += " macvlan ipvlan dummy"
SECTION = NetworkSection(
    rate_mbit=100,
    classes={
        "system": NetworkClass(priority=0, guaranteed="5%"),
        "dedicated": NetworkClass(priority=1, guaranteed="5%"),
        "shared": NetworkClass(priority=2, guaranteed="70%"),
        "reclaimed": NetworkClass(priority=7, guaranteed="10%"),
    },
)
LIMITED = {"kubernetes.io/egress-bandwidth": "20M", "kubernetes.io/ingress-bandwidth": "20M"}
WORLD = "world"


def sh(command: str) -> str:
    """Run a command line and return its output."""
    return subprocess.run(f"set -e\n{command}", shell=True, check=True, text=True, stdout=subprocess.PIPE).stdout  # noqa: S602


def say(name: str, value: object) -> None:
    """A finding, on one line."""
    print(f"{name}={' '.join(str(value).split())}", flush=True)


def connect(name: str, number: int) -> None:
    """Make a namespace with a veth at the bridge and addresses of both families."""
    sh(f"""
        ip netns add {name}
        ip link add v-{name} type veth peer name eth0 netns {name}
        ip link set v-{name} up master br0
        ip -n {name} link set lo up
        ip -n {name} link set eth0 up
        ip -n {name} address add 10.9.0.{number}/24 dev eth0
        ip -n {name} address add fd09::{number}/64 dev eth0 nodad
    """)


def sandbox(name: str, level: QosLevel = QosLevel.SHARED, said: Mapping[str, str] | None = None) -> Sandbox:
    """A pod as qrm knows it; "" has the host's network."""
    netns = f"/run/netns/{name}" if name else ""
    return Sandbox(f"id-{name}", PodIdentity(name, "default", name), level, DEFAULTS[level], said or {}, 0, netns)


@dataclass
class Story:
    """The dimension and the pods that it has admitted."""

    traffic: Traffic
    pods: list[Sandbox] = field(default_factory=list)

    def admit(self, pod: Sandbox) -> None:
        """Admit a pod and say how that went."""
        self.pods.append(pod)
        try:
            self.traffic.admit(pod)
            say(f"{pod.pod.name}.admitted", "yes")
        except NotEnforced as error:
            say(f"{pod.pod.name}.admitted", error)

    def repair(self, name: str) -> None:
        """One round; says what it did, and that the next one writes nothing."""
        found = self.traffic.repair(self.pods)
        say(f"{name}.repaired", json.dumps(dict(found.by_cause), sort_keys=True))
        before = self.traffic.writes
        self.traffic.repair(self.pods)
        say(f"{name}.steady", self.traffic.writes - before)

    def explain(self, name: str, pod: Sandbox) -> None:
        """Whatever `qrm explain` would say."""
        for fact in self.traffic.explain(pod):
            say(f"{name}.fact.{fact.name.replace(' ', '-')}", f"{fact.wanted} | {fact.kernel}")


def network() -> str:
    """All that iproute2 tells of links, qdiscs, classes and filters, without what counts and what runs."""
    links = json.loads(sh("ip -json -details link"), object_hook=_without_timers)
    found = [json.dumps(each, sort_keys=True) for each in links] + [sh("tc qdisc show")]
    return "\n".join(found + [queueing(each["ifname"]) for each in links])


def queueing(device: str) -> str:
    """All that iproute2 tells of one device's qdiscs, classes and filters."""
    looks = ("qdisc show dev {}", "class show dev {}", "filter show dev {} root")
    hooks = ("filter show dev {} ingress", "filter show dev {} egress")
    return "".join(sh(f"tc {look.format(device)}") for look in (*looks, *hooks))


def _without_timers(value: dict[str, object]) -> dict[str, object]:
    return {key: each for key, each in value.items() if not key.endswith("timer")}


def classes(direction: str) -> str:
    """The minors of the classes of one tree."""
    found = [line.split()[2] for line in sh(f"tc class show dev qrm-{direction}").splitlines() if line[6:9] == "htb"]
    return " ".join(sorted(each.partition(":")[2] for each in found))


def foreign(story: Story) -> None:
    """Pods on whose veths somebody else has qdiscs or filters, and pods without veths."""
    connect("cni", 5)
    sh("""
        ip link add bwp0 type ifb
        ip link set bwp0 up
        tc qdisc add dev bwp0 root handle 1: tbf rate 30mbit burst 64k latency 25ms
        tc qdisc add dev v-cni root handle 1: tbf rate 30mbit burst 64k latency 25ms
        tc qdisc add dev v-cni ingress
        tc filter add dev v-cni parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev bwp0
    """)
    connect("tbf", 6)
    sh("tc qdisc add dev v-tbf root handle 1: tbf rate 30mbit burst 64k latency 25ms")
    connect("policed", 7)
    sh("""
        tc qdisc add dev v-policed clsact
        tc filter add dev v-policed ingress pref 10 protocol ip u32 match ip dport 7999 0xffff action drop
        tc filter add dev v-policed egress pref 65000 protocol ip u32 match ip dport 7998 0xffff action drop
    """)
    before = {name: queueing(f"v-{name}") for name in ("cni", "tbf", "policed")}
    sh("tc qdisc del dev qrm-egress root; ip link del qrm-ingress")  # a pod that comes before the next round needs them
    for name in before:
        story.admit(sandbox(name))
    say("cni.same", queueing("v-cni") == before["cni"])
    say("tbf.root", "qdisc tbf 1: root" in queueing("v-tbf"))
    say("tbf.ingress", measure(Flow(WORLD, "tbf", "10.9.0.6"))[0])
    story.explain("cni", story.pods[-3])
    for port in (7997, 7998, 7999):
        say(f"policed.sends.{port}", arrives(Flow("policed", WORLD, "10.9.0.1"), port))
        say(f"policed.receives.{port}", arrives(Flow(WORLD, "policed", "10.9.0.7"), port))
    for name in ("tbf", "policed"):
        story.traffic.forget(f"id-{name}")
        say(f"{name}.same", queueing(f"v-{name}") == before[name])
        story.traffic.admit(sandbox(name))
    for kind in ("macvlan", "ipvlan"):
        sh(f"""
            ip netns add {kind}
            ip link add {kind}-parent type dummy
            ip link add {kind}-pod link {kind}-parent type {kind}
            ip link set {kind}-pod netns {kind} name eth0
        """)
        story.admit(sandbox(kind))
    story.admit(sandbox(""))
    story.explain("host", story.pods[-1])
    done = story.traffic.repair(story.pods)
    say("foreign.failed", " ".join(sorted(done.failed)))
    say("foreign.repaired", json.dumps(dict(done.by_cause), sort_keys=True))
    sh("tc qdisc del dev v-cni ingress")
    story.repair("cni.left")
    say("cni.root", "qdisc tbf 1: root" in queueing("v-cni"))


BREAKS = {
    "clsact": "tc qdisc del dev v-shared clsact",
    "filter": "tc filter del dev v-shared ingress",
    "rewritten": "tc class replace dev qrm-egress parent 7172:5 classid 7172:20 htb rate 1mbit ceil 1mbit quantum 9999",
    "class": "tc class del dev qrm-ingress classid 7172:20",
    "leaf": "tc qdisc replace dev qrm-egress parent 7172:20 pfifo",
    "down": "ip link set qrm-egress down",
    "strange": "tc class add dev qrm-egress parent 7172:1 classid 7172:ff0 htb rate 1mbit quantum 9999",
    "tree": "tc qdisc del dev qrm-egress root",
    "ifb": "ip link del qrm-ingress",
}
"""What somebody does to us, by name."""


def drift(story: Story) -> None:
    """Everything of ours is broken in turn and repaired."""
    for name, command in BREAKS.items():
        sh(command)
        story.repair(name)


def rates() -> None:
    """Ceilings of one pod in both directions and families."""
    for family, world, pod in (("v4", "10.9.0.1", "10.9.0.2"), ("v6", "fd09::1", "fd09::2")):
        say(f"limited.egress.{family}", measure(Flow("limited", WORLD, world))[0])
        say(f"limited.ingress.{family}", measure(Flow(WORLD, "limited", pod))[0])


def together() -> None:
    """A shared and a reclaimed pod at the same time, and the reclaimed one alone."""
    say("alone.egress.reclaimed", measure(Flow("reclaimed", WORLD, "10.9.0.1"))[0])
    shared, reclaimed = measure(Flow("shared", WORLD, "10.9.0.1"), Flow("reclaimed", WORLD, "10.9.0.1"))
    say("together.egress.shared", shared)
    say("together.egress.reclaimed", reclaimed)
    shared, reclaimed = measure(Flow(WORLD, "shared", "10.9.0.3"), Flow(WORLD, "reclaimed", "10.9.0.4"))
    say("together.ingress.shared", shared)
    say("together.ingress.reclaimed", reclaimed)


def remade(story: Story) -> Story:
    """Another process in place of the first: it finds all as it is."""
    say("classes.before", classes("egress"))
    story.traffic.close()
    again = Story(Traffic(SECTION), story.pods)
    again.traffic.prepare()
    again.admit(again.pods.pop(0))
    again.repair("restart")
    say("restart.writes", again.traffic.writes)
    say("classes.after", classes("egress"))
    return again


def gone(story: Story) -> None:
    """Pods end: one that we are told of, and two of which only the veths tell."""
    shared, reclaimed = story.pods[0:2]
    story.traffic.forget(shared.id)
    say("forgotten.filters", queueing("v-shared").count("matchall"))
    story.pods.remove(shared)
    sh("ip netns del reclaimed; while ip link show v-reclaimed >/dev/null 2>&1; do sleep 0.1; done")
    failed = story.traffic.repair(story.pods).failed
    say("vanished.failed", failed.get(reclaimed.id, ""))
    say("classes.gone", classes("egress"))
    say("classes.gone.ingress", classes("ingress"))


def main() -> None:
    """Everything in turn."""
    sh(f"modprobe ifb numifbs=0; modprobe -a {MODULES}; ip link add br0 type bridge; ip link set br0 up")
    for number, name in enumerate((WORLD, "limited", "shared", "reclaimed"), 1):
        connect(name, number)
    before = network()
    story = Story(Traffic(SECTION))
    say("probe", story.traffic.probe())
    story.traffic.prepare()
    for pod in (sandbox("limited", said=LIMITED), sandbox("shared"), sandbox("reclaimed", QosLevel.RECLAIMED)):
        story.admit(pod)
    story.explain("limited", story.pods[0])
    story.repair("start")
    drift(story)
    rates()
    together()
    say("reset", "; ".join(story.traffic.reset()))
    say("reset.same", network() == before)
    for pod in story.pods:
        story.traffic.admit(pod)
    foreign(story)
    story = remade(story)
    gone(story)
    story.traffic.close()
    print("\n".join(Traffic(SECTION).reset()))
    left = network()
    say("reset.left", [word for word in ("matchall", "7172", "qrm-", "skbedit") if word in left])


if __name__ == "__main__":
    main()
