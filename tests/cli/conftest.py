"""A node to ask, a service that answers what a test says, and ways to run the command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
import structlog
from click.testing import CliRunner, Result

from qrm.cli.main import cli
from qrm.demo.pods import ContainerSpec, Pod
from qrm.service import api
from tests.support import MIB, UnderTest, dedicated, pod, under_test
from tests.topology.machines import scratch

TERMINAL = {"TTY_COMPATIBLE": "1", "NO_COLOR": "1", "TERM": "xterm-256color"}
"""What makes rich take the runner's output for a terminal; without colours, so that its text can be read."""


def invoke(*arguments: str, columns: int = 80, terminal: bool = True, stdin: bytes = b"") -> Result:
    """The command's outcome, in this process; `terminal` says where its output goes."""
    environment: dict[str, str | None] = {"COLUMNS": str(columns), "QRM_ADMIN_SOCKET": None}
    more = TERMINAL if terminal else dict.fromkeys(TERMINAL)
    return CliRunner().invoke(cli, arguments, input=stdin, env={**environment, **more}, prog_name="qrm")


def assert_told(result: Result, code: int, *texts: str) -> None:
    """Assert that the command ended with exit code `code` and said `texts` on standard error, without a traceback."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    for text in texts:
        assert text in result.stderr


@pytest.fixture(autouse=True)
def _log_settings() -> Iterator[None]:
    """What a command has set for its log ends with the test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@dataclass(frozen=True)
class Asked:
    """A serving node with pods on it, and its admin socket."""

    node: UnderTest

    @property
    def socket(self) -> Path:
        return Path(self.node.config.shim.admin_socket)

    async def run(self, *arguments: str, columns: int = 80, terminal: bool = True, stdin: bytes = b"") -> Result:
        """The command's outcome; on a thread, because the node serves on this one."""
        socket = ("--socket", str(self.socket))
        return await asyncio.to_thread(invoke, *socket, *arguments, columns=columns, terminal=terminal, stdin=stdin)


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    """8 CPUs on 2 NUMA nodes; a dedicated pod `db` on 2 of them, a shared one `web`, a reclaimed one `batch`."""
    with scratch() as folder:
        async with under_test(folder) as node:
            await node.kubelet.start_pod(dedicated("db", 2))
            await node.kubelet.start_pod(Pod("web", (ContainerSpec("nginx", 500, memory_limit=64 * MIB),)))
            await node.kubelet.start_pod(pod("batch", 1000, level="reclaimed_cores"))
            await node.settled()
            yield Asked(node)


@dataclass
class Canned:
    """A service in a thread that answers each method with the bytes, or the status, that a test has put here."""

    socket: Path
    answers: dict[str, bytes | tuple[grpc.StatusCode, str]] = field(default_factory=dict)
    requests: list[tuple[str, bytes]] = field(default_factory=list)

    def answer(self, method: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def reply(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.requests.append((method, request))
            answer = self.answers[method]
            if isinstance(answer, tuple):
                context.abort(*answer)
            return answer if isinstance(answer, bytes) else b""

        return reply


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, canned: Canned) -> None:
        self._canned = canned

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = handler_call_details.method.removeprefix(api.PREFIX)
        if method not in self._canned.answers:
            return None
        return grpc.unary_unary_rpc_method_handler(self._canned.answer(method))


@pytest.fixture
def canned(tmp_path: Path) -> Iterator[Canned]:
    """A service whose answers the test chooses."""
    made = Canned(tmp_path / "admin.sock")
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((_Methods(made),))
        server.add_insecure_port(f"unix:{made.socket}")
        server.start()
        yield made
        server.stop(None).wait()
