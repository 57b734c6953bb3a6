"""The agent's loop: it runs a pass on every trigger, rests between passes, reads the settings again
on request, and keeps the health that /healthz and /readyz report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Set
from typing import Final

import msgspec

from agent.discover.sysfs import DiscoveryError
from agent.http.requests import Reply, readiness, text_reply
from agent.kube.errors import StoreError
from agent.kubelet.statefile import StateFileError
from agent.model import snapshot
from agent.model.notifications import answers_a_call
from agent.model.settings import options
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.model.snapshot import ExclusionError, Patterns
from agent.node.devices import DeviceView
from agent.node.kubelet_configuration import KubeletConfigurationView
from agent.node.kubelet_view import PodResourcesView
from agent.node.notifications import NotificationSocket
from agent.node.reconcile import ReconcileError, Reconciler
from agent.node.triggers import COLLECT_SECONDS, REPEAT_SECONDS, Trigger, Triggers
from agent.rpc.grpc import RpcError
from agent.telemetry.metrics import AgentMetrics

log = logging.getLogger(__name__)

_PODS_CHANGED = frozenset({Trigger.TREE, Trigger.RUNTIME, Trigger.KUBELET})
"""Triggers after which the kubelet may have assigned or released devices or CPUs."""
_SECOND: Final = 1.0
STALE_SECONDS: Final = 5.0
"""The time without a successful pass, besides the pause, after which the agent is not Ready. After
four times as long it is not alive."""


class Health:
    """Whether passes run and succeed."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._succeeded: float | None = None
        self._error = "no pass has ended yet"
        self._pause_seconds = 0.0

    def begin(self) -> None:
        self._begun = time.monotonic()

    def end(self, error: str) -> None:
        """A pass ended. An error that the last pass did not have is logged.

        `error`: empty if the pass succeeded."""
        if self.is_new(error):
            log.error("%s", error)
        self._error = error
        if not error:
            self._succeeded = time.monotonic()

    def rest(self, pause_seconds: float) -> None:
        """Without an event, the next pass begins only after this time."""
        self._pause_seconds = pause_seconds

    def is_new(self, error: str) -> bool:
        """Whether this is an error that the last pass did not have."""
        return bool(error) and error != self._error

    def snapshot_age_seconds(self) -> float | None:
        """The time since a pass succeeded, None before the first one."""
        return None if self._succeeded is None else time.monotonic() - self._succeeded

    def alive(self) -> Reply:
        """503 when passes have stopped."""
        silent = time.monotonic() - self._begun
        if silent > self._pause_seconds + 4 * STALE_SECONDS:
            return text_reply(503, f"no pass for {silent:.0f} s")
        return text_reply(200, "ok")

    def problem(self) -> str:
        """Why the agent is not Ready; "" if the last pass succeeded and is recent."""
        if self._error:
            return self._error
        age = self.snapshot_age_seconds() or 0.0
        if age > self._pause_seconds + STALE_SECONDS:
            return f"the snapshot is {age:.0f} s old"
        return ""

    def ready(self) -> Reply:
        """503 while there is a problem."""
        return readiness(self.problem())


class PassLoop:
    """`run` ends after `stop`. Signal handlers call `reload` and `stop`.

    `devices`, `pod_resources`, `kubelet_configuration`: refreshed after the triggers that concern
        them.
    `each_second`: called between passes, on their thread, with at least a second between two calls.
        None if there is nothing to do."""

    def __init__(
        self,
        settings: AgentSettings,
        read_again: Callable[[], AgentSettings],
        socket: NotificationSocket,
        triggers: Triggers,
        reconciler: Reconciler,
        health: Health,
        metrics: AgentMetrics,
        devices: DeviceView | None,
        pod_resources: PodResourcesView,
        kubelet_configuration: KubeletConfigurationView,
        each_second: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._read_again = read_again
        self._socket = socket
        self._triggers = triggers
        self._reconciler = reconciler
        self._health = health
        self._metrics = metrics
        self._devices = devices
        self._pod_resources = pod_resources
        self._kubelet_configuration = kubelet_configuration
        self._each_second = each_second
        self._stopping = self._reload_requested = False

    def reload(self) -> None:
        """Reads the settings again before the next pass."""
        self._reload_requested = True
        self._socket.wake()

    def stop(self) -> None:
        """Ends `run` after the present pass."""
        self._stopping = True
        self._socket.wake()

    def run(self) -> None:
        """Raises OSError when the state folder is removed."""
        socket = self._socket
        next_pass = cooled = next_second = 0.0
        notified = False
        while not self._stopping:
            began = time.monotonic()
            if self._each_second is not None and began >= next_second:
                next_second = began + _SECOND
                self._each_second()
            due = next_pass if self._each_second is None else min(next_pass, next_second)
            received = socket.wait(due - began, max(cooled - began, 0.0), COLLECT_SECONDS)
            self._reconciler.notified(received)
            notified |= bool(received)
            began = time.monotonic()
            # While the loop cools down, only a notification for which a frontend holds a call
            # starts a pass.
            if received and began < cooled and not any(map(answers_a_call, received)):
                next_pass = min(next_pass, cooled)
                continue
            triggers = self._triggers.take() | ({Trigger.NOTIFICATION} if notified else set())
            if not (triggers or socket.woken) and began < next_pass:
                continue  # only a second has passed
            notified = False
            if not triggers and began >= next_pass:
                triggers = {Trigger.CLOCK}
            self._prepare(triggers)
            next_pass = began + self._pass(triggers, began)
            ended = time.monotonic()
            cooled = ended + self._triggers.cooldown(ended - began)
            if lost := socket.lost():
                raise OSError(f"the state folder can't be used any more: {lost}")

    def _prepare(self, triggers: Set[Trigger]) -> None:
        """Refreshes the sources that a trigger concerns, and reads the settings again."""
        for each in triggers:
            self._metrics.triggers.inc(each.value)
        if self._devices is not None and Trigger.HOTPLUG in triggers:
            self._devices.rescan()
        if triggers & _PODS_CHANGED:
            self._pod_resources.refresh()
        if self._reload_requested or Trigger.KUBELET in triggers:
            self._kubelet_configuration.refresh()
        if self._reload_requested:
            self._reload_requested = False
            self._settings = reloaded(self._settings, self._read_again, self._reconciler)

    def _pass(self, triggers: Set[Trigger], began: float) -> float:
        """Runs one pass. Returns after how many seconds from `began` the next one is due."""
        healthy = self._reconcile()
        pause = self._triggers.pause(self._settings, healthy, triggers, began)
        if self._reconciler.again:
            pause = min(pause, REPEAT_SECONDS)
        self._health.rest(pause)
        self._metrics.pause_seconds.set(pause)
        return pause

    def _reconcile(self) -> bool:
        self._health.begin()
        start = time.monotonic()
        error = ""
        try:
            self._reconciler.reconcile()
        except RpcError as failure:
            error = f"the runtime does not answer: {failure}"
        except (DiscoveryError, StateFileError, StoreError, ReconcileError, OSError) as failure:
            error = str(failure)
        except Exception as failure:  # the supervisor: a fault must not end the loop
            error = f"the pass failed: {failure!r}"
            if self._health.is_new(error):
                log.exception("the pass failed")
        else:
            self._metrics.pass_seconds.observe(time.monotonic() - start)
        self._metrics.passes.inc("failed" if error else "succeeded")
        self._health.end(error)
        if error:
            self._reconciler.failed(error)
        return not error


LIVE: Final = ("exclude", "period_seconds", "log_level")
"""Options that a reload applies."""


def excluded(settings: AgentSettings) -> Patterns:
    """Raises SettingsError."""
    try:
        return snapshot.parse_patterns(settings.exclude)
    except ExclusionError as error:
        raise SettingsError(f"exclude: {error}") from None


def reloaded(
    old: AgentSettings, read_again: Callable[[], AgentSettings], reconciler: Reconciler
) -> AgentSettings:
    """Reads the settings again, applies the options in LIVE, and returns the settings in force. The
    old ones stay in force if the new ones are invalid. Logs changed options that need a restart."""
    try:
        new = read_again()
        reconciler.exclude = excluded(new)
    except SettingsError as error:
        log.error("the old settings stay in force: %s", error)
        return old
    logging.getLogger().setLevel(new.log_level.upper())
    now = msgspec.structs.replace(old, **{name: getattr(new, name) for name in LIVE})
    fixed = [
        field.encode_name
        for field in options.options(AgentSettings)
        if getattr(now, field.name) != getattr(new, field.name)
    ]
    if fixed:
        log.warning("these changed options need a restart: %s", ", ".join(fixed))
    log.info("the settings were read again")
    return now
