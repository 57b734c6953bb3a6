"""The changes of a request that make the allocated devices visible to a container."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.hooks import visibility
from agent.hooks.carriers import Carried
from agent.hooks.requests import (
    UNCHANGED,
    CarriedNode,
    Changes,
    DeviceFields,
    not_settable,
    with_device_changes,
)
from agent.hooks.visibility import RefusedError
from agent.model.devices.visibility import (
    MOUNT_ROOT,
    DeviceNode,
    Mount,
    NodeDevice,
    NodeVisibility,
    UnrequestedGpus,
    Visibility,
    VisibleGpu,
)
from agent.model.linux_resources import LinuxResources
from agent.model.verdict import FailureReason
from tests.hooks.refusals import refused

ENV = "NVIDIA_VISIBLE_DEVICES"
KIND = "k8s.device-plugin.nvidia.com/gpu"
A = VisibleGpu("GPU-a", "0", (DeviceNode("/dev/nvidia4", 195, 4),))
B = VisibleGpu("GPU-b", "1", (DeviceNode("/dev/nvidia5", 195, 5),))
MIG = VisibleGpu(
    "MIG-c",
    "2:0",
    (DeviceNode("/dev/nvidia6", 195, 6), DeviceNode("/dev/nvidia-caps/nvidia-cap12", 237, 12)),
)
NODE = NodeVisibility()


def env(value: str) -> Changes:
    return Changes(environment=((ENV, value),))


def node_of(path: str, permissions: str = "rw") -> CarriedNode:
    return CarriedNode(path, path, permissions)


@pytest.mark.parametrize(
    ("carried", "chosen", "changed"),
    [
        pytest.param(Carried(("GPU-x",)), [A], env("GPU-a"), id="by UUID"),
        pytest.param(Carried(("0,1",)), [B], env("GPU-b"), id="number becomes UUID"),
        pytest.param(Carried(("all",)), [A, B], env("GPU-a,GPU-b"), id="all"),
        pytest.param(Carried(("GPU-a",)), [A], UNCHANGED, id="unchanged"),
        pytest.param(Carried(("GPU-a", "GPU-a")), [A], env("GPU-a"), id="one entry remains"),
        pytest.param(Carried(), [A], env("GPU-a"), id="no carrier"),
        pytest.param(Carried(("void",)), [A], env("GPU-a"), id="void and allocated"),
        pytest.param(Carried(("none",)), [A], env("GPU-a"), id="none and allocated"),
        pytest.param(
            Carried(("nvidia.com/gpu=0,other.example/x=y",)),
            [B],
            env("nvidia.com/gpu=1,other.example/x=y"),
            id="qualified, another kind is kept",
        ),
        pytest.param(
            Carried(("GPU-x,nvidia.com/gpu=0,1",)),
            [B],
            env("nvidia.com/gpu=1"),
            id="qualified and unqualified, none is kept",
        ),
        pytest.param(Carried(("GPU-x",)), [MIG], env("MIG-c"), id="instance for a card"),
        pytest.param(Carried(("MIG-x",)), [MIG], env("MIG-c"), id="instance for instance"),
        pytest.param(Carried(("GPU-x",)), [], env("void"), id="no request"),
        pytest.param(Carried(), [], env("void"), id="no request, but all in its image"),
        pytest.param(
            Carried(("nvidia.com/gpu=0,other.example/x=y",)),
            [],
            env("other.example/x=y"),
            id="no request, by a qualified name",
        ),
        pytest.param(Carried(("none",)), [], UNCHANGED, id="none without an allocation"),
        pytest.param(Carried(("MIG-x",)), [], env("void"), id="no request, instance"),
        # Mounts.
        pytest.param(
            Carried((MOUNT_ROOT,), mounts=(f"{MOUNT_ROOT}/GPU-x", f"{MOUNT_ROOT}/imex/0")),
            [A],
            Changes(
                mounts=(Mount("/dev/null", f"{MOUNT_ROOT}/GPU-a"),),
                removed_mounts=(f"{MOUNT_ROOT}/GPU-x",),
            ),
            id="imex is kept",
        ),
        pytest.param(
            Carried(mounts=(f"{MOUNT_ROOT}/GPU-a",)), [A], env(MOUNT_ROOT), id="variable is missing"
        ),
        pytest.param(
            Carried(("GPU-x",), mounts=(f"{MOUNT_ROOT}/GPU-x", f"{MOUNT_ROOT}/GPU-a")),
            [A],
            Changes(environment=((ENV, MOUNT_ROOT),), removed_mounts=(f"{MOUNT_ROOT}/GPU-x",)),
            id="one of two is kept",
        ),
        pytest.param(
            Carried((MOUNT_ROOT,), mounts=(f"{MOUNT_ROOT}/cdi/nvidia.com/gpu/0",)),
            [B],
            Changes(
                mounts=(Mount("/dev/null", f"{MOUNT_ROOT}/cdi/nvidia.com/gpu/1"),),
                removed_mounts=(f"{MOUNT_ROOT}/cdi/nvidia.com/gpu/0",),
            ),
            id="by CDI names",
        ),
        pytest.param(
            Carried((MOUNT_ROOT,), mounts=(f"{MOUNT_ROOT}/GPU-x", "/else")),
            [],
            Changes(environment=((ENV, "void"),), removed_mounts=(f"{MOUNT_ROOT}/GPU-x",)),
            id="no request, by mounts",
        ),
        # CDI devices, in their field and in annotations.
        pytest.param(
            Carried(cdi_devices=(f"{KIND}=GPU-x", "nvidia.com/gds=all", "amd.com/gpu=0")),
            [A, B],
            Changes(
                environment=((ENV, "void"),),
                cdi_devices=(f"{KIND}=GPU-a", f"{KIND}=GPU-b"),
                removed_cdi_devices=(f"{KIND}=GPU-x",),
            ),
            id="other kinds are kept",
        ),
        pytest.param(
            Carried(("void",), cdi_devices=("nvidia.com/gpu=0",)),
            [B],
            Changes(cdi_devices=("nvidia.com/gpu=1",), removed_cdi_devices=("nvidia.com/gpu=0",)),
            id="by number",
        ),
        pytest.param(
            Carried(("void",), cdi_devices=("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
            [B],
            Changes(removed_cdi_devices=("nvidia.com/gpu=0",)),
            id="one of two CDI devices is kept",
        ),
        pytest.param(
            Carried(("void",), cdi_devices=("management.nvidia.com/gpu=all",)),
            [],
            Changes(removed_cdi_devices=("management.nvidia.com/gpu=all",)),
            id="no request, by CDI",
        ),
        pytest.param(
            Carried(("GPU-x",), cdi_devices=(f"{KIND}=GPU-x",)),
            [A],
            Changes(
                environment=((ENV, "GPU-a"),),
                cdi_devices=(f"{KIND}=GPU-a",),
                removed_cdi_devices=(f"{KIND}=GPU-x",),
            ),
            id="two strategies at once",
        ),
        pytest.param(
            Carried(("void",), cdi_devices=("nvidia.com/gpu=0", f"{KIND}=GPU-x")),
            [B],
            Changes(
                cdi_devices=("nvidia.com/gpu=1",),
                removed_cdi_devices=("nvidia.com/gpu=0", f"{KIND}=GPU-x"),
            ),
            id="in the form of the first kind",
        ),
        pytest.param(
            Carried(annotations=(("cdi.k8s.io/p", f"{KIND}=GPU-x,other.example/nic=0"),)),
            [A],
            Changes(
                environment=((ENV, "void"),),
                annotations=(("cdi.k8s.io/p", f"{KIND}=GPU-a,other.example/nic=0"),),
            ),
            id="annotation",
        ),
        pytest.param(
            Carried(("void",), annotations=(("cdi.k8s.io/p", f"{KIND}=GPU-x"),)),
            [],
            Changes(annotations=(("cdi.k8s.io/p", None),)),
            id="annotation that becomes empty",
        ),
        pytest.param(
            Carried(("void",), annotations=(("cdi.k8s.io/p", "other.example/nic=0"),)),
            [],
            UNCHANGED,
            id="annotation of another plugin",
        ),
    ],
)
def test_a_request_names_the_allocated_gpus_as_it_named_others(
    carried: Carried, chosen: list[VisibleGpu], changed: Changes
) -> None:
    assert visibility.rewritten(carried, chosen) == changed


def test_a_cdi_kind_may_be_used_when_the_request_names_no_gpu() -> None:
    assert visibility.rewritten(Carried(), [A], "nvidia.com/gpu") == Changes(
        environment=((ENV, "void"),), cdi_devices=("nvidia.com/gpu=GPU-a",)
    )
    assert visibility.rewritten(Carried(), [], "nvidia.com/gpu") == env("void")
    assert visibility.rewritten(Carried(("GPU-x",)), [A], "nvidia.com/gpu") == env("GPU-a")


@pytest.mark.parametrize(
    ("requested", "chosen", "removed", "added"),
    [
        (["/dev/nvidiactl", "/dev/nvidia0"], [A], ["/dev/nvidia0"], ["/dev/nvidia4"]),
        (["/dev/nvidia4", "/dev/nvidia-uvm"], [A], [], []),
        (["/dev/nvidia0", "/dev/nvidiactl"], [], ["/dev/nvidia0"], []),
        (
            ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"],
            [MIG],
            ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"],
            ["/dev/nvidia6", "/dev/nvidia-caps/nvidia-cap12"],
        ),
        (["/dev/nvidiactl"], [A], [], []),
        # Capabilities for the configuration of instances and for monitoring.
        (["/dev/nvidia-caps/nvidia-cap2"], [A], ["/dev/nvidia-caps/nvidia-cap2"], ["/dev/nvidia4"]),
        (
            ["/dev/nvidia-caps/nvidia-cap12"],
            [A, MIG],
            [],
            ["/dev/nvidia4", "/dev/nvidia6"],
        ),
    ],
)
def test_the_device_nodes_are_those_of_the_allocated_gpus(
    requested: list[str], chosen: list[VisibleGpu], removed: list[str], added: list[str]
) -> None:
    carried = Carried(("GPU-x",), nodes=tuple(node_of(each, "mrw") for each in requested))
    changed = visibility.rewritten(carried, chosen)
    assert [each.host_path for each in changed.removed_nodes] == removed
    assert [each.container_path for each in changed.nodes] == added
    assert {each.permissions for each in changed.nodes} <= {"mrw"}


@pytest.mark.parametrize(
    ("carried", "chosen", "why"),
    [
        (Carried(("MIG-x",)), A, "MIG instance MIG-x"),
        (Carried(("0:1",)), A, "MIG instance 0:1"),
        (Carried(cdi_devices=(f"{KIND}=MIG-x",)), A, "MIG instance MIG-x"),
        (Carried(cdi_devices=("nvidia.com/gpu=mig0:1",)), A, "MIG instance mig0:1"),
        (Carried(mounts=(f"{MOUNT_ROOT}/MIG-x",)), A, "MIG instance MIG-x"),
        (
            Carried(nodes=(node_of("/dev/nvidia0"), node_of("/dev/nvidia-caps/nvidia-cap12"))),
            A,
            "MIG instance's /dev/nvidia-caps/nvidia-cap12",
        ),
        (Carried(cdi_devices=("nvidia.com/gpu=0",)), VisibleGpu("GPU-n"), "by number"),
        (Carried(nodes=(node_of("/dev/nvidia0"),)), VisibleGpu("GPU-n"), "device nodes"),
    ],
)
def test_allocations_that_cannot_be_honoured(
    carried: Carried, chosen: VisibleGpu, why: str
) -> None:
    with refused(FailureReason.NOT_HONORED, why):
        visibility.rewritten(carried, [chosen])


names = st.sampled_from(
    ["GPU-x", "GPU-a", "0", "1", "0:1", "all", "gpu0", "MIG-x", f"{KIND}=GPU-x", "o.example/n=1"]
)
qualified = st.sampled_from(
    [f"{KIND}=GPU-x", "nvidia.com/gpu=0", "nvidia.com/gds=all", f"{KIND}=MIG-x", "o.example/n=1"]
)
requests_ = st.builds(
    Carried,
    environment=st.lists(st.lists(names, max_size=3).map(",".join), max_size=2).map(tuple),
    mounts=st.lists(names.map(lambda each: f"{MOUNT_ROOT}/{each}"), unique=True).map(tuple),
    annotations=st.dictionaries(
        st.sampled_from(["cdi.k8s.io/a", "nvidia.cdi.k8s.io/b"]),
        st.lists(qualified, min_size=1, max_size=3).map(",".join),
    ).map(lambda each: tuple(each.items())),
    cdi_devices=st.lists(qualified, unique=True).map(tuple),
    nodes=st.lists(
        st.sampled_from(["/dev/nvidia0", "/dev/nvidia4", "/dev/nvidiactl"]).map(node_of),
        unique=True,
    ).map(tuple),
)


def apply(carried: Carried, changed: Changes) -> Carried:
    """The request with the changes."""
    notes = {**dict(carried.annotations), **dict(changed.annotations)}
    variables = dict(changed.environment)
    return Carried(
        environment=(variables[ENV],) if ENV in variables else carried.environment,
        mounts=(
            *(each for each in carried.mounts if each not in changed.removed_mounts),
            *(each.container_path for each in changed.mounts),
        ),
        annotations=tuple((key, value) for key, value in notes.items() if value is not None),
        cdi_devices=(
            *(each for each in carried.cdi_devices if each not in changed.removed_cdi_devices),
            *changed.cdi_devices,
        ),
        nodes=(
            *(each for each in carried.nodes if each not in changed.removed_nodes),
            *changed.nodes,
        ),
    )


@settings(max_examples=500)
@given(requests_, st.lists(st.sampled_from([A, B, MIG]), unique=True))
def test_a_rewrite_names_only_the_chosen_gpus_and_is_idempotent(
    carried: Carried, chosen: list[VisibleGpu]
) -> None:
    try:
        changed = visibility.rewritten(carried, chosen)
    except RefusedError:
        return
    rewritten = apply(carried, changed)
    own = {name for gpu in chosen for name in (gpu.uuid, gpu.index, f"gpu{gpu.index}")}
    own |= {f"mig{gpu.index}" for gpu in chosen}
    assert set(rewritten.names()) <= own
    paths = {node.path for gpu in chosen for node in gpu.nodes}
    assert {each.host_path for each in rewritten.nodes} <= {*paths, "/dev/nvidiactl"}
    foreign = {each for each in carried.cdi_devices if "gpu=" not in each}
    assert foreign <= set(rewritten.cdi_devices)
    assert visibility.rewritten(rewritten, chosen) == UNCHANGED


RDMA = DeviceNode("/dev/infiniband/uverbs3", 231, 195)
CM = DeviceNode("/dev/infiniband/rdma_cm", 10, 58)


@pytest.mark.parametrize(
    ("requested", "nodes", "removed", "added"),
    [
        ([], (CM, RDMA), [], [CM.path, RDMA.path]),
        (
            [CM.path, "/dev/infiniband/uverbs0", "/dev/infiniband/umad0"],
            (CM, RDMA),
            ["/dev/infiniband/uverbs0", "/dev/infiniband/umad0"],
            [RDMA.path],
        ),
        ([CM.path, "/dev/infiniband/uverbs0"], (), ["/dev/infiniband/uverbs0"], []),
        (["/dev/fuse"], (), [], []),
    ],
)
def test_rdma_device_nodes(
    requested: list[str], nodes: tuple[DeviceNode, ...], removed: list[str], added: list[str]
) -> None:
    carried = Carried(nodes=tuple(node_of(each) for each in requested))
    changed = visibility.device_changes("p", carried, Visibility(nodes={"rdma": nodes}), NODE)
    assert [each.host_path for each in changed.removed_nodes] == removed
    assert [each.host_path for each in changed.nodes] == added
    assert all(each.major > 0 for each in changed.nodes)
    assert not changed.environment, "the decision does not change GPUs"


def test_isolation_is_added_and_existing_preloads_are_kept() -> None:
    isolation = Visibility(
        (A,),
        environment=(("CUDA_DEVICE_SM_LIMIT", "50"), ("LD_PRELOAD", "/isolation.so")),
        mounts=(Mount("/isolation.so", "/isolation.so"),),
    )
    carried = Carried(("GPU-a",), preload="/present.so")
    assert visibility.device_changes("p", carried, isolation, NODE) == Changes(
        environment=(("CUDA_DEVICE_SM_LIMIT", "50"), ("LD_PRELOAD", "/isolation.so:/present.so")),
        mounts=(Mount("/isolation.so", "/isolation.so"),),
    )


HELD = NodeVisibility(
    held=(
        NodeDevice("GPU-a", "0", nodes=("/dev/nvidia4",), holders=("owner", "sharer")),
        NodeDevice("GPU-b", "1", nodes=("/dev/nvidia5",)),
        NodeDevice("GPU-c", "2", nodes=("/dev/nvidia6",)),
        NodeDevice("MIG-1", "2:0", "GPU-c", ("/dev/nvidia-caps/nvidia-cap1",), ("owner",)),
        NodeDevice("MIG-2", "2:1", "GPU-c", ("/dev/nvidia-caps/nvidia-cap2",)),
        NodeDevice("0000:17:00.0", nodes=("/dev/infiniband/uverbs0",), holders=("owner",)),
    )
)


@pytest.mark.parametrize(
    "carried",
    [
        Carried(("GPU-a",)),
        Carried(("GPU-b,0",)),
        Carried(cdi_devices=("nvidia.com/gpu=gpu0",)),
        Carried(annotations=(("cdi.k8s.io/p", "nvidia.com/gpu=GPU-a"),)),
        Carried(mounts=(f"{MOUNT_ROOT}/GPU-a",)),
        Carried(nodes=(node_of("/dev/nvidia4"),)),
        Carried(("MIG-1",)),
        Carried(("2:0",)),
        Carried(("GPU-c",)),
        Carried(nodes=(node_of("/dev/nvidia-caps/nvidia-cap1"),)),
        Carried(nodes=(node_of("/dev/infiniband/uverbs0"),)),
        # A runtime adds all devices of a folder.
        Carried(nodes=(node_of("/dev/infiniband"),)),
        Carried(nodes=(node_of("/dev"),)),
        # From a ResourceClaim (DRA): the minor.
        Carried(cdi_devices=("k8s.gpu.nvidia.com/claim=5f7e-gpu-4",)),
        Carried(cdi_devices=("k8s.gpu.nvidia.com/device=gpu-4",)),
        Carried(cdi_devices=("k8s.gpu.nvidia.com/claim=5f7e-gpu-4-mig-9-0-1",)),
        Carried(annotations=(("cdi.k8s.io/p", "k8s.gpu.nvidia.com/claim=5f7e-gpu-4"),)),
    ],
)
def test_no_pod_gets_a_device_of_another_pod(carried: Carried) -> None:
    with refused(FailureReason.DEVICE_TAKEN, "another pod's"):
        visibility.device_changes("other", carried, Visibility(), HELD)
    with refused(FailureReason.DEVICE_TAKEN):
        visibility.as_requested("other", carried, HELD, allocated=True)
    assert visibility.device_changes("owner", carried, Visibility(), HELD) == UNCHANGED


@pytest.mark.parametrize(
    "carried",
    [
        Carried(("GPU-b",)),
        Carried(("MIG-2",)),
        Carried(("2:1",)),
        Carried(nodes=(node_of("/dev/nvidia6"), node_of("/dev/nvidia-caps/nvidia-cap2"))),
        Carried(("all",)),
        Carried(nodes=(node_of("/dev/infini"),)),
        Carried(cdi_devices=("k8s.gpu.nvidia.com/claim=5f7e-gpu-5",)),
        Carried(cdi_devices=("k8s.gpu.nvidia.com/claim=5f7e-gpu-6-mig-9-0-1",)),
        Carried(cdi_devices=("other.example/claim=5f7e-gpu-4",)),
    ],
)
def test_a_plugins_choice_is_kept(carried: Carried) -> None:
    assert visibility.device_changes("other", carried, Visibility(), HELD) == UNCHANGED


def test_a_pod_with_allocated_cards_may_not_request_all() -> None:
    for name in ("all", "All"):
        with refused(FailureReason.DEVICE_TAKEN, f"{name} of its request"):
            visibility.as_requested("other", Carried((name,)), HELD, allocated=True)
    for without_request in (
        Carried(),
        Carried(serving=("/var/lib/kubelet/device-plugins",)),
        Carried(privileged=True),
    ):
        assert visibility.as_requested("other", without_request, HELD, allocated=True) == env(
            "void"
        )


def test_all_cards_are_not_refused_for_devices_of_other_kinds() -> None:
    nic = NodeVisibility((NodeDevice("0000:17:00.0", nodes=("/dev/u0",), holders=("owner",)),))
    assert visibility.as_requested("other", Carried(("all",)), nic, allocated=True) == UNCHANGED


def test_too_long_a_list_is_refused_at_once() -> None:
    """Otherwise it would block the proxy, which has one thread for all requests."""
    endless = Carried((",".join(map(str, range(10, 30_000))),))
    with refused(FailureReason.DEVICE_TAKEN, "its request names 29990 GPUs"):
        visibility.device_changes("other", endless, Visibility(), HELD)
    same = Carried((",".join(["1"] * 30_000),))
    assert visibility.device_changes("other", same, Visibility(), HELD) == UNCHANGED
    assert visibility.device_changes("other", endless, Visibility((B,)), HELD) == env("GPU-b")


def test_a_resource_claim_gives_no_device_of_another_pod() -> None:
    claim = Carried(("GPU-b",), cdi_devices=("k8s.gpu.nvidia.com/claim=5f7e-gpu-4",))
    with refused(FailureReason.DEVICE_TAKEN, "gpu-4 of its request is GPU-a, another pod's"):
        visibility.device_changes("other", claim, Visibility((B,)), HELD)


def test_a_decision_about_gpus_does_not_allow_another_pods_rdma_device() -> None:
    carried = Carried(("GPU-b",), nodes=(node_of("/dev/infiniband/uverbs0"),))
    with refused(FailureReason.DEVICE_TAKEN, "uverbs0"):
        visibility.device_changes("other", carried, Visibility((B,)), HELD)
    own = Visibility((B,), nodes={"rdma": (RDMA,)})
    assert visibility.device_changes("other", carried, own, HELD).removed_nodes == carried.nodes


@pytest.mark.parametrize(
    ("carried", "leave", "hide", "deny"),
    [
        (Carried(), UNCHANGED, env("void"), env("void")),
        (Carried(("all",)), UNCHANGED, UNCHANGED, env("void")),
        (Carried(("GPU-x",)), UNCHANGED, UNCHANGED, UNCHANGED),
        (Carried(("none",)), UNCHANGED, UNCHANGED, UNCHANGED),
        (Carried(("",)), UNCHANGED, UNCHANGED, UNCHANGED),
        (Carried(nodes=(node_of("/dev/nvidia0"),)), UNCHANGED, UNCHANGED, UNCHANGED),
        (Carried(nodes=(node_of("/dev/fuse"),)), UNCHANGED, env("void"), env("void")),
        # NVIDIA's device plugin gets its cards by the environment of its image.
        (Carried(serving=("/var/lib/kubelet/device-plugins",)), UNCHANGED, UNCHANGED, env("void")),
        (Carried(privileged=True), UNCHANGED, UNCHANGED, env("void")),
        (Carried(("GPU-x,all",)), UNCHANGED, UNCHANGED, env("void")),
        (Carried(("ALL",)), UNCHANGED, UNCHANGED, env("void")),
        (
            Carried(cdi_devices=("management.nvidia.com/gpu=all",)),
            UNCHANGED,
            UNCHANGED,
            Changes(
                environment=((ENV, "void"),), removed_cdi_devices=("management.nvidia.com/gpu=all",)
            ),
        ),
    ],
)
def test_the_setting_for_pods_without_an_allocation(
    carried: Carried, leave: Changes, hide: Changes, deny: Changes
) -> None:
    settings: dict[UnrequestedGpus, Changes] = {"leave": leave, "hide": hide, "deny": deny}
    for setting, changes in settings.items():
        node = NodeVisibility(unrequested_gpus=setting)
        assert visibility.device_changes("p", carried, Visibility(), node) == changes


@pytest.mark.parametrize(
    "carried",
    [
        Carried(("all",)),
        Carried(("GPU-x,ALL",)),
        Carried(mounts=(f"{MOUNT_ROOT}/all",)),
        Carried(annotations=(("cdi.k8s.io/x", "nvidia.com/gpu=all"),)),
        Carried(cdi_devices=("management.nvidia.com/gpu=all",)),
        Carried(of_pod=("nvidia.com/gpu=all",)),
    ],
)
def test_all_gpus_beside_another_pods_are_for_namespaces_that_monitor(carried: Carried) -> None:
    held = NodeVisibility((NodeDevice("GPU-a", holders=("owner",)),), "hide", monitors=("metrics",))
    with refused(
        FailureReason.DEVICE_TAKEN, r"include GPU-a, another pod's: .*gpu-monitor-namespaces"
    ):
        visibility.device_changes("p", carried, Visibility(), held, namespace="tenant")
    free = visibility.device_changes(
        "p", carried, Visibility(), NodeVisibility(unrequested_gpus="hide")
    )
    for uid, namespace in (("p", "metrics"), ("owner", "tenant")):
        changes = visibility.device_changes(uid, carried, Visibility(), held, namespace=namespace)
        assert changes == free


def test_a_device_plugin_may_name_all_gpus_beside_another_pods() -> None:
    held = NodeVisibility((NodeDevice("GPU-a", holders=("owner",)),), "hide")
    for plugin in (
        Carried(("all",), serving=("/var/lib/kubelet/device-plugins",)),
        Carried(("all",), privileged=True),
    ):
        assert visibility.device_changes("p", plugin, Visibility(), held) == UNCHANGED


def test_the_agents_refusal_is_reported() -> None:
    with refused(FailureReason.NOT_HONORED, "GPU-z is not on this node"):
        visibility.device_changes(
            "p", Carried(), Visibility(refused="GPU-z is not on this node"), NODE
        )


def test_devices_that_the_frontend_cannot_change_are_refused() -> None:
    changed = Changes(environment=((ENV, "void"),), removed_cdi_devices=("nvidia.com/gpu=0",))
    assert not_settable(changed, DeviceFields(frozenset({"environment"}))) == (
        "removed_cdi_devices",
    )
    assert not_settable(changed, DeviceFields()) == ()
    assert not_settable(Changes(LinuxResources("1", shares=2)), DeviceFields(frozenset())) == ()
    unnumbered = Changes(nodes=(node_of("/dev/nvidia0"),))
    assert not_settable(unnumbered, DeviceFields()) == ()
    assert not_settable(unnumbered, DeviceFields(numbers=True)) == ("nodes without a number",)


def test_device_changes_are_merged_with_other_changes() -> None:
    mount = Mount("/host", "/cpus")
    both = with_device_changes(
        Changes(LinuxResources("1"), mounts=(mount,)),
        Changes(environment=((ENV, "void"),), mounts=(Mount("/a", "/b"),)),
    )
    assert both == Changes(
        LinuxResources("1"), environment=((ENV, "void"),), mounts=(mount, Mount("/a", "/b"))
    )
