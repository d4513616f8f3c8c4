"""Who holds each CPU, and the colour and the letter that stand for them in the drawing of the machine."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, cycle
from string import ascii_lowercase, ascii_uppercase

from qrm.cpuset import CPUSet
from qrm.service import api

PODS = (
    "black on #f2a65a",
    "white on #b5394a",
    "black on #f4e04d",
    "white on #8e44ad",
    "black on #ff8fa3",
    "white on #7a4a21",
    "black on #c3a6ff",
    "white on #e0218a",
    "black on #ffd9b3",
    "white on #5e2a5c",
    "black on #c79a1b",
    "white on #e2481f",
)
"""Of pods: warm colours. Pools have cold ones, so that the two are never mixed up."""
NAMED_POOLS = ("black on #80b918", "white on #386641", "black on #6bd6a8", "white on #00796b", "black on #b5e48c")

Key = tuple[bool, str]
"""Whether it is a pool (or nobody) rather than a pod, and its name."""
Mark = tuple[str, str]
"""Letter and colour."""

FREE, UNKNOWN, ISOLATED, RESERVE = "free", "holder not known", "isolated", "reserve"
_ALWAYS = {
    "share": ("s", "white on #2b63b0"),
    "share+reclaim": ("+", "black on #7fb2ee"),
    "reclaim": ("c", "black on #a6dcef"),
    RESERVE: ("r", "white on #5c5c5c"),
    ISOLATED: ("i", "black on #b8b8b8"),
    FREE: (".", "dim"),
    UNKNOWN: ("?", "white on #4a6670"),
}
"""Letter and colour of what nearly every node has."""
_NOT_POOLS = {
    FREE: "no pool, no pod",
    UNKNOWN: "the service was not asked",
    ISOLATED: "by the kernel's isolcpus",
    RESERVE: "system containers only",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod with CPUs of its own, a pool, or one of the reasons why CPUs have no holder."""

    name: str
    kind: str
    letter: str
    style: str
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Legend:
    """All holders: pods by name, then pools by name, then the rest."""

    holders: tuple[Holder, ...]
    of: Mapping[int, Holder]
    """By CPU."""

    @property
    def letters_needed(self) -> bool:
        """Whether colours alone do not tell the holders apart."""
        styles = {holder.style for holder in self.holders}
        return len(styles) < len(self.holders)


def legend(cpus: Iterable[api.CPUView], *, known: bool) -> Legend:
    """The holders of `cpus`; unless `known`, nobody is taken to be on those that the kernel does not isolate."""
    held: dict[Key, list[int]] = {}
    for cpu in cpus:
        nobody = FREE if known else UNKNOWN
        key = (False, cpu.pod) if cpu.pod else (True, cpu.pool or nobody)
        held.setdefault(key, []).append(cpu.id)
    keys = sorted(held, key=lambda key: (key[0], key[1] in _NOT_POOLS, key[1]))
    marks = _marks(keys)
    holders = tuple(
        Holder(name, _kind(is_pool, name), *marks[is_pool, name], CPUSet(held[is_pool, name])) for is_pool, name in keys
    )
    return Legend(holders, {cpu: holder for holder in holders for cpu in holder.cpus})


def _kind(is_pool: bool, name: str) -> str:
    if not is_pool:
        return "pod, exclusive"
    if name in _NOT_POOLS:
        return _NOT_POOLS[name]
    return "pool, idle CPUs lent" if name.endswith("+reclaim") else "pool"


def _marks(keys: list[Key]) -> dict[Key, Mark]:
    """A letter and a colour for each; letters follow the order of names."""
    pods = [name for is_pool, name in keys if not is_pool]
    pools = [name for is_pool, name in keys if is_pool]
    named = [name for name in pools if name not in _ALWAYS]
    marks: dict[Key, Mark] = {(True, name): _ALWAYS[name] for name in pools if name in _ALWAYS}
    used = {letter for letter, _ in marks.values()}
    for name, colour in zip(named, cycle(NAMED_POOLS), strict=False):
        letter = next(each for each in chain(_letters_of(name), _codes(ascii_lowercase)) if each not in used)
        used.add(letter)
        marks[True, name] = (letter, colour)
    for name, code, colour in zip(pods, _codes(ascii_uppercase), _pod_colours(pods), strict=False):
        marks[False, name] = (code, colour)
    return marks


def _pod_colours(pods: list[str]) -> Iterator[str]:
    """The colour comes from the pod's name, so that it stays while others come and go; where it is taken, the next."""
    free = set(range(len(PODS)))
    for name in pods:
        wanted = zlib.crc32(name.encode()) % len(PODS)
        index = min(free, key=lambda each: (each - wanted) % len(PODS)) if free else wanted
        free.discard(index)
        yield PODS[index]


def _letters_of(name: str) -> Iterator[str]:
    return (letter for letter in name.lower() if letter in ascii_lowercase)


def _codes(alphabet: str) -> Iterator[str]:
    """a to z, then a1 to z1, and so on."""
    yield from alphabet
    for number in count(1):
        yield from (f"{letter}{number}" for letter in alphabet)
