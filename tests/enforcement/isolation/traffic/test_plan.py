"""The trees that follow from configuration and annotations, on nodes of any speed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qrm.config import NetworkClass, NetworkSection
from qrm.enforcement.isolation.traffic.plan import POD_MINORS, HtbClass, ceilings, free_minor, leaf, most, trunk
from qrm.errors import BadRequest, ConfigError

MBIT = 1_000_000
EGRESS, INGRESS = "kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth"

node_rates = st.integers(1, 1_000_000).map(lambda mbit: mbit * MBIT)


@st.composite
def sections(draw: st.DrawFn) -> NetworkSection:
    """Classes whose guarantees come to 100 percent at most."""
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=14, unique=True))
    left, classes = 100, {}
    for name in names:
        share = draw(st.integers(0, left))
        left -= share
        maximal = draw(st.integers(max(share, 1), 100))
        pod = draw(st.integers(0, 1_000_000))
        classes[name] = NetworkClass(
            priority=draw(st.integers(0, 7)), guaranteed=f"{share}%", maximal=f"{maximal}%", pod_maximal_mbit=pod
        )
    return NetworkSection(classes=classes)


@settings(deadline=None)
@given(sections(), node_rates)
def test_guarantees_fit_into_the_node(section: NetworkSection, node: int) -> None:
    """All classes have their share, together no more than the node has, and none more than its maximum."""
    made = trunk(section, node)
    assert made.root.rate == made.root.ceil == node // 8
    assert sum(each.rate for each in made.classes.values()) * 8 <= node + 8_000 * len(made.classes)
    for name, each in made.classes.items():
        assert each.parent == made.root.minor
        assert abs(each.rate * 8 - max(8_000, node * int(section.classes[name].guaranteed[:-1]) // 100)) < 8
        assert each.rate <= each.ceil <= made.root.ceil
    assert len({each.minor for each in made.all()}) == len(made.all())


@settings(deadline=None)
@given(sections(), node_rates, st.integers(1_000, 10**15), st.integers(1_000, 10**15))
def test_a_pod_is_below_every_ceiling(section: NetworkSection, node: int, egress: int, ingress: int) -> None:
    """A pod's ceiling is the least of what its annotation, its class and its class's pods may have."""
    made = trunk(section, node)
    for name, parent in made.classes.items():
        klass = section.classes[name]
        found = ceilings(klass, most(parent), {EGRESS: str(egress), INGRESS: str(ingress)})
        bounds = [most(parent)] + [klass.pod_maximal_mbit * MBIT] * bool(klass.pod_maximal_mbit)
        assert found.egress == min(*bounds, egress)
        assert found.ingress == min(*bounds, ingress)
        made_leaf = leaf(0x10, parent, klass, found.egress)
        assert made_leaf.parent == parent.minor
        assert 0 < made_leaf.rate <= made_leaf.ceil <= parent.ceil
        assert made_leaf.priority == klass.priority


@given(node_rates)
def test_bursts_suffice(node: int) -> None:
    """Bursts hold what is sent between two ticks of 250 Hz and a frame, whatever the rate, and fit their field."""
    each = trunk(NetworkSection(), node).root
    burst = each.buffer * 64 * each.rate / 1e9
    assert burst >= each.rate / 250 + 1500
    assert burst <= max(each.rate / 250, 1 << 20) + 1700 + each.rate * 64e-9
    assert each.buffer < 1 << 32


@given(st.sets(st.sampled_from(POD_MINORS)))
def test_ids_are_not_given_twice(used: set[int]) -> None:
    """A new pod gets an id that nobody has, and whose lowest four bits are 0 for qdiscs that look at those."""
    found = free_minor(used)
    assert found not in used
    assert found is not None
    assert 0x10 <= found <= 0xFFF0
    assert found % 16 == 0


def test_ids_end() -> None:
    """There are 4095 of them."""
    assert free_minor(range(0x10, 0xFFF0, 0x10)) == 0xFFF0
    assert free_minor(POD_MINORS) is None


def test_numbers_and_shares() -> None:
    """Rates are Mbit/s or shares of the node's, and a class that may have more than the node has what the node has."""
    section = NetworkSection(classes={"a": NetworkClass(guaranteed="40", maximal="500"), "b": NetworkClass()})
    made = trunk(section, 200 * MBIT)
    assert (made.classes["a"].rate, made.classes["a"].ceil) == (5 * MBIT, 25 * MBIT)
    assert (made.classes["b"].rate, made.classes["b"].ceil) == (MBIT // 4, 25 * MBIT)


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        (
            {"a": NetworkClass(guaranteed="60%"), "b": NetworkClass(guaranteed="50%")},
            "110 Mbit/s are guaranteed in all",
        ),
        ({"a": NetworkClass(guaranteed="50%", maximal="40%")}, "network.classes.a.guaranteed = '50%'"),
        ({"a": NetworkClass(guaranteed="0%", maximal="0%")}, "network.classes.a.maximal = '0%'"),
        ({str(each): NetworkClass() for each in range(15)}, "15 of them, allowed: 14"),
    ],
)
def test_contradictions_are_named(classes: dict[str, NetworkClass], text: str) -> None:
    """Classes that cannot be had are refused with the field and the number."""
    with pytest.raises(ConfigError, match=text):
        trunk(NetworkSection(classes=classes), 100 * MBIT)


def test_a_bad_annotation_is_refused() -> None:
    """As by the runtime."""
    with pytest.raises(BadRequest, match=EGRESS):
        ceilings(NetworkClass(), 100 * MBIT, {EGRESS: "fast"})


def test_the_handle_is_the_priority_of_packets() -> None:
    """It has our major, so that no other qdisc takes it for its own."""
    assert HtbClass(0x20, 1, 1, 1, 1, 1).handle == 0x71720020
