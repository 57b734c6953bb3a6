"""The node-local CPU policy: derives claims of CPUs from settings and requests of containers."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from agent.allocate.kubelet.static_policy import PolicyStartError, StaticOptions, check_options
from agent.allocate.node_local.claim import LocalInput, LocalPolicy, LocalRequest, LocalRules
from agent.allocate.shares import may_own, whole_cpus
from agent.discover.cpus import TopologyView, huge_pages
from agent.discover.sysfs import DiscoveryError
from agent.kubelet import cpu_manager_state
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.kubelet.statefile import StateFileError
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.cpu.layout import Layout
from agent.model.cpu.policies import NumaPolicy
from agent.model.cpu.topology import Topology
from agent.model.devices.holding import DeviceNodes
from agent.model.pod.pods import Pod
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.model.snapshot import CpuPolicy, LocalOwner
from agent.node.node_configuration import kept_by_kubelet
from agent.node.notifications import AnnouncedContainer

log = logging.getLogger(__name__)

_NO_OPTIONS: Final = StaticOptions()


class NodeLocalCpus:
    """Derives CPU claims under the policy of the settings; there are none under the policy `none`.

    The policy is suspended while the kubelet has the static policy, to which it may switch while
    the agent runs.

    `root`: where the host's /sys is."""

    def __init__(
        self,
        policy: CpuPolicy = "none",
        options: StaticOptions = _NO_OPTIONS,
        reserved: CpuSet = EMPTY,
        root: str = "/",
    ) -> None:
        self._policy = LocalPolicy(policy)
        self._options = options
        self._reserved = reserved
        self._root = root
        self._layout: tuple[Topology, Layout] | None = None
        self._suspended = False

    def check_policy(self, kubelet_static: bool) -> CpuPolicy:
        """The policy in force. A kubelet with the static policy suspends it, which is logged
        once."""
        if kubelet_static and self._policy is not LocalPolicy.NONE and not self._suspended:
            log.error(
                "%s; until then the policy is suspended",
                _static_kubelet_conflict(self._policy.value),
            )
        self._suspended = kubelet_static
        return "none" if kubelet_static else self._policy.value

    def decision_input(
        self,
        topology: Topology,
        pods: tuple[Pod, ...],
        announced: Collection[AnnouncedContainer],
        holds: Mapping[str, CpuSet],
        last: Mapping[tuple[str, str], LocalOwner],
        of_dra: Mapping[str, Collection[str]] = MappingProxyType({}),
        device_nodes: DeviceNodes | None = MappingProxyType({}),
    ) -> LocalInput:
        """The input of the node-local policy.

        `holds`: by container id, the CPUs of its cgroup.
        `last`: by pod uid and container name, the last decision.
        `of_dra`: by pod uid, the containers with CPUs of a resource claim (DRA), which get no
            other CPUs.
        `device_nodes`: None while they are not known; then no container moves to better CPUs."""
        if self._layout is None or self._layout[0] != topology:
            self._layout = topology, layouts.of_topology(topology)
        rules = LocalRules(self._policy, self._layout[1], self._options, self._reserved)
        if device_nodes is None:
            rules = msgspec.structs.replace(rules, max_moves=0)
        claimed: set[str] = set()
        sharing: set[tuple[str, str]] = set()
        claims: dict[tuple[str, str], LocalRequest] = {}
        expected: dict[str, list[AnnouncedContainer]] = {}
        for container in announced:
            expected.setdefault(container.uid, []).append(container)
        for pod in pods:
            coming = expected.get(pod.uid, [])
            if may_own(pod) and _virtual(pod):
                sharing.update((pod.uid, container.name) for container in coming)
            elif may_own(pod):
                given = of_dra.get(pod.uid, ())
                sharing.update((pod.uid, name) for name in given)
                for claim, container_id in _claims(pod, coming, holds, last):
                    claimed.add(container_id)
                    if claim.name not in given:
                        claims[claim.key] = claim
        others = (
            holds[container.id]
            for pod in pods
            for container in pod.containers
            if container.id in holds and container.id not in claimed
        )
        located = tuple(_located(claims.values(), device_nodes or {}))
        coming_pages = any(request.hugepages and not request.owned for request in located)
        nodes = [numa_node.id for numa_node in topology.numa_nodes] if coming_pages else []
        hugepages = huge_pages(self._root, nodes)
        return LocalInput(rules, located, union(others), frozenset(sharing), hugepages)


def _located(claims: Collection[LocalRequest], device_nodes: DeviceNodes) -> Iterator[LocalRequest]:
    """Adds the NUMA nodes of the devices of each container. A container without devices gets those
    of all devices of its pod, because another container of the pod may get its CPUs later."""
    of_pods: dict[str, list[CpuSet]] = {}
    for (uid, _), of_container in device_nodes.items():
        of_pods.setdefault(uid, []).extend(of_container)
    for each in claims:
        own = device_nodes.get(each.key, ())
        devices = own if any(own) else of_pods.get(each.uid, ())
        near = Counter(node for nodes in devices for node in nodes)
        yield msgspec.structs.replace(each, devices=near) if near else each


def _claims(
    pod: Pod,
    announced: list[AnnouncedContainer],
    holds: Mapping[str, CpuSet],
    last: Mapping[tuple[str, str], LocalOwner],
) -> Iterator[tuple[LocalRequest, str]]:
    """The claims of a pod's containers, each with the container's id, "" if it has none. If several
    containers have one name, the claim is the newest one's; an announced container is newer than
    one that has ended."""

    def claim(
        name: str,
        created_at: int,
        shares: int,
        held: CpuSet | None,
        hugepages: Mapping[int, int] = MappingProxyType({}),
        *,
        ended: bool = False,
    ) -> LocalRequest:
        before = last.get((pod.uid, name))
        owned = CpuSet.parse(before.cpuset) if before else None
        original = CpuSet.parse(before.original) if before else EMPTY
        # A container whose request is unknown keeps its CPUs.
        cpus = whole_cpus(shares) if shares else len(owned or EMPTY)
        return LocalRequest(
            pod.uid,
            name,
            created_at,
            cpus,
            held,
            owned,
            original,
            ended,
            hugepages=hugepages,
        )

    seen: set[str] = set()
    for each in sorted(pod.containers, key=lambda one: (one.created_at, one.id), reverse=True):
        if each.name in seen:
            continue
        seen.add(each.name)
        held = holds.get(each.id)
        of_container = claim(each.name, each.created_at, each.shares, held, each.hugepages)
        if of_container.cpus:
            yield of_container, each.id
    for coming in announced:
        if coming.name not in seen:
            seen.add(coming.name)
            requested = coming.requested
            shares, hugepages = requested.shares or 0, requested.hugepages or {}
            yield claim(coming.name, coming.created_at, shares, None, hugepages), ""
    for past in pod.ended:
        if past.name in seen:
            continue
        try:
            had: CpuSet | None = CpuSet.parse(past.cpuset) or None
        except CpuSetError:
            had = None
        of_container = claim(past.name, past.created_at, past.shares, had, ended=True)
        if of_container.cpus:
            yield of_container, ""


def _virtual(pod: Pod) -> bool:
    """Whether its containers run in a virtual machine. The first container of a pod is virtual when
    the pod has no sandbox on this kernel."""
    if pod.containers:
        return any(container.virtual for container in pod.containers)
    return not pod.sandboxes


def configured(
    settings: AgentSettings, machine: TopologyView, kubelet: KubeletConfiguration | None
) -> NodeLocalCpus:
    """The node-local policy of the settings.

    `kubelet`: its configuration, None if unknown.

    Raises SettingsError that names the option."""
    if settings.cpu_policy == "none":
        return NodeLocalCpus()
    try:
        topology = machine.topology()
    except DiscoveryError as error:
        raise SettingsError(f"cpu-policy: {error}") from None
    options = static_options(settings.cpu_policy_options)
    layout = layouts.of_topology(topology)
    try:
        check_options(options, layout, NumaPolicy.NONE)
    except PolicyStartError as error:
        raise SettingsError(f"cpu-policy-options: {error}") from None
    reserved = _reserved(settings, topology) or _kubelets_reserved(
        settings.cpu_policy, topology, kubelet
    )
    return NodeLocalCpus(settings.cpu_policy, options, reserved, settings.root)


def _reserved(settings: AgentSettings, topology: Topology) -> CpuSet:
    """The CPUs that the settings reserve. Raises SettingsError."""
    reserved = named_reserved(settings)
    if missing := reserved - topology.online - topology.offline:
        raise SettingsError(f"reserved-cpus: CPUs {missing} do not exist")
    return reserved


def _kubelets_reserved(
    policy: CpuPolicy, topology: Topology, kubelet: KubeletConfiguration | None
) -> CpuSet:
    """The CPUs that a kubelet with the static policy would reserve. Raises SettingsError if there
    are none: without them the shared pool could become empty, so such a kubelet does not start
    (pkg/kubelet/cm/cpumanager, NewManager)."""
    try:
        cpus = kept_by_kubelet(kubelet, topology) if kubelet else EMPTY
    except ConfigurationError as error:
        raise SettingsError(f"cpu-policy: {error}") from None
    if not cpus:
        why = (
            f"the kubelet reserves no CPU ({kubelet.source})"
            if kubelet
            else ("the kubelet's configuration is not known")
        )
        raise SettingsError(
            f"cpu-policy is {policy}, and {why}: set reserved-cpus, or the kubelet's "
            "reservedSystemCPUs, kubeReserved or systemReserved"
        )
    return cpus


def named_reserved(settings: AgentSettings) -> CpuSet:
    """The CPUs of `reserved-cpus`. Raises SettingsError."""
    try:
        return CpuSet.parse(settings.reserved_cpus)
    except CpuSetError as error:
        raise SettingsError(f"reserved-cpus: {error}") from None


def check_kubelet(settings: AgentSettings) -> None:
    """Raises SettingsError when the kubelet has the static policy: each would assign CPUs of the
    other. An unreadable state is ignored."""
    if settings.cpu_policy == "none":
        return
    path = os.path.join(settings.kubelet_dir, cpu_manager_state.FILE_NAME)
    try:
        state = cpu_manager_state.read(path)
    except StateFileError as error:
        log.error("%s", error)
        return
    if state.static:
        raise SettingsError(f"{_static_kubelet_conflict(settings.cpu_policy)} ({path})")


def _static_kubelet_conflict(policy: str) -> str:
    return (
        f"cpu-policy is {policy}, but the kubelet's cpuManagerPolicy is static: set cpu-policy to "
        "none, or drain the node, stop the kubelet, set its cpuManagerPolicy to none, remove its "
        f"{cpu_manager_state.FILE_NAME} and start it"
    )


def static_options(names: str) -> StaticOptions:
    """The options of `cpu-policy-options`. Raises SettingsError."""
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(StaticOptions)}
    chosen = {}
    for each in names.split(","):
        name = each.strip()
        if not name:
            continue
        if name not in fields:
            raise SettingsError(
                f"cpu-policy-options: {name[:60]!r} is not one of {', '.join(sorted(fields))}"
            )
        chosen[fields[name]] = True
    return StaticOptions(**chosen)
