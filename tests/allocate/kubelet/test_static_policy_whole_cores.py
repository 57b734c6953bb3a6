"""Pods that a kubelet with full-pcpus-only rejects are not placed on its node."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.kubelet.static_policy import AllocationRefused, WholeCores
from agent.allocate.node_allocator.allocator import NodeAllocator, StaleOfferError
from agent.allocate.node_allocator.answer import NodeOffer
from agent.allocate.node_allocator.assigned_pods import assigned_pod_of
from agent.allocate.node_allocator.properties import NodeProperties
from agent.allocate.policies_in_force import PROFILES, NodePolicies
from agent.allocate.refusal import Refusal
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.numa_request import PartKind, kube_class_of, numa_request_of
from agent.model.pod_request import ContainerCpu, PodCpu, Reads, request_of
from tests.allocate.kubelet.nodes import Node, machine, policy
from tests.allocate.kubelet.whole_core_pods import FULL_PCPUS_ONLY, PODS, Container, Pod
from tests.allocate.node_allocator.builders import make_properties


def whole_cores(reserved: str = "0", **options: bool) -> NodeProperties:
    """16 CPUs, two adjacent ones a core, with a static kubelet; `options`: of its policy."""
    return make_properties(
        policies=NodePolicies(**{"full_pcpus_only": True, **options}),
        profile=PROFILES["proposal"],
        kubelet_static=True,
        kubelet_reserved=CpuSet.parse(reserved),
    )


def api_pod(pod: Pod) -> ApiPod:
    metadata = {"uid": pod.name, "name": pod.name, "namespace": "ns", "labels": pod.labels}
    found = apiobjects.from_object({"metadata": metadata, "spec": pod.spec()})
    return msgspec.structs.replace(found, kube_class=kube_class_of(found))


def plain(name: str, cpus: int) -> Pod:
    return Pod(name, (Container(str(cpus)),))


def answer(allocator: NodeAllocator, pod: Pod) -> NodeOffer | Refusal:
    return allocator.offer(request_of(api_pod(pod)))


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.name)
def test_pods_are_placed_as_the_kubelet_admits_them(pod: Pod) -> None:
    found = answer(NodeAllocator(whole_cores()), pod)
    if not pod.refused:
        assert isinstance(found, NodeOffer), found
    else:
        assert isinstance(found, Refusal)
        assert f"({pod.refused}, kubelet: full-pcpus-only" in found.text
        assert found.unresolvable


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod.name)
def test_other_options_of_the_static_policy_refuse_no_pod(pod: Pod) -> None:
    node = whole_cores(full_pcpus_only=False, distribute_across_numa=True)
    assert isinstance(answer(NodeAllocator(node), pod), NodeOffer)


def test_the_cpus_of_assigned_pods_are_not_available() -> None:
    """CPUs 0 and 2 are reserved: kube-scheduler sees 14 CPUs, and the kubelet assigns 12."""
    allocator = NodeAllocator(whole_cores("0,2"))
    allocator.record(assigned_pod_of(api_pod(plain("a", 8))))
    state = allocator.state(Reads.ZONES)
    assert isinstance(answer(allocator, plain("b", 4)), NodeOffer)
    allocator.record(assigned_pod_of(api_pod(plain("b", 4))))
    assert allocator.state(Reads.ZONES) != state
    found = answer(allocator, plain("c", 2))
    assert isinstance(found, Refusal)
    assert not found.unresolvable
    assert found.text == (
        "cpu: not enough CPUs that suit the bind policy (container c0, kubelet: full-pcpus-only "
        "with 2 threads a core, requested 2, available 0)"
    )
    assert isinstance(answer(allocator, plain("b", 4)), NodeOffer), "it has its own CPUs"
    assert isinstance(answer(allocator.without(["a"]), plain("c", 2)), NodeOffer)
    allocator.release("a")
    assert isinstance(answer(allocator, plain("c", 8)), NodeOffer)


def test_an_offer_is_not_committed_when_another_pod_got_the_cores() -> None:
    allocator = NodeAllocator(whole_cores("0,2"))
    first, second = (answer(allocator, plain(name, 8)) for name in "ab")
    assert isinstance(first, NodeOffer)
    assert isinstance(second, NodeOffer)
    assert allocator.commit(first) == assigned_pod_of(api_pod(plain("a", 8)))
    with pytest.raises(StaleOfferError, match="requested 8, available 4"):
        allocator.commit(second)


sizes = st.sampled_from(["500m", "1", "2", "2", "4", "4", "6"])
containers = st.lists(st.builds(Container, sizes), min_size=1, max_size=3).map(tuple)
inits = st.lists(st.builds(Container, sizes, st.just(""), st.booleans()), max_size=2).map(tuple)


def admitted(node: Node, pod: Pod) -> bool:
    """Whether the simulated kubelet admits the pod, which stays."""
    of_pod = numa_request_of(api_pod(pod)).parts
    cpus = [
        ContainerCpu(each.name, each.requests.get("cpu", 0), each.kind is PartKind.SIDECAR)
        for each in of_pod
    ]
    number = len(pod.init)
    pod_cpu = PodCpu(pod.name, "guaranteed", tuple(cpus[number:]), tuple(cpus[:number]))
    placed = [node.place(pod_cpu, each.name) for each in cpus]
    return not any(isinstance(each, AllocationRefused) for each in placed)


@given(st.lists(containers, max_size=2), containers, inits)
def test_every_refused_pod_is_refused_by_the_kubelet_too(
    others: list[tuple[Container, ...]], wanted: tuple[Container, ...], init: tuple[Container, ...]
) -> None:
    """The converse may not hold with init containers: which CPUs the kubelet reuses depends on the
    machine."""
    node = Node(policy(machine(2, 1, 4, 2), FULL_PCPUS_ONLY))
    for number, each in enumerate(others):
        admitted(node, Pod(f"other-{number}", each))
    taken = 16 - node.state.default.bit_count()
    pod = Pod("wanted", wanted, init=init)
    found = WholeCores(14, 2).refused(numa_request_of(api_pod(pod)).parts, taken)
    admits = admitted(node, pod)
    assert not (found and admits)
    if all(each.sidecar for each in init):
        assert admits == (found is None)
