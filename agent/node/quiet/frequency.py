"""The CPUs of owners run at the frequency that the governor of the owner chooses
(Documentation/admin-guide/pm/cpufreq.rst, "CPU Performance Scaling Policy Objects")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.allocate.quiet.frequency import FrequencyPolicy, GovernorWish, governors
from agent.cgroup.limits import GOVERNOR
from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet, CpuSetError, union
from agent.node.features import MOST_NAMED, Key, WantedFiles
from agent.node.quiet.moment import QuietMoment

_POLICIES: Final = "sys/devices/system/cpu/cpufreq"


class Frequency:
    """`root`: is where the host's files are."""

    name = "frequency"

    def __init__(self, root: str) -> None:
        self._files = Tree(root)
        self._moment: QuietMoment | None = None
        self._wanted = WantedFiles()

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        # Each CPU may have a policy, and reading all of them each second costs.
        if moment is not self._moment:
            self._moment, self._wanted = moment, self._of(moment)
        return self._wanted

    def _of(self, moment: QuietMoment) -> WantedFiles:
        asking = moment.asking(self.name)
        wishes = [GovernorWish(owner.cpus, owner.wishes.governor) for owner in asking]
        if not wishes or moment.decision is None:
            return WantedFiles()
        policies = list(self._policies())
        if not policies:
            return WantedFiles(problem="this machine has no cpufreq")
        owned = union(owner.cpus for owner in moment.decision.owners)
        wanted, missing, notes = governors(policies, wishes, owned)
        files: dict[Key, str] = {
            (f"/{policy}", GOVERNOR): governor for policy, governor in wanted.items()
        }
        return WantedFiles(files, "; ".join(missing[:MOST_NAMED]), tuple(notes[:MOST_NAMED]))

    def _policies(self) -> Iterator[FrequencyPolicy]:
        """Those with CPUs that are online."""
        names = (name for name in self._files.names(_POLICIES) if name.startswith("policy"))
        for name in sorted(names, key=lambda name: (len(name), name)):
            folder = f"{_POLICIES}/{name}"
            try:
                cpus = self._files.text(f"{folder}/affected_cpus") or ""
                available = self._files.text(f"{folder}/scaling_available_governors") or ""
                online = CpuSet.parse(",".join(cpus.split()))
            except (OSError, CpuSetError):  # EBUSY without an online CPU
                continue
            yield FrequencyPolicy(name, online, tuple(available.split()))
