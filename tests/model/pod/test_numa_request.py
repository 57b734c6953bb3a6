from __future__ import annotations

from typing import Any

import pytest

from agent.model.pod.apiobjects import ApiContainer
from agent.model.pod.numa_request import PartKind, exclusive, foreign, kube_class_of
from tests.allocate.nrt.values import CPU, GPU, api_pod, container, pod, sidecar

GIB = 1 << 30
GUARANTEED = {"cpu": CPU, "memory": GIB}


def test_parts_are_the_init_containers_and_then_the_others() -> None:
    found = pod(container("a"), container("b"), init=(container("i"), sidecar("s")))
    assert [(part.kind, part.name) for part in found.parts] == [
        (PartKind.INIT, "i"),
        (PartKind.SIDECAR, "s"),
        (PartKind.CONTAINER, "a"),
        (PartKind.CONTAINER, "b"),
    ]


def test_the_whole_counts_sidecars_overhead_and_pod_level_resources() -> None:
    init = (sidecar(cpu=CPU, gpu=1), container("i", cpu=5 * CPU))
    found = pod(container(cpu=2 * CPU, gpu=1), init=init, overhead={"cpu": 10, "memory": 5})
    assert found.whole.requests == {"cpu": 6010, GPU: 2, "memory": 5}
    own = pod(container(cpu=2 * CPU, gpu=1), init=init, requests={"cpu": 9 * CPU})
    assert own.whole.requests == {"cpu": 9 * CPU, GPU: 2}


@pytest.mark.parametrize(
    ("containers", "more", "expected"),
    [
        ([container()], {}, "besteffort"),
        ([container(gpu=1)], {}, "besteffort"),
        ([container(cpu=0, memory=0)], {}, "besteffort"),
        ([container(**GUARANTEED)], {}, "guaranteed"),
        ([container(**GUARANTEED), container()], {}, "burstable"),
        ([container(limited=False, **GUARANTEED)], {}, "burstable"),
        ([container(cpu=CPU)], {}, "burstable"),
        ([ApiContainer("a", {}, GUARANTEED)], {}, "burstable"),
        ([ApiContainer("a", GUARANTEED, {**GUARANTEED, "cpu": 2 * CPU})], {}, "burstable"),
        ([container()], {"requests": GUARANTEED, "limits": GUARANTEED}, "guaranteed"),
        ([container(**GUARANTEED)], {"requests": GUARANTEED}, "burstable"),
        ([container(**GUARANTEED)], {"requests": GUARANTEED, "limits": {"cpu": CPU}}, "burstable"),
    ],
)
def test_the_class_equals_the_api_servers(
    containers: list[ApiContainer], more: dict[str, Any], expected: str
) -> None:
    assert kube_class_of(api_pod(*containers, **more)) == expected


def test_init_containers_count_for_the_class() -> None:
    assert kube_class_of(api_pod(container(**GUARANTEED), init=(container(),))) == "burstable"


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("ephemeral-storage", False),
        ("nvidia.com/gpu", True),
        ("attachable-volumes.kubernetes.io/x", False),
    ],
)
def test_devices_are_not_native_kubernetes_resources(resource: str, expected: bool) -> None:
    assert foreign(resource) is expected


@pytest.mark.parametrize(
    ("numa_request_of", "expected"),
    [
        (pod(container(**GUARANTEED)), True),
        (pod(container(cpu=1500, memory=0)), False),
        (pod(container(**GUARANTEED, limited=False)), False),
        (pod(container(gpu=1, limited=False)), True),
        (pod(container(nic=1, limited=False)), False),
        (pod(container(cpu=1, limited=False), init=(container("i", gpu=1),)), False),
        (pod(container(cpu=1, limited=False), init=(sidecar(gpu=1),)), True),
        (pod(container(cpu=500, memory=GIB)), True),
        (pod(container(cpu=500, limited=False, **{"hugepages-2Mi": GIB})), False),
        (pod(container(gpu=0, limited=False)), False),
        (pod(container(**GUARANTEED), requests=GUARANTEED, limits=GUARANTEED), False),
        (pod(container(**GUARANTEED, gpu=1), requests=GUARANTEED, limits=GUARANTEED), True),
    ],
)
def test_pods_with_exclusive_resources(numa_request_of: Any, expected: bool) -> None:
    assert exclusive(numa_request_of, {"cpu", "memory", GPU}) is expected


def test_a_resized_container_takes_its_effective_requests() -> None:
    resized = ApiContainer("a", GUARANTEED, GUARANTEED, resized={"cpu": 3 * CPU})
    found = pod(resized, init=(sidecar(cpu=CPU, memory=GIB),))
    assert found.parts[1].taken == {"cpu": 3 * CPU, "memory": GIB}
    assert found.whole.taken == {"cpu": 4 * CPU, "memory": 2 * GIB}
