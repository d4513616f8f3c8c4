"""The schemata file: `L3:0=fffff;1=fffff`, one line for each resource, one value for each cache or node. Pure."""

from __future__ import annotations

from collections.abc import Mapping

BANDWIDTH = "MB"
"""The resource whose values are decimal; those of the others that qrm writes are masks in hexadecimal."""
_DECIMAL = (BANDWIDTH, "SMBA")

Schemata = Mapping[str, Mapping[int, int]]
"""Resource to domain (a cache id, with gaps) to value."""


def parse_schemata(text: str) -> dict[str, dict[int, int]]:
    """What the kernel shows. A line that is not like that, as of a resource qrm knows nothing of, is left out."""
    parsed: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition(":")
        base = 10 if name in _DECIMAL else 16
        try:
            pairs = [entry.split("=") for entry in rest.split(";")]
            parsed[name] = {int(domain): int(value, base) for domain, value in pairs}
        except ValueError:
            continue
    return parsed


def differences(wanted: Mapping[str, int], now: Schemata) -> dict[str, dict[int, int]]:
    """What is to be written so that every domain that there is now has the wanted value of each resource."""
    differing = {
        name: {domain: value for domain, has in now.get(name, {}).items() if has != value}
        for name, value in wanted.items()
    }
    return {name: domains for name, domains in differing.items() if domains}


def format_schemata(schemata: Schemata) -> str:
    """As the kernel takes it but for the end of the last line; whatever is not named stays as it is."""
    return "\n".join(
        f"{name}:{';'.join(f'{domain}={_value(name, value)}' for domain, value in sorted(domains.items()))}"
        for name, domains in schemata.items()
    )


def show_wanted(wanted: Mapping[str, int], now: Schemata) -> str:
    """On one line, for a person: the same value in every domain that there is now."""
    return show({name: dict.fromkeys(now.get(name, {}), value) for name, value in wanted.items()})


def show(schemata: Schemata) -> str:
    """On one line, for a person."""
    return format_schemata(schemata).replace("\n", " ")


def _value(name: str, value: int) -> str:
    return str(value) if name in _DECIMAL else f"{value:x}"
