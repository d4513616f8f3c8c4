"""critest: a run of it, and what two sets of runs say of each spec."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.normal import normal

Outcomes = dict[str, str]
"""By a spec's full name: passed, or failed or skipped and why."""

_SEED = "7"
"""The order of the specs, which critest shuffles."""


def run(critest: Path, endpoint: str, report: Path, more: Sequence[str]) -> Outcomes:
    """Run critest on `endpoint`; `report` is made, and its log beside it. A spec that fails is no error here."""
    report.unlink(missing_ok=True)
    command = [str(critest), f"-runtime-endpoint={endpoint}", f"-ginkgo.seed={_SEED}", "-ginkgo.no-color"]
    with report.with_suffix(".log").open("wb") as log:
        command += [f"-ginkgo.json-report={report}", *more]
        subprocess.run(command, stdout=log, stderr=log, cwd=report.parent, check=False)
    if not report.exists():
        raise SystemExit(f"{critest} has not run:\n{report.with_suffix('.log').read_text()}")
    return outcomes(report.read_text())


def outcomes(report: str) -> Outcomes:
    """The outcomes in a JSON report of ginkgo."""
    found: Outcomes = {}
    for suite in json.loads(report):
        for spec in suite["SpecReports"]:
            if spec["LeafNodeType"] == "It":
                name = " / ".join([*(spec["ContainerHierarchyTexts"] or ()), spec["LeafNodeText"]])
                why = normal(spec.get("Failure", {}).get("Message", ""))
                found[name] = f"{spec['State']}: {why}" if why else spec["State"]
    return found


def counts(found: Outcomes) -> str:
    """How many passed, failed and were skipped."""
    counted = Counter(outcome.partition(":")[0] for outcome in found.values())
    return ", ".join(f"{number} {state}" for state, number in sorted(counted.items()))


@dataclass(frozen=True, slots=True)
class Spec:
    """One spec, over all runs."""

    name: str
    direct: frozenset[str]
    through: frozenset[str]

    @property
    def differs(self) -> bool:
        """Whether no run through qrm ended as any run without it."""
        return self.direct.isdisjoint(self.through)

    @property
    def fails(self) -> bool:
        """Whether it fails in some run."""
        return not all(outcome.startswith(("passed", "skipped", "pending")) for outcome in self.direct | self.through)

    @property
    def varies(self) -> bool:
        """Whether its outcome is not always the same, with qrm and without it."""
        return not self.differs and len(self.direct | self.through) > 1


def compare(direct: Sequence[Outcomes], through: Sequence[Outcomes]) -> list[Spec]:
    """All specs that any run knows; one that a run does not know is "absent" in it."""
    names = dict.fromkeys(name for each in (*direct, *through) for name in each)
    return [
        Spec(name, *(frozenset(each.get(name, "absent") for each in side) for side in (direct, through)))
        for name in names
    ]
