"""What `status`, `pods`, `explain`, `plan`, `doctor` and `reset` draw."""

from __future__ import annotations

import contextlib
import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from qrm.cli.output import cpus_in_words, print_parts, size, span
from qrm.cli.render_explain import explain, hints, verdict
from qrm.cli.render_plan import plan
from qrm.cli.render_pods import pods
from qrm.cli.render_status import doctor, reset, status
from qrm.service import api
from tests.cli.samples import CONTAINER, EXPLANATION, text

STATUS = api.Status(
    version="1.2",
    started=1000.0,
    socket="/run/qrm/qrm.sock",
    runtime="unix:///run/containerd/containerd.sock (containerd 1.7.24)",
    ready=True,
    containers={"shared_cores": 12, "dedicated_cores": 2},
    unmanaged=0,
    adopted=0,
    pushes_due=0,
    pools={"share": "4-7", "reclaim": "6-7"},
    free={"0": 0, "10": 1500, "2": 4000},
    allocatable={"0": 4000, "10": 4000, "2": 4000},
    ledger="/var/lib/qrm/ledger.db, 14 lines",
)


def test_status() -> None:
    """The service, its containers, its pools with their sizes, and its NUMA nodes in the order of their numbers."""
    assert text(*status(STATUS, 1000.0 + 3 * 3600 + 12 * 60)) == [
        "qrm 1.2, ready, up 3 h 12 min",
        "socket      /run/qrm/qrm.sock",
        "runtime     unix:///run/containerd/containerd.sock (containerd 1.7.24)",
        "ledger      /var/lib/qrm/ledger.db, 14 lines",
        "containers  2 dedicated_cores, 12 shared_cores",
        "",
        "POOL     CPUS  WHICH",
        "reclaim     2  6-7",
        "share       4  4-7",
        "",
        "NUMA  FREE  OF  HELD",
        "   0     0   4  ████████████████████████",
        "   2     4   4  ░░░░░░░░░░░░░░░░░░░░░░░░",
        "  10   1.5   4  ███████████████░░░░░░░░░",
    ]


def test_status_attention() -> None:
    """What needs a look is said, and what is not ready is not called ready."""
    view = replace(STATUS, ready=False, unmanaged=3, pushes_due=2, containers={})
    lines = text(*status(view, 1000.0))
    assert lines[0] == "qrm 1.2, waits for the runtime, places no containers yet, up 0 s"
    assert "containers  none" in lines
    assert "attention   3 unmanaged, 2 waiting for the runtime to take their CPUs" in lines


LONG = replace(CONTAINER, pod="kube-system/a-daemon-set-with-a-long-name-x7k2p", exclusive=False, pool="share-NUMA0")


def test_pods_wide() -> None:
    """A line for each container, with a mark behind CPUs that are its own."""
    others = replace(CONTAINER, container="side", cpus="2", exclusive=False, request=250, mark="adopted")
    assert text(*pods([CONTAINER, others]), width=120) == [
        "POD           CONTAINER  QOS              POOL       CPUS  ASKED  STATE    MARK",
        "default/db-0  main       dedicated_cores  dedicated  2-5*      4  running",
        "default/db-0  side       dedicated_cores  dedicated  2      0.25  running  adopted",
        "* no container of another pod runs there",
    ]


def test_pods_narrow() -> None:
    """Where a line is too short, a container stands below its pod, and nothing is cut off."""
    lines = text(*pods([LONG]))
    assert max(map(len, lines)) <= 80
    joined = "".join(line.split("  ")[0].strip() for line in lines[1:])
    assert joined.startswith(LONG.pod)
    assert any(line.startswith("  main") for line in lines)


def test_pods_piped() -> None:
    """In a pipe every container is one line, however narrow the terminal, without spaces at its end."""
    console = Console(width=40, force_terminal=False, color_system=None)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_parts(console, pods([LONG, LONG]))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [LONG.pod, "main", "dedicated_cores", "share-NUMA0", "2-5", "4", "running"]
    assert not any(line.endswith(" ") for line in lines)


def test_no_pods() -> None:
    """An empty node says so."""
    assert text(*pods([])) == ["no containers"]


def test_explain() -> None:
    """What was asked, offered, chosen and why, and what is in force."""
    lines = text(*explain([EXPLANATION]), width=120)
    assert lines[0] == "default/db-0/main  dedicated_cores"
    said = {line[2:22].strip(): line[22:] for line in lines[1:]}
    assert said["request"] == "4 CPUs, by cri"
    assert said["asked by kubelet"] == "cpu_quota = 400000"
    assert said["annotations"] == "qos_level = dedicated_cores"
    assert said["cpu offered"] == "preferred 0, possible 0-1"
    assert said["pool"] == "dedicated"
    assert said["CPUs by the ledger"] == "2-5 (exclusive)"
    assert said["cpu because"] == "2 whole cores of L3 domain 0"
    assert said["confirmed"] == said["in the kernel"] == "2-5"
    assert said["verdict"] == "ledger and kernel agree"


def test_explain_many() -> None:
    """Containers are told apart by an empty line."""
    assert text(*explain([EXPLANATION, EXPLANATION])).count("") == 1


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"kernel": "2,3,4-5"}, "ledger and kernel agree"),
        ({"kernel": "0-7"}, "LEDGER AND KERNEL DIFFER: 2-5 by the ledger, 0-7 in the kernel; something else"),
        (
            {"kernel": "0-7", "applied": "0-7"},
            "LEDGER AND KERNEL DIFFER: 2-5 by the ledger, 0-7 in the kernel; the runtime",
        ),
        ({"kernel": ""}, "the kernel cannot be asked"),
        ({"container": replace(CONTAINER, state="exited"), "kernel": ""}, "has exited"),
        (
            {"container": replace(CONTAINER, state="pending"), "kernel": ""},
            "the runtime has not confirmed that it exists",
        ),
        ({"container": replace(CONTAINER, cpus="")}, "qrm does not say where it runs"),
    ],
)
def test_verdict(changed: dict[str, object], expected: str) -> None:
    """It is said plainly whether ledger and kernel agree, and where they do not, why that may be."""
    assert verdict(replace(EXPLANATION, **changed)).plain.startswith(expected)


def test_hints_are_shortened() -> None:
    """Preferred NUMA node sets come first, and long lists are cut."""
    offered = [api.Hint(str(node), False) for node in range(9)] + [api.Hint("9", True)]
    assert hints(offered).plain == "preferred 9, possible 0 or 1 or 2 or 3 or 4 or 5 or 3 more"
    assert hints([]).plain == "none"


PLANNED = replace(
    EXPLANATION, container=replace(CONTAINER, pod="/planned", id="", state="pending"), kernel="", applied=""
)


def test_plan_fits() -> None:
    """The pod's containers with their reasons, and others before and after with the difference."""
    changes = [
        api.Change("default/web", "nginx", "0-7", "0-1,6-7", "share"),
        api.Change("default/batch", "", "0", "0-3", "reclaim"),
    ]
    assert text(*plan(api.PlanReply(True, "", [PLANNED], changes))) == [
        "The pod fits.",
        "",
        "CONTAINER  QOS              ASKED  POOL       CPUS",
        "main       dedicated_cores      4  dedicated  2-5*",
        "* no container of another pod runs there",
        "",
        "main  cpu: 2 whole cores of L3 domain 0",
        "      NUMA nodes offered: preferred 0, possible 0-1",
        "",
        "What changes for 2 other containers:",
        "POD            CONTAINER        POOL     BEFORE  AFTER    CPUS",
        "default/web    nginx            share    0-7     0-1,6-7    -4",
        "default/batch  (the whole pod)  reclaim  0       0-3        +3",
    ]


def test_plan_fits_without_changes() -> None:
    """That nobody else is touched is said."""
    assert text(*plan(api.PlanReply(True, "", [PLANNED], [])))[-1] == "Nothing changes for other containers."


def test_plan_refused() -> None:
    """A refusal carries the service's reason as it is, brackets too."""
    reply = api.PlanReply(False, "cpu: asked 80 CPUs [bold]; free: 3", [], [])
    assert text(*plan(reply)) == ["The pod would be refused: cpu: asked 80 CPUs [bold]; free: 3"]


def test_doctor() -> None:
    """A line for each feature with its state and reason; the state has a colour of its own."""
    view = api.Doctor([api.Feature("runtime", "on", "fine"), api.Feature("rdt", "degraded", "no MBA")])
    made = doctor(view)
    assert text(made) == [
        "STATE     FEATURE  WHY",
        "on        runtime  fine",
        "degraded  rdt      no MBA",
    ]
    console = Console(width=80, force_terminal=True, color_system="truecolor")
    colours = {each.text.strip(): each.style.color for each in console.render(made) if each.style}
    assert colours["on"] != colours["degraded"]


def test_reset() -> None:
    """What was undone, what was removed, and what was not undone."""
    assert text(*reset(api.ResetReport(1, [], ["/var/lib/qrm/ledger.db"]))) == [
        "1 container may use the CPUs of the whole machine again",
        "removed /var/lib/qrm/ledger.db",
    ]
    assert text(*reset(api.ResetReport(2, ["abc: no"], [])))[1:] == [
        "not undone: abc: no",
        "The ledger is kept: qrm reset can be repeated.",
    ]


def test_amounts() -> None:
    """Amounts are spelled in units that people use."""
    assert [size(each) for each in (0, 512, 8 << 30, 3 << 39)] == ["0 B", "512 B", "8 GiB", "1.5 TiB"]
    assert [span(each) for each in (-1, 59.9, 3600, 90_061)] == ["0 s", "59 s", "1 h", "1 d 1 h"]
    assert [cpus_in_words(each) for each in (1000, 2000, 250)] == ["1 CPU", "2 CPUs", "0.25 CPUs"]
