"""Which CPUs: choosing some of many so that neighbours stay together and what is left stays useful.

All functions work on masks (bit n for CPU n), are deterministic, and give everything there is where that is less than
what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from qrm.cpuset import CPUSet
from qrm_cpu.ground import Domain, Ground, Node, union


class _Place(Protocol):
    @property
    def mask(self) -> int: ...


_SomePlace = TypeVar("_SomePlace", bound=_Place)


def pick(ground: Ground, free: int, count: int) -> int:
    """`count` CPUs of `free`: whole idle sockets, then best-fitting NUMA nodes, L3 domains, whole cores, threads."""
    taken = 0
    for socket in ground.sockets:
        idle = socket & free
        if idle and not socket & ground.assignable & ~free and idle.bit_count() <= count:
            taken |= idle
            count -= idle.bit_count()
    return taken | _best_fit(ground.nodes, free & ~taken, count, _pick_in_node)


def _pick_in_node(node: Node, free: int, count: int) -> int:
    return _best_fit(node.domains, free, count, _pick_in_domain)


def _best_fit(
    places: Sequence[_SomePlace], free: int, count: int, inside: Callable[[_SomePlace, int, int], int]
) -> int:
    """An exact fit, else part of the smallest larger place, else all of the largest one and the rest elsewhere."""
    taken = 0
    while count > 0:
        sized = [(size, place) for place in places if (size := (place.mask & free).bit_count())]
        if not sized:
            break
        larger = [each for each in sized if each[0] >= count]
        if larger:
            _, place = min(larger, key=lambda each: each[0])
            return taken | inside(place, place.mask & free, count)
        size, place = max(sized, key=lambda each: each[0])
        taken |= place.mask & free
        free &= ~place.mask
        count -= size
    return taken


def _pick_in_domain(domain: Domain, free: int, count: int) -> int:
    if (domain.mask & free).bit_count() == count:
        return domain.mask & free
    taken = 0
    for core in domain.cores:
        if not core & ~free and core.bit_count() <= count:
            taken |= core
            count -= core.bit_count()
            if not count:
                return taken
    broken = sorted((core & free & ~taken for core in domain.cores), key=int.bit_count)
    for core in broken:
        threads = CPUSet.from_mask(core).lowest(count)
        taken |= threads.mask
        count -= len(threads)
    return taken


def grow(ground: Ground, held: int, free: int, count: int) -> int:
    """`count` CPUs of `free` that are near `held`: of the same core, L3 domain, NUMA node, socket, then any."""
    taken = 0
    for ring in _rings(ground, held):
        if count <= 0:
            break
        zone = free & ring & ~taken
        if zone:
            more = pick(ground, zone, min(count, zone.bit_count()))
            taken |= more
            count -= more.bit_count()
    return taken


def _rings(ground: Ground, held: int) -> Iterator[int]:
    if held:
        near = [node for node in ground.nodes if node.mask & held]
        domains = [domain for node in near for domain in node.domains if domain.mask & held]
        yield union(core for domain in domains for core in domain.cores if core & held)
        yield union(domain.mask for domain in domains)
        yield union(node.mask for node in near)
        yield union(socket for socket in ground.sockets if socket & held)
    yield -1


def shrink(ground: Ground, held: int, count: int, keep: int = 0) -> int:
    """The `count` CPUs of `held` that stay: those of `keep`, and of the rest what is nearest to them."""
    if held.bit_count() <= count:
        return held
    if not keep:
        return pick(ground, held, count)
    return keep | grow(ground, keep, held & ~keep, count - keep.bit_count())


def whole_cores(ground: Ground, free: int) -> int:
    """The part of `free` that consists of complete cores with as many threads as the machine's widest ones.

    Cores with a thread offline are left out, so that a multiple of a core's threads is always a number of cores.
    """
    return union(
        core for core in _cores_touching(ground, free) if not core & ~free and core.bit_count() == ground.threads
    )


def _cores_touching(ground: Ground, mask: int) -> Iterator[int]:
    for node in ground.nodes:
        if node.mask & mask:
            for domain in node.domains:
                if domain.mask & mask:
                    yield from (core for core in domain.cores if core & mask)


def far_end(ground: Ground, held: int, count: int) -> int:
    """`count` CPUs from the end of `held`: whole L3 domains, then cores, then threads, the highest ids first.

    `pick` starts from the other end, so that what is taken here is what is missed last.
    """
    taken = 0
    for node in reversed(ground.nodes):
        for domain in reversed(node.domains):
            part = domain.mask & held
            if part.bit_count() <= count:
                taken |= part
                count -= part.bit_count()
            elif count > 0:
                return taken | _far_end_of_domain(domain, part, count)
    return taken


def _far_end_of_domain(domain: Domain, held: int, count: int) -> int:
    taken = 0
    for core in reversed(domain.cores):
        threads = core & held
        while threads.bit_count() > count:
            threads &= threads - 1
        taken |= threads
        count -= threads.bit_count()
        if not count:
            break
    return taken
