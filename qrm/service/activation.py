"""Socket activation: the listening socket that systemd has made and keeps over restarts (sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from qrm.errors import ConfigError

_FIRST = 3
"""SD_LISTEN_FDS_START."""
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_HINT = "systemd/qrm.socket has one ListenStream=, which is shim.socket"


def inherited(public: Path) -> socket.socket | None:
    """The socket at `public` that systemd listens on for this process; None where it does not. To be called once.

    Raises:
        ConfigError: what was passed is not one listening unix socket at `public`.
    """
    told = {name: os.environ.pop(name, "") for name in _VARIABLES}
    if told["LISTEN_PID"] != str(os.getpid()):
        return None
    count = int(told["LISTEN_FDS"] or "0")
    if count == 0:
        return None
    passed = [socket.socket(fileno=number) for number in range(_FIRST, _FIRST + count)]
    for each in passed:
        each.set_inheritable(False)
    if count != 1:
        raise ConfigError(f"systemd passed {count} sockets ({told['LISTEN_FDNAMES']}), qrm takes one", hint=_HINT)
    (found,) = passed
    if found.family != socket.AF_UNIX or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ConfigError("what systemd passed is no listening unix socket", hint=_HINT)
    if found.getsockname() != str(public):
        raise ConfigError(f"qrm.socket listens on {found.getsockname()}, shim.socket is {public}", hint=_HINT)
    return found
