"""`KubeletPods` against a real HTTP or HTTPS server: the cache, the budget, credentials, and odd answers."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from qrm.config import KubeletSection
from qrm.errors import ConfigError
from qrm.pods.kubelet import FIRST_PAUSE, LONGEST_PAUSE, KubeletPods
from tests.support import until

PATIENT, SHORT = 60.0, 0.5
"""Budgets in seconds: one that no busy machine spends, and one that a test can wait for."""
HASH = "0123456789abcdef0123456789abcdef"
CONFIG = "kubernetes.io/config."


class Clock:
    """A clock that a test sets; as real ones, it never shows the same time twice."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


class FakeKubelet(ThreadingHTTPServer):
    """What answers in kubelet's place: with `pods`, or with whatever a test puts there instead."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server_address[1]}/pods"
        self.pods: list[dict[str, Any]] | None = []
        self.body: bytes | None = None
        self.status = 200
        self.behaviour = "prompt"
        self.let_go = threading.Event()
        self.asked: list[Mapping[str, str]] = []
        """The headers of each request."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeKubelet
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(dict(self.headers))
        if server.behaviour == "silent":
            server.let_go.wait()
        body = server.body
        if body is None:
            body = json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": server.pods}).encode()
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        while server.behaviour == "dripping" and not server.let_go.wait(SHORT / 4):
            self.wfile.write(b" ")
            self.wfile.flush()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        """Nothing."""


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[FakeKubelet]:
    """A FakeKubelet that answers until the end of the block."""
    with FakeKubelet(tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.let_go.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    """A kubelet's read-only port."""
    with serving() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    """The clock that pauses and ages are measured by."""
    return Clock()


@pytest.fixture
def log() -> Iterator[list[Any]]:
    """The events logged, whatever level another test has set."""
    usual = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
    with structlog.testing.capture_logs() as events:
        yield events
    structlog.configure(**usual)


@pytest.fixture
def open_pods(clock: Clock) -> Iterator[Callable[..., KubeletPods]]:
    """Makes what is under test from the fields of KubeletSection, with a patient budget unless told otherwise."""
    opened: list[KubeletPods] = []

    def make(url: str, **fields: Any) -> KubeletPods:
        access = msgspec.structs.replace(KubeletSection(pods_url=url, budget_seconds=PATIENT), **fields)
        opened.append(KubeletPods(access, clock=clock))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


OpenPods = Callable[..., KubeletPods]


def listed(uid: str, name: str = "web-0", **annotations: str) -> dict[str, Any]:
    """A pod as kubelet lists it; `annotations` by the name after `kubernetes.io/config.`."""
    said = {"source": "api", "seen": "2026-01-01T00:00:00Z", **annotations}
    return {
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": uid,
            "annotations": {f"{CONFIG}{key}": value for key, value in said.items()},
        },
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"memory": "1Gi"}}}]},
        "status": {"phase": "Pending"},
    }


async def uid_of(pods: KubeletPods, uid: str, name: str = "web-0", *, fresh: bool = False) -> str | None:
    """The uid, as kubelet has it, of the pod that is found by `uid` and `name`."""
    found = await pods.pod(uid, "shop", name, fresh=fresh)
    return None if found is None else str(found["metadata"]["uid"])


async def test_a_known_pod_is_not_asked_for_again(kubelet: FakeKubelet, open_pods: OpenPods) -> None:
    """One request serves all containers of all pods in the answer; a new uid makes another, which replaces the list."""
    kubelet.pods = [listed("a"), listed("b", "web-1")]
    pods = open_pods(kubelet.url)
    assert await pods.pod("a", "shop", "web-0") == listed("a")
    assert [await uid_of(pods, uid) for uid in ("a", "b", "a")] == ["a", "b", "a"]
    assert len(kubelet.asked) == 1
    kubelet.pods = [listed("b"), listed("c")]
    assert [await uid_of(pods, uid) for uid in ("c", "b")] == ["c", "b"]
    assert len(kubelet.asked) == 2
    assert await uid_of(pods, "a") is None
    assert len(kubelet.asked) == 3
    assert pods.last_error == ""


async def test_old_answers_are_renewed(kubelet: FakeKubelet, open_pods: OpenPods, clock: Clock) -> None:
    """A list past its age, or a caller that needs the pod as it is now, makes a new request."""
    kubelet.pods = [listed("a")]
    pods = open_pods(kubelet.url, max_age_seconds=30.0)
    for wait, fresh, requests in ((0, False, 1), (29, False, 1), (2, False, 2), (1, True, 3), (1, False, 3)):
        clock.now += wait
        assert await uid_of(pods, "a", fresh=fresh) == "a"
        assert len(kubelet.asked) == requests


async def test_a_burst_shares_answers(kubelet: FakeKubelet, open_pods: OpenPods) -> None:
    """Many new pods at once make at most two requests: the one under way, and one that began after all of them came."""
    kubelet.pods = [listed(f"p{each}") for each in range(20)]
    pods = open_pods(kubelet.url)
    found = await asyncio.gather(*(uid_of(pods, f"p{each}") for each in range(30)))
    assert found == [f"p{each}" for each in range(20)] + [None] * 10
    assert len(kubelet.asked) <= 2


@pytest.mark.parametrize("behaviour", ["silent", "dripping"])
async def test_a_hanging_kubelet_costs_one_budget(
    behaviour: str, kubelet: FakeKubelet, open_pods: OpenPods, clock: Clock, log: list[Any]
) -> None:
    """After a timeout kubelet is left alone, longer each time; known pods stay known; the log tells each turn once."""
    kubelet.pods = [listed("a")]
    pods = open_pods(kubelet.url, budget_seconds=SHORT, max_age_seconds=1.0)
    while await uid_of(pods, "a") is None:  # a busy machine
        clock.now += LONGEST_PAUSE + 1
    before, threads = len(kubelet.asked), set(threading.enumerate())
    kubelet.behaviour = behaviour
    log.clear()
    pause = FIRST_PAUSE
    for attempts in range(1, 5):
        assert await uid_of(pods, "b") is None
        assert [await uid_of(pods, uid) for uid in ("b", "c", "a", "b")] == [None, None, "a", None]
        clock.now += pause - 0.5
        assert await uid_of(pods, "b") is None
        await until(lambda: len(kubelet.asked) > before)
        assert len(kubelet.asked) - before <= attempts
        clock.now += 0.6
        pause *= 2
    await until(lambda: len(kubelet.asked) - before > 1)  # the thread came back from the first attempt
    assert f"did not answer within {SHORT:g} s" in pods.last_error
    assert "kubelet.budget_seconds" in pods.last_error
    assert not [each for each in set(threading.enumerate()) - threads if each.name.startswith("kubelet-pods")]
    kubelet.behaviour, kubelet.pods = "prompt", [listed("b")]
    kubelet.let_go.set()
    while await uid_of(pods, "b") is None:
        clock.now += LONGEST_PAUSE + 1
    assert pods.last_error == ""
    assert [each["log_level"] for each in log] == ["warning", "info"]


async def test_a_cancelled_caller_harms_no_other(kubelet: FakeKubelet, open_pods: OpenPods) -> None:
    """A caller that gives up before kubelet answers leaves no lock behind and counts as no failure."""
    kubelet.pods, kubelet.behaviour = [listed("a")], "silent"
    pods = open_pods(kubelet.url)
    caller = asyncio.ensure_future(uid_of(pods, "a"))
    while not kubelet.asked:
        await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    kubelet.behaviour = "prompt"
    kubelet.let_go.set()
    assert await uid_of(pods, "a") == "a"
    assert pods.last_error == ""


@pytest.mark.parametrize(
    ("pod", "uid", "name", "found"),
    [
        (listed(HASH, source="file", hash=HASH), HASH, "web-0", True),
        (listed("mirror", source="api", hash=HASH, mirror=HASH), HASH, "web-0", True),
        (listed("mirror", source="file", hash=HASH), HASH, "other", True),
        (listed("mirror", source="http", hash="old"), HASH, "web-0", True),
        (listed("mirror", source="file"), HASH, "web-0", True),
        (listed("mirror", source="file"), HASH, "other", False),
        (listed("successor"), "predecessor", "web-0", False),
        (listed("forger", hash=HASH), HASH, "web-0", False),
    ],
)
async def test_static_pods(
    pod: dict[str, Any], uid: str, name: str, found: bool, kubelet: FakeKubelet, open_pods: OpenPods
) -> None:
    """A static pod is found by uid, by the hash of its manifest, or by name; other pods by nothing but their uid."""
    kubelet.pods = [pod]
    assert await uid_of(open_pods(kubelet.url), uid, name) == (pod["metadata"]["uid"] if found else None)


async def test_a_static_pod_by_name_is_of_this_moment(kubelet: FakeKubelet, open_pods: OpenPods, clock: Clock) -> None:
    """A name in an old list may be that of a former version, so without a new list it says nothing."""
    kubelet.pods = [listed("old", source="file")]
    pods = open_pods(kubelet.url)
    assert await uid_of(pods, HASH) == "old"
    kubelet.status = 500
    assert await uid_of(pods, HASH) is None
    assert await uid_of(pods, "old") == "old"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, ["answers 401 Unauthorized", "set kubelet.token_file, or kubelet.certificate_file and kubelet.key_file"]),
        (403, ["answers 403 Forbidden", "get on nodes/proxy"]),
        (404, ["answers 404 Not Found", "check kubelet.pods_url"]),
        (302, ["answers 302 Found"]),
        (599, ["answers 599"]),
    ],
)
async def test_refused_by_kubelet(
    status: int, words: list[str], kubelet: FakeKubelet, open_pods: OpenPods, clock: Clock
) -> None:
    """A status other than 200 is no list, and the error says what to do about it."""
    kubelet.status, kubelet.pods = status, [listed("a")]
    pods = open_pods(kubelet.url)
    assert [await uid_of(pods, "a") for _ in range(3)] == [None] * 3
    assert len(kubelet.asked) == 1
    assert all(word in pods.last_error for word in [kubelet.url, *words]), pods.last_error
    kubelet.status = 200
    clock.now += FIRST_PAUSE
    assert await uid_of(pods, "a") == "a"
    assert pods.last_error == ""


@pytest.mark.parametrize(
    "body",
    [b"", b"ok", b"{", b"[]", b"null", b'{"kind": "Status"}', b'{"items": 1}', b'{"items": ["\xff"]', b"[" * 10**6],
)
async def test_not_a_list_of_pods(body: bytes, kubelet: FakeKubelet, open_pods: OpenPods) -> None:
    """What is not a list of pods is a failure whose error says so in few words."""
    kubelet.body = body
    pods = open_pods(kubelet.url)
    assert await uid_of(pods, "a") is None
    assert "something else than a list of pods" in pods.last_error
    assert len(pods.last_error) < 300


async def test_odd_pods_in_a_list(kubelet: FakeKubelet, open_pods: OpenPods) -> None:
    """An empty list, which Go writes as null, is one; odd members are left out, and the others are found."""
    kubelet.pods = None
    pods = open_pods(kubelet.url)
    assert await uid_of(pods, "a") is None
    assert pods.last_error == ""
    odd: list[Any] = [None, 1, [], {}, {"metadata": None}, {"metadata": {"uid": 7}}, {"metadata": {"annotations": []}}]
    kubelet.pods = [*odd, {"metadata": {"uid": "a", "annotations": None}}, {"metadata": {"uid": "b"}, "spec": 5}]
    assert [await uid_of(pods, uid) for uid in ("a", "b", "")] == ["a", "b", None]
    kubelet.body = b'{"items": [{"metadata": {"uid": "c"}, "spec": "\xff"}]}'
    assert await uid_of(pods, "c") is None


async def test_nothing_listens(open_pods: OpenPods) -> None:
    """A closed port is told from kubelet's other failures, because it is the usual state of the read-only one."""
    with FakeKubelet() as server:
        url = server.url
    pods = open_pods(url)
    assert await uid_of(pods, "a") is None
    assert f"{url} does not answer: nothing listens there" in pods.last_error
    assert "readOnlyPort" in pods.last_error


async def test_after_close(kubelet: FakeKubelet, open_pods: OpenPods) -> None:
    """A call while the service stops is answered with what is known."""
    kubelet.pods = [listed("a")]
    pods = open_pods(kubelet.url)
    assert await uid_of(pods, "a") == "a"
    pods.close()
    assert [await uid_of(pods, uid) for uid in ("b", "a")] == [None, "a"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pods_url": "http://[::1"}, r"kubelet.pods_url: 'http://\[::1' is no web address"),
        ({"pods_url": "http://a:x/pods"}, r"kubelet.pods_url: 'http://a:x/pods' is no web address"),
        ({"pods_url": ""}, r"kubelet.pods_url: '' is no web address \(such as https://"),
        ({"pods_url": "127.0.0.1:10255"}, "kubelet.pods_url: '127.0.0.1:10255'"),
        ({"pods_url": "unix:///run/kubelet.sock"}, "kubelet.pods_url: 'unix://"),
        ({"pods_url": "http://127.0.0.1/pods", "token_file": "/t"}, "kubelet.token_file: .* https only"),
    ],
)
def test_settings_that_cannot_work(fields: dict[str, Any], words: str) -> None:
    """A contradiction in the settings is an error at once, with the setting's name."""
    with pytest.raises(ConfigError, match=words):
        KubeletPods(KubeletSection(**fields))


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `server` and `client` certificates (.crt, for 127.0.0.1, their own CA) and keys (.key)."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("keys")
    for name in ("server", "client"):
        files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        about = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(["openssl", "req", "-x509", *kind, *about, *files], check=True, capture_output=True)
    return folder


@pytest.fixture
def secure(keys: Path) -> Iterator[FakeKubelet]:
    """A kubelet's secure port, which takes the client certificate of `keys`, and callers without one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    context.load_verify_locations(keys / "client.crt")
    context.verify_mode = ssl.CERT_OPTIONAL
    with serving(context) as server:
        server.pods = [listed("a")]
        yield server


async def test_token(secure: FakeKubelet, keys: Path, tmp_path: Path, open_pods: OpenPods, clock: Clock) -> None:
    """The token goes out as it is in its file at that moment, and where it is refused the error names the file."""
    token = tmp_path / "token"
    token.write_text("one\n")
    pods = open_pods(secure.url, ca_file=str(keys / "server.crt"), token_file=str(token))
    assert await uid_of(pods, "a") == "a", pods.last_error
    token.write_text("two")
    assert await uid_of(pods, "a", fresh=True) == "a"
    assert [each["Authorization"] for each in secure.asked] == ["Bearer one", "Bearer two"]
    secure.status = 401
    assert await uid_of(pods, "b") is None
    assert f"kubelet does not accept {token}" in pods.last_error
    for content in ("", "a b", "a\nX-Injected: 1", "\xe9"):
        clock.now += LONGEST_PAUSE + 1
        token.write_text(content, encoding="utf-8")
        assert await uid_of(pods, "b") is None
        assert f"kubelet.token_file: {token} is of no use" in pods.last_error
    token.unlink()
    clock.now += LONGEST_PAUSE + 1
    assert await uid_of(pods, "b") is None
    assert "No such file" in pods.last_error
    assert len(secure.asked) == 3


@pytest.mark.parametrize("together", [False, True])
async def test_client_certificate(together: bool, keys: Path, tmp_path: Path, open_pods: OpenPods) -> None:
    """A server that demands a client certificate is content with ours, its key beside it or in the same file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    context.load_verify_locations(keys / "client.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    both = tmp_path / "both.pem"
    both.write_bytes((keys / "client.crt").read_bytes() + (keys / "client.key").read_bytes())
    own = (
        {"certificate_file": str(both)}
        if together
        else {"certificate_file": str(keys / "client.crt"), "key_file": str(keys / "client.key")}
    )
    with serving(context) as server:
        server.pods = [listed("a")]
        pods = open_pods(server.url, ca_file=str(keys / "server.crt"), **own)
        assert await uid_of(pods, "a") == "a", pods.last_error
        stranger = open_pods(server.url, ca_file=str(keys / "server.crt"))
        assert await uid_of(stranger, "a") is None
        assert stranger.last_error


async def test_trust(secure: FakeKubelet, keys: Path, open_pods: OpenPods) -> None:
    """Only a certificate of the named CA, for the host in the address, is trusted, unless trust is not asked for."""
    distrustful = open_pods(secure.url, ca_file=str(keys / "client.crt"))
    assert await uid_of(distrustful, "a") is None
    assert "not trusted" in distrustful.last_error
    assert "kubelet.ca_file" in distrustful.last_error
    misled = open_pods(secure.url.replace("127.0.0.1", "localhost"), ca_file=str(keys / "server.crt"))
    assert await uid_of(misled, "a") is None
    assert "localhost" in misled.last_error
    assert "a host that it is for" in misled.last_error
    assert secure.asked == []
    careless = open_pods(secure.url, skip_verification=True)
    assert await uid_of(careless, "a") == "a"


@pytest.mark.parametrize("setting", ["ca_file", "certificate_file"])
async def test_unusable_files(
    setting: str, secure: FakeKubelet, keys: Path, tmp_path: Path, open_pods: OpenPods
) -> None:
    """A file that is missing or holds something else is named with its setting, and nobody is asked for a password."""
    (tmp_path / "empty").write_bytes(b"")
    locked = tmp_path / "locked.pem"
    make = ["openssl", "ec", "-in", str(keys / "client.key"), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(make, check=True, capture_output=True)
    locked.write_bytes(locked.read_bytes() + (keys / "client.crt").read_bytes())
    names = ["missing", "empty", *(["locked.pem"] if setting == "certificate_file" else [])]
    for name in names:
        path = str(tmp_path / name)
        pods = open_pods(secure.url, **{"ca_file": str(keys / "server.crt"), setting: path})
        assert await uid_of(pods, "a") is None
        assert f"kubelet.{setting}: {path} is of no use" in pods.last_error
    assert secure.asked == []


async def test_http_to_the_secure_port(secure: FakeKubelet, open_pods: OpenPods) -> None:
    """Speaking to the wrong port is a failure in words, not an exception."""
    pods = open_pods(secure.url.replace("https", "http"))
    assert await uid_of(pods, "a") is None
    assert "does not answer as kubelet does" in pods.last_error
