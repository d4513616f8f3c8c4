"""Getting to know a plugin that has turned up, as kubelet's plugin watcher does."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from qrm.allocation.remote.calls import REGISTRATION, RESOURCE_PLUGIN, call
from qrm.allocation.remote.client import MAX_MESSAGE, Options
from qrm.allocation.remote.convert import KIND, VERSION
from qrm.allocation.remote.errors import PluginError, PluginUnavailable
from qrm.allocation.remote.sockets import Identity, check_owner, identity
from qrm.enforcement.channel import open_channel
from qrm.errors import QrmError
from qrm.wire import plugin_registration_pb2 as registration
from qrm.wire import resource_plugin_pb2 as wire

_NAME = 253
"""Characters of a resource's name, as in Kubernetes."""


class NotForUs(PluginError):
    """It is a plugin of another type, such as a CSI driver, and somebody else's concern."""


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin that can be worked with."""

    resource: str
    endpoint: Path
    options: Options


async def meet(path: Path, seen: Identity | None, allowed: frozenset[int], seconds: float) -> Found:
    """Ask the plugin whose registration socket, `seen` at `path`, is there; it is told the outcome.

    A plugin of another type is told nothing: it waits for kubelet's word, not for ours.

    Raises:
        PluginError: It cannot be worked with; NotForUs where it is not meant to.
        PluginUnavailable: It does not answer in time.
    """
    await check_owner(path, allowed, seconds)
    async with open_channel(str(path), MAX_MESSAGE) as channel:
        who = f"plugin on {path}"
        asked = registration.InfoRequest()
        info = await call(channel, who, f"{REGISTRATION}GetInfo", asked, registration.PluginInfo, seconds=seconds)
        if info.type != KIND:
            raise NotForUs(f"{path} is a {info.type[:_NAME]!r}, not a {KIND}")
        method, reply = f"{REGISTRATION}NotifyRegistrationStatus", registration.RegistrationStatusResponse
        try:
            found = await _check(path, seen, info, allowed, seconds)
        except QrmError as error:
            outcome = registration.RegistrationStatus(error=str(error))
            with contextlib.suppress(QrmError):
                await call(channel, who, method, outcome, reply, seconds=seconds)
            raise
        outcome = registration.RegistrationStatus(plugin_registered=True)
        await call(channel, who, method, outcome, reply, seconds=seconds)
    return found


async def _check(
    path: Path, seen: Identity | None, info: registration.PluginInfo, allowed: frozenset[int], seconds: float
) -> Found:
    """What the plugin says, if it makes sense."""
    check_name(info.name)
    if VERSION not in info.supported_versions:
        offered = ", ".join(info.supported_versions) or "none"
        raise PluginError(f"plugin {info.name} supports the versions {offered[:_NAME]}", hint=f"needed: {VERSION}")
    endpoint = path.parent / info.endpoint if info.endpoint else path
    if endpoint != path:
        await check_owner(endpoint, allowed, seconds)
    options = await ask_options(info.name, endpoint, seconds)
    if identity(path) != seen:
        raise PluginUnavailable(f"{path} has been replaced while it was looked at")
    return Found(info.name, endpoint, options)


async def ask_options(resource: str, endpoint: Path, seconds: float) -> Options:
    """What a plugin says about itself. Raises PluginError, PluginUnavailable."""
    async with open_channel(str(endpoint), MAX_MESSAGE) as channel:
        who, method = f"plugin {resource} ({endpoint})", f"{RESOURCE_PLUGIN}GetResourcePluginOptions"
        return Options.of(await call(channel, who, method, wire.Empty(), wire.ResourcePluginOptions, seconds=seconds))


def check_name(resource: str) -> None:
    """Raise PluginError for what is no resource's name."""
    if not 0 < len(resource) <= _NAME or not resource.isprintable() or " " in resource:
        raise PluginError(f"{resource[:80]!r} is not the name of a resource")
