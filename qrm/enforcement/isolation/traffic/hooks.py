"""The two filters on the host's end of a pod's veth: compared, and put right.

Ours are the last of their hook, so others' decide first. At the ingress hook a packet that comes back from an ifb meets
no filter at all, and at the egress hook the first action after its return is passed over; a policy that stood behind
ours would therefore never see it. Where a program before ours has the last word, as Cilium's have, ours is not reached.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.traffic.messages import EGRESS, HOOK, INGRESS, Filter, Link
from qrm.enforcement.isolation.traffic.plan import MAJOR, POD_MINORS
from qrm.enforcement.isolation.traffic.rtnl import Rtnl

CLSACT = "clsact"
PREFERENCE = 65535
"""The last there is; for those who name none, the kernel takes one before the lowest that is there."""
_GUEST = MAJOR << 16
"""Our filters' handle where we found the clsact."""
_MADE = _GUEST | 1
"""Where we made it: the qdisc itself has no room for a mark, and a later process has to know whose it is."""


class Taken(NotEnforced):
    """Somebody else has the device's ingress hook with a qdisc that takes no egress filters."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Where a pod's packets go and as what."""

    priority: int
    """The handle of the pod's class, the same in both trees."""
    egress: int
    """The index of the ifb for what the pod sends."""
    ingress: int


def ensure(rtnl: Rtnl, veth: Link, targets: Targets, done: Counter[str], *, made: bool = False) -> bool:
    """Have both filters, and the clsact that they need; counts writes in `done`.

    `made` says that the clsact is known to be ours, and so does the result: filters that tell may have been deleted.

    Raises:
        Taken: The CNI plugin `bandwidth` or somebody else has an ingress qdisc there, which is left in peace.
        NotEnforced: The kernel refused something.
    """
    at = rtnl.hook(veth.index)
    if at not in ("", CLSACT):
        raise Taken(
            f"{veth.name} has an {at} qdisc of somebody else, such as the CNI plugin bandwidth: its network class and "
            "ceilings are not enforced",
            hint="take the plugin out of the CNI configuration, or leave the pod's profile without a network class",
        )
    ours: dict[int, list[Filter]] = {INGRESS: [], EGRESS: []}
    if at:
        for parent in ours:
            ours[parent] = [each for each in rtnl.filters(veth.index, parent) if is_ours(each)]
        made = made or any(each.handle == _MADE for filters in ours.values() for each in filters)
    else:
        rtnl.add_clsact(veth)
        done["qdisc"] += 1
        made = True
    for parent, target in ((INGRESS, targets.egress), (EGRESS, targets.ingress)):
        wanted = Filter("matchall", PREFERENCE, _MADE if made else _GUEST, targets.priority, target)
        if ours[parent] == [wanted]:
            continue
        for each in ours[parent]:  # matchall cannot be changed in place
            rtnl.delete_filter(veth, each, parent)
        rtnl.add_filter(veth, wanted, parent)
        done["filter"] += 1
    return made


def minor_of(rtnl: Rtnl, veth: Link) -> int | None:
    """The pod's class by the filters that are there, of this process or one before it; None where there are none."""
    if rtnl.hook(veth.index) != CLSACT:
        return None
    for parent in (INGRESS, EGRESS):
        for each in rtnl.filters(veth.index, parent):
            priority = each.priority or 0
            if is_ours(each) and priority >> 16 == MAJOR and priority & 0xFFFF in POD_MINORS:
                return priority & 0xFFFF
    return None


def remove(rtnl: Rtnl, veth: Link) -> bool:
    """Remove our filters, and the clsact if we made it and nobody else uses it; whether anything of ours was there."""
    if rtnl.hook(veth.index) != CLSACT:
        return False
    was, made, others = False, False, False
    for parent in (INGRESS, EGRESS):
        for each in rtnl.filters(veth.index, parent):
            if not is_ours(each):
                others |= each.preference != PREFERENCE or each.handle != 0  # 0: what precedes ours in a dump
                continue
            was, made = True, made or each.handle == _MADE
            rtnl.delete_filter(veth, each, parent)
    if made and not others:
        rtnl.delete_qdisc(veth, HOOK)
    return was


def is_ours(found: Filter) -> bool:
    """Whether a filter is one that we made."""
    return found.kind == "matchall" and found.preference == PREFERENCE and found.handle in (_GUEST, _MADE)
