"""`read_qos`: what annotations are understood, which are refused, and with which words."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrm.cpuset import NodeSet
from qrm.errors import BadRequest
from qrm.pods.model import CpuEnhancement, MemoryEnhancement, NetworkEnhancement, Qos, QosLevel
from qrm.pods.qos import (
    CPU_ENHANCEMENT,
    MEMORY_ENHANCEMENT,
    MEMORY_ONLY_NODES,
    NETWORK_ENHANCEMENT,
    NUMA_IDS,
    NUMA_NUMBER,
    QOS_LEVEL,
    read_qos,
)

DEDICATED, SHARED, RECLAIMED, SYSTEM = QosLevel.DEDICATED, QosLevel.SHARED, QosLevel.RECLAIMED, QosLevel.SYSTEM
Members = Mapping[str, object]


def pod(
    level: str | None = None,
    cpu: Members | None = None,
    memory: Members | None = None,
    network: Members | None = None,
    **single: str,
) -> dict[str, str]:
    """The annotations of a pod; `numa_ids` and `numa_number` are given by name."""
    objects = {CPU_ENHANCEMENT: cpu, MEMORY_ENHANCEMENT: memory, NETWORK_ENHANCEMENT: network}
    return {
        "example.com/owner": "nobody's business",
        **({} if level is None else {QOS_LEVEL: level}),
        **{annotation: json.dumps(members) for annotation, members in objects.items() if members is not None},
        **{f"katalyst.kubewharf.io/{name}": text for name, text in single.items()},
    }


BOUND = {"numa_binding": "true"}
EXCLUSIVE = {"numa_binding": "true", "numa_exclusive": "true"}
BOUND_MEMORY = MemoryEnhancement(numa_binding=True)

GOOD: dict[str, tuple[dict[str, str], Qos]] = {
    "nothing said": (pod(), Qos(SHARED, by_default=True)),
    "empty objects": (pod(SYSTEM, cpu={}, memory={}, network={}), Qos(SYSTEM)),
    "pool": (pod(SHARED, cpu={"cpuset_pool": "batch"}), Qos(SHARED, CpuEnhancement(cpuset_pool="batch"))),
    "the default pool": (pod(cpu={"cpuset_pool": "share"}), Qos(SHARED, CpuEnhancement("share"), by_default=True)),
    "the node's pool for system": (pod(SYSTEM, cpu={"cpuset_pool": "reserve"}), Qos(SYSTEM, CpuEnhancement("reserve"))),
    "bound, alone on its node": (
        pod(SHARED, cpu={"numa_share": "false"}, memory=BOUND),
        Qos(SHARED, CpuEnhancement(numa_share=False), BOUND_MEMORY),
    ),
    "suppression": (
        pod(RECLAIMED, cpu={"suppression_tolerance_rate": "1.5"}),
        Qos(RECLAIMED, CpuEnhancement(suppression_tolerance_rate=1.5)),
    ),
    "burst": (
        pod(SHARED, cpu={"cpu_burst_policy": "static", "cpu_burst_percent": "100", "cpu_burst_threshold": "0.5"}),
        Qos(SHARED, CpuEnhancement(cpu_burst_policy="static", cpu_burst_percent=100, cpu_burst_threshold=0.5)),
    ),
    "no burst": (
        pod(DEDICATED, cpu={"cpu_burst_policy": "closed", "cpu_burst_percent": "0"}),
        Qos(DEDICATED, CpuEnhancement(cpu_burst_policy="closed", cpu_burst_percent=0)),
    ),
    "whole nodes": (pod(DEDICATED, memory=EXCLUSIVE), Qos(DEDICATED, memory=MemoryEnhancement(True, True))),
    "spread": (
        pod(
            DEDICATED,
            cpu={"align_by_socket": "true", "distribute_evenly_across_numa": "true", "full_pcpus_pairing": "true"},
            memory=BOUND,
            numa_number="2",
        ),
        Qos(
            DEDICATED,
            CpuEnhancement(align_by_socket=True, distribute_evenly_across_numa=True, full_pcpus_pairing=True),
            BOUND_MEMORY,
            numa_number=2,
        ),
    ),
    "whole cores anywhere": (
        pod(DEDICATED, cpu={"full_pcpus_pairing": "true"}),
        Qos(DEDICATED, CpuEnhancement(full_pcpus_pairing=True)),
    ),
    "ids as a range": (
        pod(DEDICATED, memory=BOUND, numa_ids="0-1"),
        Qos(DEDICATED, memory=BOUND_MEMORY, numa_ids=NodeSet([0, 1])),
    ),
    "ids as a list, beside a number": (
        pod(DEDICATED, memory=BOUND, numa_ids="0, 2,1023", numa_number="3"),
        Qos(DEDICATED, memory=BOUND_MEMORY, numa_ids=NodeSet([0, 2, 1023]), numa_number=3),
    ),
    "reclaimed and bound": (pod(RECLAIMED, memory=BOUND), Qos(RECLAIMED, memory=BOUND_MEMORY)),
    "threshold": (
        pod(SYSTEM, memory={"rss_overuse_threshold": "0.05"}),
        Qos(SYSTEM, memory=MemoryEnhancement(rss_overuse_threshold=0.05)),
    ),
    "network": (
        pod(SHARED, network={"namespace_type": "anti_host_ns_preferred", "topology_affinity_restricted": "true"}),
        Qos(SHARED, network=NetworkEnhancement("anti_host_ns_preferred", topology_affinity_restricted=True)),
    ),
    "network namespace only": (
        pod(RECLAIMED, network={"namespace_type": "host_ns"}),
        Qos(RECLAIMED, network=NetworkEnhancement(namespace_type="host_ns")),
    ),
    "memory from nodes without CPUs": (
        {**pod(SYSTEM), MEMORY_ONLY_NODES: "true"},
        Qos(SYSTEM, memory_only_nodes=True),
    ),
    "no memory from nodes without CPUs": ({**pod(SHARED), MEMORY_ONLY_NODES: "false"}, Qos(SHARED)),
    "saying what is so anyway": (
        pod(
            RECLAIMED,
            cpu={"numa_share": "true", "align_by_socket": "false", "full_pcpus_pairing": "false"},
            memory={"numa_binding": "false", "numa_exclusive": "false"},
        ),
        Qos(RECLAIMED),
    ),
    "unbound system": (pod(SYSTEM, memory={"numa_binding": "false"}), Qos(SYSTEM)),
    "not exclusive and spread": (
        pod(
            DEDICATED,
            cpu={"distribute_evenly_across_numa": "true"},
            memory={"numa_binding": "true", "numa_exclusive": "false"},
        ),
        Qos(DEDICATED, CpuEnhancement(distribute_evenly_across_numa=True), BOUND_MEMORY),
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_understands(case: str) -> None:
    """Annotations that make sense become the Qos that they describe."""
    annotations, expected = GOOD[case]
    assert read_qos(annotations, SHARED) == expected


@pytest.mark.parametrize("level", QosLevel)
def test_level_is_said_or_default(level: QosLevel) -> None:
    """The level is the annotation's, and without one the default, which is then marked as such."""
    assert read_qos({QOS_LEVEL: level.value}, SHARED) == Qos(level)
    assert read_qos({}, level) == Qos(level, by_default=True)


def cpu(level: str, name: str, value: object, *parts: str, memory: Members | None = None) -> tuple[object, ...]:
    """A pod of `level` whose cpu_enhancement has one wrong key, and the parts of the message."""
    return pod(level, cpu={name: value}, memory=memory), CPU_ENHANCEMENT, name, *parts


def mem(level: str, name: str, value: object, *parts: str, **others: str) -> tuple[object, ...]:
    """A pod of `level` whose memory_enhancement has one wrong key, and the parts of the message."""
    return pod(level, memory={name: value, **others}), MEMORY_ENHANCEMENT, name, *parts


NEEDS_BINDING = f"only with numa_binding 'true' in {MEMORY_ENHANCEMENT}"
NOT_EXCLUSIVE = f"only without numa_exclusive 'true' in {MEMORY_ENHANCEMENT}"
IS_SHARED, IS_DEDICATED = "this pod has shared_cores", "this pod has dedicated_cores"
WITH_DEDICATED = f"only with {QOS_LEVEL} dedicated_cores;"
BOOLEAN = "allowed: 'true' or 'false'"

BAD: dict[str, tuple[object, ...]] = {
    "level": (pod("gold"), QOS_LEVEL, "'gold'", "dedicated_cores, shared_cores, reclaimed_cores, system_cores"),
    "level of another case": (pod("Shared_cores"), QOS_LEVEL, "'Shared_cores'", "shared_cores"),
    "empty level": (pod(""), QOS_LEVEL, "''", "shared_cores"),
    "no JSON": ({CPU_ENHANCEMENT: "numa_share=false"}, CPU_ENHANCEMENT, "'numa_share=false'", "a JSON object"),
    "empty text": ({MEMORY_ENHANCEMENT: ""}, MEMORY_ENHANCEMENT, "''", "a JSON object of strings"),
    "a list": ({NETWORK_ENHANCEMENT: "[]"}, NETWORK_ENHANCEMENT, "'[]'", "a JSON object of strings"),
    "null": ({CPU_ENHANCEMENT: "null"}, CPU_ENHANCEMENT, "'null'", "a JSON object of strings"),
    "too deep": ({CPU_ENHANCEMENT: "[" * 100_000}, CPU_ENHANCEMENT, "[[[", "a JSON object of strings"),
    "a number too long": ({CPU_ENHANCEMENT: '{"a": ' + "9" * 5000 + "}"}, CPU_ENHANCEMENT, "a JSON object of strings"),
    "a key twice": (
        {MEMORY_ENHANCEMENT: '{"numa_binding": "true", "numa_binding": "false"}'},
        MEMORY_ENHANCEMENT,
        "'numa_binding' is there twice",
    ),
    "unknown cpu key": cpu(SHARED, "numa_shar", "false", "'numa_shar'", '"false"', "allowed: the keys cpuset_pool, "),
    "unknown memory key": mem(SHARED, "cpuset_pool", "a", '"a"', "allowed: the keys numa_binding, numa_exclusive, "),
    "empty key": cpu(SHARED, "", "x", "'' is", "allowed: the keys"),
    "unknown network key": (pod(network={"nic": "eth0"}), NETWORK_ENHANCEMENT, "'nic'", "namespace_type"),
    "a JSON boolean": mem(SHARED, "numa_binding", True, "is true,", "a string, in quotes"),
    "a JSON number": cpu(SHARED, "cpu_burst_percent", 50, "is 50,", "a string, in quotes"),
    "a JSON null": cpu(SHARED, "cpuset_pool", None, "is null,", "a string, in quotes"),
    "a JSON object": cpu(SHARED, "cpuset_pool", {"a": "b"}, "is an object", "a string, in quotes"),
    "boolean by another name": mem(SHARED, "numa_binding", "yes", "'yes'", BOOLEAN),
    "boolean with a capital": cpu(SHARED, "numa_share", "False", "'False'", BOOLEAN),
    "burst policy": cpu(SHARED, "cpu_burst_policy", "none", "'none'", "default, closed, static, dynamic"),
    "burst above 100": cpu(SHARED, "cpu_burst_percent", "101", "'101'", "a whole number from 0 to 100"),
    "burst below 0": cpu(SHARED, "cpu_burst_percent", "-1", "'-1'", "a whole number from 0 to 100"),
    "burst not whole": cpu(SHARED, "cpu_burst_percent", "1.5", "'1.5'", "a whole number from 0 to 100"),
    "burst in other digits": cpu(SHARED, "cpu_burst_percent", "٣", "'٣'", "a whole number from 0 to 100"),
    "burst threshold": cpu(SHARED, "cpu_burst_threshold", "nan", "'nan'", "a number of 0 or more"),
    "burst of reclaimed": cpu(RECLAIMED, "cpu_burst_policy", "static", "shared_cores or dedicated_cores"),
    "burst of system": cpu(SYSTEM, "cpu_burst_percent", "10", "shared_cores or dedicated_cores"),
    "suppression of shared": cpu(SHARED, "suppression_tolerance_rate", "1", "reclaimed_cores", IS_SHARED),
    "suppression below 0": cpu(RECLAIMED, "suppression_tolerance_rate", "-1", "'-1'", "a number of 0 or more"),
    "pool of dedicated": cpu(DEDICATED, "cpuset_pool", "a", "shared_cores or system_cores", IS_DEDICATED),
    "pool of reclaimed": cpu(RECLAIMED, "cpuset_pool", "a", "shared_cores or system_cores"),
    "nameless pool": cpu(SHARED, "cpuset_pool", "", "''", "63 letters, digits"),
    "pool with odd letters": cpu(SYSTEM, "cpuset_pool", "a b", "'a b'", "63 letters, digits"),
    **{
        f"the node's pool {name}": cpu(SHARED, "cpuset_pool", name, repr(name), "for shared_cores any name but")
        for name in ("reclaim", "reserve", "dedicated", "interrupt", "fallback", "isolation1", "system", "share-NUMA0")
    },
    "numa_share unbound": cpu(SHARED, "numa_share", "false", NEEDS_BINDING),
    "numa_share of dedicated": cpu(DEDICATED, "numa_share", "false", "shared_cores", IS_DEDICATED, memory=BOUND),
    "align_by_socket of shared": cpu(SHARED, "align_by_socket", "true", WITH_DEDICATED, IS_SHARED, memory=BOUND),
    "align_by_socket unbound": cpu(DEDICATED, "align_by_socket", "true", NEEDS_BINDING),
    "spread of shared": cpu(SHARED, "distribute_evenly_across_numa", "true", WITH_DEDICATED, memory=BOUND),
    "spread unbound": cpu(DEDICATED, "distribute_evenly_across_numa", "true", NEEDS_BINDING),
    "spread exclusive": cpu(DEDICATED, "distribute_evenly_across_numa", "true", NOT_EXCLUSIVE, memory=EXCLUSIVE),
    "whole cores of shared": cpu(SHARED, "full_pcpus_pairing", "true", WITH_DEDICATED, memory=BOUND),
    "whole cores exclusive": cpu(DEDICATED, "full_pcpus_pairing", "true", NOT_EXCLUSIVE, memory=EXCLUSIVE),
    "binding of system": mem(SYSTEM, "numa_binding", "true", "this pod has system_cores"),
    "exclusive of shared": mem(SHARED, "numa_exclusive", "true", WITH_DEDICATED, IS_SHARED, numa_binding="true"),
    "exclusive unbound": mem(DEDICATED, "numa_exclusive", "true", NEEDS_BINDING),
    "exclusive and not bound": mem(DEDICATED, "numa_exclusive", "true", NEEDS_BINDING, numa_binding="false"),
    "threshold 0": mem(SHARED, "rss_overuse_threshold", "0.0", "'0.0'", "a number above 0"),
    "threshold below 0": mem(SHARED, "rss_overuse_threshold", "-0.5", "'-0.5'", "a number above 0"),
    "threshold without end": mem(SHARED, "rss_overuse_threshold", "inf", "'inf'", "a number above 0"),
    "priority": mem(SHARED, "oom_priority", "high", "'high'", "a whole number from 0 to 99 for shared_cores"),
    "no nodes": (pod(DEDICATED, memory=BOUND, numa_number="0"), f"{NUMA_NUMBER} is '0'", "a whole number from 1"),
    "nodes in words": (pod(DEDICATED, memory=BOUND, numa_number="two"), f"{NUMA_NUMBER} is 'two'", "from 1 to 1024"),
    "nodes beyond int": (
        pod(DEDICATED, memory=BOUND, numa_number="9" * 5000),
        f"{NUMA_NUMBER} is '9",
        "from 1 to 1024",
    ),
    "nodes unbound": (pod(DEDICATED, numa_number="1"), f"{NUMA_NUMBER} is '1'", NEEDS_BINDING),
    "nodes of shared": (pod(SHARED, memory=BOUND, numa_number="1"), NUMA_NUMBER, WITH_DEDICATED, IS_SHARED),
    **{
        f"ids {text!r}": (pod(DEDICATED, memory=BOUND, numa_ids=text), NUMA_IDS, repr(text), "at least one id from 0")
        for text in ("", " ", ",", "a", "1-", "-1", "3-1", "0,,1", "0-1024", "[0]", "٣", "9" * 30)
    },
    "ids unbound": (pod(DEDICATED, numa_ids="0"), f"{NUMA_IDS} is '0'", NEEDS_BINDING),
    "ids of shared": (pod(SHARED, memory=BOUND, numa_ids="0"), NUMA_IDS, WITH_DEDICATED, IS_SHARED),
    "namespace": (
        pod(network={"namespace_type": "host"}),
        NETWORK_ENHANCEMENT,
        "namespace_type is 'host'",
        "host_ns, host_ns_preferred, anti_host_ns, anti_host_ns_preferred",
    ),
    "restricted": (
        pod(network={"topology_affinity_restricted": "1"}),
        NETWORK_ENHANCEMENT,
        "topology_affinity_restricted is '1'",
        BOOLEAN,
    ),
    **{
        f"memory only nodes {text!r}": ({MEMORY_ONLY_NODES: text}, f"{MEMORY_ONLY_NODES} is {text!r}", BOOLEAN)
        for text in ("", "True", "1", "yes")
    },
}


@pytest.mark.parametrize("case", BAD)
def test_refuses(case: str) -> None:
    """Anything else is refused by a message with the annotation, the key, the value and what is allowed."""
    annotations, *parts = BAD[case]
    assert isinstance(annotations, dict)
    with pytest.raises(BadRequest) as refusal:
        read_qos(annotations, SHARED)
    assert [part for part in parts if str(part) not in refusal.value.message] == []
    assert "allowed: " in refusal.value.message


def test_refusal_names_a_level_by_default() -> None:
    """A contradiction with a level that the pod did not choose says where that level comes from."""
    with pytest.raises(BadRequest, match=rf"shared_cores, the default without {QOS_LEVEL}$"):
        read_qos(pod(memory=EXCLUSIVE), SHARED)


def test_refusal_stays_short() -> None:
    """A message carries the beginning of a huge value, not all of it."""
    for huge in (
        pod("x" * 200_000),
        pod(cpu={"x" * 200_000: "true"}),
        pod(cpu={"numa_share": "x" * 200_000}),
        {CPU_ENHANCEMENT: "{" + '"a": "b", ' * 20_000},
    ):
        with pytest.raises(BadRequest) as refusal:
            read_qos(huge, SHARED)
        assert len(str(refusal.value)) < 600


@pytest.mark.parametrize(
    ("level", "lowest", "highest"), [(RECLAIMED, -100, -1), (SHARED, 0, 99), (DEDICATED, 100, 199), (SYSTEM, 200, 299)]
)
def test_oom_priority_range(level: QosLevel, lowest: int, highest: int) -> None:
    """Each level has its own hundred of priorities; two more are open to all."""
    for allowed in (lowest, highest, -300, 300):
        assert read_qos(pod(level, memory={"oom_priority": str(allowed)}), SHARED).memory.oom_priority == allowed
    for refused in {lowest - 1, highest + 1, -299, -301, 301} - {300}:
        with pytest.raises(BadRequest, match=f"oom_priority is '{refused}', allowed: .* {lowest} to {highest} for"):
            read_qos(pod(level, memory={"oom_priority": str(refused)}), SHARED)


WORDS = st.sampled_from(
    ["true", "false", "0", "1", "100", "-300", "0-1", "0.5", "share", "static", "closed", "host_ns", *QosLevel]
)
KEYS = st.sampled_from(
    [
        *("cpuset_pool", "numa_share", "suppression_tolerance_rate"),
        *("cpu_burst_policy", "cpu_burst_percent", "cpu_burst_threshold"),
        *("align_by_socket", "distribute_evenly_across_numa", "full_pcpus_pairing"),
        *("numa_binding", "numa_exclusive", "rss_overuse_threshold", "oom_priority"),
        *("namespace_type", "topology_affinity_restricted"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ANNOTATION_NAMES = [
    *(QOS_LEVEL, CPU_ENHANCEMENT, MEMORY_ENHANCEMENT, NETWORK_ENHANCEMENT),
    *(NUMA_NUMBER, NUMA_IDS, MEMORY_ONLY_NODES),
]
TEXTS = st.one_of(
    st.text(),
    WORDS,
    JSON.map(json.dumps),
    st.dictionaries(KEYS | st.text(), WORDS | st.text() | JSON, max_size=4).map(json.dumps),
    st.dictionaries(KEYS, WORDS, max_size=2).map(json.dumps),
)


def qos_or_refusal(annotations: dict[str, str], default: QosLevel) -> Qos | str:
    """The Qos, or the message of the BadRequest; any other exception is a failure."""
    try:
        return read_qos(annotations, default)
    except BadRequest as refusal:
        return str(refusal)


@given(st.dictionaries(st.sampled_from(ANNOTATION_NAMES) | st.text(), TEXTS, max_size=6), st.sampled_from(QosLevel))
def test_any_annotations_give_a_qos_or_a_refusal(annotations: dict[str, str], default: QosLevel) -> None:
    """Whatever the annotations, the answer is a Qos, or a BadRequest that names one of them and can be sent."""
    answer = qos_or_refusal(annotations, default)
    if isinstance(answer, Qos):
        assert answer.by_default == (QOS_LEVEL not in annotations)
        assert answer.level == annotations.get(QOS_LEVEL, default)
    else:
        assert any(name in answer for name in annotations if name in ANNOTATION_NAMES)
        assert answer.encode()


@given(st.sampled_from(QosLevel), st.dictionaries(KEYS, WORDS, max_size=3), st.dictionaries(KEYS, WORDS, max_size=3))
def test_a_qos_never_contradicts_itself(level: QosLevel, for_cpu: dict[str, str], for_memory: dict[str, str]) -> None:
    """What is understood obeys the rules that allocators rely on."""
    qos = qos_or_refusal(pod(level, cpu=for_cpu, memory=for_memory), SHARED)
    if isinstance(qos, str):
        return
    dedicated_and_bound = level is DEDICATED and qos.memory.numa_binding
    assert not qos.memory.numa_exclusive or dedicated_and_bound
    assert not (qos.cpu.align_by_socket or qos.cpu.distribute_evenly_across_numa) or dedicated_and_bound
    assert not qos.cpu.full_pcpus_pairing or level is DEDICATED
    assert not (qos.memory.numa_exclusive and (qos.cpu.distribute_evenly_across_numa or qos.cpu.full_pcpus_pairing))
    assert qos.cpu.numa_share or (level is SHARED and qos.memory.numa_binding)
    assert not (qos.memory.numa_binding and level is SYSTEM)
