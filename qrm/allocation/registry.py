"""Finds the allocators that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from qrm.allocator import Allocator
from qrm.errors import ConfigError

GROUP = "qrm.allocators"
"""The entry-point group: each entry is a function from settings to an Allocator."""


def load_allocators(settings: Mapping[str, Mapping[str, Any]]) -> tuple[Allocator, ...]:
    """The allocators named in `settings`, each made with its own part of it, in order of name.

    Raises:
        ConfigError: a name that no installed package offers, or settings that its allocator refuses.
    """
    offered = {entry.name: entry for entry in entry_points(group=GROUP)}
    made = []
    for name in sorted(settings):
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise ConfigError(f"allocators.{name}: no such allocator", hint=f"installed are: {known}")
        made.append(offered[name].load()(settings[name]))
    return tuple(made)
