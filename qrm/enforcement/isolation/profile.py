"""Which profile a pod gets: qrm's own defaults, under the configuration's, under what the pod names. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from qrm.config import Profile
from qrm.errors import BadRequest
from qrm.pods.model import QosLevel
from qrm.pods.qos import PROFILE

_PLAIN = Profile(
    cpu_weight=0,
    cpu_idle=False,
    cpu_burst_percent=0,
    memory_high="",
    memory_low="",
    memory_min="",
    io_weight=0,
    io_max={},
    rdt="",
    network="",
)
DEFAULTS: dict[QosLevel, Profile] = {
    QosLevel.DEDICATED: msgspec.structs.replace(_PLAIN, network="dedicated"),
    QosLevel.SHARED: msgspec.structs.replace(_PLAIN, network="shared"),
    QosLevel.RECLAIMED: msgspec.structs.replace(
        _PLAIN, cpu_weight=1, cpu_idle=True, io_weight=10, rdt="reclaimed", network="reclaimed"
    ),
    QosLevel.SYSTEM: msgspec.structs.replace(_PLAIN, network="system"),
}
"""Every key is set. Online pods differ by what they request, and none of their cgroup files is touched; reclaimed pods
yield to them in everything. (The kernel's default of io.weight is 100, cgroup-v2.rst.)"""


def profile_for(level: QosLevel, named: str, configured: Mapping[str, Profile]) -> Profile:
    """The profile of a pod of `level` that names the profile `named` ("": none); every key of it is set.

    Raises:
        BadRequest: no profile has that name.
    """
    profile = _over(DEFAULTS[level], configured.get(level))
    if not named or named == level:
        return profile
    if named not in configured or named in tuple(QosLevel):
        choices = sorted(name for name in configured if name not in tuple(QosLevel))
        allowed = ", ".join(choices) or "none is configured on this node: leave it out"
        raise BadRequest(f"{PROFILE} is {named[:80]!r}, allowed: {allowed}")
    return _over(profile, configured[named])


def _over(base: Profile, top: Profile | None) -> Profile:
    """`base` with what `top` sets."""
    if top is None:
        return base
    told = {name: value for name in top.__struct_fields__ if (value := getattr(top, name)) is not msgspec.UNSET}
    return msgspec.structs.replace(base, **told)
