"""io.cost of all disks: io.cost.model and io.cost.qos in the root cgroup.

Nothing of it belongs to one pod: pods have io.weight, which these files give its effect. A disk that is not named in
the configuration and that somebody else has set is left alone. Each write stops the disk's queue for a moment, so there
is none where nothing differs.

`reset` gives each disk back what it had, which is kept in a file of the state directory (see `before`): a disk that
nobody had set goes back to `enable=0 ctrl=auto`. What `qrm calibrate-io` measured is not touched.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from qrm.config import IoCostSection
from qrm.enforcement.isolation.dimension import Fact, NotEnforced, Probe, Repairs, Sandbox
from qrm.enforcement.isolation.io_cost.before import Before, Record
from qrm.enforcement.isolation.io_cost.disks import HOST, Disk, Host
from qrm.enforcement.isolation.io_cost.model import (
    MODEL_DEFAULT,
    QOS_DEFAULT,
    ModelLine,
    QosLine,
    format_model,
    format_qos,
    parse_models,
    parse_qos,
)
from qrm.enforcement.isolation.io_cost.wanted import Plan, Plans, plans
from qrm.enforcement.isolation.kernel import GONE, KernelError, read, write
from qrm.errors import QrmError

log = structlog.get_logger(__name__)

MODEL, QOS = "io.cost.model", "io.cost.qos"
_CAUSES = {MODEL: "model", QOS: "qos"}
DISK = "disk"
"""The cause of a write where a disk has come, or is to have other parameters than before."""
UNWANTED = "unwanted"
"""The cause of a write where a disk that was ours is no longer to be."""

_ABSENT = (*GONE, errno.ENXIO)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What the two files say, by the disks' numbers; a disk that nobody ever set is in neither."""

    models: dict[str, ModelLine]
    qos: dict[str, QosLine]

    def written(self, number: str) -> tuple[str, str]:
        """What would have to be written for a disk to be as it is."""
        model, qos = self.models.get(number), self.qos.get(number)
        return format_model(model) if model else MODEL_DEFAULT, format_qos(qos) if qos else QOS_DEFAULT


class IoCostDimension:
    """The dimension "io_cost"; see `Dimension`."""

    def __init__(
        self,
        section: IoCostSection,
        *,
        cgroup: Path,
        state: Path,
        host: Host = HOST,
        proc: Path = Path("/proc"),
    ) -> None:
        """Touches nothing yet. `cgroup` is the mount of the root cgroup, `state` the state directory."""
        self._section = section
        self._cgroup = cgroup
        self._state = state
        self._host = host
        self._proc = proc
        self._record: Record | None = None
        self._settled: dict[str, Plan] = {}
        self._left: set[Disk] = set()
        self._failed = ""

    @property
    def name(self) -> str:
        """The key in the section [isolation]."""
        return "io_cost"

    def probe(self) -> Probe:
        """Whether the kernel has io.cost; says for which disks it is going to be used."""
        missing = self._missing()
        if missing:
            return Probe(False, missing)
        found = plans(self._section, self._state, self._host)
        parts = [f"{each.disk.name} ({each.disk.number})" for each in found.by_number.values()]
        why = f"for {', '.join(parts)}" if parts else "for no disk: name some in [io_cost.devices], or measure them"
        why += f"; not there now: {', '.join(found.absent)}" if found.absent else ""
        return Probe(True, "; ".join((why, *found.failed.values())))

    def _missing(self) -> str:
        """Why there is no io.cost; "" where there is."""
        try:
            controllers = read(self._cgroup / "cgroup.controllers")
        except KernelError as error:
            return str(error)
        if controllers is None:
            return (
                f"{self._cgroup} is cgroup v1, which has no io.cost: no cost models, and blkio.weight works with the "
                "schedulers CFQ and BFQ only; boot with systemd.unified_cgroup_hierarchy=1"
            )
        if "io" not in controllers.split():
            return (
                f"{self._cgroup} has no io controller: cgroup v1 has it (blkio is mounted), or the kernel was booted "
                "with cgroup_disable=io"
            )
        if not (self._cgroup / QOS).exists():
            return f"{self._cgroup / QOS} does not exist: the kernel was built without CONFIG_BLK_CGROUP_IOCOST"
        return ""

    def prepare(self) -> None:
        """Set all disks that are there; raises NotEnforced, after all that could be done is done."""
        failed = self.repair(()).failed
        if failed:
            raise NotEnforced("; ".join(failed.values()))

    def admit(self, sandbox: Sandbox) -> None:  # noqa: ARG002
        """Nothing is the sandbox's own; raises NotEnforced where the last round left something undone."""
        if self._failed:
            raise NotEnforced(self._failed)

    def forget(self, sandbox_id: str) -> None:
        """Nothing is the sandbox's own."""

    def repair(self, sandboxes: Sequence[Sandbox]) -> Repairs:  # noqa: ARG002
        """Put back what differs, set disks that have come, and give back those that are no longer to be ours."""
        causes: Counter[str] = Counter()
        try:
            failed = self._round(causes)
        except (QrmError, OSError) as error:
            failed = [str(error)]
        self._failed = "; ".join(failed)
        return Repairs(dict(causes), {"": self._failed} if failed else {})

    def explain(self, sandbox: Sandbox) -> Sequence[Fact]:  # noqa: ARG002
        """What all disks are to have and have; the same for each sandbox."""
        try:
            kernel = self._kernel()
            found = plans(self._section, self._state, self._host)
        except (QrmError, OSError):
            return ()
        facts = []
        for number, plan in found.by_number.items():
            have = kernel.written(number) if number in kernel.models else ("", "")
            for file, want, there in zip((MODEL, QOS), _wanted(plan), have, strict=True):
                facts.append(Fact(f"{file} {plan.disk.name}", want, there))
        return facts

    def reset(self) -> Sequence[str]:
        """Give back to all disks what they had; raises NotEnforced after all that could be done is done."""
        record = self._recorded()
        there, gone = record.still_there()
        for number in gone:
            record.drop(number)
        done, failed = [], []
        for number, before in there.items():
            try:
                self._give_back(number, before, self._kernel(), Counter())
                done.append(f"io.cost of {before.disk} ({number}): {before.qos}, {before.model}")
                record.drop(number)
            except QrmError as error:
                failed.append(str(error))
        self._settled.clear()
        if failed:
            raise NotEnforced("; ".join(failed))
        return done

    def _round(self, causes: Counter[str]) -> list[str]:
        """One round of repair; returns what failed. What is counted in `causes` has been written."""
        found = plans(self._section, self._state, self._host)
        kernel = self._kernel()
        failed = list(found.failed.values())
        for plan in found.by_number.values():
            try:
                self._settle(plan, kernel, causes)
            except KernelError as error:
                if error.errno not in _ABSENT:
                    failed.append(str(error))
            except QrmError as error:
                failed.append(str(error))
        self._release(found, kernel, causes)
        return failed

    def _settle(self, plan: Plan, kernel: _Kernel, causes: Counter[str]) -> None:
        number = plan.disk.number
        wanted, have = _wanted(plan), kernel.written(number)
        record = self._recorded()
        ours = record.of(plan.disk) is not None
        if not ours:
            untouched = (MODEL_DEFAULT, QOS_DEFAULT)
            if not plan.named and have not in (wanted, untouched):
                self._leave_alone(plan.disk, have)
                return
            # What is as we want it before we have written anything is from a state directory that was lost.
            model, qos = untouched if have == wanted else have
            record.add(plan.disk, model=model, qos=qos)
        last = self._settled.get(number, plan)
        drifted = ours and (last.disk.instance, last.params) == (plan.disk.instance, plan.params)
        for file, want, old in zip((MODEL, QOS), wanted, have, strict=True):
            if want != old:
                write(self._cgroup / file, f"{number} {want}", old=old)
                causes[_CAUSES[file] if drifted else DISK] += 1
        if wanted != have and (now := self._kernel().written(number)) != wanted:
            raise NotEnforced(f"{plan.disk.name}: the kernel made {now} of {wanted}")
        self._settled[number] = plan

    def _release(self, found: Plans, kernel: _Kernel, causes: Counter[str]) -> None:
        """Give back disks that are no longer to be ours, and forget those that are gone."""
        record = self._recorded()
        there, gone = record.still_there()
        for number, before in there.items():
            if number not in found.by_number and number not in found.failed:
                self._give_back(number, before, kernel, causes)
                gone.append(number)
        for number in gone:
            record.drop(number)
            self._settled.pop(number, None)

    def _give_back(self, number: str, before: Before, kernel: _Kernel, causes: Counter[str]) -> None:
        for file, want, old in zip((MODEL, QOS), (before.model, before.qos), kernel.written(number), strict=True):
            if want != old:
                write(self._cgroup / file, f"{number} {want}", old=old)
                causes[UNWANTED] += 1

    def _leave_alone(self, disk: Disk, have: tuple[str, str]) -> None:
        if disk not in self._left:
            self._left.add(disk)
            log.warning("io.cost left alone: somebody else has set it", disk=disk.name, model=have[0], qos=have[1])

    def _recorded(self) -> Record:
        if self._record is None:
            boot = read(self._proc / "sys/kernel/random/boot_id") or ""
            self._record = Record(self._state, self._host, boot)
        return self._record

    def _kernel(self) -> _Kernel:
        """Raises QrmError."""
        models, qos = read(self._cgroup / MODEL), read(self._cgroup / QOS)
        if models is None or qos is None:
            raise NotEnforced(self._missing() or f"{self._cgroup / MODEL} does not exist")
        return _Kernel(parse_models(models), parse_qos(qos))


def _wanted(plan: Plan) -> tuple[str, str]:
    """What is to be in the two files behind the disk's number."""
    return format_model(ModelLine(True, plan.params.model)), format_qos(QosLine(True, True, plan.params.qos))
