"""What is not held passes frame by frame, and each peer's mistakes stay its own."""

from __future__ import annotations

import struct

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.shim.http2 import frames
from qrm.shim.http2.headers import NO_TABLE
from qrm.shim.http2.limits import Limits
from qrm.shim.http2.link import Link
from qrm.shim.http2.run import Run
from tests.shim.http2.rig import OK, REPLY, REQUEST, Peer, Rig, data, payload

INITIAL = frames.INITIAL_WINDOW_SIZE


def opened(rig: Rig, stream: int = 1, *, end: bool = False) -> None:
    """A call that the runtime has seen and answered with its first headers."""
    rig.say(rig.kubelet, rig.kubelet.headers(stream, REQUEST, end=end))
    rig.say(rig.runtime, rig.runtime.headers(stream, REPLY))
    rig.kubelet.take()
    rig.runtime.take()


def test_a_call_passes_as_it_is() -> None:
    """Headers, message and trailers in both directions, and the call is counted with its code."""
    rig = Rig()
    rig.say(rig.kubelet, rig.kubelet.headers(1, REQUEST), data(1, b"ask", end=True))
    headers, body = rig.runtime.take()
    assert (headers.stream, headers.fields, headers.end) == (1, REQUEST, False)
    assert headers.payload.startswith(NO_TABLE), "peers that lower HEADER_TABLE_SIZE have to be told once"
    assert (body.stream, body.payload, body.end) == (1, b"ask", True)
    rig.say(rig.runtime, rig.runtime.headers(1, REPLY), data(1, b"told"), rig.runtime.headers(1, OK, end=True))
    first, body, last = rig.kubelet.take()
    assert (first.fields, body.payload, last.fields, last.end) == (REPLY, b"told", OK, True)
    assert [(call.path, call.code) for call in rig.ended_calls] == [(REQUEST[2][1], grpc.StatusCode.OK)]
    assert not rig.link.client.streams
    assert not rig.runtime.connection.streams


@given(st.integers(1, 40))
def test_bytes_may_come_one_at_a_time_or_in_any_pieces(size: int) -> None:
    """Frames are put together wherever they were cut, the preface too."""
    rig = Rig()
    sent = rig.kubelet.headers(1, REQUEST) + data(1, b"x" * 50, pad=7) + frames.frame(0xBB, 3, 1, b"ext")
    sent += data(1, b"", end=True)
    for start in range(0, len(sent), size):
        rig.say(rig.kubelet, sent[start : start + size])
    got = rig.runtime.take(frames.HEADERS, frames.DATA, 0xBB)
    assert got[0].fields == REQUEST
    assert b"x" * 50 in payload(got)
    assert [frame.payload for frame in got if frame.kind == 0xBB] == [b"ext"]
    assert got[-1].end


def test_padding_goes_to_where_it_came_from() -> None:
    """DATA passes without it, and the sender gets its bytes back, so that both windows stay alike."""
    rig = Rig()
    opened(rig)
    rig.say(rig.kubelet, data(1, b"abc", pad=200))
    assert payload(rig.runtime.take()) == b"abc"
    assert [update.payload for update in rig.kubelet.take(frames.WINDOW_UPDATE)] == [struct.pack(">L", 201)]
    assert window_of(rig.runtime) == frames.DEFAULT_WINDOW - 3


def window_of(peer: Peer, stream: int = 1) -> int:
    """What the peer lets us send on a stream."""
    return peer.connection.streams[stream].window


def test_long_headers_are_put_together_and_cut_again() -> None:
    """8 KiB in CONTINUATIONs of a few bytes, and 40 KiB in frames that the runtime takes."""
    for size, piece in ((8 << 10, 100), (40 << 10, 16384)):
        rig = Rig()
        block = rig.kubelet.encoder.encode([*REQUEST, (b"long", b"y" * size)], huffman=False)
        pieces = [block[start : start + piece] for start in range(0, len(block), piece)]
        sent = [frames.frame(frames.HEADERS, frames.END_STREAM, 1, pieces[0])]
        sent += [frames.frame(frames.CONTINUATION, 0, 1, each) for each in pieces[1:-1]]
        rig.say(rig.kubelet, *sent, frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, pieces[-1]))
        (got,) = rig.runtime.take()
        assert got.fields == [*REQUEST, (b"long", b"y" * size)]
        assert got.end


def test_window_updates_of_a_stream_pass_end_to_end() -> None:
    """In both directions, with the same number."""
    rig = Rig()
    opened(rig)
    for one, other in ((rig.kubelet, rig.runtime), (rig.runtime, rig.kubelet)):
        rig.say(one, frames.window_update(1, 4711))
        assert [frame.payload for frame in other.take(frames.WINDOW_UPDATE)] == [struct.pack(">L", 4711)]


def test_settings_that_matter_are_carried_over() -> None:
    """Windows and frames as the other side wants them; frames up to what we can hold, streams up to what we allow."""
    rig = Rig(settings={INITIAL: 1000, frames.MAX_FRAME_SIZE: 1 << 20})
    (first,) = (rig.runtime.connection.told,)
    assert (first[INITIAL], first[frames.MAX_FRAME_SIZE], first[frames.ENABLE_PUSH]) == (1000, 256 << 10, 0)
    rig.say(
        rig.runtime, frames.settings({INITIAL: 7, frames.MAX_CONCURRENT_STREAMS: 3, frames.MAX_HEADER_LIST_SIZE: 99})
    )
    assert frames.SETTINGS_ACK[3:5] in [bytes((frame.kind, frame.flags)) for frame in rig.runtime.take(frames.SETTINGS)]
    (told,) = rig.kubelet.take(frames.SETTINGS)
    assert frames.read_settings(told.payload) == {
        INITIAL: 7,
        frames.MAX_CONCURRENT_STREAMS: 3,
        frames.MAX_HEADER_LIST_SIZE: 99,
    }


def test_a_window_made_smaller_in_mid_flight_holds_back_what_was_sent_before() -> None:
    """kubelet has not heard of it yet; not a byte too much reaches the runtime, none is lost, none is granted twice."""
    rig = Rig()
    opened(rig)
    rig.say(rig.runtime, frames.settings({INITIAL: 10}))
    rig.say(rig.kubelet, data(1, b"a" * 100), data(1, b"b" * 100, end=True))
    assert payload(rig.runtime.take()) == b"a" * 10
    rig.say(rig.runtime, frames.window_update(1, 40))
    assert payload(rig.runtime.take()) == b"a" * 40
    rig.say(rig.runtime, frames.settings({INITIAL: 1000}))
    got = rig.runtime.take()
    assert payload(got) == b"a" * 50 + b"b" * 100
    assert got[-1].end


class Count:
    """Both ends of stream 1, each counting its window by itself as RFC 9113 has it."""

    def __init__(self) -> None:
        self.rig = Rig()
        opened(self.rig)
        self.sender = self.receiver = self.told = self.initial = frames.DEFAULT_WINDOW
        self.sent = self.got = 0

    def send(self, size: int, pad: int | None) -> None:
        """kubelet sends, where its window allows that."""
        flow = size + (0 if pad is None else pad + 1)
        if flow <= self.sender:
            self.rig.say(self.rig.kubelet, data(1, b"x" * size, pad=pad))
            self.sent += size
            self.sender -= flow

    def grant(self, count: int) -> None:
        """The runtime takes more."""
        self.rig.say(self.rig.runtime, frames.window_update(1, count))
        self.receiver += count

    def resize(self, initial: int) -> None:
        """The runtime wants another initial window, from the data on that comes after that."""
        self.take()
        self.rig.say(self.rig.runtime, frames.settings({INITIAL: initial}))
        self.receiver += initial - self.initial
        self.initial = initial

    def take(self) -> None:
        """The runtime reads what has come."""
        for frame in self.rig.runtime.take(frames.DATA):
            self.receiver -= len(frame.payload)
            self.got += len(frame.payload)
            assert self.receiver >= 0 or not frame.payload

    def read(self) -> None:
        """kubelet reads what has come."""
        for frame in self.rig.kubelet.take(frames.SETTINGS, frames.WINDOW_UPDATE):
            if frame.kind == frames.WINDOW_UPDATE and frame.stream == 1:
                self.sender += struct.unpack(">L", frame.payload)[0]
            elif frame.kind == frames.SETTINGS:
                told = frames.read_settings(frame.payload).get(INITIAL, self.told)
                self.sender += told - self.told
                self.told = told


steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 9000), st.none() | st.integers(0, 255)),
    st.tuples(st.just("grant"), st.integers(1, 9000)),
    st.tuples(st.just("resize"), st.integers(0, 9000)),
    st.tuples(st.just("read")),
)


@given(st.lists(steps, max_size=60))
def test_flow_control_is_exact(does: list[tuple[str, int, int]]) -> None:
    """A sender that keeps to its window never overruns the receiver, and may send all that the receiver has granted.

    Whatever the order, with padding, and while settings change in mid-flight.
    """
    count = Count()
    for name, *arguments in does:
        getattr(count, name)(*arguments)
    count.take()
    count.read()
    assert count.sender + count.sent - count.got == count.receiver
    count.grant(1 << 20)
    count.take()
    assert count.got == count.sent


def test_the_connections_window_is_given_back_over_any_number_of_calls() -> None:
    """What passes, what is padding, and what comes for streams that have ended."""
    rig = Rig(limits=Limits(window_bytes=100_000))
    rig.say(rig.runtime, frames.window_update(0, 1 << 30))
    window = 100_000  # what the client was told at once
    for call in range(60):
        stream = 2 * call + 1
        opened(rig, stream)
        rig.say(rig.kubelet, data(stream, b"x" * 9000, pad=255))
        rig.say(rig.runtime, frames.rst_stream(stream, frames.CANCEL))
        got = rig.kubelet.got
        rig.say(rig.kubelet, data(stream, b"y" * 5000, end=True))
        window -= 9256 + 5000
        window += sum(struct.unpack(">L", f.payload)[0] for f in got if f.kind == frames.WINDOW_UPDATE and not f.stream)
        rig.kubelet.take()
        assert window > 0
    assert not rig.kubelet.closed


@pytest.mark.parametrize("stream", [100_000, 400_000, 1 << 24])
@pytest.mark.parametrize("connection", [100_000, 400_000, 1 << 24])
def test_a_message_of_many_frames_goes_as_far_as_windows_allow(stream: int, connection: int) -> None:
    """In one piece or cut anywhere: not a byte more, and the rest once there is room, in the order that it came."""
    rig = Rig(settings={INITIAL: stream})
    rig.say(rig.kubelet, frames.window_update(0, connection - frames.DEFAULT_WINDOW))
    opened(rig)
    message = bytes(range(256)) * 2560
    wire = b"".join(data(1, message[at : at + 16384]) for at in range(0, len(message), 16384))
    rig.say(rig.runtime, wire[:300_000])
    rig.say(rig.runtime, wire[300_000:])
    got = payload(rig.kubelet.take(frames.DATA))
    assert len(got) == min(stream, connection, len(message))
    rig.say(rig.kubelet, frames.window_update(1, 1 << 20), frames.window_update(0, 1 << 20))
    assert got + payload(rig.kubelet.take(frames.DATA)) == message


@pytest.mark.parametrize(("first", "last", "copied"), [(0, 1000, False), (400, 1000, False), (400, 900, True)])
def test_most_of_what_was_read_goes_on_without_a_copy(first: int, last: int, copied: bool) -> None:
    """Less of it does not keep all of it in memory while it waits for a socket."""
    read = bytes(1000)
    to = Rig().link.client
    run = Run(read)
    run.take(to, first)
    run.end(last)
    (piece,) = to.out
    assert piece == read[first:last]
    assert ((piece.obj if isinstance(piece, memoryview) else piece) is read) is not copied


def test_a_slow_runtime_stops_kubelet_and_not_our_memory() -> None:
    """Its connection's window bounds what waits here, over all streams; once it opens again all of it goes on."""
    rig = Rig(limits=Limits(window_bytes=200_000))
    for stream in (1, 3, 5, 7):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, REQUEST), *[data(stream, b"x" * 10_000)] * 4)
    assert len(payload(rig.runtime.take())) == frames.DEFAULT_WINDOW
    assert not rig.kubelet.take(frames.WINDOW_UPDATE)[1:], "it is given back what has gone on, in one step"
    rig.say(rig.runtime, frames.window_update(0, 1 << 20))
    got = rig.runtime.take(frames.DATA)
    assert len(payload(got)) == 160_000 - frames.DEFAULT_WINDOW
    assert {frame.stream for frame in got} == {3, 5, 7}


@pytest.mark.parametrize("by_kubelet", [True, False])
def test_what_was_waiting_for_a_stream_that_is_reset_is_given_back(by_kubelet: bool) -> None:
    """To the connection's window of its sender, time and again."""
    rig = Rig(limits=Limits(window_bytes=100_000))
    rig.say(rig.runtime, frames.settings({INITIAL: 0}))
    for stream in range(1, 41, 2):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, REQUEST), data(stream, bytes(16000)))
        rig.say(rig.kubelet if by_kubelet else rig.runtime, frames.rst_stream(stream, frames.CANCEL))
    assert not rig.kubelet.closed
    assert rig.link.client.granted.left > 70_000


def test_single_bytes_and_empty_frames_cost_no_object_each() -> None:
    """What waits is put together."""
    rig = Rig()
    opened(rig)
    rig.say(rig.runtime, frames.settings({INITIAL: 0}))
    for _ in range(5000):
        rig.say(rig.kubelet, data(1, b"x"), data(1, b""))
    assert len(rig.runtime.connection.streams[1].queue) < 5
    rig.say(rig.runtime, frames.window_update(1, 10_000))
    assert payload(rig.runtime.take()) == b"x" * 5000


@pytest.mark.parametrize("moment", ["request", "reply", "ended"])
@pytest.mark.parametrize("by_kubelet", [True, False])
def test_a_reset_reaches_the_other_side_with_its_code(moment: str, by_kubelet: bool) -> None:
    """At any time; the stream is forgotten on both sides and late frames are dropped."""
    rig = Rig()
    rig.say(rig.kubelet, rig.kubelet.headers(1, REQUEST, end=moment == "ended"))
    if moment == "reply":
        rig.say(rig.runtime, rig.runtime.headers(1, REPLY), data(1, b"part"))
    one, other = (rig.kubelet, rig.runtime) if by_kubelet else (rig.runtime, rig.kubelet)
    rig.say(one, frames.rst_stream(1, frames.ENHANCE_YOUR_CALM))
    (got,) = other.take(frames.RST_STREAM)
    assert got.payload == struct.pack(">L", frames.ENHANCE_YOUR_CALM)
    assert not rig.link.client.streams
    assert not rig.runtime.connection.streams
    code = grpc.StatusCode.CANCELLED if by_kubelet else grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [call.code for call in rig.ended_calls] == [code]
    rig.runtime.take()
    rig.say(other, data(1, b"late"), frames.window_update(1, 5), frames.rst_stream(1, 0))
    rig.say(rig.kubelet, rig.kubelet.headers(3, REQUEST, end=True))
    assert [frame.stream for frame in rig.runtime.take(frames.HEADERS)] == [3]


def test_a_whole_reply_is_delivered_before_the_reset_that_follows_it() -> None:
    """A server that does not want the rest of a request answers and resets with NO_ERROR (RFC 9113, 8.1)."""
    rig = Rig(settings={INITIAL: 3})
    opened(rig)
    rig.say(rig.runtime, data(1, b"abc"), data(1, b"def"))
    rig.say(rig.runtime, rig.runtime.headers(1, OK, end=True), frames.rst_stream(1, frames.NO_ERROR))
    assert payload(rig.kubelet.take()) == b"abc"
    rig.say(rig.kubelet, frames.window_update(1, 3))
    body, last, reset = rig.kubelet.take(frames.DATA, frames.HEADERS, frames.RST_STREAM)
    assert (body.payload, last.fields, reset.payload) == (b"def", OK, bytes(4))


def test_without_a_runtime_each_call_fails_at_once_and_the_connection_stays() -> None:
    """Trailers-only UNAVAILABLE, and the next call dials again."""
    rig = Rig(away=True)
    rig.say(rig.kubelet, rig.kubelet.headers(1, REQUEST), data(1, b"ask", end=True))
    refusal, reset = rig.kubelet.take(frames.HEADERS, frames.RST_STREAM)
    told = dict(refusal.fields)
    assert (told[b":status"], told[b"content-type"], told[b"grpc-status"]) == (b"200", b"application/grpc", b"14")
    assert refusal.end
    assert reset.payload == bytes(4)
    rig.away = False
    rig.say(rig.kubelet, rig.kubelet.headers(3, REQUEST, end=True))
    assert [frame.stream for frame in rig.runtime.take(frames.HEADERS)] == [3]


def test_a_runtime_that_breaks_off_ends_its_calls_and_not_kubelets_connection() -> None:
    """Trailers-only before the first headers, trailers after; a complete answer stays complete; then a new dial."""
    rig = Rig(settings={INITIAL: 2})
    for stream in (1, 3, 5):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, REQUEST, end=stream == 1))
    rig.say(rig.runtime, rig.runtime.headers(3, REPLY), data(3, b"pa"))
    rig.say(
        rig.runtime,
        rig.runtime.headers(5, REPLY),
        data(5, b"wh"),
        data(5, b"ole"),
        rig.runtime.headers(5, OK, end=True),
    )
    rig.kubelet.take()
    rig.break_off(rig.runtime)
    got = {frame.stream: dict(frame.fields) for frame in rig.kubelet.take(frames.HEADERS)}
    assert got[1][b"grpc-status"] == got[3][b"grpc-status"] == b"14"
    assert b":status" in got[1]
    assert b":status" not in got[3]
    rig.say(rig.kubelet, data(3, b"more"), data(5, b"more"), frames.window_update(5, 10))
    body, last, reset = rig.kubelet.take(frames.DATA, frames.HEADERS, frames.RST_STREAM)
    assert (body.payload, last.fields, reset.payload) == (b"ole", OK, bytes(4))
    assert not rig.runtime.connection.out, "nobody would ever send it"
    rig.say(rig.kubelet, rig.kubelet.headers(7, REQUEST, end=True))
    assert [frame.stream for frame in rig.runtime.take(frames.HEADERS)] == [7]
    assert len(rig.runtimes) == 2


def test_when_kubelet_goes_the_runtime_is_told() -> None:
    """Its calls are cancelled and the connection is closed."""
    rig = Rig()
    opened(rig)
    rig.break_off(rig.kubelet)
    (reset,) = rig.runtime.take(frames.RST_STREAM)
    assert reset.payload == struct.pack(">L", frames.CANCEL)
    assert rig.runtime.closed
    assert rig.is_gone


def test_the_runtimes_goodbye_is_passed_on() -> None:
    """In two steps; what it will not do is given back, what it does goes on, and the connection ends with that."""
    rig = Rig()
    for stream in (1, 3, 5):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, REQUEST, end=True))
    rig.say(rig.runtime, frames.goaway(frames.LAST_STREAM, 0, b"soon"))
    rig.say(rig.runtime, frames.goaway(3, 0, b"now"))
    assert [frames.read_goaway(frame.payload) for frame in rig.kubelet.take(frames.GOAWAY)] == [
        (frames.LAST_STREAM, 0, b"soon"),
        (3, 0, b"now"),
    ]
    rig.say(rig.kubelet, rig.kubelet.headers(7, REQUEST), data(7, b"late", end=True))
    for stream in (3, 1):
        assert not rig.kubelet.closed
        rig.say(rig.runtime, rig.runtime.headers(stream, [*REPLY, *OK], end=True))
    assert sorted(frame.stream for frame in rig.kubelet.take(frames.HEADERS)) == [1, 3]
    assert rig.kubelet.closed
    assert rig.runtime.closed


def test_a_runtime_that_breaks_off_after_its_first_goodbye_has_said_the_last() -> None:
    """kubelet, which was told to begin nothing here, is told what was done."""
    rig = Rig()
    opened(rig)
    rig.say(rig.runtime, frames.goaway(frames.LAST_STREAM, 0))
    rig.break_off(rig.runtime)
    assert [frames.read_goaway(frame.payload)[0] for frame in rig.kubelet.got if frame.kind == frames.GOAWAY] == [
        frames.LAST_STREAM,
        1,
    ]
    assert rig.kubelet.closed


def test_header_blocks_without_end_cost_the_connection() -> None:
    """No window holds them back: behind data that waits, they are not collected for ever."""
    rig = Rig(settings={INITIAL: 0})
    opened(rig)
    rig.say(rig.runtime, data(1, b"x"), *[rig.runtime.headers(1, REPLY) for _ in range(300)])
    assert rig.runtime.closed


def test_our_own_goodbye_has_two_steps() -> None:
    """Calls that were on their way are done, later ones are not taken, and the connection ends with the last."""
    rig = Rig()
    rig.link.drain()
    goaway, ping = rig.kubelet.take(frames.GOAWAY, frames.PING)
    assert frames.read_goaway(goaway.payload)[:2] == (frames.LAST_STREAM, 0)
    rig.say(
        rig.kubelet, rig.kubelet.headers(1, REQUEST, end=True), frames.frame(frames.PING, frames.ACK, 0, ping.payload)
    )
    (goaway,) = rig.kubelet.take(frames.GOAWAY)
    assert frames.read_goaway(goaway.payload)[:2] == (1, 0)
    rig.say(rig.runtime, rig.runtime.headers(1, [*REPLY, *OK], end=True))
    assert dict(rig.kubelet.take(frames.HEADERS)[0].fields)[b"grpc-status"] == b"0"
    assert rig.kubelet.closed


def test_pings_are_answered_here() -> None:
    """With their payload, whether the runtime is there or not, and never passed on."""
    rig = Rig(away=True)
    rig.say(rig.kubelet, frames.frame(frames.PING, 0, 0, b"12345678"))
    (ping,) = rig.kubelet.take(frames.PING)
    assert (ping.flags, ping.payload) == (frames.ACK, b"12345678")


def test_too_many_streams_are_refused() -> None:
    """So that a client may try them again, and the others go on."""
    rig = Rig(limits=Limits(max_streams=2))
    for stream in (1, 3, 5):
        rig.say(rig.kubelet, rig.kubelet.headers(stream, REQUEST, end=True))
    (reset,) = rig.kubelet.take(frames.RST_STREAM)
    assert (reset.stream, reset.payload) == (5, struct.pack(">L", frames.REFUSED_STREAM))
    assert [frame.stream for frame in rig.runtime.take(frames.HEADERS)] == [1, 3]


MISTAKES: list[tuple[int, bytes]] = [
    (frames.PROTOCOL_ERROR, data(0, b"x")),
    (frames.PROTOCOL_ERROR, data(99, b"x")),
    (frames.PROTOCOL_ERROR, frames.frame(frames.DATA, frames.PADDED, 1, b"\x05abc")),
    (frames.PROTOCOL_ERROR, frames.frame(frames.DATA, frames.PADDED, 1, b"")),
    (frames.PROTOCOL_ERROR, frames.frame(frames.HEADERS, 4, 2, b"")),
    (frames.PROTOCOL_ERROR, frames.frame(frames.HEADERS, 0, 3, b"") + data(1, b"x")),
    (frames.PROTOCOL_ERROR, frames.frame(frames.CONTINUATION, 4, 1, b"")),
    (frames.PROTOCOL_ERROR, frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(8))),
    (frames.PROTOCOL_ERROR, frames.frame(frames.SETTINGS, 0, 1, b"")),
    (frames.PROTOCOL_ERROR, frames.frame(frames.PING, 0, 1, bytes(8))),
    (frames.PROTOCOL_ERROR, frames.window_update(0, 0)),
    (frames.PROTOCOL_ERROR, frames.window_update(99, 1)),
    (frames.PROTOCOL_ERROR, frames.rst_stream(99, 1)),
    (frames.PROTOCOL_ERROR, frames.frame(frames.GOAWAY, 0, 1, bytes(8))),
    (frames.PROTOCOL_ERROR, frames.frame(frames.PRIORITY, 0, 0, bytes(5))),
    (frames.FRAME_SIZE_ERROR, frames.frame(frames.SETTINGS, frames.ACK, 0, bytes(6))),
    (frames.FRAME_SIZE_ERROR, frames.frame(frames.PING, 0, 0, bytes(7))),
    (frames.FRAME_SIZE_ERROR, frames.frame(frames.GOAWAY, 0, 0, bytes(7))),
    (frames.FRAME_SIZE_ERROR, frames.frame(frames.RST_STREAM, 0, 1, bytes(3))),
    (frames.FRAME_SIZE_ERROR, frames.frame(frames.WINDOW_UPDATE, 0, 1, bytes(5))),
    (frames.FRAME_SIZE_ERROR, frames.frame(frames.PRIORITY, 0, 1, bytes(4))),
    (frames.FRAME_SIZE_ERROR, frames.frame(frames.HEADERS, 0x24, 3, bytes(4))),
    (frames.FRAME_SIZE_ERROR, frames.head((1 << 24) - 1, frames.DATA, 0, 1)),
    (frames.FLOW_CONTROL_ERROR, frames.window_update(0, frames.LARGEST_WINDOW)),
    (frames.FLOW_CONTROL_ERROR, data(1, bytes(16384)) * (Limits().window_bytes // 16384 + 1)),
    (frames.COMPRESSION_ERROR, frames.frame(frames.HEADERS, 4, 3, b"\xff\xff\xff\xff\xff\xff")),
    (
        frames.ENHANCE_YOUR_CALM,
        frames.frame(frames.HEADERS, 0, 3, b"") + frames.frame(9, 0, 3, bytes(16384)) * 65,
    ),
]


@pytest.mark.parametrize(("code", "mistake"), MISTAKES)
@pytest.mark.parametrize("by_kubelet", [True, False])
def test_a_peers_mistake_ends_its_connection(code: int, mistake: bytes, by_kubelet: bool) -> None:
    """With GOAWAY and the code of RFC 9113; the other side's calls end as they should."""
    rig = Rig()
    opened(rig)
    one = rig.kubelet if by_kubelet else rig.runtime
    rig.say(one, mistake)
    (goaway,) = one.take(frames.GOAWAY)
    assert frames.read_goaway(goaway.payload)[1] == code
    assert one.closed
    if by_kubelet:
        assert rig.is_gone
    else:
        rig.say(rig.kubelet, frames.window_update(1, 1 << 24), frames.window_update(0, 1 << 24))
        assert dict(rig.kubelet.take(frames.HEADERS)[0].fields)[b"grpc-status"] == b"14"
        assert not rig.kubelet.closed
    rig.say(one, b"more of it")


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"\x00\x00\x00\x04", frames.PREFACE + data(1, b"")])
def test_what_does_not_begin_as_http2_is_turned_away(start: bytes) -> None:
    """At the first wrong byte, or first frame."""
    rig = Rig(away=True)
    link = Link(rig)
    peer = Peer(link.client, client=True)
    link.client.wire = peer
    link.client.receive(start)
    link.flush()
    assert peer.closed


def test_mistakes_within_a_stream_end_the_stream() -> None:
    """Data after its end, an empty or too large window update: RST_STREAM, and the runtime's half goes with it."""
    for number, mistake in enumerate(
        (data(1, b"x"), frames.window_update(1, 0), frames.window_update(1, frames.LARGEST_WINDOW))
    ):
        rig = Rig()
        opened(rig, end=number == 0)
        rig.say(rig.kubelet, mistake)
        assert [frame.stream for frame in rig.kubelet.take(frames.RST_STREAM)] == [1]
        assert [frame.stream for frame in rig.runtime.take(frames.RST_STREAM)] == [1]
        assert not rig.kubelet.closed
