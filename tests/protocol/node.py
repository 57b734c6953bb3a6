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


class Datagrams:
    """The agent's socket: notifications wait in it. Without an agent they are lost."""

    def __init__(self) -> None:
        self.waiting: list[Notification] = []
        self.open = True

    def take(self) -> list[Notification]:
        taken, self.waiting = self.waiting, []
        return taken

    def close(self) -> None:
        self.waiting, self.open = [], False


class _Notifier(Notifier):
    def __init__(self, datagrams: Datagrams, session: locks.FrontendSession) -> None:
        self._datagrams = datagrams
        self._session = session
        self.sent = self.undelivered = 0

    def notify(self, notification: Notification) -> bool:
        if self._datagrams.open:
            self._datagrams.waiting.append(self._with_session(notification))
        return self._datagrams.open


class Frontend:
    """One proxy on the node of `world`, until `end`."""

    def __init__(self, world: World, datagrams: Datagrams | None = None) -> None:
        self._lock = locks.lock_for_relay(str(world.state))
        self.session = self._lock.session()
        self.notifier = _Notifier(datagrams or Datagrams(), self.session)
        self.assumed = AssumedContainers(self._lock.has_others, was_cut_off=self._lock.was_cut_off)
        self.admission = Admission(
            SnapshotFile(str(world.state / "snapshot.json"), "boot"),
            self.notifier,
            self.assumed,
            frontends.parse_policies(ProxySettings().hook_failure_policy),
            str(world.state),
            DeviceFields(),
        )

    def create(self, creation: Creation) -> Verdict:
        return self.admission.create(creation, Carried)

    def end(self) -> None:
        """The process ends."""
        self._lock.release(cut_off=self.assumed.in_progress)


def creation(uid: str, qos: str = "", claim: str = "", now: float = 0.0) -> Creation:
    """A call that creates container `main` of a pod. `now`: seconds on the monotonic clock."""
    return Creation(container(uid, qos, claim), Waiting(now, SECONDS))
