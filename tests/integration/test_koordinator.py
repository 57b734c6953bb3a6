"""CRI calls through koord-runtime-proxy, with Topolet's agent as its hook server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.rpc.grpc import RpcError
from tests.discover import gpumachines
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
    update_container,
)
from tests.integration.gpunode import GpuNode
from tests.integration.harness import built_or_skip
from tests.integration.koordinator import KoordinatorNode, koordinator_node
from tests.waiting import eventually


@pytest.fixture
def koordinator(containerd: Containerd) -> Iterator[KoordinatorNode]:
    with koordinator_node(containerd, built_or_skip("koord-runtime-proxy") / NAME) as it:
        yield it


NAME = "koord-runtime-proxy"


def requested_cpus(koordinator: KoordinatorNode, container_id: str) -> str:
    """The cpuset of the request that created the container in the runtime."""
    info = json.loads(koordinator.node.containerd.ctr("containers", "info", container_id))
    cpus: str = info["Spec"]["linux"]["resources"]["cpu"].get("cpus", "")
    return cpus


def test_containers_start_on_their_cpus(koordinator: KoordinatorNode) -> None:
    """The request to the runtime has the CPUs; they are not corrected later."""
    node = koordinator.node
    koordinator.start_agent()
    koordinator.start_proxy()
    _, owner = run_pod(koordinator.cri, node.spec("lse", "LSE", "1"))
    _, shared = run_pod(koordinator.cri, node.spec("ls", "LS"))
    everything = node.metric("topolet_hook_server_calls_total")
    assert everything >= 6, node.log("koord")
    pool = requested_cpus(koordinator, shared)
    assert requested_cpus(koordinator, owner) == "1"
    assert pool
    assert node.cpus(owner) == "1"
    assert node.cpus(shared) == pool
    assert "1" not in pool.split(",")


def test_an_update_restores_no_old_values(koordinator: KoordinatorNode) -> None:
    node = koordinator.node
    koordinator.start_agent()
    koordinator.start_proxy()
    _, owner = run_pod(koordinator.cri, node.spec("lse", "LSE", "1"))
    update_container(koordinator.cri, owner, cpuset_cpus="0-1", cpu_shares=512)
    assert node.cpus(owner) == "1"
    assert requested_cpus(koordinator, owner) == "1"


def test_a_stopped_agent_gets_no_more_hook_calls(koordinator: KoordinatorNode) -> None:
    """The proxy also finds a server that registers later, without a restart."""
    node = koordinator.node
    koordinator.start_proxy()
    run_pod(koordinator.cri, node.spec("before"))
    koordinator.start_agent()
    eventually("the proxy calls the hook", lambda: _calls_hook(koordinator))
    node.stop_agent()
    assert list(koordinator.registrations.iterdir()) == []
    # The proxy watches the folder by inotify.
    eventually("pods start", partial(_runs, koordinator, node.spec("after", "LSE", "1")))


def test_while_a_killed_agent_is_away_no_pod_starts(koordinator: KoordinatorNode) -> None:
    """Because of the failure policy in the remaining registration. When the agent runs again, pods
    start."""
    node = koordinator.node
    koordinator.start_agent()
    koordinator.start_proxy()
    node.kill_agent()
    with pytest.raises(RpcError, match="hook server err"):
        run_sandbox(koordinator.cri, node.spec("lse", "LSE", "1"))
    koordinator.start_agent()
    # The proxy's gRPC client backs off between attempts to connect.
    eventually("pods start again", partial(_runs, koordinator, node.spec("lse", "LSE", "1")))


def test_a_container_older_than_the_proxy_keeps_its_cpus(koordinator: KoordinatorNode) -> None:
    """A restarted proxy does not know the container's values, and drops the agent's response to an
    update, so the agent corrects the result of the update."""
    node = koordinator.node
    koordinator.start_agent()
    koordinator.start_proxy()
    spec = node.spec("lse", "LSE", "1")
    sandbox_id = run_sandbox(koordinator.cri, spec)
    owner = create_container(koordinator.cri, create_request(spec, sandbox_id))
    start_container(koordinator.cri, owner)
    koordinator.kill_proxy()
    koordinator.start_proxy()
    update_container(koordinator.cri, owner, cpuset_cpus="0-1")
    eventually("the owner is on its CPU", lambda: node.cpus(owner) == "1")


def test_gpus_are_set_by_the_visible_devices_variable(koordinator: KoordinatorNode) -> None:
    """The scheduler's GPU replaces the device plugin's. No pod gets another pod's GPU, and a pod
    without a request gets none."""
    node = koordinator.node
    gpus = GpuNode(node, gpumachines.dgx1())
    koordinator.start_agent(*gpus.path_flags, variables=gpus.environ)
    gpus.device()
    koordinator.start_proxy()
    plugins, own = gpus.machine.cards[0].uuid, gpus.machine.cards[3]
    amounts = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
    allocated = {"gpu": [{"minor": own.minor, "resources": amounts}]}
    notes = {DEVICE_ALLOCATED: json.dumps(allocated)}

    def create(spec: PodSpec, **variables: str) -> str:
        request = create_request(spec, run_sandbox(koordinator.cri, spec))
        for key, value in variables.items():
            request.config.envs.add(key=key, value=value.encode())
        return create_container(koordinator.cri, request)

    def environment(container: str) -> dict[str, str]:
        """The environment of the container's process."""
        info = json.loads(node.containerd.ctr("containers", "info", container))
        return dict(each.split("=", 1) for each in info["Spec"]["process"]["env"])

    trainer = create(
        node.spec("trainer", "LS", annotations=notes), NVIDIA_VISIBLE_DEVICES=plugins, KEPT="1"
    )
    found = environment(trainer)
    assert (found["NVIDIA_VISIBLE_DEVICES"], found["KEPT"]) == (own.uuid, "1")
    with pytest.raises(RpcError, match=f"pod default/thief: {own.uuid} of its request"):
        create(node.spec("thief", "LS"), NVIDIA_VISIBLE_DEVICES=own.uuid)
    with pytest.raises(RpcError, match=f"{own.uuid} belongs to pod default/trainer"):
        create(node.spec("second", "LS", annotations=notes))
    kept = create(node.spec("plugins", "LS"), NVIDIA_VISIBLE_DEVICES=plugins)
    assert environment(kept)["NVIDIA_VISIBLE_DEVICES"] == plugins
    plain = create(node.spec("plain", "LS"))
    assert environment(plain)["NVIDIA_VISIBLE_DEVICES"] == "void"


def _runs(koordinator: KoordinatorNode, spec: PodSpec) -> bool:
    """Tries to run the pod; whether it runs."""
    sandbox = ""
    try:
        sandbox = run_sandbox(koordinator.cri, spec)
        container = create_container(koordinator.cri, create_request(spec, sandbox))
        start_container(koordinator.cri, container)
    except RpcError:
        if sandbox:
            remove_pod(koordinator.node.direct, sandbox)
        return False
    return True


def _calls_hook(koordinator: KoordinatorNode) -> bool:
    run_sandbox(koordinator.cri, koordinator.node.spec("probe"))
    return koordinator.node.metric("topolet_hook_server_calls_total") > 0
