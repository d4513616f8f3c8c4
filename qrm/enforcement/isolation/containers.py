"""The cgroup files of containers: what this node has, what a container is to have, and its repair.

On cgroup v2 they are fields of the create and update calls (`unified`), so that the runtime applies them before the
process runs. On v1 CRI has no field for most of them: they are written right after the start.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from qrm.config import IsolationSection, Mode, Profile
from qrm.enforcement.cgroup import Cgroups
from qrm.enforcement.isolation import kernel, legacy
from qrm.enforcement.isolation.abilities import Abilities
from qrm.enforcement.isolation.dimension import NotEnforced
from qrm.enforcement.isolation.knobs import BURST, FILES, IDLE, WEIGHT, Amounts, Knobs, knobs, same
from qrm.enforcement.isolation.profile import profile_for
from qrm.enforcement.processes import Processes
from qrm.errors import BadRequest, ConfigError
from qrm.pods.model import Qos, QosLevel
from qrm.pods.qos import IO_MAX as IO_MAX_ANNOTATION
from qrm.wire import cri_pb2 as cri

log = structlog.get_logger(__name__)

Place = tuple[str, str]
"""A controller ("" on v2) and a file of it."""


class ContainerFiles:
    """Decides on and repairs the cgroup files of containers."""

    def __init__(
        self,
        section: IsolationSection,
        profiles: Mapping[str, Profile],
        processes: Processes,
        number: Callable[[str], str | None],
    ) -> None:
        self._section = section
        self._profiles = profiles
        self._processes = processes
        self._number = number
        self._cgroups: Cgroups = processes.cgroups
        self._v2 = self._cgroups.version == 2
        self._abilities = Abilities(self._cgroups)

    @property
    def able(self) -> frozenset[str]:
        """The files that can be set and are not switched off."""
        return self._abilities.files() & {name for name, key in FILES.items() if self._mode(key) != "off"}

    def check(self) -> None:
        """Look at the configuration before the first pod.

        Raises:
            NotEnforced: a level's profile needs what is required and not there.
            ConfigError: a profile limits something that is not a disk.
        """
        for profile in self._profiles.values():
            for device in profile.io_max if isinstance(profile.io_max, dict) else ():
                self._number(device)
        for level in QosLevel:
            for name, why in self.wanted(Qos(level=level), Amounts(100_000, 1 << 30)).missing.items():
                if name in FILES and self._abilities.known(name) and self._mode(FILES[name]) == "required":
                    key = FILES[name]
                    raise NotEnforced(
                        f"isolation.{key} is required, and {name}, which the profile {level} sets, cannot be: {why}",
                        hint=f'isolation.{key} = "auto" does without it',
                    )

    def profile(self, qos: Qos) -> Profile:
        """The profile of a pod. Raises BadRequest where it names one that is not there."""
        return profile_for(qos.level, qos.profile, self._profiles)

    def wanted(self, qos: Qos, amounts: Amounts) -> Knobs:
        """What a container is to have; without what is switched off. Raises BadRequest as `profile`."""
        made = knobs(self.profile(qos), qos, amounts, self.able, self._number)
        missing = {name: why for name, why in made.missing.items() if self._mode(FILES[name.split()[0]]) != "off"}
        return Knobs(made.files, missing)

    def admit(self, qos: Qos, amounts: Amounts) -> Mapping[str, str]:
        """As `wanted`, for a container that is to be created.

        Raises:
            BadRequest: its pod names a profile that does not exist, or limits something that is not a disk.
            NotEnforced: what is required cannot be.
        """
        for device in qos.io_max:
            try:
                self._number(device)
            except ConfigError as error:
                raise BadRequest(f"{IO_MAX_ANNOTATION}: {error}") from None
        made = self.wanted(qos, amounts)
        for name, why in made.missing.items():
            key = FILES[name.split()[0]]
            if self._mode(key) == "required":
                raise NotEnforced(f"{name} cannot be set: {why}", hint=f"isolation.{key} is required on this node")
            log.info("not set", file=name, why=why)
        return made.files

    def put(self, resources: cri.LinuxContainerResources, files: Mapping[str, str]) -> None:
        """Add `files` to a create or update call, as far as it has fields for them here.

        Of limits of several disks the first: runc before 1.2 writes all lines at once, which the kernel refuses.
        """
        if self._v2:
            resources.unified.update({name: value.partition("\n")[0] for name, value in files.items()})
        elif WEIGHT in files:
            resources.cpu_shares = legacy.shares(files[WEIGHT])

    def shown(self, resources: cri.LinuxContainerResources, asked: cri.LinuxContainerResources) -> None:
        """Undo `put` in what kubelet sees."""
        if self._v2:
            for name in FILES.keys() & resources.unified.keys():
                del resources.unified[name]
            resources.unified.update(asked.unified)
        elif asked.cpu_shares:
            resources.cpu_shares = asked.cpu_shares

    @asynccontextmanager
    async def updating(self, container_id: str, resources: cri.LinuxContainerResources) -> AsyncIterator[None]:
        """Around an update of a container by `resources`, so that the kernel takes it.

        The runtime writes the weight first, which is refused while cpu.idle is 1, and the quota before the burst, which
        may then exceed it. So both are put to 0 before. On v2 the runtime sets them again from `unified`, last of all;
        what it was not told, and all after an update that failed, is seen to here. What counts is what the kernel has:
        the container may be idle by a profile that the configuration has no more.
        """
        folders = await self._processes.folders(container_id)
        before = await asyncio.to_thread(self._unlock, folders, burst=resources.cpu_quota > 0)
        told: Collection[str] = ()
        try:
            yield
            told = resources.unified.keys()
        finally:
            for path, value in before.items():
                if path.name not in told and _try_to_read(path) == "0":
                    _try_to_write(path, value, "0")

    def has_disk(self, number: str) -> bool:
        """Whether there is a disk with this MAJ:MIN now."""
        try:
            return self._number(number) is not None
        except ConfigError:  # it is a partition's by now
            return False

    async def started(self, container_id: str, files: Mapping[str, str]) -> None:
        """Right after the start or an update: what `put` could not."""
        later = {name: value for name, value in files.items() if not self._v2 or "\n" in value}
        if later:
            await self.repair(container_id, later)

    async def repair(self, container_id: str, files: Mapping[str, str]) -> Mapping[str, int]:
        """Put back what differs from `files`; returns how many writes that took, by file of v2."""
        folders = await self._processes.folders(container_id)
        return await asyncio.to_thread(self._repair, folders, files) if folders else {}

    async def values(self, container_id: str, files: Mapping[str, str]) -> dict[str, tuple[str, str, bool]]:
        """What the kernel has of `files`, by the file's own name: what is wanted, what there is, and if they agree."""
        folders = await self._processes.folders(container_id)
        found = {}
        for (controller, name), value in self._places(files).items():
            if controller in folders:
                now = _try_to_read(folders[controller] / name) or ""
                found[name] = (value, now, same(name, value, now))
        return found

    def _repair(self, folders: Mapping[str, Path], files: Mapping[str, str]) -> Mapping[str, int]:
        done = Counter[str]()
        for (controller, name), value in self._places(files).items():
            if controller not in folders:
                continue
            path = folders[controller] / name
            now = _try_to_read(path)
            if now is None or same(name, value, now):
                continue
            if name == WEIGHT and now == "0":
                continue  # somebody has made it idle, and an idle cgroup has no weight
            if written := sum(_try_to_write(path, line, now) for line in value.splitlines()):
                done[name] += written
        return done

    def _places(self, files: Mapping[str, str]) -> Mapping[Place, str]:
        if self._v2:
            return {("", name): value for name, value in files.items()}
        return legacy.translated(files)

    def _unlock(self, folders: Mapping[str, Path], *, burst: bool) -> dict[Path, str]:
        """What was put to 0, with its value before."""
        before = {}
        for controller, name in map(self._place, (IDLE, BURST) if burst else (IDLE,)):
            path = folders[controller] / name if controller in folders else None
            value = _try_to_read(path) if path else None
            if path and value and value != "0" and _try_to_write(path, "0", value):
                before[path] = value
        return before

    def _place(self, name: str) -> Place:
        return ("", name) if self._v2 else legacy.PLACES[name]

    def _mode(self, key: str) -> Mode:
        mode: Mode = getattr(self._section, key)
        return mode


def _try_to_read(path: Path) -> str | None:
    """None where it is gone; one that cannot be read is none that fails a call, or what there is to do with others."""
    try:
        return kernel.read(path)
    except kernel.KernelError as error:
        log.warning("not read", error=str(error))
        return None


def _try_to_write(path: Path, value: str, old: str) -> bool:
    """Whether it worked; a cgroup that is gone is none of our business."""
    try:
        kernel.write(path, value, old=old)
    except kernel.KernelError as error:
        if error.errno not in kernel.GONE:
            log.warning("not written", error=str(error))
        return False
    return True
