"""A node of the real code: passes of the agent over cgroups that are files, and frontends that read
its snapshot and notify it."""

from __future__ import annotations

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.carriers import Carried
from agent.hooks.cpuset import AssumedContainers
from agent.hooks.requests import Creation, DeviceFields, Verdict, Waiting
from agent.host import locks
from agent.model.notifications import Notification
from agent.model.settings import frontends
from agent.model.settings.frontends import ProxySettings
from tests.hooks.admission_harness import container
from tests.node.world import World

SECONDS = 60.0


class Collected(Notifier):
    """Keeps the notifications until the agent takes them. Without an agent they are lost."""

    def __init__(self) -> None:
        self.received: list[Notification] = []
        self.delivers = True
        self.sent = self.undelivered = 0

    def notify(self, notification: Notification) -> bool:
        if self.delivers:
            self.received.append(notification)
        return self.delivers

    def take(self) -> list[Notification]:
        received, self.received = self.received, []
        return received


class Frontend:
    """One proxy on the node of `world`, until `end`."""

    def __init__(self, world: World, notifier: Collected) -> None:
        self._lock = locks.lock_for_relay(str(world.state))
        self.session = self._lock.session()
        self.assumed = AssumedContainers(self._lock.has_others, was_cut_off=self._lock.was_cut_off)
        self.admission = Admission(
            SnapshotFile(str(world.state / "snapshot.json"), "boot"),
            notifier,
            self.assumed,
            frontends.parse_policies(ProxySettings().hook_failure_policy),
            str(world.state),
            DeviceFields(),
        )

    def create(self, creation: Creation) -> Verdict:
        return self.admission.create(creation, Carried)

    def end(self) -> None:
        """As the proxy ends, or as the kernel ends it while calls are in progress."""
        self._lock.release(cut_off=self.assumed.in_progress)


def creation(uid: str, qos: str = "", claim: str = "", now: float = 0.0) -> Creation:
    """A call that creates container `main` of a pod. `now`: seconds on the monotonic clock."""
    return Creation(container(uid, qos, claim), Waiting(now, SECONDS))
