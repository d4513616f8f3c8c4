"""What plugins/README.md says is true: its code runs, and an allocator installed as it says serves real pods."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import example_device
import pytest

from qrm.allocation.registry import GROUP, load_allocators
from qrm.allocation.remote.allocations import PROPERTIES
from qrm.allocation.remote.calls import REGISTRATION, RESOURCE_PLUGIN
from qrm.allocation.remote.client import Timeouts
from qrm.allocation.remote.convert import KIND, VERSION
from qrm.allocation.remote.desk import SERVICE
from qrm.allocator import ConfigError
from qrm.cli.main import cli
from qrm.demo.pods import ContainerSpec, Pod
from qrm.pods.request import QosDefaults
from qrm.service.api import PlanRequest
from qrm.service.doctor import examine
from qrm.service.planning import what_if
from qrm.service.pod_resources import list_pods
from qrm.wire import cri_pb2 as cri
from tests.support import refused, under_test

PLUGINS = Path(example_device.__file__).parent.parent
README = (PLUGINS / "README.md").read_text()
SOURCE = (PLUGINS / "example_device" / "allocator.py").read_text()
RESOURCE = "example.com/fpga"


def blocks(language: str) -> Iterator[str]:
    """The README's code blocks, without the indentation of the list that they are in."""
    for indent, content in re.findall(rf"^( *)```{language}\n(.*?)^ *```$", README, re.DOTALL | re.MULTILINE):
        yield re.sub(rf"^{indent}", "", content, flags=re.MULTILINE)


PACKAGE, SETTINGS = blocks("toml")
(ANNOTATION,) = blocks("json")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as pip would install it, with what the README says is in its pyproject.toml."""
    project = tomllib.loads(PACKAGE)["project"]
    entries = "".join(f"{name} = {target}\n" for name, target in project["entry-points"][GROUP].items())
    folder = tmp_path / "site" / "example_device-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}")
    monkeypatch.syspath_prepend(str(folder.parent))


def test_python_blocks_are_the_examples_own_or_run() -> None:
    """Nothing is shown that does not work."""
    shown = [block for block in blocks("python") if block not in SOURCE]
    assert len(shown) == 1
    exec(compile(shown[0], "plugins/README.md", "exec"), {})  # noqa: S102 - it is ours


def test_the_example_is_as_short_as_it_is_said_to_be() -> None:
    """The README gives the number of lines."""
    assert "in 150 lines" in README
    assert len(SOURCE.splitlines()) < 150


def test_files_that_are_linked_exist() -> None:
    """Those in this repository, and sections of the page itself."""
    for target in re.findall(r"\]\(([^)]+)\)", README):
        heading = target.removeprefix("#").replace("-", " ")
        exists = f"## {heading}\n" in README.lower() if target.startswith("#") else (PLUGINS / target).exists()
        assert exists, target


def test_commands_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their options."""
    monkeypatch.chdir(tmp_path)
    Path("pod.json").write_text("{}")
    lines = [line for block in blocks("console") for line in block.splitlines()]
    assert lines
    for line in lines:
        prompt, program, name, *arguments = shlex.split(line, comments=True)
        assert (prompt, program) == ("$", "qrm")
        with cli.commands[name].make_context(name, arguments):
            pass


def test_what_is_said_of_the_wire_protocol_is_what_the_code_has() -> None:
    """The services, the Go names that a plugin may use, and how long it may take."""
    for said in (RESOURCE_PLUGIN, f"{REGISTRATION}GetInfo", f"/{SERVICE}/Register", f"type `{KIND}`", f"`{VERSION}`"):
        assert said in README
    named = re.search(r"\*\*`oci_property_name`\*\*.*?Leave it empty", README, re.DOTALL)
    assert named is not None
    assert set(re.findall(r"`([A-Z]\w+)`", named[0])) - {"LinuxContainerResources"} == set(PROPERTIES)
    assert (Timeouts().call, Timeouts().pre_start) == (10, 30)
    assert "10 seconds for a call, 30 for" in README


def test_without_its_package_the_allocator_is_not_known() -> None:
    """The message is the one in the README's table."""
    assert "fpga" not in entry_points(group=GROUP).names
    with pytest.raises(ConfigError, match=r"allocators\.fpga: no such allocator \(installed are: "):
        load_allocators({"fpga": {}})
    assert "`allocators.fpga: no such allocator (installed are: ...)`" in README


@pytest.mark.usefixtures("installed")
async def test_a_pod_gets_what_the_readme_says(tmp_path: Path) -> None:
    """Configured, asked and told as it is written there; a pod too many is refused with the allocator's words."""
    async with under_test(tmp_path, more=SETTINGS) as under:
        assert f"allocator {RESOURCE}" in {feature.name for feature in (await examine(under.node)).features}
        planned = what_if(under.node.book, PlanRequest({"qrm.io/resources": ANNOTATION}, {"main": 100}), QosDefaults())
        assert [hint.nodes for hint in planned.containers[0].hints[RESOURCE]] == ["1", "0", "0-1"]
        assert planned.containers[0].why[RESOURCE] == "1 on NUMA node 1: fpga2"
        running = await under.kubelet.start_pod(wants_fpga("web"))
        record = under.record(running.containers["main"])
        assert record.allocations[RESOURCE].device == "fpga2"
        config = under.fake.store.containers[running.containers["main"]].config
        assert config.annotations["example.com/fpga-devices"] == "fpga2"
        assert "EXAMPLE_FPGA_DEVICES=fpga2" in README
        assert cri.KeyValue(key="EXAMPLE_FPGA_DEVICES", value=b"fpga2") in config.envs
        (told,) = list_pods(under.node.book.ledger, under.node.planner.machine)
        (device,) = told.containers[0].devices
        assert (device.resource_name, list(device.device_ids)) == (RESOURCE, ["fpga2"])
        await under.kubelet.start_pod(wants_fpga("second"))
        await under.kubelet.start_pod(wants_fpga("third"))
        refusal = await refused(under.kubelet.start_pod(wants_fpga("fourth")))
        assert "fpga: asked 1; free by NUMA node: none; largest that would fit: 0" in refusal
        await under.kubelet.end_pod(running)
        await under.kubelet.start_pod(wants_fpga("fifth"))
        await under.kubelet.start_pod(Pod("other", (ContainerSpec("main", cpu_request=100),)))
        await under.settled()


def wants_fpga(name: str) -> Pod:
    """A pod with the README's annotation."""
    assert json.loads(ANNOTATION)["main"][RESOURCE] == "1"
    return Pod(name, (ContainerSpec("main", cpu_request=100),), annotations={"qrm.io/resources": ANNOTATION})
