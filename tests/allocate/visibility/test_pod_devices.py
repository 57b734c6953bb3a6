"""Visible devices of containers, from the annotations of a node's pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.visibility.pod_devices import (
    ContainerDeviceRequest,
    DevicePod,
    Isolation,
    PodVisibility,
    SplitError,
    container_device_requests,
    held,
    pod_visibility,
    split,
)
from agent.model.devices.device_allocation import AllocatedDevice
from agent.model.devices.device_files import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices.device_object import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from agent.model.devices.device_request import TypeRequest
from agent.model.devices.visibility import DeviceNode, Mount, NodeDevice, Visibility, VisibleGpu
from agent.model.pod.annotations import DEVICE_ALLOCATED, GPU_ISOLATION_PROVIDER
from agent.model.pod.apiobjects import ApiPod, from_object

GIB = 1 << 30


def type_request(count: int, per: Mapping[str, int] = {}, *, shared: bool = False) -> TypeRequest:
    """A request for one type, with `per` of each device."""
    total = {name: amount * count for name, amount in per.items()}
    return TypeRequest(total, count, dict(per), shared)


CM = DeviceNode("/dev/infiniband/rdma_cm", 10, 58)


def node(path: str, number: int) -> DeviceNode:
    return DeviceNode(path, 195, number)


def card(number: int, minor: int) -> CardFiles:
    """The NVML index differs from the minor."""
    gpu = VisibleGpu(f"GPU-{number}", str(number), (node(f"/dev/nvidia{minor}", minor),))
    return CardFiles(gpu, minor)


PART = VisibleGpu(
    "MIG-1", "2:0", (node("/dev/nvidia2", 2), node("/dev/nvidia-caps/nvidia-cap3", 3))
)
CARDS = (
    card(0, 1),
    card(1, 0),
    CardFiles(VisibleGpu("GPU-2", "2", (node("/dev/nvidia2", 2),)), 2, True, (PART,)),
)
FILES = DeviceFiles(
    CARDS,
    (
        OtherFiles(
            "rdma",
            "0000:17:00.0",
            0,
            (DeviceNode("/dev/infiniband/uverbs0"),),
            {
                "0000:17:00.1": (DeviceNode("/dev/infiniband/uverbs1"),),
                "0000:17:00.2": (DeviceNode("/dev/infiniband/uverbs2"),),
            },
        ),
        OtherFiles("rdma", "0000:ca:00.0", 1, (DeviceNode("/dev/infiniband/uverbs3"),)),
        OtherFiles("fpga", "0000:b1:00.0", 0, (DeviceNode("/dev/dfl-port.0"),)),
    ),
    {"rdma": (CM,)},
)


def entry(minor: int, uuid: str = "", percent: int = 100, **more: Any) -> dict[str, Any]:
    resources = {GPU_CORE: percent, GPU_MEMORY_RATIO: percent, GPU_MEMORY: percent * GIB}
    return {"minor": minor, "id": uuid, "resources": resources, **more}


def nic(minor: int, percent: int = 100, *functions: str) -> dict[str, Any]:
    body: dict[str, Any] = {"minor": minor, "resources": {RDMA: percent}}
    if functions:
        body["extension"] = {"vfs": [{"minor": 0, "busID": each} for each in functions]}
    return body


def pod(
    uid: str,
    allocated: dict[str, list[dict[str, Any]]] | str,
    *containers: ContainerDeviceRequest,
    labels: dict[str, str] | None = None,
) -> DevicePod:
    text = allocated if isinstance(allocated, str) else json.dumps(allocated)
    known = containers or None
    return DevicePod(uid, f"ns/{uid}", {DEVICE_ALLOCATED: text}, labels or {}, known)


def cards(name: str, count: int = 1, percent: int = 100) -> ContainerDeviceRequest:
    per = {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}
    return ContainerDeviceRequest(name, {"gpu": type_request(count, per, shared=percent < 100)})


def uuids(visible: Visibility) -> list[str] | None:
    return None if visible.gpus is None else [each.uuid for each in visible.gpus]


def refusals(*pods: DevicePod, **more: Any) -> dict[str, str]:
    """The reason by pod; "": its devices are visible."""
    decided = pod_visibility(pods, FILES, **more)
    return {uid: of_pod.each.refused for uid, of_pod in decided.items()}


def one(pod_: DevicePod, isolation: Isolation = Isolation()) -> PodVisibility:  # noqa: B008  a value
    return pod_visibility([pod_], FILES, isolation)[pod_.uid]


def test_each_container_sees_its_devices_and_other_containers_see_none() -> None:
    it = one(
        pod("p", {"gpu": [entry(0), entry(1)]}, cards("a"), cards("b"), ContainerDeviceRequest("c"))
    )
    assert {name: uuids(each) for name, each in it.containers.items()} == {
        "a": ["GPU-1"],
        "b": ["GPU-0"],
    }
    assert uuids(it.each) == []
    assert it.devices == {"GPU-0", "GPU-1"}
    assert it.containers["a"].gpus == (CARDS[1].gpu,)


def test_the_uuid_overrides_the_minor() -> None:
    assert uuids(one(pod("p", {"gpu": [entry(5, "GPU-1")]}, cards("a"))).containers["a"]) == [
        "GPU-1"
    ]


def test_without_container_requests_all_containers_see_the_pods_devices() -> None:
    for unknown in (
        pod("p", {"gpu": [entry(0)]}),
        pod("p", {"gpu": [entry(0)]}, ContainerDeviceRequest("a")),
    ):
        it = one(unknown)
        assert uuids(it.each) == ["GPU-1"]
        assert not it.containers


def test_an_instance_is_found_only_by_its_uuid() -> None:
    assert one(pod("p", {"gpu": [entry(2, "MIG-1")]})).each.gpus == (PART,)


@pytest.mark.parametrize(
    ("allocated", "reason"),
    [
        ({"gpu": [entry(7)]}, "gpu 7 is not on this node"),
        ({"gpu": [entry(0, "GPU-missing")]}, "gpu GPU-missing is not on this node"),
        ({"gpu": [entry(2)]}, "gpu 2 is divided, and only its MIG instances can be allocated"),
        ({"gpu": [entry(2, "GPU-2")]}, "gpu GPU-2 is divided"),
        ({"rdma": [nic(9)]}, "rdma 9 is not on this node"),
        ({"rdma": [nic(0, 1, "0000:17:00.9")]}, "rdma 0 has no virtual function 0000:17:00.9"),
        ({"gpu": [entry(0, "GPU-" + "9" * 9000)]}, f"gpu GPU-{'9' * 60} is not on this node"),
        ("{", "annotation scheduling.koordinator.sh/device-allocated: "),
        (
            {"rdma": [{"minor": 0}] * 1025},
            "annotation scheduling.koordinator.sh/device-allocated: Expected `array` of length <=",
        ),
        (
            {"rdma": [nic(0)] * 1025},
            "annotation scheduling.koordinator.sh/device-allocated: has more than 32768 bytes",
        ),
    ],
)
def test_an_allocation_that_cannot_be_applied_is_refused_with_a_reason(
    allocated: Any, reason: str
) -> None:
    it = one(pod("p", allocated, cards("a"), cards("b", 2)))
    assert it.each.refused.startswith(reason)
    assert not it.containers
    assert not it.devices


@pytest.mark.parametrize("annotations", [{}, {DEVICE_ALLOCATED: ""}, {DEVICE_ALLOCATED: "{}"}])
def test_a_pod_without_devices_has_no_decision(annotations: dict[str, str]) -> None:
    assert pod_visibility([DevicePod("p", "ns/p", annotations)], FILES) == {}


@pytest.mark.parametrize(
    "allocated", [{"gpu": [entry(0, "ascend-0")]}, {"npu": [entry(0)]}, {"npu": [], "gpu": []}]
)
def test_unknown_device_types_are_ignored(allocated: dict[str, Any]) -> None:
    """The pod has no devices, and its containers must not wait for a decision."""
    assert pod_visibility([pod("p", allocated)], FILES) == {"p": PodVisibility(Visibility())}


def test_on_a_node_without_gpus_a_gpu_without_a_uuid_is_ignored() -> None:
    none = DeviceFiles((), FILES.others, FILES.common)
    assert pod_visibility([pod("p", {"gpu": [{"minor": 0}]})], none) == {
        "p": PodVisibility(Visibility())
    }
    named = {"gpu": [entry(0, "GPU-missing")]}
    assert "is not on this node" in pod_visibility([pod("p", named)], none)["p"].each.refused


def test_one_known_card_makes_unknown_cards_of_the_list_an_error() -> None:
    it = one(pod("p", {"gpu": [entry(0, "GPU-1"), entry(0, "ascend-0")]}))
    assert it.each.refused == "gpu ascend-0 is not on this node"


def test_cards_of_another_vendor_are_ignored_with_known_devices() -> None:
    allocated: dict[str, list[dict[str, Any]]] = {"gpu": [entry(0, "ascend-0")]}
    assert one(pod("p", {**allocated, "rdma": [nic(1)]})).each.gpus is None


def test_gpus_have_no_decision_until_the_driver_has_reported_its_cards() -> None:
    before_report = DeviceFiles(None, FILES.others, FILES.common)
    pods = [pod("gpu", {"gpu": [entry(0)], "rdma": [nic(1)]}), pod("rdma", {"rdma": [nic(1)]})]
    assert list(pod_visibility(pods, before_report)) == ["rdma"]
    assert [each.uuid for each in held(before_report, {})][:2] == ["0000:17:00.0", "0000:17:00.1"]


def test_no_pod_gets_another_pods_device() -> None:
    pods = [
        pod("first", {"gpu": [entry(0)]}),
        pod("second", {"gpu": [entry(0)]}),
        pod("part", {"gpu": [entry(1, percent=60)]}),
        pod("too-much", {"gpu": [entry(1, percent=60)]}),
        pod("fits", {"gpu": [entry(1, percent=40)]}),
        pod("no-amount", {"gpu": [{"minor": 1}]}),
    ]
    assert refusals(*pods) == {
        "first": "",
        "second": "GPU-1 belongs to pod ns/first",
        "part": "",
        "too-much": "GPU-0 belongs to pod ns/part",
        "fits": "",
        "no-amount": "GPU-0 belongs to pod ns/part",
    }


def test_a_changed_annotation_gets_no_device_of_another_pod() -> None:
    """A user who may change a pod may write another card into its annotation. Then the order of
    creation does not decide."""
    pods = [
        pod("claims", {"gpu": [entry(0), entry(1)]}),
        pod("has", {"gpu": [entry(0)]}),
        pod("other", {"gpu": [entry(1)]}),
    ]
    before = {"GPU-1": {"has"}, "GPU-0": {"ended"}}
    assert refusals(*pods, before=before) == {
        "has": "",
        "other": "",
        "claims": "GPU-1 belongs to pod ns/has",
    }
    refused = refusals(*pods, before={"GPU-1": {"claims"}, "GPU-0": {"claims"}})
    assert (refused["claims"], refused["has"]) == ("", "GPU-1 belongs to pod ns/claims")


def test_a_device_that_a_plugin_assigned_to_another_pod_is_refused() -> None:
    own = pod("own", {"gpu": [entry(0)]})
    for holders, reason in (
        ({"own": "ns/own", "plugins": "ns/plugins"}, "GPU-1 belongs to pod ns/plugins"),
        ({"own": "ns/own"}, ""),
    ):
        assert refusals(own, plugin_holders={"GPU-1": holders}) == {"own": reason}


@pytest.mark.parametrize(
    ("holder", "running", "kept"),
    [
        ("pod", {"pod", "plugins"}, True),
        ("pod", {"pod"}, True),
        ("pod", set(), True),
        # Created before the owner of the card was known.
        ("pod", {"plugins"}, False),
        ("other", {"pod"}, False),
    ],
)
def test_a_running_pod_keeps_its_device_when_a_plugin_assigns_it_to_another(
    holder: str, running: set[str], kept: bool
) -> None:
    """A device plugin does not know the choice of a scheduler: the pod that runs with the card
    would lose it to the later pod."""
    plugin_holders = {"GPU-1": {"plugins": "ns/plugins"}}
    found = pod_visibility(
        [pod("pod", {"gpu": [entry(0)]})],
        FILES,
        plugin_holders=plugin_holders,
        before={"GPU-1": {holder}},
        running=running,
    )["pod"]
    assert found.devices == ({"GPU-1"} if kept else frozenset())
    assert found.each.refused == ("" if kept else "GPU-1 belongs to pod ns/plugins")


@pytest.mark.parametrize(
    "amounts", [{GPU_CORE: 0}, {GPU_CORE: 0, GPU_MEMORY_RATIO: 0}, {GPU_MEMORY_RATIO: 0}]
)
def test_a_share_of_zero_counts_as_the_whole_device(amounts: dict[str, int]) -> None:
    none = pod("none", {"gpu": [{"minor": 0, "resources": amounts}]})
    for owner in (pod("owner", {"gpu": [entry(0)]}), pod("owner", {"gpu": [entry(0, percent=30)]})):
        assert refusals(owner, none)["none"] == "GPU-1 belongs to pod ns/owner"
        assert refusals(none, owner)["owner"] == "GPU-1 belongs to pod ns/none"


def test_the_smallest_share_conflicts_with_a_whole_card() -> None:
    """The percentage of 500 MiB is 0, because schedulers round down."""
    little = {GPU_MEMORY_RATIO: 0, GPU_MEMORY: 500 << 20}
    pods = [pod(uid, {"gpu": [{"minor": 0, "resources": little}]}) for uid in ("one", "other")]
    assert not any(refusals(*pods).values())
    whole = pod("whole", {"gpu": [entry(0)]})
    assert refusals(whole, *pods)["one"] == "GPU-1 belongs to pod ns/whole"
    assert refusals(*pods, whole)["whole"] == "GPU-1 belongs to pod ns/one"


def test_core_with_memory_and_memory_alone_fit_on_one_card() -> None:
    parts = [{GPU_CORE: 100, GPU_MEMORY_RATIO: 50}, {GPU_MEMORY_RATIO: 50}]
    pods = [
        pod(f"p{index}", {"gpu": [{"minor": 0, "resources": part}]})
        for index, part in enumerate(parts)
    ]
    assert not any(refusals(*pods).values())


def test_a_pod_with_excessive_requests_keeps_its_devices() -> None:
    """Its annotation was shortened while it ran: it keeps the remaining devices."""
    shortened = pod("shortened", {"gpu": [entry(0), entry(1)]}, cards("a"), cards("b", 2))
    found = pod_visibility([shortened, pod("second", {"gpu": [entry(0)]})], FILES)
    assert found["shortened"].each.refused.startswith("container b requests 2")
    assert found["shortened"].devices == {"GPU-0", "GPU-1"}
    assert found["second"].each.refused == "GPU-1 belongs to pod ns/shortened"


def test_rdma_devices_include_the_common_device_node() -> None:
    requesting = ContainerDeviceRequest("a", {"rdma": type_request(1, {RDMA: 100})})
    it = one(pod("p", {"rdma": [nic(1)]}, requesting, ContainerDeviceRequest("b")))
    assert it.containers["a"] == Visibility(
        nodes={"rdma": (CM, DeviceNode("/dev/infiniband/uverbs3"))}
    )
    assert it.each == Visibility(nodes={"rdma": ()})


def test_the_address_overrides_the_minor_and_minors_are_separate_by_type() -> None:
    """A minor may belong to another device after a device was added. An FPGA and a NIC may have the
    same minor."""
    named = one(pod("p", {"rdma": [{**nic(0), "id": "0000:ca:00.0"}], "fpga": [{"minor": 0}]}))
    assert named.devices == {"0000:ca:00.0", "0000:b1:00.0"}
    assert named.each.nodes == {
        "fpga": (DeviceNode("/dev/dfl-port.0"),),
        "rdma": (CM, DeviceNode("/dev/infiniband/uverbs3")),
    }
    missing = one(pod("p", {"rdma": [{**nic(0), "id": "0000:99:00.0"}]}))
    assert missing.each.refused == "rdma 0000:99:00.0 is not on this node"


def test_a_virtual_function_replaces_its_device() -> None:
    it = one(pod("p", {"rdma": [nic(0, 1, "0000:17:00.2")]}))
    assert it.each.nodes == {"rdma": (CM, DeviceNode("/dev/infiniband/uverbs2"))}
    assert it.devices == {"0000:17:00.2"}


def test_a_virtual_function_is_allocated_once_and_not_together_with_its_device() -> None:
    pods = [
        pod("first", {"rdma": [nic(0, 1, "0000:17:00.1")]}),
        pod("second", {"rdma": [nic(0, 1, "0000:17:00.2")]}),
        pod("again", {"rdma": [nic(0, 1, "0000:17:00.1")]}),
        pod("whole", {"rdma": [nic(0)]}),
    ]
    assert refusals(*pods) == {
        "first": "",
        "second": "",
        "again": "0000:17:00.1 belongs to pod ns/first",
        "whole": "0000:17:00.1 belongs to pod ns/first",
    }


def test_a_share_of_a_device_does_not_block_its_virtual_functions() -> None:
    """As in the documented table and in schedulers."""
    pods = [
        pod("share", {"rdma": [nic(0, 1)]}),
        pod("function", {"rdma": [nic(0, 1, "0000:17:00.1")]}),
        pod("whole", {"rdma": [nic(0)]}),
    ]
    assert refusals(*pods) == {
        "share": "",
        "function": "",
        "whole": "0000:17:00.0 belongs to pod ns/share",
    }
    assert refusals(*pods[::-1])["function"]


def test_devices_beyond_the_requested_number_are_visible_to_every_requesting_container() -> None:
    request = {"rdma": type_request(2, {RDMA: 100})}
    it = one(
        pod(
            "p",
            {"rdma": [nic(0), nic(1)]},
            ContainerDeviceRequest("a", request),
            ContainerDeviceRequest("b", request),
        )
    )
    assert len(it.containers["a"].nodes["rdma"]) == 3
    assert it.containers["a"] == it.containers["b"]


HAMI = {GPU_ISOLATION_PROVIDER: "HAMi-core"}
LIBRARY = Isolation("/opt/libvgpu.so", "/run/lock")


def test_a_share_is_enforced_if_the_pod_requests_it() -> None:
    allocated = {"gpu": [entry(0, percent=50)]}
    it = one(pod("p", allocated, labels=HAMI), LIBRARY).each
    assert dict(it.environment) == {
        "CUDA_DEVICE_MEMORY_LIMIT": str(50 * GIB),
        "CUDA_DEVICE_SM_LIMIT": "50",
        "LD_PRELOAD": "/opt/libvgpu.so",
    }
    assert it.mounts == (
        Mount("/opt/libvgpu.so", "/opt/libvgpu.so"),
        Mount("/run/lock", "/tmp/vgpulock", writable=True),
    )
    assert not one(pod("p", allocated), LIBRARY).each.environment
    whole = one(pod("p", {"gpu": [entry(0)]}, labels=HAMI), LIBRARY).each
    assert not whole.environment
    assert not whole.mounts


def test_two_containers_on_one_card_are_limited_to_their_own_shares() -> None:
    allocated = {"gpu": [entry(0, percent=80)]}
    requests = cards("a", percent=60), cards("b", percent=20), ContainerDeviceRequest("c")
    it = one(pod("p", allocated, *requests, labels=HAMI), LIBRARY)
    limits = {
        name: dict(each.environment)["CUDA_DEVICE_MEMORY_LIMIT"]
        for name, each in it.containers.items()
    }
    assert limits == {"a": str(60 * GIB), "b": str(20 * GIB)}
    assert not it.each.environment


def test_a_share_that_cannot_be_enforced_is_refused() -> None:
    allocated = {"gpu": [entry(0, percent=50)]}
    assert "which this node does not have" in one(pod("p", allocated, labels=HAMI)).each.refused
    unlimited = Isolation("/opt/libvgpu.so", "/run/lock", "/run/lock has no limit")
    refused = one(pod("p", allocated, labels=HAMI), unlimited).each.refused
    assert refused == "its pod requests HAMi-core, and /run/lock has no limit"
    without_memory = {"gpu": [{"minor": 0, "resources": {GPU_MEMORY_RATIO: 50}}]}
    assert (
        "its part of the memory is unknown"
        in one(pod("p", without_memory, labels=HAMI), LIBRARY).each.refused
    )


def test_devices_and_holders_for_the_hooks() -> None:
    pods = [
        pod("a", {"gpu": [entry(0, percent=50)], "rdma": [nic(0, 1, "0000:17:00.1")]}),
        pod("b", {"gpu": [entry(0, percent=50)]}),
        pod("c", {"gpu": [entry(2, "MIG-1")], "rdma": [nic(1)]}),
    ]
    assert held(FILES, pod_visibility(pods, FILES)) == (
        NodeDevice("GPU-0", "0", nodes=("/dev/nvidia1",)),
        NodeDevice("GPU-1", "1", nodes=("/dev/nvidia0",), holders=("a", "b")),
        NodeDevice("GPU-2", "2", nodes=("/dev/nvidia2",)),
        NodeDevice("MIG-1", "2:0", "GPU-2", ("/dev/nvidia-caps/nvidia-cap3",), ("c",)),
        NodeDevice("0000:17:00.0"),
        NodeDevice("0000:17:00.1", nodes=("/dev/infiniband/uverbs1",), holders=("a",)),
        NodeDevice("0000:17:00.2", nodes=("/dev/infiniband/uverbs2",)),
        NodeDevice("0000:ca:00.0", holders=("c",)),
        NodeDevice("0000:b1:00.0", nodes=("/dev/dfl-port.0",)),
    )


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from([0, 1, 2]), st.sampled_from([30, 50, 100]), max_size=2),
            st.lists(st.sampled_from(["0000:17:00.1", "0000:17:00.2", ""]), max_size=2),
        ),
        max_size=6,
    )
)
def test_no_card_is_visible_to_pods_beyond_its_capacity(
    wanted: list[tuple[dict[int, int], list[str]]],
) -> None:
    pods = [
        pod(
            f"p{index}",
            {
                "gpu": [entry(minor, percent=percent) for minor, percent in cards_.items()],
                "rdma": [nic(0, 100, *([bus] if bus else [])) for bus in functions],
            },
        )
        for index, (cards_, functions) in enumerate(wanted)
    ]
    found = pod_visibility(pods, FILES)
    used: dict[str, int] = {}
    functions_seen: list[str] = []
    for index, (cards_, _) in enumerate(wanted):
        it = found.get(f"p{index}")
        if it is None or it.each.refused:
            continue
        for each in it.each.gpus or ():
            assert each.uuid in it.devices
        for minor, percent in cards_.items():
            used[CARDS[minor].gpu.uuid] = used.get(CARDS[minor].gpu.uuid, 0) + percent
        functions_seen += sorted(
            {each.path for each in it.each.nodes.get("rdma", ()) if each.path[-1] in "12"}
        )
    assert all(percent <= 100 for percent in used.values())
    assert len(functions_seen) == len(set(functions_seen))


KIND = "gpu"


def card_list(*percents: int) -> list[AllocatedDevice]:
    return [
        AllocatedDevice(minor, f"GPU-{minor}", {GPU_CORE: each, GPU_MEMORY_RATIO: each})
        for minor, each in enumerate(percents)
    ]


def whole(
    name: str, count: int, *, init: bool = False, sidecar: bool = False
) -> ContainerDeviceRequest:
    request = type_request(count, {GPU_CORE: 100, GPU_MEMORY_RATIO: 100})
    return ContainerDeviceRequest(name, {KIND: request}, init, sidecar)


def part(name: str, percent: int, count: int = 1) -> ContainerDeviceRequest:
    request = type_request(count, {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}, shared=True)
    return ContainerDeviceRequest(name, {KIND: request})


NONE = ContainerDeviceRequest("none")


@pytest.mark.parametrize(
    ("allocated", "containers", "shares"),
    [
        pytest.param(card_list(100, 100), [whole("a", 2)], {"a": (0, 1)}, id="one container"),
        pytest.param(
            card_list(100, 100, 100),
            [whole("a", 2), NONE, whole("b", 1)],
            {"a": (0, 1), "b": (2,)},
            id="in the order of the specification",
        ),
        pytest.param(
            card_list(80),
            [part("a", 50), part("b", 30), NONE],
            {"a": (0,), "b": (0,)},
            id="shared",
        ),
        pytest.param(
            card_list(100, 100),
            [part("a", 40), whole("b", 1), part("c", 60)],
            {"b": (0,), "a": (1,), "c": (1,)},
            id="whole card_list first",
        ),
        pytest.param(
            card_list(50, 50),
            [part("a", 50), part("b", 50)],
            {"a": (0,), "b": (1,)},
            id="not enough left on one card",
        ),
        pytest.param(card_list(50, 50), [part("a", 50, 2)], {"a": (0, 1)}, id="spread over two"),
        pytest.param(
            card_list(100, 100),
            [whole("i", 2, init=True), whole("j", 1, init=True), whole("a", 1), whole("b", 1)],
            {"i": (0, 1), "j": (0,), "a": (0,), "b": (1,)},
            id="init containers use the same cards",
        ),
        pytest.param(
            card_list(100, 100, 100),
            [
                whole("i", 1, init=True),
                whole("s", 1, init=True, sidecar=True),
                whole("j", 2, init=True),
                whole("a", 2),
            ],
            {"i": (0,), "s": (0,), "j": (1, 2), "a": (1, 2)},
            id="a sidecar keeps its card",
        ),
        pytest.param(
            [AllocatedDevice(0), AllocatedDevice(1)],
            [
                ContainerDeviceRequest("a", {KIND: type_request(1)}),
                ContainerDeviceRequest("b", {KIND: type_request(1)}),
            ],
            {"a": (0,), "b": (1,)},
            id="unknown amounts",
        ),
        pytest.param(card_list(100, 100), [NONE], {}, id="no requests"),
    ],
)
def test_shares(
    allocated: list[AllocatedDevice],
    containers: list[ContainerDeviceRequest],
    shares: dict[str, tuple[int, ...]],
) -> None:
    assert split(allocated, KIND, containers) == shares


@pytest.mark.parametrize(
    "containers",
    [
        [whole("a", 2), whole("last", 1)],
        [part("a", 60), part("b", 60), part("last", 60)],
        [whole("s", 1, init=True, sidecar=True), whole("last", 2)],
    ],
)
def test_requests_beyond_the_pods_allocation(containers: list[ContainerDeviceRequest]) -> None:
    with pytest.raises(SplitError, match="container last requests"):
        split(card_list(100, 100), KIND, containers)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 2))
def test_containers_that_run_at_once_share_no_whole_card(counts: list[int], spare: int) -> None:
    containers = [whole(str(index), count) for index, count in enumerate(counts)]
    allocated = card_list(*[100] * (sum(counts) + spare))
    shares = split(allocated, KIND, containers)
    taken = [index for each in shares.values() for index in each]
    if len(containers) > 1:
        assert len(taken) == len(set(taken)) == sum(counts)
        assert [len(shares[each.name]) for each in containers] == counts
    else:
        assert len(taken) == len(allocated)


def api_pod(containers: list[Any], init: list[Any]) -> ApiPod:
    return from_object(
        {
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": containers, "initContainers": init},
        }
    )


def container(name: str, limits: dict[str, str], **more: str) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits}, **more}


def test_requests_are_in_the_order_in_which_containers_start() -> None:
    it = api_pod(
        [container("a", {"nvidia.com/gpu": "2", "cpu": "3"}), container("b", {RDMA: "100"})],
        [
            container("i", {GPU: "50"}),
            container("s", {}, restartPolicy="Always"),
        ],
    )
    half = {GPU_CORE: 50, GPU_MEMORY_RATIO: 50}
    whole = {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}
    both = {GPU_CORE: 200, GPU_MEMORY_RATIO: 200}
    assert container_device_requests(it) == (
        ContainerDeviceRequest("i", {"gpu": TypeRequest(half, 1, half, True)}, init=True),
        ContainerDeviceRequest("s", init=True, sidecar=True),
        ContainerDeviceRequest("a", {"gpu": TypeRequest(both, 2, whole)}),
        ContainerDeviceRequest("b", {"rdma": TypeRequest({RDMA: 100}, 1, {RDMA: 100})}),
    )


def test_an_incomplete_share_makes_the_requests_unknown() -> None:
    it = api_pod([container("a", {GPU_CORE: "50"}), container("b", {GPU_MEMORY_RATIO: "50"})], [])
    assert container_device_requests(it) is None


def test_restart_policy_always_is_ignored_on_a_container_that_is_not_an_init_container() -> None:
    requests = container_device_requests(api_pod([container("a", {}, restartPolicy="Always")], []))
    assert requests == (ContainerDeviceRequest("a"),)
