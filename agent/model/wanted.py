"""What containers get, decided by the agent and obeyed by its writes and by the proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model.limits import Limits
from agent.model.qos import QoS
from agent.model.visible import Visible

NO_LIMITS: Final = Limits()


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one container gets; `cpuset` None means hands off.

    `exclusive`: the CPUs are its pod's own. `blocked` says why it must not be created yet: its CPUs
    are not free, or it has none. `visible` None: nobody decided about its devices.
    """

    cpuset: str | None = None
    exclusive: bool = False
    limits: Limits = NO_LIMITS
    blocked: str = ""
    visible: Visible | None = None

    @property
    def hands_off(self) -> bool:
        """Whether neither CPUs nor limits of the container are ours."""
        return self.cpuset is None and self.limits == NO_LIMITS

    def without_memory(self) -> Wanted:
        """The same with nothing said of memory nodes."""
        if self.limits.mems is None:
            return self
        limits = msgspec.structs.replace(self.limits, mems=None)
        return msgspec.structs.replace(self, limits=limits)


NOTHING: Final = Wanted()


class PodWanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pod's containers get: `each` those that are not in `containers`, by name.

    `refused` says why the CPUs that the pod claims are not its own. `group`: what the pod's own
    cgroup is held to.
    """

    title: str
    qos: QoS
    each: Wanted
    containers: dict[str, Wanted] = {}
    refused: str = ""
    group: Limits = NO_LIMITS

    def of(self, container_name: str) -> Wanted:
        """What the container of that name gets."""
        return self.containers.get(container_name, self.each)

    def seeing(self, each: Visible | None, containers: Mapping[str, Visible]) -> PodWanted:
        """The same with what its containers see, by name; `each` for any other."""
        names = self.containers.keys() | containers.keys()
        return msgspec.structs.replace(
            self,
            each=msgspec.structs.replace(self.each, visible=each),
            containers={
                name: msgspec.structs.replace(self.of(name), visible=containers.get(name, each))
                for name in sorted(names)
            },
        )

    @property
    def exclusive(self) -> bool:
        """Whether one of its containers may have CPUs of its own."""
        return self.each.exclusive or any(each.exclusive for each in self.containers.values())
