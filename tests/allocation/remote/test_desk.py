"""Plugins that register themselves on our socket, and those that may not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
import structlog.testing

from qrm.allocation.remote.client import Options
from qrm.wire import resource_plugin_pb2 as wire
from tests.allocation.remote.fake import FakePlugin
from tests.allocation.remote.watching import NOBODY, REGISTERED, ROOT, STOPPED, as_nobody, open_for_all, watched


async def register(desk: Path, endpoint: str, version: str = "v1alpha1", options: Options | None = None) -> None:
    message = wire.RegisterRequest(version=version, endpoint=endpoint, resource_name="cpu")
    if options:
        message.options.with_topology_alignment = options.alignment
    async with grpc.aio.insecure_channel(f"unix:{desk}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[wire.RegisterRequest, bytes] = channel.unary_unary(
            "/resourceplugin.v1alpha1.Registration/Register", wire.RegisterRequest.SerializeToString
        )
        assert await call(message, timeout=60) == b""


async def test_registering_itself(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        async with FakePlugin(it.desk.parent / "p.sock") as fake:
            await register(it.desk, "p.sock", options=Options(alignment=True))
            state = await it.becomes("cpu", REGISTERED)
            assert (state.endpoint, state.options) == (str(fake.path), Options(alignment=True))
            assert fake.calls == []
        await it.becomes("cpu", STOPPED)
        async with FakePlugin(it.desk.parent / "p.sock") as fake:
            await register(it.desk, "p.sock")
            await it.becomes("cpu", REGISTERED)
            assert [method for method, _ in fake.calls] == ["GetResourcePluginOptions"]
        await it.becomes("cpu", STOPPED)


async def test_registering_before_serving(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        path = it.desk.parent / "p.sock"
        await register(it.desk, "p.sock")
        assert "is not there" in await it.refused(path)
        async with FakePlugin(path):
            await it.becomes("cpu", REGISTERED)
            assert list(it.registry.plugins) == ["cpu"]


@pytest.mark.parametrize(
    ("endpoint", "version", "why"),
    [
        ("p.sock", "v2", "version 'v2' is not supported (needed: v1alpha1)"),
        ("", "v1alpha1", "endpoint '' is not the name of a socket"),
        ("../p.sock", "v1alpha1", "endpoint '../p.sock'"),
        ("/p.sock", "v1alpha1", "endpoint '/p.sock'"),
    ],
)
async def test_registrations_that_make_no_sense(tmp_path: Path, endpoint: str, version: str, why: str) -> None:
    async with watched(tmp_path) as it:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await register(it.desk, endpoint, version)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert why in (caught.value.details() or "")
        assert dict(it.registry.plugins) == {}


CONNECT = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.settimeout(60)
print("closed" if client.recv(1) == b"" else "served", flush=True)
"""


@ROOT
async def test_strangers_are_turned_away(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with watched(tmp_path) as it:
            open_for_all(it.desk.parent)
            assert it.desk.stat().st_mode & 0o777 == 0o600
            it.desk.chmod(0o666)
            for _ in range(2):
                with as_nobody(CONNECT, str(it.desk)) as process:
                    assert (await asyncio.to_thread(process.communicate))[0] == "closed\n"
    turned = [each for each in logs if each["event"] == "registration turned away"]
    assert [each["uid"] for each in turned] == [NOBODY]
