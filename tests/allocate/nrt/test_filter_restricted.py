"""The filter for the kubelet's policies restricted and single-numa-node, compared with a simulation
of the kubelet: its CPU manager, the merge of hints, and a device manager."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from agent.allocate.kubelet.static_policy import AllocationRefused, StaticOptions
from agent.allocate.nrt.filter import filter
from agent.allocate.nrt.node import ZonedNode, zoned_node
from agent.allocate.numa.hint import Merged, TopologyHint, ids, subsets
from agent.allocate.refusal import Refusal
from agent.model.cpu import layout as layouts
from agent.model.cpu.policies import NumaPolicy
from agent.model.nrt.node_annotations import AGENT_SETTINGS, CPU_MANAGER_POLICY
from agent.model.nrt.resource_topology import Amounts, NodeTopology, Zone
from agent.model.pod.apiobjects import ApiContainer, ApiPod
from agent.model.pod.numa_request import kube_class_of, numa_request_of
from agent.model.pod_request import ContainerCpu, PodCpu
from conformance import machines, static_cpu_manager
from conformance.merge_hints import kubelet_merge
from conformance.static_cpu_manager import StaticPolicy, StaticState
from tests.allocate.nrt.values import CPU, NIC, api_pod, container, sidecar

STATIC = {
    CPU_MANAGER_POLICY: '{"policy": "static"}',
    AGENT_SETTINGS: '{"memoryManagerPolicy": "None"}',
}
SHAPES = [(1, 2, 2, 2), (2, 1, 4, 2), (2, 2, 2, 2), (1, 4, 2, 1), (2, 2, 3, 2)]


class Kubelet:
    """Admits one pod. `free`: the free NICs of each NUMA node."""

    def __init__(
        self,
        policy: StaticPolicy,
        state: StaticState,
        free: dict[int, int],
        total: dict[int, int],
        numa: NumaPolicy = NumaPolicy.RESTRICTED,
    ) -> None:
        self._numa = numa
        self._policy = policy
        self._state = state
        self._free = dict(free)
        self._total = total
        self._reusable: dict[int, int] = {}

    def admits(self, pod: ApiPod, scope: str) -> bool:
        cpus, total = _pod_cpu(pod), numa_request_of(pod).whole.requests
        affinity = None
        if scope == "pod":
            hints = static_cpu_manager.pod_hints(self._policy, self._state, cpus)
            affinity = self._merged(hints, total[NIC])
            if not affinity.admit:
                return False
        for each in (*pod.init_containers, *pod.containers):
            merged = affinity
            if merged is None:
                hints = static_cpu_manager.container_hints(
                    self._policy, self._state, cpus, each.name
                )
                merged = self._merged(hints, each.requests.get(NIC, 0))
            init = each in pod.init_containers and not each.sidecar
            if not merged.admit or not self._allocate(cpus, each, merged.mask, init=init):
                return False
        return True

    def _merged(self, cpus: tuple[TopologyHint, ...] | None, nics: int) -> Merged:
        nodes = [node.id for node in self._policy.layout.nodes]
        providers = [{"cpu": cpus}, {NIC: self._device_hints(nics)}]
        return kubelet_merge(providers, nodes, self._numa)

    def _device_hints(self, requested: int) -> tuple[TopologyHint, ...] | None:
        if not requested:
            return None
        hints, least = [], len(self._total)
        for mask in subsets(self._total):
            nodes = ids(mask)
            if sum(self._total[node] for node in nodes) >= requested:
                least = min(least, len(nodes))
            if any(count and node not in nodes for node, count in self._reusable.items()):
                continue
            if sum(self._free[node] + self._reusable.get(node, 0) for node in nodes) >= requested:
                hints.append(mask)
        return tuple(TopologyHint(mask, mask.bit_count() == least) for mask in hints)

    def _allocate(self, pod: PodCpu, one: ApiContainer, mask: int | None, *, init: bool) -> bool:
        nodes = None if mask is None else ids(mask)
        self._state, placed = static_cpu_manager.allocate(
            self._policy, self._state, pod, one.name, nodes
        )
        missing = one.requests.get(NIC, 0)
        allocated: dict[int, int] = {}
        for source in (self._reusable, self._free):
            for node in nodes or self._total:
                part = min(source.get(node, 0), missing)
                source[node] = source.get(node, 0) - part
                allocated[node] = allocated.get(node, 0) + part
                missing -= part
        if init:
            for node, count in allocated.items():
                self._reusable[node] = self._reusable.get(node, 0) + count
        return not missing and not isinstance(placed, AllocationRefused)


def _pod_cpu(pod: ApiPod) -> PodCpu:
    def of(each: ApiContainer) -> ContainerCpu:
        return ContainerCpu(each.name, each.requests.get("cpu", 0), each.sidecar)

    return PodCpu(
        pod.uid,
        kube_class_of(pod),
        tuple(map(of, pod.containers)),
        tuple(map(of, pod.init_containers)),
    )


@st.composite
def cases(
    draw: st.DrawFn, numa: NumaPolicy = NumaPolicy.RESTRICTED
) -> tuple[Kubelet, ZonedNode, ApiPod, str]:
    shape = draw(st.sampled_from(SHAPES))
    layout_ = layouts.of(machines.cpus(shape, "adjacent"))
    cpus = sorted(cpu for node in layout_.nodes for cpu in ids(node.cpus))
    reserved = draw(st.sets(st.sampled_from(cpus), min_size=1, max_size=2))
    held = draw(st.sets(st.sampled_from(cpus), max_size=len(cpus) // 2)) - reserved
    reserved_mask, held_mask = (sum(1 << cpu for cpu in some) for some in (reserved, held))
    options = StaticOptions()
    policy = static_cpu_manager.make(layout_, options, numa, reserved_mask)
    state = StaticState(layout_.cpus & ~held_mask, {"other": {"c": held_mask}} if held else {})
    total = {node.id: draw(st.integers(0, 2)) for node in layout_.nodes}
    free = {node: draw(st.integers(0, count)) for node, count in total.items()}
    left = {"cpu": CPU * policy.available(state).bit_count(), "nic": sum(free.values())}

    one = {"cpu": CPU * layout_.nodes[0].cpus.bit_count(), "nic": max(total.values())}
    scope = draw(st.sampled_from(["pod", "container"]))

    def requested(*, last: bool = False, threads: int = 1) -> dict[str, int]:
        """At most what kube-scheduler itself admits; CPUs in multiples of `threads`. The amounts of
        several NUMA nodes do not determine which CPUs the kubelet takes: in the scope container,
        only the last container needs several NUMA nodes."""
        most = (
            left if last or scope == "pod" else {name: min(left[name], one[name]) for name in one}
        )
        step = threads * CPU
        cpu = draw(st.sampled_from([0, 500, *range(step, most["cpu"] + 1, step)]))
        amounts = {"cpu": min(cpu, left["cpu"]), "nic": draw(st.integers(0, most["nic"]))}
        for name, amount in amounts.items():
            left[name] -= amount
        return amounts

    kinds = draw(st.lists(st.sampled_from([container, sidecar]), max_size=1))
    # The kubelet may not reuse the CPU of an init container if it is a part of a core.
    init = tuple(
        kind(f"i{place}", memory=1, **requested(threads=shape[3] if kind is container else 1))
        for place, kind in enumerate(kinds)
    )
    others = [
        container(f"c{place}", memory=1, **requested()) for place in range(draw(st.integers(0, 2)))
    ]
    containers = [*others, container("last", memory=1, **requested(last=True))]
    zones = tuple(
        Zone(
            node.id,
            {
                "cpu": Amounts(
                    CPU * node.cpus.bit_count(),
                    CPU * node.cpus.bit_count(),
                    CPU * (node.cpus & ~reserved_mask & ~held_mask).bit_count(),
                ),
                **(
                    {NIC: Amounts(total[node.id], total[node.id], free[node.id])}
                    if any(total.values())
                    else {}
                ),
            },
        )
        for node in layout_.nodes
    )
    topology = NodeTopology("n", zones, numa.value, scope, annotations=STATIC)
    kubelet = Kubelet(policy, state, free, total, numa)
    return kubelet, zoned_node(topology, (NIC,)), api_pod(*containers, init=init), scope


@given(cases())
def test_a_pod_passes_if_the_kubelet_admits_it(
    case: tuple[Kubelet, ZonedNode, ApiPod, str],
) -> None:
    kubelet, node, pod, scope = case
    found = filter(node, numa_request_of(pod))
    assert kubelet.admits(pod, scope) is not isinstance(found, Refusal), found


@given(cases(NumaPolicy.SINGLE_NUMA_NODE))
def test_a_kubelet_with_single_numa_node_admits_the_pods_that_pass(
    case: tuple[Kubelet, ZonedNode, ApiPod, str],
) -> None:
    """It also admits containers with parts of a CPU that do not pass: they share the CPUs."""
    kubelet, node, pod, scope = case
    passes = not isinstance(filter(node, numa_request_of(pod)), Refusal)
    event("passes" if passes else "does not pass")
    assert not passes or kubelet.admits(pod, scope)


def test_under_single_numa_node_a_container_fits_on_the_numa_node_of_an_init_container() -> None:
    """6 CPUs of the first NUMA node and 8 of the second one are free. The kubelet puts the init
    container on the first one, and lets the next container reuse its CPUs."""
    layout_ = layouts.of(machines.cpus((1, 2, 4, 2), "adjacent"))
    single = NumaPolicy.SINGLE_NUMA_NODE
    policy = static_cpu_manager.make(layout_, StaticOptions(), single, 0b11)
    zones = tuple(
        Zone(node.id, {"cpu": Amounts(8000, 8000, free)})
        for node, free in zip(layout_.nodes, (6000, 8000), strict=True)
    )
    node = zoned_node(NodeTopology("n", zones, "single-numa-node", annotations=STATIC), (NIC,))
    for cpus, admitted in ((6, True), (7, False)):
        main = container("main", memory=1, cpu=cpus * CPU, nic=0)
        pod = api_pod(main, init=(container("init", memory=1, cpu=2 * CPU, nic=0),))
        state = StaticState(layout_.cpus, {})
        kubelet = Kubelet(policy, state, {0: 0, 1: 0}, {0: 0, 1: 0}, single)
        assert kubelet.admits(pod, "container") is admitted
        found = filter(node, numa_request_of(pod))
        assert isinstance(found, Refusal) is not admitted
        if isinstance(found, Refusal):
            assert found.text == (
                "container main requests 7 cpu: the kubelet's topology manager prefers 1 NUMA "
                "node: at most 6 left there"
            )
