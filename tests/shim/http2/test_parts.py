"""The parts that know no connection: header blocks, messages, windows, status."""

from __future__ import annotations

import gzip
import struct

import grpc
import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hypothesis import given, settings
from hypothesis import strategies as st

from qrm.enforcement.channel import CallError
from qrm.shim.http2 import frames, status
from qrm.shim.http2.frames import ProtocolError
from qrm.shim.http2.headers import NO_TABLE, HeaderDecoder, Headers
from qrm.shim.http2.messages import Collector, Unreadable, unwrapped
from qrm.shim.http2.windows import Granted, widened
from tests.shim.http2.rig import framed

names = st.from_regex(rb"[a-z][a-z0-9-]{0,12}", fullmatch=True)
fields = st.lists(st.tuples(names, st.binary(max_size=200)), max_size=6)


@settings(max_examples=50)
@given(st.lists(fields, max_size=5), st.booleans())
def test_any_block_is_the_same_for_a_peer_without_our_sender_table(
    lists: list[list[tuple[bytes, bytes]]], huffman: bool
) -> None:
    """Decoded with the sender's table, encoded for a receiver that is given blocks in reverse order."""
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    decoded = [decoder.decode(encoder.encode(each, huffman=huffman)) for each in lists]
    receiver = Decoder()
    receiver.decode(NO_TABLE)
    receiver.max_allowed_table_size = 0
    for sent, headers in reversed(list(zip(lists, decoded, strict=True))):
        assert [tuple(field) for field in headers.fields] == sent
        assert [tuple(field) for field in receiver.decode(headers.block, raw=True)] == sent


def test_the_same_bytes_are_not_taken_for_the_same_after_the_table_has_changed() -> None:
    """An index means another field once something was put into the table before it, or once that was emptied."""
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    decoder.decode(encoder.encode([(b"a", b"1")]))
    block = encoder.encode([(b"a", b"1")])
    first = decoder.decode(block)
    assert decoder.decode(block) is first
    decoder.decode(encoder.encode([(b"b", b"2")]))
    assert decoder.decode(block).fields == [(b"b", b"2")]
    decoder.decode(NO_TABLE)
    with pytest.raises(ProtocolError):
        decoder.decode(block)


def test_blocks_that_a_table_makes_long_are_not_remembered() -> None:
    """A few hundred bytes that stand for a megabyte would make a connection's memory grow by that with each call."""
    encoder, decoder = Encoder(), HeaderDecoder(1 << 20)
    decoder.decode(encoder.encode([(b"a", b"x" * 3000)]))
    block = encoder.encode([(b"a", b"x" * 3000)] * 300)
    assert len(block) < 1000
    assert decoder.decode(block) is not decoder.decode(block)


def test_what_must_never_be_indexed_is_not_so_afterwards_either() -> None:
    """Secrets keep their mark, also where the same field has come without it."""
    secret = NeverIndexedHeaderTuple(b"authorization", b"x")
    for field in ((b"authorization", b"x"), secret):
        decoder = HeaderDecoder(1 << 20)
        block = decoder.decode(Encoder().encode([field])).block
        (found,) = Decoder().decode(block, raw=True)
        assert found.indexable is (field is not secret)


@pytest.mark.parametrize("block", [b"\xff\xff\xff\xff\xff\xff", b"\x40", b"\x00\x05ab", b"\xc0", b"\x3f\xff\xff\x7f"])
def test_a_block_that_is_none_is_a_compression_error(block: bytes) -> None:
    """Cut short, or with an index that is none."""
    with pytest.raises(ProtocolError) as caught:
        HeaderDecoder(1 << 20).decode(block)
    assert caught.value.code == frames.COMPRESSION_ERROR


def test_a_header_list_has_a_limit() -> None:
    """However well it is compressed."""
    encoder, decoder = Encoder(), HeaderDecoder(10_000)
    decoder.decode(encoder.encode([(b"a", b"x" * 2000)]))
    with pytest.raises(ProtocolError) as caught:
        decoder.decode(encoder.encode([(b"a", b"x" * 2000)]) * 5)
    assert caught.value.code == frames.ENHANCE_YOUR_CALM


@given(st.binary(max_size=200), st.binary(max_size=50), st.lists(st.integers(1, 60), max_size=300))
def test_a_message_is_found_however_it_is_cut(message: bytes, after: bytes, cuts: list[int]) -> None:
    """At every place, with and without anything behind it."""
    wire, collector = framed(message) + after, Collector(1000)
    found, position = False, 0
    for cut in [*cuts, 1000]:
        part = wire[position : position + cut]
        position += len(part)
        found = collector.add(part)
        assert found is (position >= len(message) + 5)
        if found:
            assert unwrapped(collector.first(), None, 1000) == message
    assert found
    assert b"".join(collector.taken()) == wire


def test_a_message_above_the_limit_is_known_by_its_prefix() -> None:
    """Before its bytes are there."""
    collector = Collector(10)
    assert collector.add(framed(b"x" * 10))
    with pytest.raises(Unreadable):
        Collector(10).add(struct.pack(">BL", 0, 11))


def test_gzip_is_understood_and_nothing_else_is_guessed() -> None:
    """Also not a small message that becomes a large one, or one that is cut short, or of which there is more."""
    packed = gzip.compress(b"x" * 1000)
    wire = struct.pack(">BL", 1, len(packed)) + packed
    assert unwrapped([wire], b"gzip", 1000) == b"x" * 1000
    for encoding, limit, given_wire in (
        (b"gzip", 999, wire),
        (b"gzip", 1000, wire[:-1]),
        (b"gzip", 1000, wire[:5] + b"nonsense"),
        (b"gzip", 1000, wire + gzip.compress(b"more")),
        (b"snappy", 1000, wire),
        (None, 1000, wire),
    ):
        with pytest.raises(Unreadable):
            unwrapped([given_wire], encoding, limit)


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans(), st.integers(-200, 200)), max_size=60))
def test_a_window_that_we_grant_is_conserved(steps: list[tuple[int, bool, int]]) -> None:
    """What the peer may send is what it had, plus what it was granted and told, less what it has sent."""
    granted, window, unused, risen = Granted(100, 1000, 500), 100, 0, 0
    for count, use, change in steps:
        if count <= window:
            granted.take(count)
            window -= count
            unused += count
        granted.shift(change)
        window += change
        risen += max(change, 0)
        if use:
            granted.used(unused)
            unused = 0
            window += granted.due()
            assert window >= 500
        assert granted.left == window
        assert window + unused <= 1000 + risen


def test_a_window_has_a_largest_size() -> None:
    """2^31 - 1 (RFC 9113, 6.9.1)."""
    assert widened(-5, 10) == 5
    with pytest.raises(ProtocolError) as caught:
        widened(1, frames.LARGEST_WINDOW)
    assert caught.value.code == frames.FLOW_CONTROL_ERROR


@given(st.text(max_size=80))
def test_a_message_of_a_status_comes_back(text: str) -> None:
    """Any text, as plain ASCII on the wire."""
    wire = status.escaped(text)
    assert all(0x20 <= byte <= 0x7E for byte in wire)
    assert status.unescaped(wire) == text.encode(errors="replace").decode()


@given(st.floats(0, 1e9))
def test_a_deadline_is_never_made_longer(seconds: float) -> None:
    """Rounded down, by less than a hundredth, in at most eight digits."""
    value = status.timeout(seconds)
    assert len(value) <= 9
    read = status.read_timeout(value)
    assert read is not None
    assert seconds * 0.99 - 1e-6 <= read <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("value", [None, b"", b"5", b"S", b"123456789S", b"-1S", b"1s", b"1.5S"])
def test_a_deadline_that_is_none_is_not_guessed(value: bytes | None) -> None:
    """The runtime judges it."""
    assert status.read_timeout(value) is None


def test_metadata_comes_back_and_the_transports_own_stays_out() -> None:
    """Binary values, with and without padding, are bytes."""
    pairs = (("traceparent", "00-4b"), ("blob-bin", bytes(range(256))))
    made = Headers([*status.trailers(grpc.StatusCode.NOT_FOUND, "no such", pairs)])
    error = status.call_error(made)
    assert error is not None
    assert (error.code, error.details, error.trailing) == (grpc.StatusCode.NOT_FOUND, "no such", pairs)
    assert status.metadata(Headers([(b"x-bin", b"QQ=="), (b"te", b"trailers"), (b":path", b"/")])) == (("x-bin", b"A"),)


@pytest.mark.parametrize(
    ("fields_", "code"),
    [
        ([(b"grpc-status", b"0")], None),
        ([(b"grpc-status", b"5")], grpc.StatusCode.NOT_FOUND),
        ([(b"grpc-status", b"99")], grpc.StatusCode.UNKNOWN),
        ([(b"grpc-status", b"x")], grpc.StatusCode.UNKNOWN),
        ([(b":status", b"503")], grpc.StatusCode.UNAVAILABLE),
        ([(b":status", b"404")], grpc.StatusCode.UNIMPLEMENTED),
        ([(b":status", b"200")], grpc.StatusCode.UNKNOWN),
        ([], grpc.StatusCode.UNKNOWN),
    ],
)
def test_every_end_has_a_code(fields_: list[tuple[bytes, bytes]], code: grpc.StatusCode | None) -> None:
    """gRPC's own, or by the mapping from HTTP."""
    error = status.call_error(Headers(fields_))
    assert (error.code if isinstance(error, CallError) else None) is code


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"x", frames.FRAME_SIZE_ERROR),
        (struct.pack(">HL", frames.ENABLE_PUSH, 2), frames.PROTOCOL_ERROR),
        (struct.pack(">HL", frames.INITIAL_WINDOW_SIZE, 1 << 31), frames.FLOW_CONTROL_ERROR),
        (struct.pack(">HL", frames.MAX_FRAME_SIZE, 16383), frames.PROTOCOL_ERROR),
    ],
)
def test_settings_out_of_their_range_are_errors(payload: bytes, code: int) -> None:
    """With the code that RFC 9113 gives them."""
    with pytest.raises(ProtocolError) as caught:
        frames.read_settings(payload)
    assert caught.value.code == code
