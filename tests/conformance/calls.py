"""What crictl is asked: each call that it can make, and the ways in which they fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conformance.crictl import NOBODY, Answer, Crictl

_CGROUP = "/qrm-conformance"
_PORT = 8080
_SERVE = f"""
    mkdir -p /tmp/www && echo hello >/tmp/www/index.html
    echo out; echo err >&2
    exec httpd -f -p {_PORT} -h /tmp/www
"""
_ANSWER = "read a; echo got $a; sleep 1"
"""It lives on for a while: containerd may forget the last words of what ends."""
# fmt: off
_RESOURCES = {
    "cpu_shares": 512, "cpu_quota": 50000, "cpu_period": 100000, "memory_limit_in_bytes": 64 << 20, "oom_score_adj": 500
}
# fmt: on
"""kubelet never leaves them out. Where a client does, containerd reads those that qrm puts there as "OOM score 0"."""


class Conversation:
    """One of all calls, with one pod.

    Args:
        crictl: It, at an endpoint.
        image: A busybox that the runtime can pull.
        folder: For the configurations and logs of its pod and containers.
    """

    def __init__(self, crictl: Crictl, image: str, folder: Path) -> None:
        self._crictl = crictl
        self._say = crictl.say
        self._image = image
        self._folder = folder

    def hold(self) -> list[Answer]:
        """All of it; pod, containers and image are gone afterwards."""
        self._images()
        with self._crictl.events():
            pod = self._say("runp", self._pod())
            try:
                self._pods(pod)
                main = self._containers(pod)
                self._streams(pod, main)
            finally:
                for command in ("stopp", "rmp", "rmp", "inspectp"):
                    self._say(command, pod)
        self._say("rmi", self._image)
        return self._crictl.answers

    def _images(self) -> None:
        for command in ("version", "info", "runtime-config", "imagefsinfo"):
            self._say(command, numbers=command == "version")
        refused = "127.0.0.1:1/refused:1"
        for image in (self._image, "localhost/no-such-image:1", "Bad//Name", refused):
            self._say("pull", image)
        self._say("pull", "--creds=nobody:wrong", refused)
        self._say("images")
        for image in (self._image, "localhost/no-such-image:1"):
            self._say("inspecti", image)

    def _pods(self, pod: str) -> None:
        self._say("runp", self._pod())
        self._say("runp", "--runtime=no-such-handler", self._pod("other"))
        self._say("rmp", "--force", self._say("runp", self._pod("second", labels={"a": "b"})))
        self._say("inspectp", pod)
        for more in ((), ("--name=none",), ("--label=a=b",)):
            self._say("pods", *more)
        self._say("port-forward", NOBODY, "0:80")
        self._say("statsp", "-o=json", numbers=False)
        for command in ("statsp", "metricsp", "metricdescs"):
            self._say(command, numbers=False)

    def _containers(self, pod: str) -> str:
        """The calls about containers; returns one that runs."""
        self._create(pod, "nothing", ["true"], image="localhost/no-such-image:1")
        self._create(NOBODY, "lost", ["true"])
        bad = self._create(pod, "bad", ["/no/such/program"])
        for command in ("start", "inspect", "rm"):
            self._say(command, bad)
        main = self._create(pod, "main", ["sh", "-c", _SERVE])
        self._create(pod, "main", ["sh", "-c", _SERVE])
        self._say("exec", "--sync", main, "true")
        for command in ("start", "start", "inspect"):
            self._say(command, main)
        for more in ("--all", "--label=none=none"):
            self._say("ps", more)
        for more in ("--stream=stdout", "--stream=stderr", "--reopen"):
            self._say("logs", more, main)
        self._say("stats", "-o=json", "--id", main, numbers=False)
        self._say("stats", numbers=False)
        for field in ("cpu-share=256", "memory=33554432", "cpu-quota=40000", "cpu-period=200000", "cpuset-cpus=0"):
            self._say("update", f"--{field}", main)
            self._say("inspect", main)
        self._say("update", "--memory=1", main, numbers=False)
        self._say("checkpoint", f"--export={self._folder}/checkpoint.tar", main)
        self._say("rm", main)
        for command in ("start", "attach", "logs", "inspect", "stop", "rm", "update", "stats"):
            self._say(command, NOBODY)
        self._say("exec", NOBODY, "true")
        return main

    def _streams(self, pod: str, main: str) -> None:
        for way in (["--sync"], [], ["--transport=websocket"]):
            for script in ("echo out; echo err >&2", "exit 3", "head -c 3000000 /dev/zero | tr '\\0' x"):
                self._say("exec", *way, main, "sh", "-c", script)
            self._say("exec", *way, main, "/no/such/program")
        self._say("exec", "--sync", "--timeout=1", main, "sleep", "30")
        self._say("exec", "-i", main, "cat", stdin="one\ntwo\n")
        self._say("exec", "-it", main, "sh", "-c", "read a; test -t 0; echo $? $a; exit 4", stdin="word\n", tty=True)
        self._crictl.forward(pod, _PORT)
        # With its stdin closed, attach ends at once: only a terminal stays open.
        for tty in (False, True):
            reading = self._create(pod, f"reading-{tty}", ["sh", "-c", _ANSWER], stdin=True, tty=tty)
            self._say("start", reading)
            self._say("attach", "-it" if tty else "-i", reading, stdin="word\n", tty=True)
            for more in ("--follow", "--tail=0", "--previous"):
                self._say("logs", more, reading)
            self._say("rm", reading)
        self._say("stop", "--timeout=1", main)
        self._say("inspect", main)
        self._say("exec", main, "true")
        self._say("rm", main)

    def _create(self, pod: str, name: str, command: list[str], *, image: str = "", **more: Any) -> str:
        container = {
            "metadata": {"name": name},
            "image": {"image": image or self._image},
            "command": command,
            "log_path": f"{name}.log",
            "linux": {"resources": _RESOURCES},
        }
        return self._say("create", "--no-pull", pod, self._write(name, {**container, **more}), self._pod())

    def _pod(self, name: str = "pod", **more: Any) -> str:
        pod = {
            "metadata": {"name": name, "namespace": "conformance", "uid": f"uid-of-{name}", "attempt": 1},
            "log_directory": str(self._folder),
            "linux": {"cgroup_parent": _CGROUP},
        }
        return self._write(f"the-{name}", {**pod, **more})

    def _write(self, name: str, content: object) -> str:
        path = self._folder / f"{name}.json"
        path.write_text(json.dumps(content))
        return str(path)
