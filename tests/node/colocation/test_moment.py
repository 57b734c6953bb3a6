"""Which pods are colocated."""

from __future__ import annotations

from agent.model.node_slo import CpuBurst, NodeSlo
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.pods import Container, ContainerState
from agent.model.pod.qos import QoS
from agent.node.colocation.moment import colocated
from agent.usage.pod_strategies import PodStrategies
from agent.usage.strategies import Strategies
from tests.builders import pod


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
