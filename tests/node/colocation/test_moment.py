"""Which pods are colocated."""

from __future__ import annotations

import pytest

from agent.model.node_slo import CpuBurst, NodeSlo
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState
from agent.model.pod.qos import QOS_LABEL, KubeClass, QoS
from agent.node.colocation.moment import colocated
from agent.usage.pod_strategies import PodStrategies
from agent.usage.strategies import Strategies
from tests.builders import pod
from tests.node.colocation.colocated import BATCH_IDLES


def test_pods_that_the_api_knows_and_that_have_cgroups_here_are_colocated() -> None:
    def running(name: str, *, virtual: bool = False) -> Container:
        return Container("c", "main", ContainerState.RUNNING, f"/pods/{name}/main", virtual)

    pods = [pod(name, containers=(running(name),)) for name in ("api", "batch", "gone")]
    pods.append(pod("virtual", containers=(running("virtual", virtual=True),)))
    in_api = {
        name: ApiPod(name, "ns", name, "n", Phase.RUNNING, {}, {}, kube_class, 1)
        for name, kube_class in (
            ("api", "burstable"),
            ("batch", "besteffort"),
            ("virtual", "burstable"),
        )
    }
    bursting = CpuBurst(policy="auto")
    own = PodStrategies(cpu_burst=bursting)
    strategies = Strategies(NodeSlo(), pods={"ns/api": own})
    api, batch = colocated(pods, in_api, strategies)
    assert (api.title, api.qos, api.group) == ("ns/api", QoS.LS, "/pods/api")
    assert (api.containers, api.strategies) == ({"main": "/pods/api/main"}, own)
    assert (batch.qos, batch.strategies) == (QoS.BE, PodStrategies())


@pytest.mark.parametrize("kube_class", ["burstable", "guaranteed"])
def test_the_label_be_counts_only_in_best_effort_pods(kube_class: KubeClass) -> None:
    """The group above those of others has services in it, and a kubelet that resizes them writes
    weights, which the kernel refuses for an idle group."""
    running = Container("c", "main", ContainerState.RUNNING, "/pods/batch/main")
    labels = {QOS_LABEL: "BE"}
    in_api = {
        "batch": ApiPod("batch", "ns", "batch", "n", Phase.RUNNING, labels, {}, kube_class, 1)
    }
    (batch,) = colocated([pod("batch", containers=(running,))], in_api, BATCH_IDLES)
    assert (batch.qos, batch.strategies.cpu_qos.enable) == (QoS.LS, False)
