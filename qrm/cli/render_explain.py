"""`qrm explain`: what a container asked for, what was offered, what was chosen and why, and what is in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from qrm.cli.output import cpus_in_words, facts, moment, plain
from qrm.cli.render_pods import level, mark, state
from qrm.cpuset import CPUSet
from qrm.errors import ParseError
from qrm.service import api

_SHOWN = 6
"""Hints of one kind that are spelled out."""


def explain(found: Sequence[api.Explanation]) -> Iterator[RenderableType]:
    """A section for each container."""
    for number, each in enumerate(found):
        if number:
            yield Text()
        yield from _section(each)


def hints(offered: Sequence[api.Hint]) -> Text:
    """NUMA node sets, preferred ones first: "preferred 0 or 1, possible 0-1"."""
    kinds = (("preferred", True), ("possible", False))
    parts = [
        f"{name} {_some([hint.nodes for hint in offered if hint.preferred is preferred])}"
        for name, preferred in kinds
        if any(hint.preferred is preferred for hint in offered)
    ]
    return plain(", ".join(parts) or "none")


def verdict(told: api.Explanation) -> Text:
    """Whether ledger, runtime and kernel agree, and if not, who says what."""
    container = told.container
    if container.state == "exited":
        return plain("has exited: reserved for its pod, not in force")
    if container.state == "pending":
        return plain("the runtime has not confirmed that it exists", "yellow")
    if not container.cpus:
        return plain("qrm does not say where it runs", "bold yellow")
    if not told.kernel:
        return plain("the kernel cannot be asked: no cgroup was found for it", "bold yellow")
    if same(told.kernel, container.cpus):
        return plain("ledger and kernel agree", "green")
    if same(told.applied, container.cpus):
        cause = "something else has changed it, qrm will put it right"
    else:
        cause = "the runtime has not confirmed the change yet, qrm will try again"
    return plain(
        f"LEDGER AND KERNEL DIFFER: {container.cpus} by the ledger, {told.kernel} in the kernel; {cause}", "bold red"
    )


def same(one: str, other: str) -> bool:
    """Whether two lists name the same CPUs, however they are spelled."""
    try:
        return CPUSet.parse(one) == CPUSet.parse(other)
    except ParseError:
        return one == other


def _section(told: api.Explanation) -> Iterator[RenderableType]:
    container = told.container
    yield Text.assemble(plain(f"{container.pod}/{container.container}", "bold"), "  ", level(container.qos))
    pairs: list[tuple[str, RenderableType | str]] = [
        ("state", Text(" ").join(part for part in (state(container), mark(container)) if part.plain)),
        ("since", moment(told.created) if told.created else "not known"),
        ("id", container.id or "none yet"),
        ("request", f"{cpus_in_words(container.request)}, by {told.source or 'cri'}"),
        *_listed("and", {name: f"{amount:,}" for name, amount in told.quantities.items()}),
        *_listed("asked by kubelet", told.asked),
        *_listed("annotations", told.annotations),
        *((f"{resource} offered", hints(offered)) for resource, offered in told.hints.items()),
        ("pool", container.pool or "none"),
        *((("chosen NUMA nodes", told.nodes),) if told.nodes else ()),
        ("CPUs by the ledger", f"{container.cpus or 'none'}{' (exclusive)' if container.exclusive else ''}"),
        *((("memory nodes", f"{told.mems}, in the kernel {told.kernel_mems or 'none'}"),) if told.mems else ()),
        *_listed("devices", told.devices),
        *_listed("plugins say", told.plugins),
        *((f"{resource} because", why) for resource, why in told.why.items() if why),
        ("confirmed", told.applied or "none yet"),
        ("in the kernel", told.kernel or "none"),
        *((("cgroup", told.cgroup),) if told.cgroup else ()),
        *((("profile", told.profile),) if told.profile else ()),
        *_isolation(told.isolation),
        ("verdict", verdict(told)),
    ]
    yield Padding(facts(pairs), (0, 0, 0, 2))


def _isolation(found: Sequence[api.Fact]) -> Iterator[tuple[str, RenderableType | str]]:
    """One line for each value, and what is different in the kernel."""
    for number, fact in enumerate(found):
        line = plain(f"{fact.name} = {fact.wanted}".replace("\n", "; "))
        if fact.kernel != fact.wanted:
            line.append(f", in the kernel {fact.kernel or 'nothing'}".replace("\n", "; "), "yellow")
        yield "" if number else "isolation", line


def _listed(name: str, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """One line for each value, the name on the first."""
    for number, (key, value) in enumerate(sorted(values.items())):
        yield "" if number else name, f"{key} = {value}"


def _some(node_sets: Sequence[str]) -> str:
    named = " or ".join(node_sets[:_SHOWN])
    more = len(node_sets) - _SHOWN
    return f"{named} or {more} more" if more > 0 else named
