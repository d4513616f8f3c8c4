"""An allocator's own part of the configuration, as a msgspec Struct whose errors say what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from qrm.errors import ConfigError

Table = TypeVar("Table", bound=msgspec.Struct)

_FIELD = re.compile(r"`(?:\$\.)?(\w+)[^`]*`$")
"""msgspec ends its messages with the field at fault."""


def convert_settings(
    kind: type[Table], values: Mapping[str, object], remedies: Mapping[str, str], *, allocator: str, within: str = ""
) -> Table:
    """The settings behind the keys and values of the configuration file.

    Args:
        kind: A frozen Struct with forbid_unknown_fields.
        values: The table as TOML has it.
        remedies: By key, what to write; all keys.
        allocator: The allocator's name, which errors begin with.
        within: Before the keys in errors, for a table inside the allocator's own, such as `nics.eth0.`.

    Raises:
        ConfigError: A key is unknown or a value is unusable; the message names both, the hint the remedy.
    """
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        match = _FIELD.search(str(error))
        problem = str(error).partition(" - at ")[0]
        raise unusable(
            match[1] if match else "", values, problem, remedies, allocator=allocator, within=within
        ) from error


def unusable(
    key: str,
    values: Mapping[str, object],
    problem: str,
    remedies: Mapping[str, str],
    *,
    allocator: str,
    within: str = "",
) -> ConfigError:
    """The error to be raised for the value of `key`, or for a key that is not known."""
    known = f"the settings of {within.rstrip('.') or allocator} are {', '.join(remedies)}"
    shown = repr(values.get(key))
    return ConfigError(f"{allocator}: {within}{key} = {shown} is not usable: {problem}", hint=remedies.get(key, known))
