"""`python -m tests.conformance.run`: critest and crictl on a runtime directly and through qrm, compared."""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance import suite
from tests.conformance.calls import Conversation
from tests.conformance.crictl import Crictl

_IMAGE = "registry.k8s.io/e2e-test-images/busybox:1.29-2"
"""critest's default image (cri-tools pkg/framework/util.go), which has httpd and what else is run here."""

_WIDTH = 300
"""Characters of an outcome that are printed; the report has all of it."""

_CONFIG = """\
[runtime]
endpoint = "{endpoint}"
[shim]
socket = "{folder}/qrm.sock"
admin_socket = "{folder}/admin.sock"
pod_resources_socket = "{folder}/pod-resources.sock"
[state]
directory = "{folder}/state"
[metrics]
listen = ""
"""


@contextmanager
def _qrm(runtime: str) -> Iterator[str]:
    """`qrm serve` in front of `runtime`, with an empty ledger; the endpoint at which it serves."""
    with tempfile.TemporaryDirectory(prefix="qrm-conformance-") as name:
        folder = Path(name)
        config = folder / "qrm.toml"
        config.write_text(_CONFIG.format(endpoint=runtime, folder=folder))
        log = folder / "qrm.log"
        with log.open("wb") as sink:
            command = [str(Path(sys.executable).with_name("qrm")), "serve", "--config", str(config)]
            process = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            while not (folder / "qrm.sock").exists():
                if process.poll() is not None:
                    raise SystemExit(f"qrm has ended:\n{log.read_text()}")
                time.sleep(0.05)
            yield f"unix://{folder / 'qrm.sock'}"
        finally:
            process.terminate()
            process.wait()


def _suite(critest: Path, endpoints: tuple[str, str], runs: int, folder: Path, more: list[str]) -> bool:
    """Whether no spec differs. The two ways take turns, so that what changes with time hits both."""
    both: tuple[list[suite.Outcomes], list[suite.Outcomes]] = ([], [])
    for turn in range(runs):
        for way, endpoint, found in zip(("direct", "through"), endpoints, both, strict=True):
            found.append(suite.run(critest, endpoint, folder / f"critest-{way}-{turn}.json", more))
            _say(f"{way}: {suite.counts(found[-1])}")
    specs = suite.compare(*both)
    for spec in specs:
        if spec.differs:
            _say(f"DIFFERS {spec.name}\n  direct:  {_list(spec.direct)}\n  through: {_list(spec.through)}")
        elif spec.varies:
            _say(f"VARIES {spec.name}\n  direct:  {_list(spec.direct)}\n  through: {_list(spec.through)}")
        elif spec.fails:
            _say(f"fails both ways {spec.name}: {_list(spec.direct)}")
    return not any(spec.differs for spec in specs)


def _conversation(crictl: Path, endpoints: tuple[str, str], image: str, folder: Path) -> bool:
    """Whether crictl is answered the same."""
    held = []
    for way, endpoint in zip(("direct", "through"), endpoints, strict=True):
        answers = Conversation(Crictl(crictl, endpoint, folder), image, folder).hold()
        text = "".join(map(str, answers))
        (folder / f"crictl-{way}.txt").write_text(text)
        _say(f"{way}: {len(answers)} crictl commands")
        held.append(text.splitlines(keepends=True))
    direct, through = held
    sys.stdout.writelines(difflib.unified_diff(direct, through, "direct", "through", n=2))
    return direct == through


def _list(outcomes: frozenset[str]) -> str:
    return " or ".join(textwrap.shorten(each, _WIDTH) for each in sorted(outcomes))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """The command; 1 where qrm makes a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description=__doc__)
    parser.add_argument(
        "--runtime", required=True, help="its CRI socket, unix://PATH; nothing else may use it meanwhile"
    )
    parser.add_argument("--critest", type=Path, help="cri-tools' critest")
    parser.add_argument("--crictl", type=Path, help="cri-tools' crictl")
    parser.add_argument("--image", default=_IMAGE, help="a busybox that the runtime can pull, for crictl; %(default)s")
    parser.add_argument("--runs", type=int, default=1, help="of critest, each way: more show which specs are flaky")
    parser.add_argument("--keep", type=Path, help="a folder for logs and reports, instead of a temporary one")
    parser.add_argument("more", nargs="*", help="critest's own flags, after --")
    wants = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qrm-conformance-") as temporary, _qrm(wants.runtime) as through:
        folder = (wants.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        endpoints = (wants.runtime, through)
        same = True
        if wants.critest:
            same &= _suite(wants.critest.resolve(), endpoints, wants.runs, folder, wants.more)
        if wants.crictl:
            same &= _conversation(wants.crictl.resolve(), endpoints, wants.image, folder)
    _say("the same" if same else "qrm makes a difference")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
