"""Kubelet's list of its pods, over HTTP: the one edge of this package.

Nothing that kubelet does can fail or hold up a container for long: an answer has its budget, after a failure kubelet is
left alone for a while, and what is known stays known meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import structlog

from qrm.config import KubeletSection
from qrm.errors import ConfigError, QrmError

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds that kubelet is left alone after a failure: doubled with each further one, up to the second."""
_CONFIG_SOURCE = "kubernetes.io/config.source"
_CONFIG_HASH = "kubernetes.io/config.hash"
_CONFIG_MIRROR = "kubernetes.io/config.mirror"
_CHUNK, _LARGEST = 1 << 16, 64 << 20
"""Bytes at a time, and in all: a node's pods, 1000 of them with 64 KiB each."""

log = structlog.get_logger(__name__)


class _NoAnswer(QrmError):
    """Why there is no list, and what the node's administrator can do about it."""


class _Metadata(msgspec.Struct):
    uid: str = ""
    namespace: str = ""
    name: str = ""
    annotations: dict[str, Any] | None = None


class _Head(msgspec.Struct):
    metadata: _Metadata


class _PodList(msgspec.Struct):
    items: list[msgspec.Raw] | None
    """Go writes an empty list as null."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """One answer of kubelet, the pods unparsed."""

    asked_at: float = float("-inf")
    by_uid: dict[str, msgspec.Raw] = field(default_factory=dict)
    static: dict[tuple[str, str], msgspec.Raw] = field(default_factory=dict)


class KubeletPods:
    """The pods as kubelet has them, by uid.

    The list is fetched for a pod that is not in it, and again once it is `max_age_seconds` old, since a pod's requests
    can change while it runs. Each fetch replaces all that is known, so gone pods take no room.

    Raises:
        ConfigError: `access` contradicts itself.
    """

    def __init__(self, access: KubeletSection, *, clock: Callable[[], float] = time.monotonic) -> None:
        _check(access)
        self.last_error = ""
        """Why the last attempt failed and what to do about it; empty when it did not, or there was none yet."""
        self._access = access
        self._clock = clock
        self._listed = _Listed()
        self._turn = asyncio.Lock()
        self._pause = 0.0
        self._silent_until = float("-inf")
        # One thread: one that hangs costs the next attempt its budget, never another thread.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kubelet-pods")

    async def pod(self, uid: str, namespace: str, name: str, *, fresh: bool = False) -> Mapping[str, Any] | None:
        """The v1.Pod as JSON, or None where kubelet does not know it or does not answer in time; never raises.

        A static pod is found by its uid too, which in CRI is the hash of its manifest, else by its name. `fresh` asks
        kubelet again even for a known pod.
        """
        arrived = self._clock()
        if not self._is_known(uid, arrived, fresh=fresh):
            await self._refresh(uid, arrived, fresh=fresh)
        found = self._listed.by_uid.get(uid)
        if found is None and self._listed.asked_at > arrived:  # in an older list the name may be another pod's
            found = self._listed.static.get((namespace, name))
        try:
            return None if found is None else cast("dict[str, Any]", msgspec.json.decode(found))
        except (msgspec.DecodeError, RecursionError):
            return None

    def close(self) -> None:
        """Let the thread end; nothing is waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_known(self, uid: str, arrived: float, *, fresh: bool) -> bool:
        """Whether asking kubelet again would tell nothing new about the pod."""
        asked_at = self._listed.asked_at
        if asked_at > arrived:
            return True
        return not fresh and uid in self._listed.by_uid and arrived - asked_at < self._access.max_age_seconds

    async def _refresh(self, uid: str, arrived: float, *, fresh: bool) -> None:
        """Ask kubelet, one caller at a time: most that wait for their turn find their pod in the other's answer."""
        until = asyncio.get_running_loop().time() + self._access.budget_seconds
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
        except TimeoutError:
            return
        try:
            if not self._is_known(uid, arrived, fresh=fresh) and self._clock() >= self._silent_until:
                await self._ask(until)
        finally:
            self._turn.release()

    async def _ask(self, until: float) -> None:
        asked_at = self._clock()
        try:
            async with asyncio.timeout_at(until):
                answer = self._thread.submit(_fetch, self._access, asked_at)
                self._listed = await asyncio.wrap_future(answer)
        except TimeoutError:
            self._failed(str(_too_slow(self._access)))
        except Exception as error:
            self._failed(str(error) if isinstance(error, QrmError) else repr(error))
        else:
            if self.last_error:
                log.info("kubelet lists its pods again", pods=len(self._listed.by_uid))
            self.last_error, self._pause = "", 0.0

    def _failed(self, error: str) -> None:
        self._pause = min(2 * self._pause, LONGEST_PAUSE) or FIRST_PAUSE
        self._silent_until = self._clock() + self._pause
        if error != self.last_error:
            log.warning("kubelet's pods unknown", error=error, next="requests by annotation and CRI only")
        self.last_error = error


def _check(access: KubeletSection) -> None:
    """Raise ConfigError where `access` can never work, naming the setting."""
    try:
        url = urlsplit(access.pods_url)
        usable = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # a port that is no number, or a bracket that is not closed
        usable = False
    if not usable:
        hint = "such as https://127.0.0.1:10250/pods"
        raise ConfigError(f"kubelet.pods_url: {access.pods_url!r} is no web address", hint=hint)
    if access.token_file and url.scheme == "http":  # where anybody may listen while kubelet does not
        raise ConfigError("kubelet.token_file: a token is sent over https only", hint="change kubelet.pods_url")


def _fetch(access: KubeletSection, asked_at: float) -> _Listed:
    """Ask kubelet and sort its answer, in the thread."""
    try:
        items = msgspec.json.decode(_get(access), type=_PodList).items or []
    except (msgspec.DecodeError, RecursionError) as error:
        what = f"{access.pods_url} answers with something else than a list of pods: {error}"
        raise _NoAnswer(what, hint="is it the address of kubelet's /pods?") from None
    listed, hashes = _Listed(asked_at), {}
    for pod in items:
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            about = msgspec.json.decode(pod, type=_Head).metadata
            said = about.annotations or {}
            if about.uid:
                listed.by_uid[about.uid] = pod
            if _CONFIG_MIRROR in said or said.get(_CONFIG_SOURCE, "api") != "api":
                listed.static[about.namespace, about.name] = pod
                hashes[str(said.get(_CONFIG_HASH, about.uid))] = pod
    for known_as, pod in hashes.items():
        listed.by_uid.setdefault(known_as, pod)
    return listed


def _get(access: KubeletSection) -> bytes:
    """The body of kubelet's answer; raises _NoAnswer."""
    deadline = time.monotonic() + access.budget_seconds
    headers = {"Accept": "application/json"}
    if access.token_file:
        headers["Authorization"] = f"Bearer {_token(access.token_file)}"
    with _explained(access), contextlib.closing(_connection(access)) as connection:
        connection.request("GET", urlsplit(access.pods_url).path, headers=headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise _refused(response.status, access)
        body = bytearray()
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > _LARGEST or time.monotonic() > deadline:
                raise _too_slow(access)
        return bytes(body)


def _connection(access: KubeletSection) -> http.client.HTTPConnection:
    url = urlsplit(access.pods_url)
    host = url.hostname or ""
    if url.scheme == "http":
        return http.client.HTTPConnection(host, url.port, timeout=access.budget_seconds)
    with _readable("kubelet.ca_file", access.ca_file):
        context = ssl.create_default_context(cafile=access.ca_file or None)
    # Many clusters' own CAs lack extensions that this asks for since Python 3.13; Go does not ask either.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if access.skip_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.certificate_file:
        with _readable("kubelet.certificate_file", access.certificate_file):
            context.load_cert_chain(access.certificate_file, access.key_file or None, password="")
    return http.client.HTTPSConnection(host, url.port, timeout=access.budget_seconds, context=context)


def _token(path: str) -> str:
    """The token, read anew each time, because tokens of service accounts are replaced hourly."""
    with _readable("kubelet.token_file", path):
        token = Path(path).read_text(encoding="ascii").strip()
        if len(token.split()) != 1:
            raise ValueError("it does not hold one token")
        return token


@contextlib.contextmanager
def _readable(setting: str, path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise _NoAnswer(f"{setting}: {path} is of no use: {error}", hint="name a readable file") from None


@contextlib.contextmanager
def _explained(access: KubeletSection) -> Iterator[None]:
    """Turn what goes wrong on the way to kubelet into words."""
    url, hint = access.pods_url, "check kubelet.pods_url"
    try:
        yield
    except TimeoutError:
        raise _too_slow(access) from None
    except (OSError, http.client.HTTPException) as error:
        what = f"does not answer as kubelet does: {error!r:.200}"
        if isinstance(error, ConnectionRefusedError):
            what = "does not answer: nothing listens there"
            hint = "kubelet's read-only port is off unless its readOnlyPort is set; port 10250 with https is on"
        elif isinstance(error, ssl.SSLCertVerificationError):
            what = f"has a certificate that is not trusted: {error.verify_message}"
            hint = "name its CA as kubelet.ca_file, and in kubelet.pods_url a host that it is for"
        raise _NoAnswer(f"{url} {what}", hint=hint) from None


def _too_slow(access: KubeletSection) -> _NoAnswer:
    hint = "raise kubelet.budget_seconds if kubelet is merely slow"
    return _NoAnswer(f"{access.pods_url} did not answer within {access.budget_seconds:g} s", hint=hint)


def _refused(status: int, access: KubeletSection) -> _NoAnswer:
    shown, hint = access.token_file or access.certificate_file, "check kubelet.pods_url"
    if status == http.client.UNAUTHORIZED and shown:
        hint = f"kubelet does not accept {shown}: is it of this cluster, and still valid?"
    elif status == http.client.UNAUTHORIZED:
        hint = "set kubelet.token_file, or kubelet.certificate_file and kubelet.key_file"
    elif status == http.client.FORBIDDEN:
        hint = "in the cluster, allow its user the verb get on nodes/proxy (or only nodes/pods, from Kubernetes 1.33)"
    return _NoAnswer(f"{access.pods_url} answers {status} {http.client.responses.get(status, '')}", hint=hint)
