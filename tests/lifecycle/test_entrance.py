"""How a process comes to serve: with systemd's socket, with its own, or in place of another process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from qrm.errors import BadRequest
from qrm.service import entrance
from qrm.service.entrance import TakeOverFailed, enter, take_over
from qrm.service.sockets import AlreadyRunning, is_listening, listening, listening_aside
from tests.support import config

from .processes import ACTIVATED

_ASK = """
import sys
from pathlib import Path
from qrm.errors import ConfigError
from qrm.service.activation import inherited
try:
    found = inherited(Path(sys.argv[1]))
except ConfigError as error:
    print(error)
else:
    print(found and (found.getsockname(), found.get_inheritable()))
print(inherited(Path(sys.argv[1])))
"""


def _inherited(public: Path, passed: Sequence[socket.socket], **told: str) -> list[str]:
    """What a process finds that was started with these sockets, at its first and its second look."""
    numbers = [each.fileno() for each in passed]
    told = {"LISTEN_FDS": str(len(passed)), "LISTEN_FDNAMES": "qrm.socket", **told}
    command = [sys.executable, "-c", ACTIVATED, ",".join(map(str, numbers)), sys.executable, "-c", _ASK, str(public)]
    environment = {**os.environ, **told}
    done = subprocess.run(command, pass_fds=numbers, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_systemds_socket_is_taken_once(tmp_path: Path) -> None:
    """The socket is there, is not passed on to our own children, and the environment says nothing any more."""
    public = tmp_path / "qrm.sock"
    with listening_aside(public) as made:
        assert _inherited(public, [made]) == [str((str(public), False)), "None"]


def test_sockets_of_another_process_are_left_alone(tmp_path: Path) -> None:
    """LISTEN_PID says for whom they are; a child of that process may have inherited the variables."""
    public = tmp_path / "qrm.sock"
    with listening_aside(public) as made:
        assert _inherited(public, [made], LISTEN_FDS="0") == ["None", "None"]
    environment = {**os.environ, "LISTEN_PID": "1", "LISTEN_FDS": "1"}
    command = [sys.executable, "-c", _ASK, str(public)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["None", "None"]


def test_what_is_not_kubelets_socket_is_refused(tmp_path: Path) -> None:
    """Two sockets, one that does not listen, and one at another path: each is an error that says so."""
    public = tmp_path / "qrm.sock"
    with listening_aside(public) as made, listening_aside(tmp_path / "other.sock") as other, socket.socket() as tcp:
        assert "systemd passed 2 sockets (qrm.socket)" in _inherited(public, [made, other])[0]
        assert "no listening unix socket" in _inherited(public, [tcp])[0]
        assert f"listens on {tmp_path}/other.sock, shim.socket is {public}" in _inherited(public, [other])[0]


def test_whether_somebody_listens(tmp_path: Path) -> None:
    """A socket that systemd holds is told from one that a process has left behind."""
    with listening_aside(tmp_path / "qrm.sock"), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "bound.sock"))
        assert is_listening(tmp_path / "qrm.sock")
        assert not is_listening(tmp_path / "bound.sock")
    assert (tmp_path / "qrm.sock").exists()
    assert not is_listening(tmp_path / "qrm.sock")


async def test_who_does_not_answer_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a process without an admin socket nor one that hangs loses its socket, and nothing is left beside it."""
    monkeypatch.setattr(entrance, "_ANSWER", 0.3)
    settings = config(tmp_path, "unix:///nowhere")
    public, admin = Path(settings.shim.socket), Path(settings.shim.admin_socket)
    first = enter(settings)
    with listening(public):
        before = public.stat().st_ino
        for hangs in (False, True):
            answering = listening(admin) if hangs else None
            with pytest.raises(TakeOverFailed, match="no answer at"):
                await take_over(settings)
            if answering is not None:
                answering.close()
        assert public.stat().st_ino == before
        assert not list(public.parent.glob(".*"))
        with pytest.raises(AlreadyRunning, match="--take-over"):
            enter(settings)
    first.close()


async def test_where_nobody_serves_there_is_nobody_to_ask(tmp_path: Path) -> None:
    """`--take-over` is an ordinary start then, so that it can stand in a script."""
    settings = config(tmp_path, "unix:///nowhere")
    for _ in range(2):
        made = await take_over(settings)
        assert made.listener is None
        made.close()


async def test_when_way_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd would start a rival; a socket elsewhere or of the dead cannot be renamed; there is one successor only."""
    settings = config(tmp_path, "unix:///nowhere")
    made = enter(settings)
    private = made.public.with_name(".qrm.sock.1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with pytest.raises(BadRequest, match="systemctl restart"):
        made.give_way(private)
    monkeypatch.delenv("NOTIFY_SOCKET")
    with pytest.raises(BadRequest, match="not beside"):
        made.give_way(tmp_path / "qrm.sock")
    with pytest.raises(BadRequest, match="cannot become"):
        made.give_way(private)
    with listening_aside(private):
        pass
    with pytest.raises(BadRequest, match="refused"):
        made.give_way(private)
    assert not made.given_away.is_set()
    private.unlink()
    with listening_aside(private):
        made.give_way(private)
        with pytest.raises(BadRequest, match="already"):
            made.give_way(private)
    assert made.given_away.is_set()
    assert made.public.exists()
    made.close()


async def test_who_has_given_way_and_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new process does not wait for ever for the lock."""
    monkeypatch.setattr(entrance, "_LEAVE", 0.1)

    async def given(_admin: Path, private: Path) -> None:
        await asyncio.to_thread(private.rename, made.public)

    monkeypatch.setattr(entrance, "_ask", given)
    settings = config(tmp_path, "unix:///nowhere")
    made = enter(settings)
    with pytest.raises(AlreadyRunning, match=str(os.getpid())):
        await take_over(settings)
    made.close()
