"""An agent reports the GPU links of the driver, and the scheduler allocates cards by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.kube.errors import NotFoundError, TooManyRequestsError
from agent.model.devices import interconnect
from agent.model.pod.annotations import DEVICE_ALLOCATED
from tests.deploy.manifests import objects
from tests.discover import gpumachines
from tests.integration.apiserver.server import ApiServer
from tests.integration.gpunode import GpuNode
from tests.integration.harness import TestNode
from tests.integration.incluster import READ_RULES, WRITE_RULES, Account
from tests.integration.scheduling import Scheduler, binding_args, extender_args
from tests.waiting import eventually

Object = dict[str, Any]

NAME = "gpu-links"
"""The name of namespace and node."""
PODS = f"/api/v1/namespaces/{NAME}/pods"
DEVICE = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{NAME}"
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def api(apiserver: ApiServer) -> ApiServer:
    for each in objects("crds"):
        apiserver.apply(each)
    apiserver.namespace(NAME)
    apiserver.node(NAME)
    apiserver.account(NAME, "default", [])
    apiserver.account(NAME, "agent", [*READ_RULES, *WRITE_RULES])
    apiserver.account(NAME, "scheduler", EVERYTHING)
    return apiserver


@pytest.fixture
def scheduler(api: ApiServer, tmp_path: Path) -> Iterator[Scheduler]:
    """A scheduler that requires no agent pod on the node."""
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(api.kubeconfig(api.token(NAME, "scheduler"))))
    with Scheduler(tmp_path, config) as it:
        it.start("--lease-seconds=0", "--agent-selector=")
        it.until_ready()
        yield it


def device(api: ApiServer) -> Object:
    """Waits until the Device object has links. Returns it."""
    found: Object = {}

    def published() -> bool:
        nonlocal found
        try:
            found = json.loads(api.admin.get(DEVICE))
        except (NotFoundError, TooManyRequestsError):
            return False
        return interconnect.GPU_LINKS in found["metadata"].get("annotations", {})

    eventually("links of GPUs", published, PATIENCE_SECONDS)
    return found


def create_holder(api: ApiServer, minors: tuple[int, ...]) -> None:
    """Creates a bound pod that holds cards with these minors."""
    amounts = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    entries = [{"minor": minor, "resources": amounts} for minor in minors]
    api.pod(NAME, "before", NAME, annotations={DEVICE_ALLOCATED: json.dumps({"gpu": entries})})


def pending(api: ApiServer, name: str, cards: int) -> Object:
    amounts = {"limits": {"nvidia.com/gpu": str(cards)}}
    spec = {
        "schedulerName": "none",
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "none", "resources": amounts}],
    }
    return api.create(PODS, {"metadata": {"name": name}, "spec": spec})


def allocated_minors(api: ApiServer, pod: Object) -> list[int]:
    """The minors of the cards of a bound pod."""
    found = json.loads(api.admin.get(f"{PODS}/{pod['metadata']['name']}"))
    assert found["spec"]["nodeName"] == NAME
    allocated = json.loads(found["metadata"]["annotations"][DEVICE_ALLOCATED])
    return [each["minor"] for each in allocated["gpu"]]


def test_a_pod_gets_the_pair_with_the_best_links(
    api: ApiServer, node: TestNode, scheduler: Scheduler
) -> None:
    """On a DGX-1 whose cards 0, 2, 4 and 6 are in use: no pair of the partition table is free.
    Cards 1 and 5 have two links, other pairs have one."""
    gpus = GpuNode(node, gpumachines.dgx1())
    account = Account(api, node)
    account.write_token(api.token(NAME, "agent"))
    account.start_agent(node, f"--node-name={NAME}", *gpus.path_flags, variables=gpus.environ)
    published = device(api)["metadata"]["annotations"][interconnect.GPU_LINKS]
    create_holder(api, (0, 2, 4, 6))
    pair, five = pending(api, "pair", 2), pending(api, "five", 5)

    def known() -> bool:
        """Whether the scheduler knows the cards and their holders."""
        offers = (
            scheduler.call("filter", extender_args(pod, [NAME]))["NodeNames"]
            for pod in (pair, five)
        )
        return list(offers) == [[NAME], []]

    eventually("the scheduler knows the node", known, PATIENCE_SECONDS)
    assert scheduler.call("bind", binding_args(pair, NAME)) == {"Error": ""}
    assert allocated_minors(api, pair) == [1, 5]
    others = {"example.com/other": "kept"}
    api.admin.merge(DEVICE, {"metadata": {"annotations": others}})
    unhealthy = gpus.machine.cards[3].uuid
    cordon = {"metadata": {"annotations": {"topolet.io/cordoned-gpus": unhealthy}}}
    api.admin.merge(f"/api/v1/nodes/{NAME}", cordon)

    def cordoned() -> bool:
        return unhealthy in {
            each["id"] for each in device(api)["spec"]["devices"] if not each["health"]
        }

    eventually("the object is written again", cordoned, PATIENCE_SECONDS)
    annotations = device(api)["metadata"]["annotations"]
    assert annotations.items() >= {**others, interconnect.GPU_LINKS: published}.items()
