"""One call to a plugin: its deadline, and what its failures mean."""

from __future__ import annotations

from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from qrm.allocation.remote.errors import PluginError, PluginRefused, PluginUnavailable

RESOURCE_PLUGIN = "/resourceplugin.v1alpha1.ResourcePlugin/"
REGISTRATION = "/pluginregistration.Registration/"

Reply = TypeVar("Reply", bound=Message)

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_BROKEN = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


async def call(
    channel: grpc.aio.Channel, who: str, path: str, request: Message, reply: type[Reply], *, seconds: float
) -> Reply:
    """The reply of `who` to `request`; `path` is the method with its service.

    Raises:
        PluginUnavailable: No answer within `seconds`, or nobody there.
        PluginRefused: An error of its own.
        PluginError: An answer that is no `reply`.
    """
    method = path.rpartition("/")[2]
    # The reply comes as bytes, since grpc only logs a message that cannot be parsed, and returns None.
    ask: grpc.aio.UnaryUnaryMultiCallable[Message, bytes] = channel.unary_unary(
        path, request_serializer=type(request).SerializeToString
    )
    try:
        answer = await ask(request, timeout=seconds)
    except grpc.aio.AioRpcError as error:
        text = error.details() or error.code().name
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise PluginUnavailable(f"{who} did not answer {method} within {seconds:g} s") from None
        if error.code() in _AWAY:
            raise PluginUnavailable(f"{who} is not there to answer {method}: {text}") from None
        contradiction = error.code() is grpc.StatusCode.INVALID_ARGUMENT
        raise PluginRefused(
            f"{who} refused {method}: {text}", text=text, contradiction=contradiction, broken=error.code() in _BROKEN
        ) from None
    except grpc.aio.UsageError:
        raise PluginUnavailable(f"the connection to {who} has been closed") from None
    try:
        return reply.FromString(answer)
    except DecodeError:
        raise PluginError(f"{who} answered {method} with {len(answer)} bytes that are no {reply.__name__}") from None
