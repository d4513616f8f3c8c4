"""Messages with text in them that is not UTF-8.

proto3 wants UTF-8, but what kubelet was built with before Kubernetes 1.36 and containerd before and after do not look:
what somebody wrote into an annotation arrives as it is. A parser that does look takes nothing of such a message.
"""

from __future__ import annotations

import re
from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from qrm.errors import BadRequest

Kind = TypeVar("Kind", bound=Message)

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types (protobuf.dev, Encoding). The other two are groups, which CRI has none of."""
_SHOWN = 80
"""Bytes of a text that a message quotes."""
_NO_TEXT = re.compile("[\udc80-\udcff]")
"""What `surrogateescape` makes of a byte that is no text."""


def strict(kind: type[Kind], data: bytes) -> Kind:
    """The request in `data`.

    Raises:
        BadRequest: a text in it is not UTF-8; the message names the field and shows the text.
        DecodeError: it is no message at all, which the runtime is going to find too.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        bad = _mended(kind, data)[1]
        if not bad:
            raise
        field, text = next(iter(bad.items()))
        shown = repr(text[:_SHOWN]) + ("..." if len(text) > _SHOWN else "")
        raise BadRequest(f"{field} has {shown}, which is not UTF-8", hint="write it as UTF-8") from None


def lenient(kind: type[Kind], data: bytes) -> Kind:
    """What `data` says, with a "?" for each byte that is no text where text should be.

    One pod or container among many must not keep the others from being seen.

    Raises:
        DecodeError: it is no message at all.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        return kind.FromString(_mended(kind, data)[0])


def _mended(kind: type[Message], data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """`data` with all of its text readable, and by field the first text of each that was not."""
    made, bad = bytearray(data), dict[str, bytes]()
    try:
        _mend(cast("Descriptor", kind.DESCRIPTOR), made, (0, len(made)), "", bad)
    except IndexError:
        return data, {}  # it ends in the middle of a number
    return bytes(made), bad


def _mend(kind: Descriptor, data: bytearray, part: tuple[int, int], within: str, bad: dict[str, bytes]) -> None:
    """Go through the message in `part` of `data`, in place: no length changes."""
    at, end = part
    key = ""
    while at < end:
        tag, at = _number(data, at)
        length = {_FIXED64: 8, _FIXED32: 4}.get(tag & 7, 0)
        if tag & 7 == _VARINT:
            _, at = _number(data, at)
        elif tag & 7 == _LENGTH:
            length, at = _number(data, at)
            field = kind.fields_by_number.get(tag >> 3)
            if at + length > end:
                raise IndexError("longer than the message around it")
            if field is not None and field.message_type is not None:
                _mend(field.message_type, data, (at, at + length), f"{within}{field.name}.", bad)
            elif field is not None and field.type == FieldDescriptor.TYPE_STRING:
                of_map = kind.GetOptions().map_entry  # a key, and then its value
                name = f"{within[:-1]}{key}" if of_map else f"{within}{field.name}"
                key = f"[{_mend_text(data, (at, at + length), name, bad)}]"
        elif not length:
            return
        at += length


def _mend_text(data: bytearray, part: tuple[int, int], field: str, bad: dict[str, bytes]) -> str:
    text = bytes(data[slice(*part)])
    readable = _NO_TEXT.sub("?", text.decode(errors="surrogateescape"))
    if readable.encode() != text:
        bad.setdefault(field, text)
        data[slice(*part)] = readable.encode()
    return readable


def _number(data: bytearray, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends; raises IndexError where `data` ends before."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
