"""The command as a process of its own: exit codes, signals, pipes, and the commands that change something."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from qrm.cli.client import Client, NotRunning
from qrm.config import Config
from qrm.demo import story
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.ledger.store import open_ledger
from qrm.service import reset as reset_module
from qrm.service.api import ResetReport
from qrm.service.serve import running
from qrm.topology.generate import write_sysfs
from tests.cli.conftest import assert_told, invoke
from tests.support import PATIENCE, TWO_NODES, config, dedicated, until, wait_ready

QRM = (sys.executable, "-m", "qrm.cli.main")


def _run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QRM, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment},
    )


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Let a process that is started be interrupted, even where the tests run in the background and cannot be."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def _started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*QRM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal (proc_pid_status(5), SigCgt)."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) >> (number - 1) & 1)


def _write_config(folder: Path, *, endpoint: str = "", socket_folder: str = "") -> Path:
    file = folder / "qrm.toml"
    run = socket_folder or str(folder / "run")
    file.write_text(
        f"""
        [runtime]
        endpoint = "{endpoint or f"unix://{folder}/nobody.sock"}"
        [shim]
        socket = "{run}/qrm.sock"
        admin_socket = "{run}/admin.sock"
        pod_resources_socket = "{run}/pod-resources.sock"
        [state]
        directory = "{folder}/state"
        [metrics]
        listen = ""
        [host]
        sysfs = "{folder}/sys"
        """
    )
    if not (folder / "sys").exists():
        write_sysfs(TWO_NODES, folder / "sys")
    return file


def test_service(tmp_path: Path) -> None:
    """`qrm serve` answers on its sockets with the settings of its file, logs to standard error, and ends on SIGTERM."""
    file = _write_config(tmp_path)
    with _started("serve", "--config", str(file)) as process:
        client, deadline = Client(tmp_path / "run/admin.sock"), time.monotonic() + PATIENCE
        while True:
            try:
                status = client.status()
                break
            except NotRunning:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
        assert status.socket == f"{tmp_path}/run/qrm.sock"
        while not _catches(process.pid, signal.SIGHUP):  # a moment after it answers
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert out == ""
    assert f"event=reloaded file={file}" in err


def test_plugin_serve(tmp_path: Path) -> None:
    """`qrm plugin serve cpu` is found by a node that looks in its folder, and places containers for it."""
    write_sysfs(TWO_NODES, tmp_path / "sys")
    (tmp_path / "plugins").mkdir()
    file = _write_config(tmp_path)
    with _started("plugin", "serve", "cpu", "--directory", str(tmp_path / "plugins"), "--config", str(file)) as process:
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "plugins/qrm-cpu.sock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)

        async def placed() -> str:
            more = f'[plugins]\ndirectory = "{tmp_path}/plugins"\nrequired = ["cpu"]\n[allocators]\n'
            async with FakeRuntime(tmp_path) as fake:
                settings = config(tmp_path, fake.endpoint, more=more)
                async with running(settings) as node, KubeletClient(f"unix://{settings.shim.socket}") as kubelet:
                    await wait_ready(node)
                    await until(lambda: bool(node.registry and "cpu" in node.registry.plugins))
                    started = await kubelet.start_pod(dedicated("db", 2))
                    record = node.book.ledger.find(started.containers["c0"])
                    return str(record.cpus) if record else ""

        assert asyncio.run(placed()) == "0-1"
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "event=allocated" in err


def test_plugin_serve_without_its_folder(tmp_path: Path) -> None:
    """A folder that is not there, and an allocator that nobody has, are told."""
    result = _run("plugin", "serve", "cpu", "--directory", f"{tmp_path}/none")
    assert (result.returncode, result.stderr.splitlines()[0]) == (1, f"qrm: {tmp_path}/none is no folder")
    result = _run("plugin", "serve", "gpu", "--directory", str(tmp_path))
    assert (result.returncode, result.stderr.splitlines()[0]) == (1, "qrm: allocators.gpu: no such allocator")


def test_serve_without_its_file(tmp_path: Path) -> None:
    """A configuration that is not there is told."""
    result = _run("serve", "--config", f"{tmp_path}/none.toml")
    assert result.returncode == 1
    assert result.stderr.startswith(f"qrm: cannot read {tmp_path}/none.toml")
    assert "hint: name an existing file with --config" in result.stderr


def test_serve_with_a_bad_file(tmp_path: Path) -> None:
    """A wrong setting is told with its place."""
    file = tmp_path / "qrm.toml"
    file.write_text("[shim]\nbudget_seconds = -1\n")
    result = _run("serve", "--config", str(file))
    assert result.returncode == 1
    assert "shim.budget_seconds" in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_where_it_cannot_write(tmp_path: Path) -> None:
    """A folder that cannot be made is told, without a traceback."""
    result = _run("serve", "--config", str(_write_config(tmp_path, socket_folder="/proc/qrm-test")))
    assert result.returncode == 1
    assert "qrm: cannot serve: " in result.stderr
    assert "/proc/qrm-test" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("_interruptible")
def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C while waiting for an answer ends the command with 130, as a shell would say."""
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with _started("--socket", str(path), "status") as process:
            listener.accept()[0].close()  # the command's knock, before its call
            connection, _ = listener.accept()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
            connection.close()
    assert process.returncode == 130, err
    assert (out, "Traceback" in err) == ("", False)


def test_usage_error() -> None:
    """A wrong command line ends with 2."""
    assert _run("plan").returncode == 2


def test_closed_pipe(tmp_path: Path) -> None:
    """A reader that goes away early, such as head, is no error to talk about."""
    write_sysfs(TWO_NODES, tmp_path)
    command = f"{' '.join(QRM)} topology --sysfs {tmp_path} 2>{tmp_path}/errors | true"
    subprocess.run(["sh", "-c", command], check=True, timeout=PATIENCE)
    assert "Traceback" not in (tmp_path / "errors").read_text()


def test_terminal_without_unicode(tmp_path: Path) -> None:
    """Where the output cannot show lines and boxes, there is still a drawing."""
    write_sysfs(TWO_NODES, tmp_path)
    result = _run("topology", "--sysfs", str(tmp_path), PYTHONIOENCODING="ascii", TTY_COMPATIBLE="1")
    assert result.returncode == 0, result.stderr
    assert "L3 0" in result.stdout


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[FakeRuntime]:
    async with FakeRuntime(tmp_path) as fake, KubeletClient(fake.endpoint):
        yield fake


async def _reset(file: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(_run, "reset", "--config", str(file), *arguments, stdin=stdin)


async def test_reset(tmp_path: Path, runtime: FakeRuntime) -> None:
    """`qrm reset --yes` undoes everything of the configured node, and reports it."""
    file = _write_config(tmp_path, endpoint=runtime.endpoint)
    open_ledger(tmp_path / "state/ledger.db")[0].close()
    result = await _reset(file, "--yes", "--json")
    assert result.returncode == 0, result.stderr
    report = msgspec.json.decode(result.stdout, type=ResetReport)
    assert f"{tmp_path}/state/ledger.db" in report.removed
    assert not (tmp_path / "state/ledger.db").exists()


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
async def test_reset_asks(tmp_path: Path, runtime: FakeRuntime, answer: str) -> None:
    """Without --yes and without a yes, nothing is undone."""
    file = _write_config(tmp_path, endpoint=runtime.endpoint)
    open_ledger(tmp_path / "state/ledger.db")[0].close()
    result = await _reset(file, stdin=answer)
    assert result.returncode == 1
    assert "Take all containers off their CPUs" in result.stderr
    assert (tmp_path / "state/ledger.db").exists()
    assert runtime.calls == []


async def test_reset_logs_apart(tmp_path: Path, runtime: FakeRuntime) -> None:
    """What is logged on the way, here about a damaged ledger, does not get into the JSON."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state/ledger.db").write_bytes(b"damaged" * 1000)
    result = await _reset(_write_config(tmp_path, endpoint=runtime.endpoint), "--yes", "--json")
    assert "event=" in result.stderr
    assert msgspec.json.decode(result.stdout, type=ResetReport).containers == 0


async def test_reset_asked(tmp_path: Path, runtime: FakeRuntime) -> None:
    """A yes is taken for one."""
    file = _write_config(tmp_path, endpoint=runtime.endpoint)
    result = await _reset(file, stdin="y\n")
    assert result.returncode == 0
    assert "0 containers may use the CPUs of the whole machine again" in result.stdout


def test_reset_without_runtime(tmp_path: Path) -> None:
    """A runtime that does not answer is told."""
    result = _run("reset", "--yes", "--config", str(_write_config(tmp_path)))
    assert result.returncode == 1
    assert "qrm: the runtime does not answer" in result.stderr


def test_reset_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that could not be changed makes the exit code 1."""

    async def reset(config: Config) -> ResetReport:
        return ResetReport(1, ["abc: no"], [])

    monkeypatch.setattr(reset_module, "reset", reset)
    result = invoke("reset", "--yes")
    assert result.exit_code == 1
    assert "not undone: abc: no" in result.stdout


@pytest.mark.parametrize("good", [True, False])
def test_demo(monkeypatch: pytest.MonkeyPatch, *, good: bool) -> None:
    """`qrm demo` passes its options on, and its exit code is the story's verdict."""
    told: dict[str, Any] = {}

    async def run(*, simulated: bool, console: Console, as_json: bool) -> bool:
        told.update(simulated=simulated, as_json=as_json)
        console.print("[bold]played")
        return good

    monkeypatch.setattr(story, "run", run)
    result = invoke("demo", "--simulated", terminal=False)
    assert result.exit_code == (0 if good else 1)
    assert result.stdout == "played\n"
    assert told == {"simulated": True, "as_json": False}


def test_demo_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo that is interrupted ends with 130."""

    async def run(**_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(story, "run", run)
    assert_told(invoke("demo"), 130)
