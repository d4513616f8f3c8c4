"""The process: one instance, its sockets, its signals, its tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from qrm.config import parse
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.errors import ConfigError, QrmError
from qrm.service.metrics_page import metrics_page
from qrm.service.notify import notify
from qrm.service.serve import running
from qrm.service.sockets import AlreadyRunning, only_instance, private_name
from qrm.service.tasks import guarded, periodic
from tests.support import PATIENCE, answering, config, dedicated, pod, under_test, until, wait_ready


async def test_the_sockets_are_for_their_owner_only(tmp_path: Path) -> None:
    """Mode 0600 in a folder of mode 0700, and nothing else is left beside them."""
    async with under_test(tmp_path) as under:
        for path in (Path(under.config.shim.socket), Path(under.config.shim.admin_socket)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert sorted(each.name for each in (tmp_path / "run").iterdir()) == [
            "admin.sock",
            "pod-resources.sock",
            "qrm.sock",
            "qrm.sock.lock",
        ]


async def test_a_second_instance_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """The first one's socket goes on serving, and the message names its pid."""
    async with under_test(tmp_path) as under:
        with pytest.raises(AlreadyRunning, match=str(os.getpid())):
            async with running(under.config):
                pass
        assert (await under.kubelet.version()).runtime_name


async def test_a_new_instance_takes_over_a_socket_that_was_left_behind(tmp_path: Path) -> None:
    """Neither a stale socket nor a stale lock file keeps qrm from starting, and kubelet finds it at the old name."""
    async with FakeRuntime(tmp_path) as fake:
        for _ in range(2):
            async with under_test(tmp_path, fake=fake) as under:
                await under.kubelet.version()
            assert Path(under.config.shim.socket).exists()


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    """A lock file alone means nothing; only who holds it."""
    for _ in range(2):
        with only_instance(tmp_path / "lock"):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_socket_path_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    """The limit is named instead of a failure deep inside gRPC."""
    with pytest.raises(QrmError, match="too long"):
        private_name(tmp_path / ("x" * 120))


async def test_a_restart_keeps_every_placement(tmp_path: Path) -> None:
    """A second process has the first one's ledger, and pods go on as they were."""
    async with FakeRuntime(tmp_path, pod_updates=True) as fake:
        async with under_test(tmp_path, fake=fake) as under:
            shared = await under.kubelet.start_pod(pod("web"))
            new = await under.kubelet.start_pod(dedicated("db", 3))
            await under.settled()
            before = {record.key: record for record in under.node.book.ledger}
        async with under_test(tmp_path, fake=fake) as under:
            assert {record.key: record for record in under.node.book.ledger} == before
            under.check()
            await under.kubelet.end_pod(new)
            await under.settled()
            assert under.kernel_cpus(shared.containers["c0"]) == "0-7"


async def test_what_ended_while_qrm_was_away_is_taken_in_at_the_start(tmp_path: Path) -> None:
    """One container exited, one pod vanished: reserved the one, free the other, before the first call is answered."""
    async with FakeRuntime(tmp_path) as fake:
        async with under_test(tmp_path, fake=fake) as under:
            exited = await under.kubelet.start_pod(dedicated("db", 2))
            gone = await under.kubelet.start_pod(dedicated("old", 2))
        fake.exit_container(exited.containers["c0"])
        async with KubeletClient(fake.endpoint) as direct:
            await direct.end_pod(gone)
        async with under_test(tmp_path, fake=fake) as under:
            assert not under.record(exited.containers["c0"]).running
            assert under.node.book.ledger.find(gone.containers["c0"]) is None
            assert len(under.node.book.ledger) == 2


async def test_the_runtime_may_be_away_at_the_start(tmp_path: Path) -> None:
    """qrm serves at once, answers UNAVAILABLE, and places containers once the runtime is there."""
    fake = FakeRuntime(tmp_path)
    settings = config(tmp_path, fake.endpoint)
    async with running(settings) as node, KubeletClient(f"unix://{settings.shim.socket}") as kubelet:
        with pytest.raises(Exception, match="UNAVAILABLE"):
            await kubelet.version()
        assert not node.context.ready.is_set()
        async with fake:
            await wait_ready(node)
            await answering(kubelet)
            started = await kubelet.start_pod(dedicated("db", 2))
            assert node.book.ledger.find(started.containers["c0"]) is not None


async def test_signals_end_and_reload_the_real_process(tmp_path: Path) -> None:
    """`qrm serve` notifies systemd, reloads on SIGHUP, keeps the old settings where that fails, and ends on SIGTERM."""
    notified: list[str] = []
    address = str(tmp_path / "notify")
    async with FakeRuntime(tmp_path) as fake:
        settings = config(tmp_path, fake.endpoint)
        file = tmp_path / "qrm.toml"
        text = (
            f'[runtime]\nendpoint = "{fake.endpoint}"\n[shim]\nsocket = "{settings.shim.socket}"\n'
            f'admin_socket = "{settings.shim.admin_socket}"\n'
            f'pod_resources_socket = "{settings.shim.pod_resources_socket}"\n'
            f'[state]\ndirectory = "{settings.state.directory}"\n'
            f'[metrics]\nlisten = ""\n[host]\nsysfs = "{settings.host.sysfs}"\n'
        )
        file.write_text(text)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
            inbox.bind(address)
            inbox.setblocking(False)
            environment = {**os.environ, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "qrm.cli.main", "serve", "--config", str(file),
                env=environment, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(PATIENCE):
                    while notified.count("WATCHDOG=1") < 3 or "READY=1" not in notified:
                        notified.append((await loop.sock_recv(inbox, 100)).decode())
                file.write_text(text + '[upkeep]\ndrift_seconds = 5\n[qos]\ndefault_level = "system_cores"\n')
                process.send_signal(signal.SIGHUP)
                async with asyncio.timeout(PATIENCE):
                    while notified.count("READY=1") < 2:
                        notified.append((await loop.sock_recv(inbox, 100)).decode())
                file.write_text("[qos]\ndefault_level = 3\n")
                process.send_signal(signal.SIGHUP)
                async with asyncio.timeout(PATIENCE):
                    while notified.count("READY=1") < 3:
                        notified.append((await loop.sock_recv(inbox, 100)).decode())
                async with KubeletClient(f"unix://{settings.shim.socket}") as kubelet:
                    await kubelet.version()
                process.terminate()
                assert process.stderr is not None
                log = (await process.stderr.read()).decode()
                assert await process.wait() == 0
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    assert "event=reloaded" in log
    assert 'event="not reloaded"' in log
    assert "qos.default_level" in log
    assert "event=stopped" in log
    assert "Traceback" not in log


async def test_a_reload_changes_what_may_change(tmp_path: Path) -> None:
    """The QoS default applies to the next pod; a socket that needs a restart stays as it is."""
    async with under_test(tmp_path) as under:
        changed = config(tmp_path, under.fake.endpoint, more='[qos]\ndefault_level = "system_cores"\n')
        under.node.apply(changed)
        started = await under.kubelet.start_pod(pod("web"))
        assert under.record(started.containers["c0"]).request.qos.level == "system_cores"
        elsewhere = parse('[shim]\nsocket = "/elsewhere/qrm/qrm.sock"\n')
        under.node.apply(elsewhere)
        assert under.node.config.shim.socket == under.config.shim.socket


async def test_the_metrics_page_shows_what_happened(tmp_path: Path) -> None:
    """Calls by method and code, steps, refusals, allocations and free CPUs are there to be scraped."""
    pid = os.getpid()
    listen = f"127.{pid >> 16 & 127}.{pid >> 8 & 255}.{pid & 255}:9317"  # no other process has it
    async with under_test(tmp_path, more="[upkeep]\ndrift_seconds = 0.1\n") as under:
        with metrics_page(listen, under.node.metrics.registry):
            await under.kubelet.start_pod(dedicated("db", 2))
            with pytest.raises(Exception, match="asked 8"):
                await under.kubelet.start_pod(dedicated("big", 8))
            await until(lambda: under.node.metrics.allocations.labels("dedicated_cores")._value.get() == 1)
            page = await asyncio.to_thread(_get, f"http://{listen}/metrics")
    assert 'qrm_calls_total{code="OK",method="CreateContainer"} 1.0' in page
    assert 'qrm_calls_total{code="RESOURCE_EXHAUSTED",method="CreateContainer"} 1.0' in page
    assert 'qrm_refusals_total{reason="does not fit"} 1.0' in page
    for step in ("read", "plan", "record", "shrink", "forward", "commit"):
        assert f'qrm_step_seconds_count{{step="{step}"}}' in page
    assert 'qrm_allocations{qos="dedicated_cores"} 1.0' in page
    assert 'qrm_free_millicores{node="0"}' in page
    assert "qrm_unmanaged_containers 0.0" in page


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as reply:  # noqa: S310 - our own page
        text: str = reply.read().decode()
        return text


def test_a_metrics_address_in_use_is_a_clear_error() -> None:
    """The setting and the address are named."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        page = metrics_page(address, CollectorRegistry())
        with pytest.raises(ConfigError, match=f"metrics.listen: cannot listen on {address}"), page:
            pass


@pytest.mark.parametrize("host", ["x" * 64, "a..b", "é..x"])
def test_a_metrics_host_that_can_be_no_name_is_a_clear_error(host: str) -> None:
    """It fails in another way than a name that nobody has."""
    page = metrics_page(f"{host}:1", CollectorRegistry())
    with pytest.raises(ConfigError, match=r"^metrics\.listen: cannot listen on "), page:
        pass


async def test_a_loop_that_fails_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error in a loop is logged and does not end what the loop does."""
    monkeypatch.setattr("qrm.service.tasks._PAUSE", 0.0)
    runs = []

    async def work() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError("a bug")

    await guarded("test", work)
    assert len(runs) == 3


async def test_a_cycle_that_fails_does_not_end_its_loop() -> None:
    """The next round comes all the same."""
    rounds: list[int] = []

    async def cycle() -> str:
        rounds.append(1)
        if len(rounds) == 1:
            raise ValueError("a bug")
        return "worked"

    task = asyncio.create_task(periodic("test", lambda: 0.01, cycle))
    await until(lambda: len(rounds) >= 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_without_systemd_nothing_is_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NOTIFY_SOCKET, or a dead one, is no error."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/socket")
    notify("READY=1")
