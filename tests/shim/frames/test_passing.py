"""With interception off, each conversation is the same through the transport as it is directly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim.frames import wire
from tests.shim.frames.conversation import Conversation, Side, hold
from tests.shim.frames.conversations import conversations, sixteen_mib
from tests.shim.frames.peer import Manners
from tests.shim.frames.recording import recorded
from tests.shim.frames.roads import direct, through

ALL = {**conversations(), **recorded(), "messages of 16 MiB": sixteen_mib()}


async def both(folder: Path, conversation: Conversation) -> tuple[Side, Side]:
    """What client and server hear through the transport, after a check that it is what they hear directly."""
    heard = []
    for kind in (direct, through):
        async with kind(folder) as road:
            client, server = await road.connect(conversation.client, conversation.server)
            heard.append(await hold(conversation, client, server))
    past, via = heard
    assert via == past
    return via


@pytest.mark.parametrize("name", ALL)
async def test_a_conversation_passes_unchanged(tmp_path: Path, name: str) -> None:
    """Header lists, data, ends, resets, farewells and unknown frames arrive at both sides as they do directly."""
    client, server = await both(tmp_path, ALL[name])
    assert client.calls
    assert server.calls


async def test_settings_reach_the_other_end(tmp_path: Path) -> None:
    """What one end allows, the other end is told, or is kept to it: windows, and how many streams there may be."""
    says = Manners(settings={wire.MAX_STREAMS: 7, wire.INITIAL_WINDOW: 12345, wire.MAX_HEADER_LIST: 1 << 20})
    async with through(tmp_path) as road:
        client, server = await road.connect(Manners(settings={wire.INITIAL_WINDOW: 54321}), says)
        await client.until(lambda: client.heard.settings.get(wire.MAX_STREAMS) == 7, "the server's settings")
        await client.until(lambda: client.windows.initial == 12345, "the server's window")
        await server.until(lambda: server.windows.initial == 54321, "the client's window")
