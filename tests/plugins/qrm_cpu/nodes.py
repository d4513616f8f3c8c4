"""Short names that the example tests share."""

from __future__ import annotations

from qrm_cpu import create

from qrm.allocator import QosLevel
from qrm.allocator.testing import Harness, machine
from qrm.cpuset import CPUSet
from qrm.topology.machine import Machine

DEDICATED = QosLevel.DEDICATED
SHARED = QosLevel.SHARED
RECLAIMED = QosLevel.RECLAIMED
SYSTEM = QosLevel.SYSTEM


def node(machine: Machine, **settings: object) -> Harness:
    """A node with the CPU allocator."""
    return Harness(create(settings), machine)


def cpus(text: str) -> CPUSet:
    """A set of CPUs in kernel format."""
    return CPUSet.parse(text)


def eight() -> Machine:
    """Eight CPUs without SMT on one NUMA node."""
    return machine(cores_per_l3=8)


def two_nodes() -> Machine:
    """Two sockets, each of one NUMA node with four cores of two threads: 0-3,8-11 and 4-7,12-15."""
    return machine(sockets=2, cores_per_l3=4, threads=2)
