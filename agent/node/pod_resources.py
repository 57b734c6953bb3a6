"""What the kubelet's PodResources API reports, for the reconcile loop: polled on a thread of its
own, so that no pass waits for a kubelet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from agent.allocate.device_holders.grants import of_pod_resources
from agent.allocate.reserved_cpus import KubeletCpus
from agent.allocate.shares import kubelet_may_own
from agent.host.daemon import Periodic
from agent.kubelet.podresources import NotServedError, PodResourcesClient, PodResourcesError
from agent.model.availability import Held
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.devices import Portion
from agent.model.holding import DeviceGrant
from agent.model.podresources import (
    Allocatable,
    PodName,
    PodResources,
    by_uid,
    device_portions,
    holdings,
    kept,
    reserved,
)
from agent.model.pods import Pod
from agent.model.topology import Topology
from agent.node.sources import SourceName, Sources

PERIOD_SECONDS: Final = 10.0
LEAST_SECONDS: Final = 1.0
"""Between two polls: all clients of a kubelet share its 100 calls a second."""
ANSWER_SECONDS: Final = 10.0
"""How long other clients wait for an answer (resource-topology-exporter: pkg/podres/client.go,
DefaultTimeout)."""


class PodResourcesAnswer(msgspec.Struct, frozen=True):
    """`allocatable` None: the kubelet does not serve it. `asked_at`: on the monotonic clock, in
    seconds; later events may be missing."""

    pods: tuple[PodResources, ...]
    allocatable: Allocatable | None
    asked_at: float


class PodResourcesView:
    """Polls every `period_seconds`, and `least_seconds` after the last poll when `ask` is called.

    `told` never waits: None before the first answer, then the last valid one, also while the
    kubelet is away: its pods keep what it gave them. `happened` is called on the thread after an
    answer that differs from the last. An empty `socket_path` is never polled, and has no thread.
    """

    def __init__(
        self,
        socket_path: str,
        happened: Callable[[], None] | None = None,
        period_seconds: float = PERIOD_SECONDS,
        least_seconds: float = LEAST_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        sources: Sources | None = None,
    ) -> None:
        self._client = PodResourcesClient(socket_path, answer_seconds)
        self._happened = happened
        self._answer_seconds = answer_seconds
        self._told: PodResourcesAnswer | None = None
        self._sources = sources or Sources()
        self._troubles: dict[tuple[type[PodResourcesError], str], str] = {}
        """The first of each kind since the last valid answer: texts may differ each time."""
        self._asking = Periodic("pod-resources", period_seconds, self._look, least_seconds)
        if socket_path:
            self._asking.start()

    def told(self) -> PodResourcesAnswer | None:
        """The last valid answer."""
        return self._told

    def ask(self) -> None:
        """Polls soon, after an event."""
        self._asking.hurry()

    def close(self) -> None:
        """Ends the thread after the poll in progress."""
        self._asking.stop(2 * self._answer_seconds)
        self._client.close()

    def _look(self) -> None:
        asked_at = time.monotonic()
        try:
            told = PodResourcesAnswer(self._client.pods(), self._allocatable(), asked_at)
        except PodResourcesError as error:
            self._failed(error)
            return
        last, self._told = self._told, told
        self._tell({key: text for key, text in self._troubles.items() if key[0] is NotServedError})
        differs = last is None or last.pods != told.pods or last.allocatable != told.allocatable
        if differs and self._happened is not None:
            self._happened()

    def _allocatable(self) -> Allocatable | None:
        try:
            return self._client.allocatable()
        except NotServedError as error:
            self._failed(error)
            return None

    def _failed(self, error: PodResourcesError) -> None:
        self._tell({(type(error), error.method): str(error)} | self._troubles)

    def _tell(self, troubles: dict[tuple[type[PodResourcesError], str], str]) -> None:
        self._troubles = troubles
        # Without any answer there may be no kubelet, or one without this API.
        level = logging.INFO if self._told is None else logging.WARNING
        self._sources.report(SourceName.POD_RESOURCES, troubles.values(), level)


class PodResourcesState(msgspec.Struct, frozen=True):
    """`held` by pod uid; `portions` of devices that plugins gave to the kubelet;
    `reserved_memory_bytes` by NUMA node; `grants`: devices by plugin or driver; `reserved_cpus`:
    those that no pod gets exclusively; `cpus`: the content of the CPU manager's state as far as
    PodResources has it, None when the kubelet does not serve its allocatable CPUs."""

    held: Mapping[str, Held] = {}
    portions: tuple[Portion, ...] = ()
    reserved_memory_bytes: Mapping[int, int] = {}
    grants: tuple[DeviceGrant, ...] = ()
    reserved_cpus: CpuSet = EMPTY
    cpus: KubeletCpus | None = None


class PodResourcesSource(Protocol):
    """Polls the kubelet."""

    def told(self) -> PodResourcesAnswer | None: ...


class PodResourcesStateView:
    """Keeps the resources of pods that the kubelet has forgotten while the runtime still runs
    them."""

    def __init__(self, view: PodResourcesSource, sources: Sources | None = None) -> None:
        self._view = view
        self._sources = sources or Sources()
        self._held: dict[PodName, Held] = {}

    def now(self, topology: Topology, pods: tuple[Pod, ...]) -> PodResourcesState:
        """The state of these pods; empty before the first answer of a kubelet."""
        told = self._view.told()
        if told is None:
            return PodResourcesState()
        names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
        there = frozenset(names.values())
        over = {pod.key for pod in told.pods} - there
        found = holdings(told.pods, topology, told.allocatable, over)
        self._sources.report(SourceName.POD_RESOURCES_CONTENT, found.problems)
        self._held = kept(self._held, found.pods, there)
        shares = {pod.uid for pod in pods if not kubelet_may_own(pod)}
        held = {
            uid: msgspec.structs.replace(each, cpus=EMPTY) if uid in shares else each
            for uid, each in by_uid(self._held, names).items()
        }
        uids = _only_one(names)
        given = of_pod_resources(told.pods, uids)
        if told.allocatable is None:
            return PodResourcesState(held, grants=given)
        kept_back = reserved(topology, told.allocatable)
        return PodResourcesState(
            held,
            device_portions(told.pods, told.allocatable, over),
            kept_back.memory_bytes,
            given,
            kept_back.cpus,
            KubeletCpus(
                bool(told.allocatable.cpus),
                {uid: each.cpus for uid, each in held.items() if each.cpus},
                _containers(told.pods, uids, told.allocatable.cpus),
            ),
        )


def _containers(
    pods: Iterable[PodResources], uids: Mapping[PodName, str], allocatable: CpuSet
) -> dict[str, dict[str, CpuSet]]:
    """By pod uid, the exclusive CPUs of containers, without pods that hold CPUs as a whole."""
    return {
        uids[pod.key]: {
            each.name: each.cpus
            for each in pod.containers
            if each.cpus and each.cpus <= allocatable
        }
        for pod in pods
        if pod.key in uids and not pod.cpus and any(each.cpus for each in pod.containers)
    }


def _only_one(names: Mapping[str, PodName]) -> dict[PodName, str]:
    """Uids by name, of names with one pod: the API reports names without uids."""
    uids: dict[PodName, list[str]] = {}
    for uid, name in names.items():
        uids.setdefault(name, []).append(uid)
    return {name: of_name[0] for name, of_name in uids.items() if len(of_name) == 1}
