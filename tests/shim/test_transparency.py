"""What is not intercepted passes untouched: each conversation is had with the runtime directly and through qrm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest

from qrm.demo.kubelet import CHANNEL_OPTIONS, RUNTIME_SERVICE
from qrm.enforcement.runtime import SERVICE
from tests.support import PATIENCE, UnderTest, until

BIG = 16 * 1024 * 1024
OPTIONS = [*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", 2 * BIG)]


@dataclass
class Heard:
    """Everything that a client can see of a call."""

    replies: list[bytes] = field(default_factory=list)
    initial: dict[str, Any] = field(default_factory=dict)
    trailing: dict[str, Any] = field(default_factory=dict)
    code: grpc.StatusCode | None = None
    details: str | None = None


async def converse(
    endpoint: str,
    path: str,
    messages: list[bytes],
    metadata: dict[str, str | bytes] | None = None,
    *,
    seconds: float | None = 30.0,
) -> Heard:
    async def requests() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    heard = Heard()
    async with grpc.aio.insecure_channel(endpoint, options=OPTIONS) as channel:
        options: dict[str, Any] = {"metadata": tuple((metadata or {}).items()), "timeout": seconds}
        # A stream whose server ends it early is reported as INTERNAL by this client, now and then.
        one: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
        many: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
        call = one(messages[0], **options) if len(messages) == 1 else many(requests(), **options)
        try:
            heard.initial = dict(await call.initial_metadata() or ())
            heard.replies = [reply async for reply in call]
        except grpc.aio.AioRpcError:
            pass
        heard.trailing = dict(await call.trailing_metadata() or ())
        heard.code, heard.details = await call.code(), await call.details()
    return heard


async def both(under: UnderTest, *arguments: Any, **options: Any) -> Heard:
    """The conversation through qrm, after a check that it is the one that the runtime has directly."""
    direct = await converse(under.fake.endpoint, *arguments, **options)
    through = await converse(f"unix://{under.config.shim.socket}", *arguments, **options)
    assert through == direct
    return through


async def test_a_made_up_service_answers_as_the_runtime_does(under: UnderTest) -> None:
    """No list of services or methods stands between kubelet and a newer runtime."""
    heard = await both(under, "/test.Echo/NeverHeardOf", [b"\x00\xffanything"])
    assert heard.replies == [b"\x00\xffanything"]


async def test_metadata_passes_both_ways(under: UnderTest) -> None:
    """Tracing headers, binary values and 8 KiB of text arrive, as initial and as trailing metadata."""
    metadata = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "baggage": "a=b",
        "blob-bin": bytes(range(256)),
        "initial-x": "early",
        "long": "y" * 8192,
    }
    heard = await both(under, "/test.Echo/Any", [b""], metadata)
    assert heard.initial["initial-x"] == "early"
    assert heard.trailing["blob-bin"] == bytes(range(256))
    assert heard.trailing["traceparent"] == metadata["traceparent"]
    assert heard.trailing["long"] == "y" * 8192


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_every_status_passes_with_message_details_and_trailers(under: UnderTest, code: grpc.StatusCode) -> None:
    """kubelet acts on codes, prefixes of messages and attached details: none is changed."""
    metadata = {
        "code": str(code.value[0]),
        "message": "exact text: 100 %41",
        "grpc-status-details-bin": b"\x08\x05\x12",
    }
    heard = await both(under, "/test.Echo/Fail", [b""], metadata)
    assert (heard.code, heard.details) == (code, "exact text: 100 %41")
    assert heard.trailing["grpc-status-details-bin"] == b"\x08\x05\x12"


async def test_streams_pass_in_both_directions(under: UnderTest) -> None:
    """Server streams, client streams and conversations keep their order and their length."""
    assert len((await both(under, "/test.Echo/Stream", [b"event"], {"count": "1000"})).replies) == 1000
    assert (await both(under, "/test.Echo/Collect", [b"a", b"", b"c"])).replies == [b"ac"]
    chat = [bytes([each]) * each for each in range(100)]
    assert (await both(under, "/test.Echo/Chat", chat)).replies == chat


async def test_messages_of_16_mib_pass(under: UnderTest) -> None:
    """kubelet's and containerd's limit is no limit of ours."""
    heard = await both(under, "/test.Echo/Any", [b"z" * BIG])
    assert [len(reply) for reply in heard.replies] == [BIG]


async def test_the_deadline_reaches_the_runtime(under: UnderTest) -> None:
    """What is left of kubelet's time is what the runtime gets; no deadline stays none."""
    through = f"unix://{under.config.shim.socket}"
    (left,) = (await converse(through, "/test.Echo/Deadline", [b""], seconds=50)).replies
    assert 40 < float(left) < 51
    assert (await both(under, "/test.Echo/Deadline", [b""], seconds=None)).replies == [b"none"]


async def test_a_passed_deadline_is_that_for_kubelet(under: UnderTest) -> None:
    """A call that takes too long ends with DEADLINE_EXCEEDED and nothing else, at the runtime too."""
    heard = await converse(f"unix://{under.config.shim.socket}", "/test.Echo/Wait", [b""], seconds=2)
    assert heard.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: under.fake.echo.cancelled == 1)


async def test_cancellation_reaches_the_runtime(under: UnderTest) -> None:
    """When kubelet gives up, the runtime learns of it."""
    call = asyncio.create_task(converse(f"unix://{under.config.shim.socket}", "/test.Echo/Wait", [b""], seconds=None))
    await until(lambda: under.fake.echo.calls == 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until(lambda: under.fake.echo.cancelled == 1)


async def test_a_method_that_the_runtime_lacks_is_unimplemented(under: UnderTest) -> None:
    """kubelet falls back where it sees this code: it must be the runtime's own."""
    heard = await both(under, f"/{RUNTIME_SERVICE}/RuntimeConfig", [b""])
    assert heard.code is grpc.StatusCode.UNIMPLEMENTED


async def test_without_a_runtime_calls_fail_at_once_and_later_work(under: UnderTest) -> None:
    """A runtime that is away makes calls fail with UNAVAILABLE, and one that is back is found again."""
    await under.fake.stop()
    through = f"unix://{under.config.shim.socket}"
    for path in (f"/{RUNTIME_SERVICE}/Version", SERVICE + "ListContainers"):
        assert (await converse(through, path, [b""])).code is grpc.StatusCode.UNAVAILABLE
    await under.fake.start()
    async with asyncio.timeout(PATIENCE):
        while (await converse(through, f"/{RUNTIME_SERVICE}/Version", [b""])).code is not grpc.StatusCode.OK:
            await asyncio.sleep(0.05)


async def test_a_slow_call_delays_no_other(under: UnderTest) -> None:
    """One CreateContainer that hangs leaves a hundred lists unharmed."""
    hang = under.fake.faults.hang("CreateContainer")
    creating = asyncio.create_task(converse(f"unix://{under.config.shim.socket}", SERVICE + "CreateContainer", [b""]))
    await hang.entered.wait()
    for _ in range(100):
        await under.kubelet.containers()
    assert not creating.done()
    hang.release()
    await creating


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainerResources", "RunPodSandbox", "StartContainer"])
async def test_a_message_that_is_no_message_is_the_runtimes_to_refuse(under: UnderTest, method: str) -> None:
    """What we cannot read, we do not judge."""
    heard = await both(under, SERVICE + method, [b"\xff\xff\xff"])
    assert heard.code is not grpc.StatusCode.OK
