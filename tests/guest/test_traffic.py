"""Pods' traffic under a real kernel: `inside/traffic.py` does it all in one boot, and here it is judged."""

from __future__ import annotations

import json

import pytest

from .vm import GuestResult, default_cache, prepare, run

pytestmark = [pytest.mark.guest, pytest.mark.timeout(1800)]

BOOT_TIMEOUT = 1500


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> GuestResult:
    """The guest's exit code and console."""
    script = tmp_path_factory.mktemp("guest") / "traffic.sh"
    script.write_text("exec python -m tests.guest.inside.traffic\n")
    return run(prepare(default_cache()), script, cpus=2, counted=True, timeout=BOOT_TIMEOUT)


@pytest.fixture(scope="module")
def seen(result: GuestResult) -> dict[str, str]:
    """What was found, by name."""
    pairs = (line.partition("=") for line in result.console.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def test_it_went_to_its_end(result: GuestResult, seen: dict[str, str]) -> None:
    """Nothing failed inside the guest, whose kernel has all that is needed."""
    assert result.exit_code == 0
    assert "usable=True" in seen["probe"]


@pytest.mark.parametrize("family", ["v4", "v6"])
@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_a_ceiling_holds(seen: dict[str, str], direction: str, family: str) -> None:
    """A pod with 20 Mbit/s in its annotations sends and receives 20 Mbit/s by either protocol."""
    assert float(seen[f"limited.{direction}.{family}"]) == pytest.approx(20, rel=0.15)


@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_a_guarantee_holds(seen: dict[str, str], direction: str) -> None:
    """With a reclaimed pod at the same time, a shared one has its class's 70 Mbit/s, less the headers."""
    shared, reclaimed = (float(seen[f"together.{direction}.{name}"]) for name in ("shared", "reclaimed"))
    assert shared >= 0.9 * 70
    assert shared > 3 * reclaimed
    assert shared + reclaimed <= 105


def test_what_nobody_wants_is_lent(seen: dict[str, str]) -> None:
    """Alone, a reclaimed pod has far more than its class's 10 Mbit/s."""
    assert float(seen["alone.egress.reclaimed"]) > 70


def test_explain_has_both_sides(seen: dict[str, str]) -> None:
    """What a pod is to have is what the kernel has."""
    for direction in ("egress", "ingress"):
        wanted, kernel = seen[f"limited.fact.network-{direction}"].split(" | ")
        assert wanted == "shared, at most 20 Mbit/s, priority 2"
        assert kernel.startswith(wanted)
    assert seen["limited.fact.network-filters-of-eth0"] == "class 0x10 | class 0x10"


REPAIRS = {
    "start": {},
    "clsact": {"filter": 2, "qdisc": 1},
    "filter": {"filter": 1},
    "rewritten": {"class": 1},
    "class": {"class": 1, "qdisc": 1},
    "leaf": {"qdisc": 1},
    "down": {"ifb": 1},
    "strange": {"leftover": 1},
    "tree": {"class": 8, "qdisc": 4},
    "ifb": {"class": 8, "filter": 3, "ifb": 1, "qdisc": 4},
    "cni.left": {"filter": 2, "qdisc": 1},
    "restart": {},
}
"""By what somebody did, what is put back: three pods, five classes of the node, a qdisc for the tree and one a pod."""


@pytest.mark.parametrize("name", REPAIRS)
def test_drift_is_repaired(seen: dict[str, str], name: str) -> None:
    """One round puts everything back and counts it by cause; the next one finds nothing to write."""
    assert json.loads(seen[f"{name}.repaired"]) == REPAIRS[name]
    assert seen[f"{name}.steady"] == "0"


def test_a_pod_finds_the_nodes_part_gone(seen: dict[str, str]) -> None:
    """What was deleted since the last round is there for a pod that comes before the next, which counts it all."""
    assert seen["tbf.admitted"] == "yes"
    assert json.loads(seen["foreign.repaired"]) == {"class": 16, "filter": 3, "ifb": 1, "qdisc": 8}


def test_the_cni_plugins_qdiscs_stay(seen: dict[str, str]) -> None:
    """Where it has the ingress hook, nothing is touched and the pod's class is not enforced, which is said."""
    assert seen["cni.admitted"].startswith(
        "v-cni has an ingress qdisc of somebody else, such as the CNI plugin bandwidth"
    )
    assert seen["cni.same"] == "True"
    assert seen["cni.fact.network-filters-of-eth0"].endswith("| not enforced: an ingress qdisc of somebody else")
    assert seen["cni.root"] == "True"


def test_a_root_qdisc_stays_and_works(seen: dict[str, str]) -> None:
    """Somebody's root qdisc on the veth goes on limiting what the pod receives, while the pod is in our trees too."""
    assert seen["tbf.admitted"] == "yes"
    assert seen["tbf.root"] == "True"
    assert float(seen["tbf.ingress"]) <= 32
    assert seen["tbf.same"] == "True"


def test_others_filters_decide_first(seen: dict[str, str]) -> None:
    """What somebody's filters drop is dropped beside ours, the rest passes, and they are there when the pod is gone."""
    assert seen["policed.admitted"] == "yes"
    assert [seen[f"policed.sends.{port}"] for port in (7997, 7998, 7999)] == ["True", "True", "False"]
    assert [seen[f"policed.receives.{port}"] for port in (7997, 7998, 7999)] == ["True", "False", "True"]
    assert seen["policed.same"] == "True"


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_pods_without_a_veth_are_named(seen: dict[str, str], kind: str) -> None:
    """Nothing is enforced on them, and why."""
    assert seen[f"{kind}.admitted"] == f"eth0 is {kind}: its traffic does not pass a veth, where qrm shapes"
    assert seen["foreign.failed"].split() == ["id-cni", "id-ipvlan", "id-macvlan"]


def test_pods_with_the_hosts_network_are_told_of(seen: dict[str, str]) -> None:
    """They are admitted, and explain says that nothing is enforced."""
    assert seen[".admitted"] == "yes"
    assert seen["host.fact.network-class"].startswith("shared | not enforced: the pod has the host's network")


def test_a_restart_finds_everything(seen: dict[str, str]) -> None:
    """Another process takes over the pods with their class ids, and writes nothing."""
    assert seen["restart.writes"] == "0"
    assert seen["classes.after"] == seen["classes.before"]


def test_a_pods_classes_go_with_it(seen: dict[str, str]) -> None:
    """A pod that is forgotten leaves no class and no filter; one whose namespace vanished leaves no class."""
    assert seen["forgotten.filters"] == "0"
    assert seen["vanished.failed"] == ""
    gone = set(seen["classes.before"].split()) - {"20", "30"}
    assert set(seen["classes.gone"].split()) == set(seen["classes.gone.ingress"].split()) == gone


def test_reset_leaves_nothing(seen: dict[str, str]) -> None:
    """All that iproute2 tells is as before, and a process without memory leaves nothing of ours either."""
    assert seen["reset"].endswith("qrm-egress: removed; qrm-ingress: removed")
    assert seen["reset.same"] == "True"
    assert seen["reset.left"] == "[]"
