"""`python -m tests.shim.frames.record`: makes the recordings anew, from the grpc and containerd of this machine."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

from qrm.demo.containerd import PrivateContainerd
from qrm.demo.fake_runtime import FakeRuntime
from qrm.demo.kubelet import KubeletClient
from qrm.demo.pods import ContainerSpec, Pod
from tests.shim.frames.recording import FOLDER, Recording
from tests.shim.test_transparency import converse

POD = Pod("recorded", (ContainerSpec("c0", cpu_request=100),))


@asynccontextmanager
async def tapped(entry: Path, runtime: Path, recording: Recording) -> AsyncIterator[str]:
    """A relay of bytes that records; gives its endpoint."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(runtime)
        await asyncio.gather(_copy("C", reader, far_writer), _copy("S", far_reader, writer))

    async def _copy(letter: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while content := await source.read(1 << 16):
                recording.took(letter, content)
                sink.write(content)
                await sink.drain()
        sink.close()

    entry.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(serve, entry)
    try:
        yield f"unix://{entry}"
    finally:
        server.close()


async def echo(endpoint: str) -> None:
    """A stream in both directions, with metadata."""
    chat = [bytes([each]) * each for each in range(20)]
    await converse(endpoint, "/test.Echo/Chat", chat, {"initial-x": "early", "blob-bin": bytes(range(64))})


async def failing(endpoint: str) -> None:
    """A call that ends with a status."""
    said: dict[str, str | bytes] = {"code": "5", "message": "exact: 100 %41", "grpc-status-details-bin": b"\x08\x05"}
    await converse(endpoint, "/test.Echo/Fail", [b""], said)


async def expired(endpoint: str) -> None:
    """A call that its client gives up."""
    await converse(endpoint, "/test.Echo/Wait", [b"wait"], seconds=0.3)


async def kubelet(endpoint: str) -> None:
    """A pod's life, and lists beside it."""
    async with KubeletClient(endpoint) as client:
        await client.version()
        sandbox, *_ = await asyncio.gather(client.run_pod(POD), client.pods(), client.containers())
        container = await client.create_container(sandbox, POD, POD.containers[0])
        await client.start_container(container)
        await asyncio.gather(client.container_status(container), client.containers(), client.pods())
        await client.stop_container(container, grace=0)
        with suppress(grpc.aio.AioRpcError):
            await client.container_status("nobody")
        await client.remove_container(container)
        await client.stop_pod(sandbox)
        await client.remove_pod(sandbox)


async def lists(endpoint: str) -> None:
    """Lists and refusals, as containerd's grpc-go answers them."""
    async with KubeletClient(endpoint) as client:
        await client.version()
        await asyncio.gather(client.pods(), client.containers(), client.has_image("nothing:none"))
        with suppress(grpc.aio.AioRpcError):
            await client.container_status("nobody")


async def events(endpoint: str) -> None:
    """A stream of events without one, given up."""
    await converse(endpoint, "/runtime.v1.RuntimeService/GetContainerEvents", [b""], seconds=0.3)


async def unknown(endpoint: str) -> None:
    """A service that containerd does not have."""
    await converse(endpoint, "/runtime.v9.RuntimeService/Sing", [b"la"])


async def main() -> None:
    """Write every file."""
    with tempfile.TemporaryDirectory(prefix="qrm-") as name:
        folder = Path(name)
        async with FakeRuntime(folder) as fake:
            for talk in (echo, failing, expired, kubelet):
                await _record("grpcio", talk, folder, Path(fake.endpoint.removeprefix("unix://")))
    async with PrivateContainerd(Path("/run/qrm-record")) as real:
        for talk in (lists, events, unknown):
            await _record("containerd", talk, real.folder, real.socket)


async def _record(runtime_is: str, talk: Callable[[str], Awaitable[None]], folder: Path, runtime: Path) -> None:
    recording = Recording()
    async with tapped(folder / "tap.sock", runtime, recording) as endpoint:
        await talk(endpoint)
    FOLDER.mkdir(exist_ok=True)
    recording.write(FOLDER / f"{runtime_is}-{talk.__name__}.txt", (talk.__doc__ or "").strip())


if __name__ == "__main__":
    asyncio.run(main())
