"""crictl: its commands at one endpoint, and what was answered, without what changes from run to run."""

from __future__ import annotations

import os
import pty
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.normal import normal

NOBODY = "0123456789abc" * 4 + "0123456789ab"
"""A container id that no runtime gives."""
PATIENCE = 60.0
"""Seconds that one command may take."""
_LISTENS = 1.0
"""Seconds until `crictl events` has surely subscribed, and has told of what was last; it does not say."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one command."""

    command: str
    code: int | None
    """Its exit code; None for one that was ended from outside."""
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"$ crictl {self.command}\n{self.stdout}{self.stderr}[{self.code}]\n"


class Crictl:
    """The program at an endpoint.

    Args:
        program: cri-tools' crictl.
        endpoint: The CRI socket, unix://PATH.
        folder: For its (empty) configuration, logs of containers, and the like.
    """

    def __init__(self, program: Path, endpoint: str, folder: Path) -> None:
        config = folder / "crictl.yaml"
        config.write_text("")
        self._command = [str(program), f"--config={config}", f"--timeout={PATIENCE:.0f}s", "-r", endpoint]
        self.answers: list[Answer] = []

    def say(self, *arguments: str, stdin: str = "", tty: bool = False, numbers: bool = True) -> str:
        """Run a command; the last word of what it wrote, which is the id where it made something.

        Args:
            arguments: Behind the endpoint.
            stdin: For it to read: the whole of it, or with `tty` the beginning.
            tty: Give it a terminal.
            numbers: Whether numbers in its answer are the same in each run.
        """
        code, out, error = self._with_terminal(arguments, stdin) if tty else self._with_pipes(arguments, stdin)
        command = normal(" ".join(arguments))
        self.answers.append(Answer(command, code, normal(out, numbers=numbers), normal(error, numbers=numbers)))
        return out.split()[-1] if out.split() else NOBODY

    def forward(self, pod: str, port: int) -> None:
        """Fetch a page of a web server in a pod, by port-forward."""
        command = [*self._command, "port-forward", pod, f"0:{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            local = line.partition("127.0.0.1:")[2].partition(" ")[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=PATIENCE) as page:
                body = page.read().decode()
            process.terminate()
        self.answers.append(Answer("port-forward", None, normal(line) + body, ""))

    @contextmanager
    def events(self) -> Iterator[None]:
        """The kinds of the events that the runtime tells of meanwhile.

        Into a file: a client that does not read has containerd 2.1 wait with whatever the next event is about. And it
        keeps events of the time when nobody listened, which are not of interest here.
        """
        with tempfile.TemporaryFile("w+") as told:
            process = subprocess.Popen([*self._command, "events"], stdout=told, stderr=subprocess.PIPE, text=True)
            time.sleep(_LISTENS)
            before = os.fstat(told.fileno()).st_size
            try:
                yield
            finally:
                time.sleep(_LISTENS)
                process.terminate()
                _, error = process.communicate(timeout=PATIENCE)
                told.seek(before)
                kinds = "".join(f"{line.strip()}\n" for line in told if "containerEventType" in line)
                self.answers.append(Answer("events", None, kinds, normal(error)))

    def _with_pipes(self, arguments: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*self._command, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def _with_terminal(self, arguments: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*self._command, *arguments], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, start_new_session=True
        )
        os.close(theirs)
        os.write(ours, stdin.encode())
        out = bytearray()
        while chunk := _read(ours):
            out += chunk
        _, error = process.communicate(timeout=PATIENCE)
        os.close(ours)
        return process.returncode, out.decode(), error.decode()


def _read(terminal: int) -> bytes:
    """What came; nothing once the other side is closed, which a terminal tells by an error."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""
