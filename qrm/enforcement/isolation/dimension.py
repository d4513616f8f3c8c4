"""What every means of isolation at the level of the pod or the node has in common.

The same functions serve the call that starts a pod and the loop that repairs: read, compare, write, read back. They
block, and run in a thread that belongs to their dimension, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from qrm.config import Profile
from qrm.errors import QrmError
from qrm.pods.model import PodIdentity, QosLevel


class NotEnforced(QrmError):
    """Something could not be put in force. The message has the path or device, the value and the kernel's reason."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod that runs, as far as its isolation needs to know it."""

    id: str
    """The runtime's."""
    pod: PodIdentity
    level: QosLevel
    profile: Profile
    """Every key is set."""
    annotations: Mapping[str, str]
    """The pod's own."""
    pid: int
    """Of its first process (the pause container's); 0 where the runtime does not tell."""
    netns: str
    """The path of its network namespace; "" for the host's."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What this node can do."""

    usable: bool
    why: str
    """One line for `qrm doctor`: what was found, or what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """What one round of repair did."""

    by_cause: Mapping[str, int] = field(default_factory=dict)
    """How many kernel values were put back, by cause, such as "schemata" or "qdisc"; one count for one write."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """What is still not in force, by sandbox id ("" for what is the node's), and why."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value for `qrm explain`."""

    name: str
    wanted: str
    kernel: str
    """What is there now; "" where it is gone."""


class Dimension(Protocol):
    """One means of isolation. Nothing of it is kept over a restart: what is in force is read from the kernel."""

    @property
    def name(self) -> str:
        """As the mode's key in the section [isolation]."""
        ...

    def probe(self) -> Probe:
        """Whether this kernel and this configuration let it work. Writes nothing, never raises."""
        ...

    def prepare(self) -> None:
        """Bring about what is the node's, before the first pod; does nothing where it is there already.

        Raises:
            NotEnforced: it could not be.
        """
        ...

    def admit(self, sandbox: Sandbox) -> None:
        """Put in force what `sandbox` is to have, before its first container is created.

        Raises:
            NotEnforced: it could not be, or not all of it; what was done stays, and `repair` tries again.
        """
        ...

    def forget(self, sandbox_id: str) -> None:
        """The sandbox is gone: remove what was there for it alone. Never raises."""
        ...

    def repair(self, sandboxes: Sequence[Sandbox]) -> Repairs:
        """Compare with the kernel all that is to be in force for the node and for `sandboxes`, which are all there are.

        What drifted is put back, what is ours and belongs to none of them is removed, and nothing is written where
        nothing differs. A sandbox that vanishes in the middle is no failure. Never raises.
        """
        ...

    def explain(self, sandbox: Sandbox) -> Sequence[Fact]:
        """What the sandbox is to have and what the kernel has now. Never raises."""
        ...

    def reset(self) -> Sequence[str]:
        """Undo everything of ours, also of a process before this one; returns one line for each thing undone.

        Raises:
            NotEnforced: something could not be undone.
        """
        ...


@runtime_checkable
class Starting(Protocol):
    """A dimension that has something to do when a container has started."""

    def started(self, sandbox: Sandbox) -> None:
        """A container of `sandbox` runs, and does not have by inheritance what it is to have. Raises NotEnforced."""
        ...


@runtime_checkable
class Closing(Protocol):
    """A dimension that holds something of this process's, such as sockets."""

    def close(self) -> None:
        """Give it back; what is in force stays."""
        ...
