"""Handlers for the test-bed, by what they do, and roads on which they hold calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import grpc

from qrm.enforcement.channel import CallError, Metadata
from qrm.shim.exchange import Exchange, Handler

PASS, CHANGE, REFUSE, WAIT, OWN, BREAK = (
    f"/test.Held/{name}" for name in ("Pass", "Change", "Refuse", "Wait", "Own", "Break")
)
"""Paths by what their handlers do."""
FREE = "/test.Free/Any"
"""A path that has no handler."""
TRAILING: Metadata = (("reason", "no CPUs"), ("grpc-status-details-bin", b"\x08\x05\xff"))
DETAILS = "0 of 8 CPUs are free: 100 % ä\n"


@dataclass
class Hands:
    """What the handlers do, and what they saw."""

    request: bytes = b"changed request"
    reply: bytes = b"changed reply"
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets those go on that wait."""
    waiting: int = 0
    cancelled: int = 0
    seen: list[Exchange] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    errors: list[CallError] = field(default_factory=list)

    def all(self) -> dict[str, Handler]:
        """The handlers by path."""
        return {
            PASS: self._pass,
            CHANGE: self._change,
            REFUSE: self._refuse,
            WAIT: self._wait,
            OWN: self._own,
            BREAK: self._break,
        }

    async def _pass(self, exchange: Exchange) -> bytes:
        return await self._forward(exchange, exchange.request)

    async def _change(self, exchange: Exchange) -> bytes:
        await self._forward(exchange, self.request)
        return self.reply

    async def _refuse(self, exchange: Exchange) -> bytes:
        self.seen.append(exchange)
        raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, DETAILS, TRAILING)

    async def _own(self, exchange: Exchange) -> bytes:
        self.seen.append(exchange)
        return self.reply

    async def _break(self, exchange: Exchange) -> bytes:
        self.seen.append(exchange)
        raise ValueError("a mistake in a handler")

    async def _wait(self, exchange: Exchange) -> bytes:
        self.waiting += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return await self._forward(exchange, exchange.request)

    async def _forward(self, exchange: Exchange, content: bytes) -> bytes:
        self.seen.append(exchange)
        try:
            reply = await exchange.forward(content)
        except CallError as error:
            self.errors.append(error)
            raise
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.replies.append(reply)
        return reply
