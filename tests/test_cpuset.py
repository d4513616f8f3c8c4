"""Sets of ids behave as frozensets of ints do, and their text is the kernel's."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qrm.cpuset import CPUSet, IdSet, NodeSet
from qrm.errors import ParseError

ids = st.frozensets(st.integers(0, 10_000)) | st.frozensets(st.integers(0, 40))


@given(ids)
def test_members(members: frozenset[int]) -> None:
    """A set has the members it was made of, in ascending order, by whichever way it is asked."""
    cpus = CPUSet(members)
    assert list(cpus) == sorted(members)
    assert len(cpus) == len(members)
    assert bool(cpus) == bool(members)
    assert all(member in cpus for member in members)
    assert all((member + 1 in cpus) == (member + 1 in members) for member in members)
    assert CPUSet.from_mask(sum(1 << member for member in members)) == cpus


@pytest.mark.parametrize("other", [-1, "1", None, 1.5])
def test_what_is_no_id_is_no_member(other: object) -> None:
    """Asking for something that can be no id is answered with no."""
    assert other not in CPUSet([0, 1, 2])


def test_negative_ids_are_refused() -> None:
    """An id below 0 is an error, not a wrong bit."""
    with pytest.raises(ValueError, match="-1"):
        CPUSet([3, -1])


@given(ids)
def test_text_round_trip(members: frozenset[int]) -> None:
    """A set is the same after it was written and read."""
    cpus = CPUSet(members)
    assert CPUSet.parse(str(cpus)) == cpus
    assert eval(repr(cpus)) == cpus  # noqa: S307 - the promise of repr


@given(ids)
def test_text_is_shortest(members: frozenset[int]) -> None:
    """The text has one item for each run of consecutive ids, and neighbouring runs are at least one id apart."""
    cpus = CPUSet(members)
    runs = list(cpus.ranges())
    assert [member for first, last in runs for member in range(first, last + 1)] == sorted(members)
    assert all(first - last > 1 for (_, last), (first, _) in pairwise(runs))
    assert str(cpus) == ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in runs)


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3,8\n", [0, 1, 2, 3, 8]),
        (" 4 , 6-7 ", [4, 6, 7]),
        ("5,1-2,2", [1, 2, 5]),
        ("7-7", [7]),
        ("999999", [999_999]),
    ],
)
def test_parse(text: str, members: list[int]) -> None:
    """Lists are read as the kernel writes them, in any order, with white space around items."""
    assert list(CPUSet.parse(text)) == members


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("(null)", "(null)"),
        ("all", "all"),
        ("0-3:1/2", "0-3:1/2"),
        ("0,1,", ""),
        (",", ""),
        ("1,-1", "-1"),
        ("1-", "1-"),
        ("1-2-3", "1-2-3"),
        ("0 - 3", "0 - 3"),
        ("0 1", "0 1"),
        ("0,0x1", "0x1"),
        ("1_0", "1_0"),
        ("+1", "+1"),
        ("1.0", "1.0"),
        ("٣", "٣"),
        ("3,7-5", "7-5"),
        ("1000000", "1000000"),
        ("0-99999999999", "0-99999999999"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_parse_error(text: str, item: str) -> None:
    """Anything else is refused with the text and the item quoted; an id too long for a bit mask is, too."""
    with pytest.raises(ParseError) as error:
        CPUSet.parse(text)
    assert error.value.message.startswith(repr(text))
    assert error.value.message.endswith(repr(item))


@pytest.mark.parametrize("operation", [operator.or_, operator.and_, operator.sub, operator.xor])
@given(ids, ids)
def test_algebra(operation: Callable[[Any, Any], Any], one: frozenset[int], other: frozenset[int]) -> None:
    """Union, intersection, difference and symmetric difference are those of frozenset, and leave the operands alone."""
    left, right = CPUSet(one), CPUSet(other)
    result = operation(left, right)
    assert type(result) is CPUSet
    assert frozenset(result) == operation(one, other)
    assert (left, right) == (CPUSet(one), CPUSet(other))


@pytest.mark.parametrize("comparison", [operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne])
@given(ids, ids)
def test_comparison(comparison: Callable[[Any, Any], bool], one: frozenset[int], other: frozenset[int]) -> None:
    """Comparisons are those of frozenset, between sets that contain each other and those that do not."""
    for left, right in ((one, other), (one, one | other), (one & other, one), (one, frozenset(one))):
        assert comparison(CPUSet(left), CPUSet(right)) == comparison(left, right)


@given(ids, ids)
def test_disjoint_and_union(one: frozenset[int], other: frozenset[int]) -> None:
    """Disjointness, and the union of any number of sets, are those of frozenset."""
    assert CPUSet(one).isdisjoint(CPUSet(other)) == one.isdisjoint(other)
    assert CPUSet(one).isdisjoint(CPUSet(other - one))
    assert CPUSet.union(CPUSet(each) for each in (one, other, one)) == CPUSet(one | other)
    assert CPUSet.union([]) == CPUSet()


@given(ids, st.integers(-2, 60))
@example(frozenset({1}), -1)
def test_lowest(members: frozenset[int], count: int) -> None:
    """The lowest members are as many as asked for, or all."""
    assert list(CPUSet(members).lowest(count)) == sorted(members)[: max(count, 0)]


def test_lowest_is_one_by_default() -> None:
    """Without a number, it is the one lowest member."""
    assert CPUSet.parse("5-9").lowest() == CPUSet([5])


@given(ids)
def test_hash(members: frozenset[int]) -> None:
    """Equal sets are one key of a mapping; a set of CPUs and one of nodes are two."""
    assert len({CPUSet(members), CPUSet(sorted(members)), NodeSet(members)}) == 2


@pytest.mark.parametrize(
    "operation",
    [
        operator.or_,
        operator.and_,
        operator.sub,
        operator.xor,
        operator.le,
        operator.lt,
        operator.ge,
        operator.gt,
        IdSet.isdisjoint,
        lambda one, other: type(one).union([one, other]),
    ],
)
@pytest.mark.parametrize("other", [NodeSet([1]), NodeSet(), IdSet([1])], ids=repr)
def test_classes_do_not_mix(operation: Callable[[Any, Any], object], other: IdSet) -> None:
    """Sets of CPUs and of nodes are never combined or compared, whichever comes first."""
    for one, two in ((CPUSet([1]), other), (other, CPUSet([1]))):
        with pytest.raises(TypeError, match="cannot combine"):
            operation(one, two)


def test_equal_ids_of_another_class_are_not_equal() -> None:
    """Equality is no error, as for anything in Python, but never holds between classes."""
    assert CPUSet([1]) != NodeSet([1])
    assert CPUSet([1]) != frozenset([1])


def test_immutable() -> None:
    """A set cannot be changed, emptied or given attributes."""
    cpus = CPUSet([1])
    with pytest.raises(AttributeError, match="immutable"):
        cpus.mask = 2
    with pytest.raises(AttributeError, match="immutable"):
        del cpus.mask
    with pytest.raises(AttributeError, match="immutable"):
        cpus.other = 2
    assert list(cpus) == [1]


@dataclass(frozen=True)
class _Holder:
    cpus: CPUSet


@given(ids)
def test_copies(members: frozenset[int]) -> None:
    """Copying, pickling and dataclasses.asdict, which copies, give an equal set of the same class."""
    cpus = CPUSet(members)
    copies = (copy.copy(cpus), copy.deepcopy(cpus), pickle.loads(pickle.dumps(cpus)), asdict(_Holder(cpus))["cpus"])  # noqa: S301
    assert all(type(each) is CPUSet and each == cpus for each in copies)
