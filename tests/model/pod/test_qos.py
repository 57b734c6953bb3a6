from __future__ import annotations

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import Pod
from agent.model.pod.qos import (
    CPU_OWNERS,
    POOLS,
    PRIORITY_CLASS_LABEL,
    QOS_LABEL,
    KubeClass,
    Pool,
    PoolKind,
    PriorityClass,
    QoS,
    is_qos_root,
    kube_class,
    label_faults,
    pool_cpus,
    pool_of_class,
    qos_of,
    usable_pools,
)

UID = "0a1b2c3d-1111-2222-3333-444455556666"
UID_ = UID.replace("-", "_")
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"


@pytest.mark.parametrize(
    ("parent", "found"),
    [
        (f"/kubepods/pod{UID}", "guaranteed"),
        (f"/kubepods/burstable/pod{UID}", "burstable"),
        (f"/kubepods/besteffort/pod{UID}", "besteffort"),
        (f"kubepods/besteffort/pod{UID}/", "besteffort"),
        (f"/foo/kubepods/besteffort/pod{UID}", "besteffort"),
        (f"/foo/bar/kubepods/pod{UID}/container", "guaranteed"),
        (f"kubepods-pod{UID_}.slice", "guaranteed"),
        (f"kubepods-burstable-pod{UID_}.slice", "burstable"),
        (f"foo-kubepods-besteffort-pod{UID_}.slice", "besteffort"),
        (BURSTABLE, "burstable"),
        (f"{BURSTABLE}/cri-containerd-abc.scope", "burstable"),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice", "guaranteed"),
        # A slice outside the path that its name spells still has the class of its name.
        (f"/system.slice/kubepods-besteffort-pod{UID_}.slice", "besteffort"),
        ("/kubepods", None),
        ("kubepods.slice", None),
        ("", None),
        ("/", None),
        (f"/docker/pod{UID}", None),
        (f"/besteffort/pod{UID}", None),
        (f"/mykubepods/besteffort/pod{UID}", None),
        ("/system.slice/containerd.service", None),
        ("/kubepods/other", None),
    ],
)
def test_class_by_cgroup_parent(parent: str, found: str | None) -> None:
    assert kube_class(parent) == found


@pytest.mark.parametrize(
    ("label", "kube", "found"),
    [
        ("LSE", "besteffort", QoS.LSE),
        ("SYSTEM", None, QoS.SYSTEM),
        ("", "besteffort", QoS.BE),
        ("", "burstable", QoS.LS),
        ("", "guaranteed", QoS.LS),
        ("", None, QoS.LS),
        ("lse", "besteffort", QoS.BE),
    ],
)
def test_the_label_overrides_the_class_of_kubernetes(
    label: str, kube: KubeClass | None, found: QoS
) -> None:
    labels = {QOS_LABEL: label} if label else {}
    assert qos_of(labels, kube) is found


@pytest.mark.parametrize(
    ("group", "shared"),
    [
        ("/kubepods", True),
        ("/kubepods/", True),
        ("/kubepods/burstable", True),
        ("/kubepods/besteffort", True),
        ("/own/root/kubepods/besteffort", True),
        ("/kubepods.slice", True),
        ("/kubepods.slice/kubepods-burstable.slice", True),
        ("/kubepods.slice/kubepods-besteffort.slice", True),
        ("/own.slice/own-kubepods.slice/own-kubepods-besteffort.slice", True),
        (f"/kubepods/pod{UID}", False),
        (f"/kubepods/besteffort/pod{UID}", False),
        (f"/kubepods/besteffort/pod{UID}/id", False),
        ("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice", False),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice/"
            "cri-containerd-id.scope",
            False,
        ),
        ("/besteffort", False),
        ("/mykubepods", False),
        ("/k8s.io/id", False),
    ],
)
def test_qos_cgroups_of_the_kubelet(group: str, shared: bool) -> None:
    assert is_qos_root(group) is shared


def test_unknown_classes_are_faults() -> None:
    for qos in ("", *QoS):
        for priority in ("", *PriorityClass):
            labels = {QOS_LABEL: qos, PRIORITY_CLASS_LABEL: priority}
            assert label_faults(labels, "besteffort") == ()
    assert label_faults({}, None) == ()
    assert label_faults({QOS_LABEL: "LSX", PRIORITY_CLASS_LABEL: "prod"}, "burstable") == (
        f"label {QOS_LABEL}: 'LSX' is not one of LSE, LSR, LS, BE, SYSTEM",
        f"label {PRIORITY_CLASS_LABEL}: 'prod' is not one of koord-prod, koord-mid, koord-batch, "
        "koord-free",
    )


@pytest.mark.parametrize("kube_class", ["guaranteed", "burstable", None])
def test_the_label_be_counts_only_in_a_best_effort_pod(kube_class: KubeClass | None) -> None:
    labels = {QOS_LABEL: "BE"}
    assert Pod("p", "ns", "p", labels, {}, kube_class, 0).qos is QoS.LS
    assert Pod("p", "ns", "p", labels, {}, "besteffort", 0).qos is QoS.BE
    (fault,) = label_faults(labels, kube_class)
    assert fault == f"label {QOS_LABEL}: BE counts only in BestEffort pods, the pod is LS"


@pytest.mark.parametrize("kind", POOLS.values(), ids=POOLS)
def test_the_pods_of_each_pool_have_cpus_while_pools_that_are_not_dedicated_have_some(
    kind: PoolKind,
) -> None:
    assert pool_of_class(kind.qos) is kind
    assert not usable_pools(kind)[-1].dedicated
    assert QoS.LSE in kind.excluded, "no pod shares the CPUs of an LSE pod"


def test_pods_that_may_own_cpus_share_the_ls_pool_while_they_own_none() -> None:
    assert {pool_of_class(qos).name for qos in CPU_OWNERS} == {"ls"}


def test_pool_cpus_of_all_or_of_some_nodes() -> None:
    pools = (Pool(0, 0, "0-1"), Pool(0, 1, "2"), Pool(1, 2, "7"))
    assert pool_cpus(pools) == CpuSet([0, 1, 2, 7])
    assert pool_cpus(pools, (2, 0, 5)) == CpuSet([0, 1, 7])
    assert pool_cpus(pools, (5,)) == CpuSet()
