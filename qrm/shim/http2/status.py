"""gRPC on HTTP/2: status, deadline and metadata as header fields (grpc/grpc, doc/PROTOCOL-HTTP2.md)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable

import grpc

from qrm.enforcement.channel import CallError, Metadata
from qrm.shim.http2 import frames
from qrm.shim.http2.headers import Field, Headers

GRPC = (b"content-type", b"application/grpc")

BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

_BY_ERROR = {
    frames.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    frames.CANCEL: grpc.StatusCode.CANCELLED,
    frames.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    frames.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}
"""What a reset stream means (PROTOCOL-HTTP2.md, "Errors"); INTERNAL for all others."""

_BY_HTTP = {
    b"400": grpc.StatusCode.INTERNAL,
    b"401": grpc.StatusCode.UNAUTHENTICATED,
    b"403": grpc.StatusCode.PERMISSION_DENIED,
    b"404": grpc.StatusCode.UNIMPLEMENTED,
    b"429": grpc.StatusCode.UNAVAILABLE,
    b"502": grpc.StatusCode.UNAVAILABLE,
    b"503": grpc.StatusCode.UNAVAILABLE,
    b"504": grpc.StatusCode.UNAVAILABLE,
}
"""What an answer without a grpc-status means (grpc/grpc, doc/http-grpc-status-mapping.md); UNKNOWN for all others."""

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST = 10**8
"""A timeout has at most eight digits."""

_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}
"""Bytes that stand for themselves in grpc-message."""
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")

_OWN = frozenset(
    {
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
        b"grpc-status",
        b"grpc-message",
        b"content-type",
        b"content-length",
        b"user-agent",
        b"te",
    }
)
"""Fields that are the transport's, not the caller's."""


def code_of(status: bytes | None) -> grpc.StatusCode:
    """The code that `grpc-status` says; UNKNOWN for what says none (PROTOCOL-HTTP2.md, "Responses")."""
    if status is None or not status.isdigit():
        return grpc.StatusCode.UNKNOWN
    return BY_NUMBER.get(int(status[:4]), grpc.StatusCode.UNKNOWN)


def code_of_reset(error: int) -> grpc.StatusCode:
    """The code that RST_STREAM with this error stands for."""
    return _BY_ERROR.get(error, grpc.StatusCode.INTERNAL)


def call_error(last: Headers) -> CallError | None:
    """What the last headers of a reply say, its trailers or all that there is; None for OK."""
    if last.grpc_status is None:
        http = last.get(b":status")
        if http is None or http == b"200":
            return CallError(grpc.StatusCode.UNKNOWN, "the runtime's reply has no grpc-status")
        return CallError(_BY_HTTP.get(http, grpc.StatusCode.UNKNOWN), f"HTTP status {http.decode('latin-1')}")
    code = code_of(last.grpc_status)
    if code is grpc.StatusCode.OK:
        return None
    return CallError(code, unescaped(last.get(b"grpc-message") or b""), metadata(last))


def away(error: OSError) -> CallError:
    """What a call is told that cannot reach the runtime."""
    return CallError(grpc.StatusCode.UNAVAILABLE, f"the container runtime cannot be reached: {error.strerror or error}")


def trailers(code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> list[Field]:
    """The fields that end a call."""
    fields = [(b"grpc-status", b"%d" % code.value[0])]
    if details:
        fields.append((b"grpc-message", escaped(details)))
    return fields + encoded(trailing)


def trailers_only(code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> list[Field]:
    """The fields of a whole answer that is nothing but a status."""
    return [(b":status", b"200"), GRPC, *trailers(code, details, trailing)]


def escaped(text: str) -> bytes:
    """A text as grpc-message spells it: UTF-8, percent-encoded."""
    return b"".join(bytes((each,)) if each in _PLAIN else b"%%%02X" % each for each in text.encode(errors="replace"))


def unescaped(value: bytes) -> str:
    """The text of a grpc-message; what is not well-formed is kept as it is."""
    return _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), value).decode(errors="replace")


def read_timeout(value: bytes | None) -> float | None:
    """Seconds that grpc-timeout says; None for none and for what is none."""
    found = _TIMEOUT.fullmatch(value or b"")
    return int(found[1]) * _UNITS[found[2]] if found else None


def timeout(seconds: float) -> bytes:
    """The same as a header's value, in the smallest unit that it fits into."""
    for unit in (b"u", b"m", b"S", b"M"):
        count = int(seconds / _UNITS[unit])
        if count < _LONGEST:
            return b"%d%s" % (max(count, 0), unit)
    return b"%dH" % min(int(seconds / 3600), _LONGEST - 1)


def metadata(headers: Headers) -> Metadata:
    """The caller's own fields; binary ones (`-bin`) decoded, what cannot be decoded as it is."""
    return tuple(
        (name.decode("latin-1"), _binary(value) if name.endswith(b"-bin") else value.decode("latin-1"))
        for name, value in headers.fields
        if name not in _OWN and not name.startswith(b":")
    )


def encoded(pairs: Metadata) -> list[Field]:
    """Metadata as fields; binary values in base64 without padding."""
    return list(_encoded(pairs))


def _encoded(pairs: Metadata) -> Iterable[Field]:
    for name, value in pairs:
        raw = value if isinstance(value, bytes) else value.encode("latin-1", errors="replace")
        if name.endswith("-bin"):
            raw = base64.b64encode(raw).rstrip(b"=")
        yield name.lower().encode("latin-1"), raw


def _binary(value: bytes) -> bytes:
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return value
