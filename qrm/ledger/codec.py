"""Records as JSON. The format is the dataclasses' own, with id sets in the kernel's list format."""

from __future__ import annotations

from typing import Any

import msgspec

from qrm.cpuset import IdSet
from qrm.errors import LedgerError, ParseError
from qrm.ledger.record import Record


def _encode_set(value: Any) -> str:
    if isinstance(value, IdSet):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no stored form")


def _decode_set(kind: type, value: Any) -> Any:
    if issubclass(kind, IdSet):
        if not isinstance(value, str):
            raise ParseError(f"{value!r} is not a list of ids")
        return kind.parse(value)
    raise NotImplementedError(f"{kind.__name__} has no stored form")


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_set)
_DECODER = msgspec.json.Decoder(Record, dec_hook=_decode_set)


def encode(record: Record) -> bytes:
    """`record` as JSON; raises LedgerError where something in it has no stored form, such as half a surrogate."""
    try:
        return _ENCODER.encode(record)
    except (msgspec.MsgspecError, NotImplementedError, OverflowError, TypeError, ValueError) as error:
        raise LedgerError(f"{record.request.pod}, container {record.key.container}: not storable: {error}") from error


def decode(text: bytes) -> Record:
    """The record in `text`; raises LedgerError where it is none."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, ParseError, RecursionError, TypeError) as error:
        raise LedgerError(f"a line of the ledger cannot be read: {error}: {text[:200]!r}") from error
