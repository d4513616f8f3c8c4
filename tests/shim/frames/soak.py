"""`python -m tests.shim.frames.soak SECONDS`: a server stream for so long, and held calls beside it all the time.

It fails where anything is lost or changed, where a window is not what it was at the end, or where something stalls.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop

from tests.shim.frames.answering import Answering, ask, begin, full_windows, status, windows_are
from tests.shim.frames.conversations import BEGIN, OK
from tests.shim.frames.holding import CHANGE, FREE, PASS, Hands
from tests.shim.frames.peer import Peer
from tests.shim.frames.recorder import Heard, Recorder
from tests.shim.frames.roads import through
from tests.shim.frames.wire import message

_MIB = 1 << 20
_EVENT = message(b"event" * 50)
_REPORT = 15.0


async def main(seconds: str) -> None:
    """Stream, and print how it goes."""
    hands = Hands(request=b"s" * 3000, reply=b"g" * 2000)
    with tempfile.TemporaryDirectory(prefix="qrm-") as folder:
        async with through(Path(folder), hands.all()) as road:
            client, server = await road.connect()
            full = await full_windows(client, server)
            await begin(client, FREE)
            await server.until(lambda: bool(server.heard.calls), "the call")
            await server.head(0, BEGIN)
            end = time.monotonic() + float(seconds)
            async with Answering(server):
                sent, calls = await asyncio.gather(_stream(server, client, end), _calls(client, server, hands, end))
                await server.head(0, OK, end=True)
                await client.until(lambda: client.call(0).ended, "the end of the stream")
            await windows_are(client, server, full)
            print(f"{sent} events and {calls} held calls, all as they should be")


async def _stream(server: Peer, client: Peer, end: float) -> int:
    """Send events; each is looked at as it arrives, and forgotten."""
    report, process = time.monotonic(), psutil.Process()
    await client.until(lambda: bool(client.heard.calls), "the first words")
    heard, sent = client.call(0).data, server.sent.calls[server.stream(0)].data
    for number in itertools.count(1):
        await server.body(0, _EVENT)
        if number % 100 == 0:
            await client.until(lambda: len(heard) == 100 * len(_EVENT), "all events")
            assert heard == _EVENT * 100
            heard.clear()
            sent.clear()
        if time.monotonic() > report:
            report += _REPORT
            print(f"{number} events, {process.memory_info().rss / _MIB:.1f} MiB", flush=True)
        if time.monotonic() > end and number % 100 == 0:
            return number
    raise AssertionError("endless")


async def _calls(client: Peer, server: Peer, hands: Hands, end: float) -> int:
    for number in itertools.count(1):
        heard = await ask(client, CHANGE if number % 2 else PASS, b"q" * (number % 5000))
        assert status(heard) == 0
        assert heard.data == (message(hands.reply) if number % 2 else message(b"q" * (number % 5000)))
        for record in (hands.seen, hands.replies):
            record.clear()
        for peer in (client, server):
            for part in (peer.sent, peer.heard):
                _forget(part)
        if time.monotonic() > end:
            return number
    raise AssertionError("endless")


def _forget(part: Recorder) -> None:
    """Leave of a call that is over no more than that there was one."""
    stream, last = next(reversed(part.calls.items()))
    if last.over:
        part.calls[stream] = Heard(ended=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
