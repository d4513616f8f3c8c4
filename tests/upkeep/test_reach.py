"""When the runtime is reached, and reached again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from qrm.demo.fake_runtime import FakeRuntime
from qrm.enforcement.channel import CallError, open_channel
from qrm.enforcement.runtime import RuntimeClient
from qrm.upkeep.reach import whenever_reached
from tests.support import until


async def test_a_restart_in_the_middle_of_catching_up_is_noticed(tmp_path: Path) -> None:
    """It is back before that has ended, and is caught up with once more, and then no more."""
    begun = 0
    async with FakeRuntime(tmp_path) as fake:
        channel = open_channel(fake.endpoint, 1 << 20)
        client = RuntimeClient(channel)

        async def came() -> None:
            nonlocal begun
            begun += 1
            if begun == 1:
                await fake.stop()
                await fake.start()
            await answers(client)

        following = asyncio.create_task(whenever_reached(channel, came))
        await until(lambda: begun == 2)
        for _ in range(20):
            await answers(client)
        assert begun == 2
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await channel.close()


async def answers(client: RuntimeClient) -> None:
    """Wait until the runtime answers."""
    while True:
        try:
            await client.version()
        except CallError:
            await asyncio.sleep(0.05)
        else:
            return
