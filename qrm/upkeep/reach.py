"""Notices when the runtime can be reached, and when it can be again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

_READY = grpc.ChannelConnectivity.READY


async def whenever_reached(channel: grpc.aio.Channel, came: Callable[[], Awaitable[None]]) -> None:
    """Call `came` once for each time that `channel` gets through to the runtime; runs until cancelled.

    The channel keeps dialling meanwhile. What answers there need not be ready for calls yet.
    """
    while True:
        state = channel.get_state(try_to_connect=True)
        while state is not _READY:
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)
        left = asyncio.create_task(channel.wait_for_state_change(_READY))  # which `came` may not outlast
        try:
            await came()
            await left
        finally:
            left.cancel()
