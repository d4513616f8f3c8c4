"""What the command makes of a service that answers badly, or not at all."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import msgspec
import pytest

from qrm.cli.client import Client, NotRunning
from qrm.errors import QrmError
from qrm.service import api
from tests.cli.conftest import Canned
from tests.cli.samples import CONTAINER


def test_decodes(canned: Canned) -> None:
    """Answers become the structs of the API, and requests are its JSON."""
    canned.answers["pods"] = msgspec.json.encode([CONTAINER])
    canned.answers["explain"] = b"[]"
    client = Client(canned.socket)
    assert client.pods() == [CONTAINER]
    assert client.explain("ns/pod") == []
    assert canned.requests == [("pods", b""), ("explain", b'"ns/pod"')]


def test_large_answer(canned: Canned) -> None:
    """An answer may be larger than gRPC's default of 4 MiB."""
    containers = [CONTAINER] * 20_000
    canned.answers["pods"] = msgspec.json.encode(containers)
    assert len(canned.answers["pods"]) > 4 << 20
    assert Client(canned.socket).pods() == containers


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((grpc.StatusCode.INVALID_ARGUMENT, "no pod 'x' (qrm pods lists them)"), "no pod 'x' (qrm pods lists them)"),
        (
            (grpc.StatusCode.INTERNAL, "KeyError; the service's log has more"),
            "pods: KeyError; the service's log has more",
        ),
        (b"{", "pods: the answer makes no sense here"),
        (b'[{"pod": 1}]', "pods: the answer makes no sense here"),
    ],
)
def test_refusals(canned: Canned, answer: bytes | tuple[grpc.StatusCode, str], message: str) -> None:
    """A status other than OK, and an answer that is not the API's, are told."""
    canned.answers["pods"] = answer
    with pytest.raises(QrmError) as caught:
        Client(canned.socket).pods()
    assert caught.value.message.startswith(message)


def test_unknown_method(canned: Canned) -> None:
    """What listens there but is no qrm, or an older one, is told apart from no service."""
    with pytest.raises(QrmError, match=r"knows no status.*same version"):
        Client(canned.socket).status()


def test_service_stops(canned: Canned) -> None:
    """A service that goes away in the middle is not running."""
    canned.answers["status"] = (grpc.StatusCode.UNAVAILABLE, "going down")
    with pytest.raises(NotRunning):
        Client(canned.socket).status()


def test_no_answer(tmp_path: Path) -> None:
    """A service that hangs is given up after a while."""
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(QrmError, match=r"did not answer within 0\.3 s"):
            Client(path, timeout=0.3).status()


def test_no_socket(tmp_path: Path) -> None:
    """A socket that is not there means that the service does not run, and the hint says what to do."""
    with pytest.raises(NotRunning) as caught:
        Client(tmp_path / "admin.sock").status()
    assert caught.value.message == f"the qrm service is not running (no answer at {tmp_path}/admin.sock)"
    assert caught.value.hint == "systemctl start qrm, or name its socket with --socket"


def test_stale_socket(tmp_path: Path) -> None:
    """A socket that a dead service has left means the same."""
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(NotRunning):
        Client(path).status()


def test_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to connect, the hint is to be root."""

    def deny(_: socket.socket, __: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", deny)
    with pytest.raises(QrmError, match="as root"):
        Client(tmp_path / "admin.sock").status()


def test_path_too_long(tmp_path: Path) -> None:
    """A path that no socket can have is told."""
    with pytest.raises(QrmError, match="is no socket"):
        Client(tmp_path / ("f" * 200)).status()


def test_no_directory(tmp_path: Path) -> None:
    """A path below a file is told."""
    (tmp_path / "file").touch()
    with pytest.raises(QrmError, match="is no socket"):
        Client(tmp_path / "file" / "admin.sock").status()


def test_asks_what_is_planned(canned: Canned) -> None:
    """A plan's request travels whole."""
    canned.answers["plan"] = msgspec.json.encode(api.PlanReply(True, "", [], []))
    asked = api.PlanRequest({"a/b": "c"}, {"main": 500}, "web", "Burstable")
    assert Client(canned.socket).plan(asked).fits
    assert msgspec.json.decode(canned.requests[0][1], type=api.PlanRequest) == asked
