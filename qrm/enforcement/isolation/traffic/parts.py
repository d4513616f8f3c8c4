"""What of tc this kernel has, found without trying: a module that is not loaded loads itself when it is first used."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PARTS = {
    "ifb": "ifb_xmit",
    "sch_htb": "htb_init",
    "sch_fq_codel": "fq_codel_init",
    "sch_ingress": "clsact_init",
    "cls_matchall": "mall_init",
    "act_skbedit": "tcf_skbedit_init",
    "act_mirred": "tcf_mirred_init",
}
"""Modules, each with a function of it that the kernel calls through a pointer and that therefore has a symbol."""


def missing(proc: Path, release: str, modules: Path = Path("/lib/modules")) -> list[str]:
    """The parts that the kernel `release` certainly lacks; none where it can load modules and they cannot be listed."""
    wanted = set(PARTS) - _known(modules / release)
    if wanted:
        symbols = _symbols(proc / "kallsyms", {PARTS[each] for each in wanted})
        wanted = {each for each in wanted if PARTS[each] not in symbols}
    loads = (proc / "modules").exists()
    return [] if loads and not (modules / release / "modules.dep").exists() else sorted(wanted)


def _known(folder: Path) -> set[str]:
    """Names of the modules that are built in or could be loaded, with `_` as the kernel has them."""
    lines: list[str] = []
    for name in ("modules.builtin", "modules.dep"):
        try:
            lines += (folder / name).read_text().splitlines()
        except OSError:
            continue
    return {line.partition(":")[0].rpartition("/")[2].partition(".")[0].replace("-", "_") for line in lines}


def _symbols(kallsyms: Path, wanted: set[str]) -> set[str]:
    """Which of the symbols there are; lines are `address type name [module]`."""
    try:
        with kallsyms.open() as lines:
            return _found(lines, wanted)
    except OSError:
        return set()


def _found(lines: Iterable[str], wanted: set[str]) -> set[str]:
    return {name for line in lines if (name := line.split()[2]) in wanted}
