"""Plugins that appear, disappear, come again, hang, lie, or belong to somebody else."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import grpc.aio
import pytest
import structlog.testing
from qrm_cpu import create

from qrm.allocation.remote.client import Options, Plugin
from qrm.allocation.remote.registry import PluginState
from qrm.allocation.remote.server import serve_plugin
from qrm.allocator.testing import machine, request
from qrm.wire import plugin_registration_pb2 as registration
from tests.allocation.remote.fake import HANGS, Fails, FakePlugin, info
from tests.allocation.remote.watching import NOBODY, REGISTERED, ROOT, STOPPED, as_nobody, open_for_all, watched
from tests.support import until

NODE = machine(cores_per_l3=4)


async def test_a_plugin_comes_works_and_goes(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        async with serve_plugin(create({}), NODE, it.folder) as (path, _):
            state = await it.becomes("cpu", REGISTERED)
            assert state.endpoint == str(path)
            assert state.options == Options(alignment=True, reconcile=True)
            plugin = Plugin("cpu", state.endpoint, state.options, lambda: NODE)
            assert await plugin.hints(request("p", 1000))
            await plugin.close()
        stopped = await it.becomes("cpu", STOPPED)
        assert (stopped.endpoint, stopped.options) == (str(path), state.options)
        assert it.told() == [("cpu", "registered"), ("cpu", "stopped")]


async def test_a_plugin_is_told_that_it_is_in(tmp_path: Path) -> None:
    async with watched(tmp_path) as it, FakePlugin(it.folder / "p.sock") as fake:
        await it.becomes("cpu", REGISTERED)
        assert fake.notices() == [registration.RegistrationStatus(plugin_registered=True)]
        await asyncio.sleep(0.3)
        assert [method for method, _ in fake.calls].count("GetInfo") == 1


async def test_a_plugin_that_restarts_is_met_again(tmp_path: Path) -> None:
    async with watched(tmp_path) as it, FakePlugin(it.folder / "p.sock"):
        await it.becomes("cpu", REGISTERED)
        (it.folder / "p.sock").unlink()
        async with FakePlugin(it.folder / "p.sock") as second:
            await until(lambda: len(it.changes) >= 2 and it.changes[-1].state is REGISTERED)
            assert second.notices()
            assert it.told()[0] == it.told()[-1] == ("cpu", "registered")


async def test_a_new_socket_of_the_same_name_replaces_the_old(tmp_path: Path) -> None:
    async with watched(tmp_path) as it, FakePlugin(it.folder / "a.sock") as old:
        await it.becomes("cpu", REGISTERED)
        async with FakePlugin(it.folder / "b.sock") as new:
            await until(lambda: it.registry.plugins["cpu"].endpoint == str(new.path))
            assert it.told() == [("cpu", "registered")] * 2
        # With the newer one gone the older one, which still serves, is what there is.
        await until(lambda: it.registry.plugins["cpu"].endpoint == str(old.path))
        assert it.registry.plugins["cpu"].state is REGISTERED


async def test_another_endpoint_than_the_socket(tmp_path: Path) -> None:
    other = info()
    async with watched(tmp_path) as it, FakePlugin(tmp_path / "real.sock") as real:
        other.endpoint = str(real.path)
        async with FakePlugin(it.folder / "p.sock", {"GetInfo": other}):
            assert (await it.becomes("cpu", REGISTERED)).endpoint == str(real.path)
            assert [method for method, _ in real.calls] == ["GetResourcePluginOptions"]


async def test_plugins_of_other_types_are_left_alone(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        async with FakePlugin(it.folder / "csi.sock", {"GetInfo": info(kind="CSIPlugin")}) as fake:
            assert "is a 'CSIPlugin', not a ResourcePlugin" in await it.refused(fake.path)
            assert fake.notices() == []
        await until(lambda: not it.registry.plugins)
    assert it.changes == []


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"GetInfo": info(version="v2")}, "plugin cpu supports the versions v2 (needed: v1alpha1)"),
        ({"GetInfo": info(name="")}, "'' is not the name of a resource"),
        ({"GetInfo": info(name="a\nb")}, "'a\\nb' is not the name of a resource"),
        ({"GetResourcePluginOptions": Fails(grpc.StatusCode.INTERNAL, "bug")}, "bug"),
    ],
)
async def test_plugins_that_cannot_be_worked_with_are_told(
    tmp_path: Path, answers: dict[str, object], why: str
) -> None:
    async with watched(tmp_path) as it, FakePlugin(it.folder / "p.sock", answers) as fake:
        assert why in await it.refused(fake.path)
        told = fake.notices()[0]
        assert not told.plugin_registered
        assert why in told.error
        assert it.changes == []


async def test_a_plugin_that_gets_well_is_registered(tmp_path: Path) -> None:
    async with watched(tmp_path, patience=2.0) as it, FakePlugin(it.folder / "p.sock", {"GetInfo": HANGS}) as fake:
        assert "did not answer GetInfo within 2 s" in await it.refused(fake.path)
        fake.answers["GetInfo"] = info()
        await it.becomes("cpu", REGISTERED)
        assert list(it.registry.plugins) == ["cpu"]


async def test_one_that_does_not_say_all_is_told(tmp_path: Path) -> None:
    silent: dict[str, object] = {"GetResourcePluginOptions": HANGS}
    async with watched(tmp_path, patience=2.0) as it, FakePlugin(it.folder / "p.sock", silent) as fake:
        why = "did not answer GetResourcePluginOptions within 2 s"
        await until(lambda: any(why in each.error for each in fake.notices()))
        await until(lambda: (state := it.state(str(fake.path))) is not None and why in state.why)
        assert not any(each.plugin_registered for each in fake.notices())
        assert it.changes == []


async def test_one_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    async with watched(tmp_path) as it, FakePlugin(it.folder / "a.sock", {"GetInfo": HANGS}) as hangs:
        await until(lambda: bool(hangs.calls))
        async with FakePlugin(it.folder / "b.sock"):
            await it.becomes("cpu", REGISTERED)
            assert it.state(str(hangs.path)) is None, "the other one still hangs"


async def test_garbage_and_silence(tmp_path: Path) -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 418 I'm a teapot\r\n\r\n" * 10)
        writer.close()

    async with watched(tmp_path) as it:
        path = it.folder / "p.sock"
        server = await asyncio.start_unix_server(babble, path)
        assert "GetInfo" in await it.refused(path)
        server.close()
        # The file is still there, and nobody listens.
        await until(lambda: "nobody listens" in it.registry.plugins[str(path)].why)
        path.unlink()
        await until(lambda: not it.registry.plugins)


async def test_what_is_no_socket_is_passed_over(tmp_path: Path) -> None:
    async with watched(tmp_path) as it, FakePlugin(tmp_path / "x.sock") as fake:
        (it.folder / "file.sock").write_text("")
        (it.folder / "link.sock").symlink_to(fake.path)
        async with FakePlugin(it.folder / ".hidden.sock") as hidden:
            await asyncio.sleep(0.3)
            assert (dict(it.registry.plugins), fake.calls, hidden.calls) == ({}, [], [])


@ROOT
async def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    async with watched(tmp_path) as it, FakePlugin(tmp_path / "p.sock") as fake:
        os.chown(fake.path, NOBODY, -1)
        fake.path.rename(it.folder / "p.sock")
        assert f"belongs to uid {NOBODY} (allowed: uid 0)" in await it.refused(it.folder / "p.sock")
        assert fake.calls == []
    async with watched(tmp_path, uid=NOBODY) as it, FakePlugin(tmp_path / "p.sock") as fake:
        os.chown(fake.path, NOBODY, -1)
        fake.path.rename(it.folder / "p.sock")
        await it.becomes("cpu", REGISTERED)


LISTEN = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@ROOT
async def test_a_listener_of_somebody_else_is_refused(tmp_path: Path) -> None:
    open_for_all(tmp_path)
    path = tmp_path / "p.sock"
    with as_nobody(LISTEN, str(path)) as process:
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "listening\n"
            async with watched(tmp_path) as it:
                os.chown(path, 0, -1)
                path.rename(it.folder / "p.sock")
                assert f"process of uid {NOBODY} listens" in await it.refused(it.folder / "p.sock")
        finally:
            process.terminate()


async def test_every_event_is_logged_once(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with watched(tmp_path) as it:
            async with FakePlugin(it.folder / "p.sock"):
                await it.becomes("cpu", REGISTERED)
                await asyncio.sleep(0.2)
            await it.becomes("cpu", STOPPED)
            failing: dict[str, object] = {"GetInfo": Fails(grpc.StatusCode.UNKNOWN, "not yet")}
            async with FakePlugin(it.folder / "q.sock", failing) as fake:
                await until(lambda: len(fake.calls) >= 3)
    assert [each["event"] for each in logs] == ["plugin registered", "plugin stopped", "plugin refused"]


async def test_a_listener_that_fails_stops_nothing(tmp_path: Path) -> None:
    def broken(_: PluginState) -> None:
        raise ZeroDivisionError

    async with watched(tmp_path) as it:
        it.registry._on_change = broken
        async with FakePlugin(it.folder / "p.sock"):
            await it.becomes("cpu", REGISTERED)
        await it.becomes("cpu", STOPPED)
