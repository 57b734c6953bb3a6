"""The watches of schedulers, with a real API server."""

from __future__ import annotations

from agent.model.cpu.policies import DeviceLocality
from agent.model.pod.annotations import DEVICE_LOCALITY
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.watches import Watches
from tests.deploy.manifests import of_kind
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler.nodes import DEVICES, TOPOLOGIES
from tests.scheduler import objects
from tests.scheduler.clusters import ineligibility
from tests.waiting import eventually

PATIENCE_SECONDS = 60.0
NAMESPACES = "/api/v1/namespaces"
NODE = "with-devices-later"
NAME = "devices.scheduling.koordinator.sh"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"


def test_a_kind_that_is_installed_later_is_watched(apiserver: ApiServer) -> None:
    definitions = of_kind("CustomResourceDefinition")
    for each in definitions.values():
        apiserver.apply(each)
    apiserver.node(NODE)
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    status = {"capacity": allocatable, "allocatable": allocatable}
    apiserver.admin.merge(f"/api/v1/nodes/{NODE}/status", {"status": status})
    apiserver.create(TOPOLOGIES, objects.topology(NODE))
    apiserver.admin.delete(CRD)
    eventually("the kind is deleted", lambda: not apiserver.answers(DEVICES), PATIENCE_SECONDS)
    gpu = objects.pod_request({"cpu": "1", "nvidia.com/gpu": "1"})
    cluster = SchedulerCache(agents=False)
    watches = Watches(apiserver.admin, cluster, stale_seconds=30, check_seconds=0.2)
    watches.start()
    try:
        eventually("synced", lambda: watches.synced, PATIENCE_SECONDS)
        assert ineligibility(cluster, NODE, gpu) == "it has no Device"
        apiserver.apply(definitions[NAME])
        apiserver.create(DEVICES, objects.devices(NODE))
        eventually(
            "the watch reports it",
            lambda: cluster.ineligibility(NODE, gpu) is None,
            PATIENCE_SECONDS,
        )
        assert not watches.problems
        apiserver.admin.delete(CRD)
        eventually(
            "the watch reports the removal",
            lambda: ineligibility(cluster, NODE, gpu) == "it has no Device",
            PATIENCE_SECONDS,
        )
    finally:
        watches.stop()
        apiserver.apply(definitions[NAME])


def test_the_label_of_a_namespace_is_the_policy_of_its_pods(apiserver: ApiServer) -> None:
    cluster = SchedulerCache(agents=False)
    watches = Watches(apiserver.admin, cluster, stale_seconds=30, check_seconds=0.2)
    watches.start()

    def label(value: str | None) -> None:
        labels = {"metadata": {"labels": {DEVICE_LOCALITY: value}}}
        apiserver.admin.merge(f"{NAMESPACES}/trainers", labels)

    try:
        eventually("synced", lambda: watches.synced, PATIENCE_SECONDS)
        apiserver.create(NAMESPACES, {"metadata": {"name": "trainers"}})
        for value, locality in (
            ("require", DeviceLocality.REQUIRE),
            ("off", DeviceLocality.OFF),
            ("near", None),
            ("prefer", DeviceLocality.PREFER),
            (None, None),
        ):
            label(value)
            eventually(
                f"the cache has the label {value}",
                lambda locality=locality: (
                    cluster.pod_defaults.device_localities.get("trainers") is locality
                ),
                PATIENCE_SECONDS,
            )
    finally:
        watches.stop()
