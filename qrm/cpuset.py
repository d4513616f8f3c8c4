"""Immutable sets of small ids, such as CPUs and NUMA nodes, over one int used as a bit mask.

The text form is the kernel's list format (Documentation/admin-guide/cputopology.rst): "0-3,8", "" for none.
Ids have no upper bound, so machines with sparse ids of 4096 and beyond need nothing special; only text is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from qrm.errors import ParseError

_ITEM = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
"""An id or a range. An id is a bit of an int, so one of many digits in somebody's text would take all memory; six are a
hundred times what a kernel can be built for (NR_CPUS, NODES_SHIFT)."""


class IdSet:
    """An immutable, hashable set of non-negative ints that iterates in ascending order.

    Supports `|`, `&`, `-`, `^`, `<=`, `<`, `in`, `len` and truth; operands must be of the same class, so that a set
    of CPUs is never mixed with a set of NUMA nodes.
    """

    __slots__ = ("mask",)

    mask: int
    """Bit n is set when id n is a member."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        mask = 0
        for member in ids:
            if member < 0:
                raise ValueError(f"an id cannot be negative: {member}")
            mask |= 1 << member
        object.__setattr__(self, "mask", mask)

    @classmethod
    def from_mask(cls, mask: int) -> Self:
        """The set whose members are the set bits of `mask`; `mask` must not be negative."""
        made = cls()
        object.__setattr__(made, "mask", mask)
        return made

    @classmethod
    def parse(cls, text: str) -> Self:
        """The set that `text` lists in kernel format, ids of at most six digits; white space around items is ignored.

        Raises:
            ParseError: `text` is anything else; the message quotes it and the offending item.
        """
        mask = 0
        for item in text.split(",") if text.strip() else ():
            match = _ITEM.fullmatch(item.strip())
            if match is None:
                raise ParseError(f"{text.strip()!r} is not a list of ids: {item.strip()!r}", hint="write it like 0-3,8")
            low, high = int(match[1]), int(match[2] or match[1])
            if high < low:
                raise ParseError(f"{text.strip()!r} has a range that runs backwards: {item.strip()!r}")
            mask |= ((1 << (high - low + 1)) - 1) << low
        return cls.from_mask(mask)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[Callable[[int], Self], tuple[int]]:
        # Without it, copying and pickling would set the attribute; dataclasses.asdict copies what it finds in fields.
        return self.from_mask, (self.mask,)

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.ranges())

    def __repr__(self) -> str:
        return f"{type(self).__name__}.parse({str(self)!r})"

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The maximal runs of consecutive members as (first, last), ascending."""
        mask, base = self.mask, 0
        while mask:
            skip = (mask & -mask).bit_length() - 1
            mask >>= skip
            run = (~mask & (mask + 1)).bit_length() - 1
            yield base + skip, base + skip + run - 1
            mask >>= run
            base += skip + run

    def __iter__(self) -> Iterator[int]:
        mask = self.mask
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __bool__(self) -> bool:
        return self.mask != 0

    def __contains__(self, member: object) -> bool:
        return isinstance(member, int) and member >= 0 and bool(self.mask >> member & 1)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.mask == self.mask

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.mask))

    def __or__(self, other: Self) -> Self:
        return self.from_mask(self.mask | self._same(other))

    def __and__(self, other: Self) -> Self:
        return self.from_mask(self.mask & self._same(other))

    def __sub__(self, other: Self) -> Self:
        return self.from_mask(self.mask & ~self._same(other))

    def __xor__(self, other: Self) -> Self:
        return self.from_mask(self.mask ^ self._same(other))

    def __le__(self, other: Self) -> bool:
        return self.mask & ~self._same(other) == 0

    def __lt__(self, other: Self) -> bool:
        return self <= other and self != other

    def isdisjoint(self, other: Self) -> bool:
        """Whether the two sets have no member in common."""
        return self.mask & self._same(other) == 0

    def lowest(self, count: int = 1) -> Self:
        """The `count` smallest members, or all where there are fewer."""
        mask, taken = self.mask, 0
        while mask and count > 0:
            low = mask & -mask
            taken |= low
            mask ^= low
            count -= 1
        return self.from_mask(taken)

    @classmethod
    def union(cls, sets: Iterable[Self]) -> Self:
        """Every id that is a member of at least one of `sets`, all of this class."""
        made = cls()
        for each in sets:
            made |= each
        return made

    def _same(self, other: Self) -> int:
        if type(other) is not type(self):
            raise TypeError(f"cannot combine {type(self).__name__} with {type(other).__name__}")
        return other.mask


class CPUSet(IdSet):
    """A set of logical CPU ids."""

    __slots__ = ()


class NodeSet(IdSet):
    """A set of NUMA node ids."""

    __slots__ = ()
