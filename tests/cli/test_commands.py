"""The commands against a real service: what they print, as text and as JSON, and how they fail."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from qrm.cli.client import Client
from qrm.cli.main import cli
from qrm.cpuset import CPUSet
from qrm.service import api
from qrm.topology.generate import Layout, write_sysfs
from tests.cli.conftest import Asked, Canned, assert_told, invoke
from tests.cli.samples import CONTAINER, shown

PLAN = ("plan", "--cpu", "2", "--qos", "dedicated_cores")

READING: list[tuple[tuple[str, ...], Any]] = [
    (("status",), api.Status),
    (("topology",), api.Topology),
    (("pods",), list[api.Container]),
    (("explain", "web"), list[api.Explanation]),
    (PLAN, api.PlanReply),
    (("doctor",), api.Doctor),
]
"""Every command that asks the service, and the struct that answers."""

COMMANDS = [pytest.param(command, id=command[0]) for command, _ in READING]


@pytest.mark.parametrize(("command", "kind"), READING, ids=[command[0] for command, _ in READING])
async def test_json(asked: Asked, command: tuple[str, ...], kind: Any) -> None:
    """--json prints the API's struct with all its fields, indented, and the same each time."""
    result = await asked.run(*command, "--json")
    assert result.exit_code == 0, result.output
    answer = msgspec.json.decode(result.stdout, type=kind)
    assert msgspec.to_builtins(answer) == json.loads(result.stdout)
    assert result.stdout.splitlines()[1].startswith("  ")
    assert (await asked.run(*command, "--json", terminal=False, columns=20)).stdout == result.stdout


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("command", COMMANDS)
async def test_fits_the_terminal(asked: Asked, command: tuple[str, ...], columns: int) -> None:
    """Without --json, the text has no line that is longer than the terminal is wide."""
    result = await asked.run(*command, columns=columns)
    assert result.exit_code == 0, result.output
    lines = shown(result.stdout)
    assert lines
    assert max(map(len, lines)) <= columns


async def test_status(asked: Asked) -> None:
    """The service's own numbers are shown."""
    lines = shown((await asked.run("status", terminal=False)).stdout)
    assert lines[0].startswith("qrm 0.1.0, ready, up ")
    assert "containers  1 dedicated_cores, 1 reclaimed_cores, 1 shared_cores" in lines
    assert any(line.split()[:2] == ["share", "6"] for line in lines)


async def test_topology(asked: Asked) -> None:
    """The drawing shows who holds what on the node."""
    result = await asked.run("topology", terminal=False)
    assert "A  default/db" in result.stdout
    assert result.stderr == ""


async def test_topology_in_colour(asked: Asked) -> None:
    """A terminal with colours gets colours, and no letters."""
    environment = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm", "NO_COLOR": None}
    arguments = ["--socket", str(asked.socket), "topology"]
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=environment, color=True)
    assert "\x1b[" in result.output
    assert "48;2;" in result.output
    assert "A  default/db" not in result.output


async def test_pods(asked: Asked) -> None:
    """Every container is listed with where it runs."""
    lines = shown((await asked.run("pods", terminal=False)).stdout)
    rows = [line.split() for line in lines[1:4]]
    assert [row[:3] for row in rows] == [
        ["default/batch", "c0", "reclaimed_cores"],
        ["default/db", "c0", "dedicated_cores"],
        ["default/web", "nginx", "shared_cores"],
    ]
    assert rows[1][4].endswith("*")


@pytest.mark.parametrize("name", ["web", "web/nginx", "default/web", "default/web/nginx"])
async def test_explain(asked: Asked, name: str) -> None:
    """A container is found by any of its names, and ledger and kernel are compared."""
    lines = shown((await asked.run("explain", name)).stdout)
    assert lines[0] == "default/web/nginx  shared_cores"
    assert "  request             0.5 CPUs, by cri" in lines
    assert lines[-1].endswith("ledger and kernel agree")


async def test_explain_difference(asked: Asked) -> None:
    """A cpuset that somebody has changed behind qrm's back is pointed out."""
    container = next(each for each in await asyncio.to_thread(Client(asked.socket).pods) if each.pod == "default/web")
    for name in ("cpuset.cpus", "cpuset.cpus.effective"):
        (asked.node.fake.cgroup_of(container.id) / name).write_text("0\n")
    told = (await asked.run("explain", "web", terminal=False)).stdout
    assert f"LEDGER AND KERNEL DIFFER: {container.cpus} by the ledger, 0 in the kernel" in told


async def test_unknown_pod(asked: Asked) -> None:
    """A pod that is not there is told, with a way to find out which are."""
    assert_told(await asked.run("explain", "nope"), 1, "qrm: no pod or container 'nope'", "qrm pods lists them")


async def test_plan(asked: Asked) -> None:
    """A plan that fits shows the pod's CPUs, and what it costs the others."""
    result = await asked.run(*PLAN, terminal=False)
    assert result.exit_code == 0
    lines = shown(result.stdout)
    assert lines[0] == "The pod fits."
    assert any(line.startswith("main") and "dedicated_cores" in line for line in lines)
    before, after = next(line.split()[3:5] for line in lines if line.startswith("default/web"))
    assert CPUSet.parse(after) < CPUSet.parse(before)


async def test_plan_changes_nothing(asked: Asked) -> None:
    """A plan leaves everything as it is."""
    client = Client(asked.socket)
    before = await asyncio.to_thread(client.pods)
    await asked.run(*PLAN)
    assert await asyncio.to_thread(client.pods) == before


@pytest.mark.parametrize("as_json", [(), ("--json",)])
async def test_plan_refused(asked: Asked, as_json: tuple[str, ...]) -> None:
    """A plan that does not fit says why, and the exit code is 1."""
    result = await asked.run("plan", "--cpu", "64", "--qos", "dedicated_cores", *as_json)
    assert result.exit_code == 1
    assert "asked 64 CPUs" in result.stdout


async def test_plan_bad_annotation(asked: Asked) -> None:
    """What the service does not understand of an annotation is told with what is allowed."""
    result = await asked.run("plan", "--cpu", "1", "--annotation", 'memory_enhancement={"numa_binding": "yes"}')
    assert result.exit_code == 1
    told = " ".join(shown(result.stdout))
    assert "memory_enhancement: numa_binding is 'yes', allowed: 'true' or 'false'" in told


MANIFEST = {
    "metadata": {"name": "p", "annotations": {"katalyst.kubewharf.io/qos_level": "shared_cores", "x.io/y": "z"}},
    "spec": {"containers": [{"name": "one", "resources": {"requests": {"cpu": "2"}}}, {"name": "two"}]},
}


@pytest.mark.parametrize("source", ["file", "-"])
async def test_plan_file(asked: Asked, tmp_path: Path, source: str) -> None:
    """A manifest is planned as it is, from a file or from standard input."""
    text = json.dumps(MANIFEST).encode()
    file = tmp_path / "pod.json"
    file.write_bytes(text)
    result = await asked.run("plan", "--json", "--file", "-" if source == "-" else str(file), stdin=text)
    reply = msgspec.json.decode(result.stdout, type=api.PlanReply)
    told = [(each.container.container, each.container.request, each.container.qos) for each in reply.containers]
    assert told == [("one", 2000, "shared_cores"), ("two", 0, "shared_cores")]


def test_plan_options_replace_the_manifest(canned: Canned, tmp_path: Path) -> None:
    """--annotation wins over the manifest, --qos over both, and keys may be without Katalyst's domain."""
    canned.answers["plan"] = msgspec.json.encode(api.PlanReply(True, "", [], []))
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(MANIFEST))
    more = ("--annotation", "numa_ids=0=1", "--annotation", "x.io/y=w", "--annotation", "qos_level=a")
    result = invoke("--socket", str(canned.socket), "plan", "--file", str(file), *more, "--qos", "dedicated_cores")
    assert result.exit_code == 0, result.output
    asked = msgspec.json.decode(canned.requests[0][1], type=api.PlanRequest)
    assert asked.annotations == {
        "katalyst.kubewharf.io/qos_level": "dedicated_cores",
        "katalyst.kubewharf.io/numa_ids": "0=1",
        "x.io/y": "w",
    }
    assert asked.name == "p"


def test_json_is_stable(canned: Canned) -> None:
    """The keys of maps are sorted, the fields of structs are in the API's order."""
    canned.answers["explain"] = msgspec.json.encode(
        [api.Explanation(CONTAINER, {"b": "1", "a": "2"}, {}, {}, {}, "", "", "", 0.0)]
    )
    output = invoke("--socket", str(canned.socket), "explain", "x", "--json").stdout
    assert output.index('"a"') < output.index('"b"')
    assert output.index('"container"') < output.index('"asked"') < output.index('"annotations"')


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("plan",), "Give either --cpu or --file."),
        (("plan", "--cpu", "1", "--file", "-"), "Give either --cpu or --file."),
        (("plan", "--cpu", "two"), "'two' is not a quantity"),
        (("plan", "--cpu", "1", "--qos", "gold"), "'dedicated_cores'"),
        (("plan", "--cpu", "1", "--annotation", "x"), "'x' is not KEY=VALUE"),
        (("plan", "--cpu", "1", "--annotation", "cpu_enhancment={}"), "known are qos_level, cpu_enhancement"),
        (("plan", "--file", "/nonexistent.json"), "No such file or directory"),
        (("plan", "--file", "/"), "directory"),
        (("explain",), "Missing argument 'POD[/CONTAINER]'"),
        (("nonsense",), "No such command 'nonsense'"),
        (("status", "--nonsense"), "No such option"),
    ],
)
def test_usage(arguments: tuple[str, ...], text: str) -> None:
    """A command line that makes no sense ends with exit code 2 and says what is wrong with it."""
    assert_told(invoke(*arguments), 2, text)


def test_plan_of_yaml(tmp_path: Path) -> None:
    """YAML is refused with the command that turns it into JSON."""
    file = tmp_path / "pod.yaml"
    file.write_text("kind: Pod\n")
    assert_told(invoke("plan", "--file", str(file)), 1, "is not JSON", "kubectl create --dry-run=client -o json")


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("command", [each for each in COMMANDS if each.id != "topology"])
def test_not_running(tmp_path: Path, command: tuple[str, ...], as_json: tuple[str, ...]) -> None:
    """Without a service every command that needs it says so, and how to get one."""
    result = invoke("--socket", f"{tmp_path}/admin.sock", *command, *as_json)
    assert_told(result, 1, "qrm: the qrm service is not running (no answer at", "hint: systemctl start qrm")
    assert result.stdout == ""


def test_topology_without_service(tmp_path: Path) -> None:
    """Without a service, this machine is drawn all the same, and it is said that the holders are not known."""
    result = invoke("--socket", f"{tmp_path}/admin.sock", "topology")
    assert result.exit_code == 0, result.output
    assert "who holds the CPUs is not known: the qrm service is not running" in result.stderr
    assert "holder not known" in result.stdout


def test_topology_of_sysfs(tmp_path: Path) -> None:
    """Another machine's sysfs is drawn without asking the service, as text and as JSON."""
    write_sysfs(Layout(sockets=2), tmp_path)
    result = invoke("topology", "--sysfs", str(tmp_path))
    assert "2 sockets, 2 NUMA nodes, 2 L3 domains, 8 cores, 8 CPUs" in shown(result.stdout)
    assert f"not known: read from {tmp_path}" in result.stderr
    answer = msgspec.json.decode(invoke("topology", "--json", "--sysfs", str(tmp_path)).stdout, type=api.Topology)
    assert [cpu.socket for cpu in answer.cpus] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_topology_of_nothing(tmp_path: Path) -> None:
    """A folder that is no sysfs is told."""
    assert_told(invoke("topology", "--sysfs", str(tmp_path)), 1, "names no online CPU")


def test_socket_from_environment(canned: Canned) -> None:
    """QRM_ADMIN_SOCKET names the socket where --socket does not."""
    canned.answers["pods"] = b"[]"
    result = CliRunner().invoke(cli, ["pods"], env={"QRM_ADMIN_SOCKET": str(canned.socket)})
    assert result.stdout == "no containers\n"


def test_every_command_is_documented() -> None:
    """Each command has a help text, and each that prints takes --json."""
    for name in ("status", "topology", "pods", "explain", "plan", "doctor", "reset", "demo", "serve"):
        result = invoke(name, "--help")
        assert result.exit_code == 0
        assert ("--json" in result.stdout) == (name != "serve")
    assert invoke("--version").stdout == "qrm, version 0.1.0\n"
