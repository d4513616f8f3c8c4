"""The calls of the transport benchmark, as ready-made frames.

A request's message begins with a byte that tells the runtime of the benchmark which answer to give, so that it need not
decode header lists.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, cycle

import hpack

from qrm.wire import cri_pb2

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW, MAX_WINDOW = 4, (1 << 31) - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW, MAX_FRAME = 65535, 16384
"""HTTP/2's defaults."""

_SERVICE = "/runtime.v1.RuntimeService/"
CREATE, LIST_SEEN = _SERVICE + "CreateContainer", _SERVICE + "ListContainersSeen"
"""The paths that have handlers; the second is no CRI method."""
_EVENTS = 100
_DEADLINES = 150


@dataclass(frozen=True)
class Call:
    """One kind of call."""

    name: str
    path: str
    request: bytes
    """Its message."""
    answer: tuple[bytes, ...]
    """The messages of its answer."""
    hurried: bool = False
    """Whether its deadline is below 100 s. grpc-go sends what is left of it in microseconds then, so that it is another
    each time; kubelet's two minutes are the same milliseconds each time."""

    @property
    def size(self) -> int:
        """Bytes of data in the answer."""
        return sum(len(message) + 5 for message in self.answer)


def calls() -> tuple[Call, ...]:
    """All kinds; the first byte of a request is the number of its kind."""
    version = cri_pb2.VersionResponse(
        version="0.1.0", runtime_name="containerd", runtime_version="2.1.4", runtime_api_version="v1"
    ).SerializeToString()
    few, many = (_listed(number) for number in (200, 1000))
    created = cri_pb2.CreateContainerResponse(container_id=_id(0)).SerializeToString()
    event = b"event " * 40
    kinds = (
        ("Version", _SERVICE + "Version", 8, (version,), False),
        ("Version, hurried", _SERVICE + "Version", 8, (version,), True),
        ("List 200", _SERVICE + "ListContainers", 2, (few,), False),
        ("List 1000", _SERVICE + "ListContainers", 2, (many,), False),
        ("List 1000, seen", LIST_SEEN, 2, (many,), False),
        ("Create, changed", CREATE, 6000, (created,), False),
        (f"stream of {_EVENTS}", _SERVICE + "GetContainerEvents", 2, (event,) * _EVENTS, False),
    )
    return tuple(
        Call(name, path, bytes([number]) + bytes(size - 1), answer, deadline)
        for number, (name, path, size, answer, deadline) in enumerate(kinds)
    )


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame's bytes."""
    return struct.pack(">BHBBL", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def window_update(stream: int, amount: int) -> bytes:
    """A WINDOW_UPDATE's bytes."""
    return frame(WINDOW_UPDATE, 0, stream, amount.to_bytes(4, "big"))


def settings(initial_window: int) -> bytes:
    """A SETTINGS frame's bytes."""
    return frame(SETTINGS, 0, 0, struct.pack(">HL", INITIAL_WINDOW, initial_window))


def blocks(call: Call) -> Iterator[bytes]:
    """The header blocks of one call after the other on a new connection, without end.

    Deadlines are taken in turns, so many that each has left the encoder's table before it comes again: the blocks then
    repeat, and none has to be made while something is measured.
    """
    encoder, made, seen = hpack.Encoder(), list[bytes](), dict[object, int]()
    for _ in count():
        made += [encoder.encode(_fields(call, number)) for number in range(_DEADLINES if call.hurried else 1)]
        state = tuple(encoder.header_table.dynamic_entries)
        if state in seen:
            return chain(made, cycle(made[seen[state] :]))
        seen[state] = len(made)
    raise AssertionError("endless")


def body(call: Call) -> bytes:
    """The request with gRPC's prefix."""
    return struct.pack(">?L", False, len(call.request)) + call.request


def _fields(call: Call, number: int) -> list[tuple[str, str]]:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", call.path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.72.2"),
        ("te", "trailers"),
    ]
    return [*fields, ("grpc-timeout", f"{9_999_999 - number * 7}u" if call.hurried else "120000m")]


def _listed(number: int) -> bytes:
    """A ListContainers reply of about 1 KiB for each container, as containerd's is."""
    reply = cri_pb2.ListContainersResponse()
    for each in range(number):
        labels = {f"io.kubernetes.pod.{name}": f"{name}-{each}" for name in ("name", "namespace", "uid")}
        reply.containers.add(
            id=_id(each),
            pod_sandbox_id=_id(-each),
            metadata=cri_pb2.ContainerMetadata(name="main", attempt=1),
            image=cri_pb2.ImageSpec(image=f"sha256:{_id(7)}"),
            image_ref=f"sha256:{_id(7)}",
            state=cri_pb2.CONTAINER_RUNNING,
            created_at=1 << 60,
            labels={**labels, "io.kubernetes.container.name": "main"},
            annotations={f"io.kubernetes.container.annotation{n}": _id(n) for n in range(3)},
        )
    return reply.SerializeToString()


def _id(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()
