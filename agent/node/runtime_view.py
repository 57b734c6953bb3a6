"""The pods of this node as the runtime lists them, with the cgroup of every container."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from sys import getsizeof
from typing import Any, Final

import msgspec

from agent.allocate.device_holders import reported_devices
from agent.cgroup import names
from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cri.client import Cri, RuntimeContainer, Sandbox, VerboseStatus
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.model.pod.pods import Container, ContainerState, EndedContainer, Pod
from agent.model.pod.qos import kube_class
from agent.model.snapshot import Patterns, excludes
from agent.model.verdict import Code
from agent.rpc.grpc import NO_ANSWER, RpcError

log = logging.getLogger(__name__)

_VIRTUAL = "kata"
"""Prefix of the handlers of Kata Containers (`kata`, `kata-qemu`, `kata-clh`, ...)."""
_SKIP_SECONDS = 60.0
"""How long a container whose inspection timed out is not inspected again."""
MAX_LIVING: Final = 1 << 13
"""The most containers that have not ended, and the most ready sandboxes: 500 pods of 16 containers
fit."""
_MAX_STATUS_BYTES: Final = 10 << 20
"""The most bytes of all paths and CPU lists that are kept; those of a container take half a
kilobyte."""
_MAX_DEVICE_BYTES: Final = 8 << 20
"""The most bytes of the names of all devices that containers show."""


class CgroupLocator:
    """Finds the cpuset cgroup of a container: the path in its spec, else a name that runtimes use,
    else the group of its process, if the container's id is in that group's name."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy

    def group_of(self, container_id: str, status: VerboseStatus, cgroup_parent: str) -> str | None:
        """The group, None while the container has no group, or its group can't be found."""
        named = names.from_cgroups_path(status.cgroups_path)
        groups = [named] if named else []
        groups += names.container_groups(cgroup_parent, container_id)
        for group in groups:
            if self._hierarchy.exists(group):
                return group
        if not status.pid:
            return None
        try:
            of_process = self._hierarchy.group_of(status.pid)
        except CgroupError as error:
            log.warning("container %s: %s", container_id, error)
            return None
        # The pid may belong to another process by now, and many containers may share a group.
        return of_process if of_process is not None and container_id in of_process else None


class RuntimeState(msgspec.Struct, frozen=True):
    """The runtime's pods in one pass."""

    pods: tuple[Pod, ...]
    """The pods with a ready sandbox or a container that has not ended, sorted by uid."""
    statuses: dict[str, VerboseStatus]
    """By container id, for those that were inspected in this pass. It has all created containers,
    which start with the values in their status (cpuset "": every CPU of the parent)."""
    devices: tuple[ReportedDevices, ...] = ()
    """The devices and CPUs that containers show."""


class RuntimeView:
    """Lists the runtime's pods, and inspects each container once for the properties that can't
    change. A container is inspected again after a notification that its request has changed; and
    one in each pass, in case a notification was lost.

    `requests`: whether to read the requests of containers, also of those that have ended.
    `devices`: whether to read the devices that containers show, from the same answer as their
        cgroup."""

    def __init__(
        self, cri: Cri, locator: CgroupLocator, *, requests: bool = False, devices: bool = False
    ) -> None:
        self._cri = cri
        self._locator = locator
        self._requests = requests
        self._devices: dict[str, tuple[ReportedDevices, ...]] | None = {} if devices else None
        self._shares: dict[str, int] = {}
        self._hugepages: dict[str, Mapping[int, int]] = {}
        self._stale: set[str] = set()
        self._ended: dict[str, VerboseStatus] = {}
        self._sandboxes: dict[str, VerboseStatus] = {}
        self._groups: dict[str, str] = {}
        self._pids: dict[str, int] = {}
        self._unanswered: set[str] = set()
        self._skipped_until: dict[str, float] = {}  # by id, the end on the monotonic clock
        self._too_large: dict[str, ContainerState | None] = {}  # by id, the state at that time
        self._status_texts = _Texts("paths and CPUs", _MAX_STATUS_BYTES)
        self._device_texts = _Texts("names of devices", _MAX_DEVICE_BYTES)
        self._timed_out = False

    def observe(self) -> RuntimeState:
        """Raises RpcError when the runtime does not answer, or reports more than the limits."""
        self._timed_out = False
        sandboxes = self._cri.sandboxes()
        containers = self._cri.containers()
        self._forget({each.id for each in sandboxes}, {each.id for each in containers})
        self._reinspect_oldest()
        living = [each for each in containers if each.state is not ContainerState.ENDED]
        if max(len(living), sum(each.ready for each in sandboxes)) > MAX_LIVING:
            text = f"more than {MAX_LIVING} containers that have not ended, or ready sandboxes"
            raise RpcError(Code.RESOURCE_EXHAUSTED, text)
        by_sandbox: dict[str, list[Container]] = {}
        statuses: dict[str, VerboseStatus] = {}
        virtual = {each.id for each in sandboxes if each.handler.startswith(_VIRTUAL)}
        uids = {each.id: each.uid for each in sandboxes}
        for each in living:
            if each.sandbox_id in virtual:
                seen: Container | None = Container(
                    each.id, each.name, each.state, virtual=True, created_at=each.created_at
                )
            else:
                seen = self._container(each, statuses, uids.get(each.sandbox_id, ""))
            if seen is None:
                continue
            by_sandbox.setdefault(each.sandbox_id, []).append(seen)

        by_uid: dict[str, list[Sandbox]] = {}
        for sandbox in sandboxes:
            if sandbox.ready or sandbox.id in by_sandbox:
                by_uid.setdefault(sandbox.uid, []).append(sandbox)
        ended = self._newest_ended(containers) if self._requests else {}
        pods = [self._pod(of_pod, by_sandbox, ended) for _, of_pod in sorted(by_uid.items())]
        shown = (self._devices or {}).get
        devices = tuple(reported for each in living for reported in shown(each.id, ()))
        return RuntimeState(tuple(pods), statuses, devices)

    def changed(self, container_id: str) -> None:
        self._stale.add(container_id)
        self._too_large.pop(container_id, None)

    def process_of(self, pod: Pod) -> tuple[str, int]:
        """A sandbox or container of the pod, and its process on the host, 0 if the runtime does not
        report one. A runtime may have no process for sandboxes.

        Raises RpcError when the runtime does not answer."""
        for sandbox in pod.sandboxes:
            if pid := self._status(sandbox.id).pid:
                return sandbox.id, pid
        for container in pod.containers:
            if container.state is ContainerState.RUNNING:
                status = self._inspect(container.id, self._cri.container_status, container.state)
                if status is not None and status.pid:
                    return container.id, status.pid
        return "", 0

    def _container(
        self, listed: RuntimeContainer, statuses: dict[str, VerboseStatus], uid: str
    ) -> Container | None:
        """The container, None if it has just ended. Adds to `statuses` if it inspects the
        container. `uid` is empty for a pod that appeared after the sandboxes were listed."""
        group = self._groups.get(listed.id)
        stale = self._requests and (listed.id in self._stale or listed.id not in self._shares)
        unread = self._devices is not None and uid != "" and listed.id not in self._devices
        if listed.state is ContainerState.CREATED or group is None or stale or unread:
            read = partial(self._cri.container_status, carriers=unread)
            status = self._inspect(listed.id, read, listed.state)
            if status is None:
                return None
            if self._devices is not None and status.carriers is not None:
                self._devices[listed.id] = self._reported_of(listed, uid, status.carriers)
                status = msgspec.structs.replace(status, carriers=None)
            statuses[listed.id] = status
            if listed.id not in self._unanswered:
                self._shares[listed.id] = status.resources.shares or 0
                self._hugepages[listed.id] = status.resources.hugepages or {}
                self._stale.discard(listed.id)
            if listed.state is ContainerState.RUNNING and group is None:
                parent = self._status(listed.sandbox_id).cgroup_parent
                group = self._locator.group_of(listed.id, status, parent)
                if group is not None:
                    self._groups[listed.id], self._pids[listed.id] = group, status.pid
        return Container(
            listed.id,
            listed.name,
            listed.state,
            group,
            created_at=listed.created_at,
            shares=self._shares.get(listed.id, 0),
            hugepages=self._hugepages.get(listed.id, {}),
            pid=self._pids.get(listed.id, 0),
        )

    def _reinspect_oldest(self) -> None:
        if self._requests and self._shares:
            oldest = next(iter(self._shares))
            self._shares[oldest] = self._shares.pop(oldest)
            self._stale.add(oldest)

    def _newest_ended(self, containers: list[RuntimeContainer]) -> dict[str, list[EndedContainer]]:
        """By sandbox id, the newest container of each name, if it has ended."""
        newest: dict[tuple[str, str], RuntimeContainer] = {}
        for container in containers:
            last = newest.get((container.sandbox_id, container.name))
            if last is None or (container.created_at, container.id) > (last.created_at, last.id):
                newest[container.sandbox_id, container.name] = container
        by_sandbox: dict[str, list[EndedContainer]] = {}
        for container in newest.values():
            if container.state is not ContainerState.ENDED:
                continue
            status = self._ended.get(container.id) or self._inspect(
                container.id, self._cri.container_status, container.state
            )
            if status is None:
                continue
            self._ended[container.id] = status
            ran = status.resources
            ended = EndedContainer(
                container.name, container.created_at, ran.shares or 0, ran.cpuset or ""
            )
            by_sandbox.setdefault(container.sandbox_id, []).append(ended)
        return by_sandbox

    def _pod(
        self,
        sandboxes: list[Sandbox],
        by_sandbox: dict[str, list[Container]],
        ended: dict[str, list[EndedContainer]],
    ) -> Pod:
        sandboxes = sorted(sandboxes, key=lambda each: (each.created_at, each.id))
        newest = sandboxes[-1]
        containers = tuple(
            sorted(
                (one for each in sandboxes for one in by_sandbox.get(each.id, ())),
                key=lambda one: (one.name, one.id),
            )
        )
        group = self._status(newest.id).cgroup_parent or next(
            (one.group for one in containers if one.group), ""
        )
        return Pod(
            uid=newest.uid,
            namespace=newest.namespace,
            name=newest.name,
            labels=newest.labels,
            annotations=newest.annotations,
            kube_class=kube_class(group),
            created_at=sandboxes[0].created_at,
            containers=containers,
            sandboxes=tuple(
                Container(
                    each.id,
                    "",
                    ContainerState.RUNNING,
                    self._sandbox_group(each.id),
                    pid=self._status(each.id).pid,
                )
                for each in sandboxes
                if each.ready and not each.handler.startswith(_VIRTUAL)
            ),
            ended=tuple(ended.get(newest.id, ())) if newest.ready else (),
            unequal=self._status(newest.id).unequal,
        )

    def _sandbox_group(self, sandbox_id: str) -> str | None:
        group = self._groups.get(sandbox_id)
        if group is None:
            status = self._status(sandbox_id)
            group = self._locator.group_of(sandbox_id, status, status.cgroup_parent)
            if group is not None:
                self._groups[sandbox_id] = group
        return group

    def _status(self, sandbox_id: str) -> VerboseStatus:
        status = self._sandboxes.get(sandbox_id)
        if status is None:
            status = self._inspect(sandbox_id, self._cri.sandbox_status, None)
            if status is None or sandbox_id in self._unanswered:
                return VerboseStatus()
            self._sandboxes[sandbox_id] = status
        return status

    def _reported_of(
        self, container: RuntimeContainer, uid: str, carriers: reported_devices.Carriers
    ) -> tuple[ReportedDevices, ...]:
        """The devices and CPUs that a container shows. Those of its environment are left out when
        the names of all containers take more than half of _MAX_DEVICE_BYTES: the pod's author
        writes the environment, and it proves nothing.

        Raises RpcError beyond _MAX_DEVICE_BYTES."""
        reported = reported_devices.of_carriers(uid, container.name, carriers)
        if self._device_texts.total_bytes + _text_bytes(_names(reported)) > _MAX_DEVICE_BYTES // 2:
            reported = tuple(one for one in reported if one.source is not HoldingSource.ENVIRONMENT)
        self._device_texts.hold(container.id, _names(reported))
        return reported

    def _inspect(
        self, object_id: str, read: Callable[[str], VerboseStatus], state: ContainerState | None
    ) -> VerboseStatus | None:
        """Reads the status of a container or sandbox. None when it does not exist any more; an
        empty status when the runtime can't inspect only this one, for example because its shim died
        or hangs, or when the status is too large.

        `state`: of a container, None for a sandbox; after a change of the state the status may have
            another size.

        Raises RpcError when the runtime does not answer: at the second timeout of a pass."""
        if object_id in self._too_large and self._too_large[object_id] is state:
            return VerboseStatus()
        if time.monotonic() < self._skipped_until.get(object_id, 0.0):
            return VerboseStatus()
        try:
            status = read(object_id)
        except RpcError as error:
            first_timeout = error.code == Code.DEADLINE_EXCEEDED and not self._timed_out
            if error.code == Code.DEADLINE_EXCEEDED:
                self._timed_out = True
                self._skipped_until[object_id] = time.monotonic() + _SKIP_SECONDS
            if error.code in NO_ANSWER and not first_timeout:
                raise
            if error.code == Code.NOT_FOUND:
                return None
            if error.code == Code.RESOURCE_EXHAUSTED:
                self._too_large[object_id] = state
            if object_id not in self._unanswered:
                self._unanswered.add(object_id)
                log.error("the runtime can't inspect %s: %s", object_id, error)
            return VerboseStatus()
        self._unanswered.discard(object_id)
        self._too_large.pop(object_id, None)
        ran = status.resources
        texts = (status.cgroup_parent, status.cgroups_path, ran.cpuset or "", ran.mems or "")
        self._status_texts.hold(object_id, texts)
        return status

    def _forget(self, sandboxes: set[str], containers: set[str]) -> None:
        _keep(self._sandboxes, sandboxes)
        _keep(self._groups, sandboxes | containers)
        _keep(self._pids, containers)
        _keep(self._shares, containers)
        _keep(self._hugepages, containers)
        _keep(self._ended, containers)
        _keep(self._devices or {}, containers)
        self._stale &= containers
        self._unanswered &= sandboxes | containers
        _keep(self._too_large, sandboxes | containers)
        self._status_texts.keep(sandboxes | containers)
        self._device_texts.keep(containers)
        for gone in self._skipped_until.keys() - sandboxes - containers:
            del self._skipped_until[gone]


class _Texts:
    """Limits the bytes in memory of the texts that are kept for containers and sandboxes."""

    def __init__(self, what: str, most_bytes: int) -> None:
        self.total_bytes = 0
        self._what = what
        self._most_bytes = most_bytes
        self._bytes: dict[str, int] = {}

    def hold(self, object_id: str, texts: Iterable[str]) -> None:
        """Counts these texts of a container or sandbox, in place of its former ones. Raises
        RpcError if all texts together have too many bytes."""
        size = _text_bytes(texts)
        self.total_bytes += size - self._bytes.get(object_id, 0)
        self._bytes[object_id] = size
        if self.total_bytes > self._most_bytes:
            text = f"{self._what} of all containers take more than {self._most_bytes} bytes"
            raise RpcError(Code.RESOURCE_EXHAUSTED, text)

    def keep(self, present: set[str]) -> None:
        _keep(self._bytes, present)
        self.total_bytes = sum(self._bytes.values())


def _text_bytes(texts: Iterable[str]) -> int:
    """The size in memory, where one wide character makes its whole text wide."""
    return sum(map(getsizeof, texts))


def _names(reported: Iterable[ReportedDevices]) -> Iterator[str]:
    for each in reported:
        yield from (each.resource, each.claim, *each.names)


def _keep(by_id: dict[str, Any], present: set[str]) -> None:
    for gone in by_id.keys() - present:
        del by_id[gone]


def without_excluded(
    observed: RuntimeState, patterns: Patterns
) -> tuple[RuntimeState, tuple[Container, ...]]:
    """The managed part, and the excluded containers. A pod whose containers are all excluded stays
    while it has a sandbox."""
    if not patterns:
        return observed, ()
    kept: list[Pod] = []
    left: list[Container] = []
    for pod in observed.pods:
        if excludes(patterns, pod.namespace, pod.name):
            left += (*pod.containers, *pod.sandboxes)
            continue
        alone = {
            each.id
            for each in pod.containers
            if excludes(patterns, pod.namespace, pod.name, each.name)
        }
        left += (each for each in pod.containers if each.id in alone)
        others = tuple(each for each in pod.containers if each.id not in alone)
        ended = tuple(
            each for each in pod.ended if not excludes(patterns, pod.namespace, pod.name, each.name)
        )
        kept.append(msgspec.structs.replace(pod, containers=others, ended=ended))
    return msgspec.structs.replace(observed, pods=tuple(kept)), tuple(left)
