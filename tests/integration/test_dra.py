"""The DRA driver of an agent with a real API server: its slices, and claims that a kubelet's calls
prepare."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from agent.allocate.dra.refusals import REFUSED_SECONDS
from agent.cri.client import Cri
from agent.dra.service import REGISTRATION, SERVICE
from agent.model.devices.resource_slice import PCIE_ROOT
from agent.model.dra import cpu_parameters
from agent.model.dra.names import DRIVER, PEER_DRIVER, REGISTRY
from agent.proto import dra_pb2 as pb
from tests.deploy.manifests import objects
from tests.discover import buses
from tests.fixtures import trees
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import run_pod
from tests.integration.apiserver.server import (
    ApiServer,
    gate_flags,
    gates_without_parts,
    slice_writes,
)
from tests.integration.harness import TestNode, kernel_group
from tests.integration.incluster import QOS, READ_RULES, STATUS, WRITE_RULES, ClusterNode
from tests.waiting import eventually

TIMEOUT_SECONDS = 60.0
DOCS = Path(__file__).resolve().parents[2] / "docs"
RESOURCES = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCES}/resourceslices"
RULES = [
    *READ_RULES,
    *WRITE_RULES,
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
    # The token of the account is not bound to a node.
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaims/driver"],
        "verbs": ["arbitrary-node:patch"],
    },
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]
BACK_SECONDS = 6.0
"""A slice is back after 2 s on an idle machine."""
Device = dict[str, Any]


class DraNode:
    """A node whose agent is a DRA driver.

    `kubelet_dir`: has a short path, as sockets need it."""

    def __init__(self, api: ApiServer, node: TestNode, name: str, kubelet_dir: Path) -> None:
        for definition in objects("crds"):
            api.apply(definition)
        self.api, self.node, self.name = api, node, name
        self.kubelet_dir, self.cdi_dir = kubelet_dir, kubelet_dir / "cdi"
        self.of_cluster = ClusterNode(api, node, name, RULES)
        api.default_account(name)
        self.configuration = kubelet_dir / "config.yaml"
        self.configuration.write_text("{kind: KubeletConfiguration}\n")
        self.root = ""

    def machine(self, *shape: int, **more: int) -> Path:
        """The agent sees this machine, which has no containers. Returns its root."""
        files = trees.machine(*shape, **more)  # type: ignore[arg-type]
        self.root = trees.write(str(self.node.folder / "machine"), files)
        return Path(self.root)

    def start(self, *flags: str) -> None:
        self.of_cluster.start_agent(
            self.node,
            "--dra=true",
            f"--kubelet-dir={self.kubelet_dir}",
            f"--kubelet-config={self.configuration}",
            f"--cdi-dir={self.cdi_dir}",
            *([f"--root={self.root}"] if self.root else []),
            *flags,
        )

    def slices(self) -> list[dict[str, Any]]:
        query = {"fieldSelector": f"spec.nodeName={self.name},spec.driver={DRIVER}"}
        items: list[dict[str, Any]] = json.loads(self.api.admin.get(SLICES, query))["items"]
        return items

    def devices(self) -> list[Device]:
        return [device for each in self.slices() for device in each["spec"].get("devices") or ()]

    def names(self) -> list[str]:
        return [device["name"] for device in self.devices()]

    def cpus(self) -> dict[str, int]:
        """The CPUs that each device offers."""
        return {
            device["name"]: int(device["capacity"][f"{DRIVER}/cpu"]["value"])
            for device in self.devices()
        }

    def uids(self) -> list[str]:
        return [part["metadata"]["uid"] for part in self.slices()]

    def writes(self) -> int:
        """The requests to write slices that the API server has had."""
        return slice_writes(self.api.admin.get("/metrics").decode())

    def own(self, name: str, cpuset: str) -> None:
        """Binds a pod with CPUs of its own to the node."""
        status = json.dumps({"cpuset": cpuset})
        self.api.pod(self.name, name, self.name, labels={QOS: "LSR"}, annotations={STATUS: status})

    def told(self, text: str) -> None:
        eventually(f"it is said: {text}", lambda: text in self.node.log("agent"), TIMEOUT_SECONDS)

    def read(self, path: str) -> dict[str, Any]:
        stored: dict[str, Any] = json.loads(self.api.admin.get(path))
        return stored

    # as a kubelet
    def endpoint(self) -> str:
        """The driver's socket, as it registers itself."""
        folder = self.kubelet_dir / REGISTRY
        # An agent that was killed has left its socket until the next one has started.
        eventually("there is one driver", lambda: len([*folder.iterdir()]) == 1)
        (path,) = folder.iterdir()
        info = pb.PluginInfo.FromString(called(str(path), f"/{REGISTRATION}/GetInfo"))
        return str(info.endpoint)

    def claim(self, name: str, cpus: int) -> pb.Claim:
        """A claim that is allocated to this node, for a pod."""
        request = {"name": "cpus", "exactly": {"deviceClassName": DRIVER}}
        path = f"{RESOURCES}/namespaces/{self.name}/resourceclaims"
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        uid = self.api.create(path, body)["metadata"]["uid"]
        pod = self.api.pod(self.name, f"of-{name}", self.name)["metadata"]
        device = {
            "request": "cpus",
            "driver": DRIVER,
            "pool": self.name,
            "device": "numa-node-0",
            "shareID": "00000000-0000-0000-0000-000000000001",
            "consumedCapacity": {f"{DRIVER}/cpu": str(cpus)},
        }
        status = {
            "allocation": {"devices": {"results": [device]}},
            "reservedFor": [{"resource": "pods", "name": pod["name"], "uid": pod["uid"]}],
        }
        self.api.admin.merge(f"{path}/{name}/status", {"status": status})
        return pb.Claim(namespace=self.name, name=name, uid=uid)

    def user(self, name: str, claim: str) -> str:
        """A pod of this name on the node, whose container `main` uses the claim. Its uid."""
        main = {"name": "main", "image": "none", "resources": {"claims": [{"name": "cpus"}]}}
        spec = {
            "nodeName": self.name,
            "containers": [main],
            "resourceClaims": [{"name": "cpus", "resourceClaimName": claim}],
        }
        pods = f"/api/v1/namespaces/{self.name}/pods"
        made = self.api.create(pods, {"metadata": {"name": name}, "spec": spec})
        return str(made["metadata"]["uid"])

    def status(self, claim: pb.Claim) -> list[dict[str, Any]]:
        """The devices in the status of the claim."""
        path = f"{RESOURCES}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        devices: list[dict[str, Any]] = self.read(path)["status"].get("devices", [])
        return devices

    def prepare(self, claim: pb.Claim) -> pb.Prepared:
        message = pb.PrepareRequest(claims=[claim]).SerializeToString()
        answer = called(self.endpoint(), f"/{SERVICE}/NodePrepareResources", message)
        return pb.PrepareResponse.FromString(answer).claims[claim.uid]

    def unprepare(self, claim: pb.Claim) -> str:
        """The error."""
        message = pb.PrepareRequest(claims=[claim]).SerializeToString()
        answer = called(self.endpoint(), f"/{SERVICE}/NodeUnprepareResources", message)
        return str(pb.UnprepareResponse.FromString(answer).claims[claim.uid].error)


def called(path: str, method: str, message: bytes = b"") -> bytes:
    with grpc.insecure_channel(f"unix://{path}") as channel:
        reply: bytes = channel.unary_unary(method)(message, timeout=30, wait_for_ready=True)
        return reply


NewNode = Callable[[str], DraNode]


@pytest.fixture
def claims_served(apiserver: ApiServer) -> ApiServer:
    if apiserver.minor < 34:
        pytest.skip("Kubernetes has resource.k8s.io/v1 from 1.34 on")
    return apiserver


@pytest.fixture
def new_node(claims_served: ApiServer, node: TestNode) -> Iterator[NewNode]:
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    yield lambda name: DraNode(claims_served, node, name, folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_slices_are_written_when_they_change_and_only_then(new_node: NewNode) -> None:
    dra = new_node("dra-slices")
    dra.machine(2, 2, 2, 4, 2, hugepages=64)
    before = dra.writes()
    dra.start()
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    assert dra.cpus() == {f"numa-node-{node}": 16 - 2 * (node == 3) for node in range(4)}
    amounts = dra.devices()[0]["capacity"]
    assert amounts[f"{DRIVER}/hugepages_2Mi"]["value"] == "128Mi"
    (metadata,) = (part["metadata"] for part in dra.slices())
    uid = json.loads(dra.api.admin.get(f"/api/v1/nodes/{dra.name}"))["metadata"]["uid"]
    assert [owner["uid"] for owner in metadata["ownerReferences"]] == [uid]
    assert dra.writes() - before == 1

    dra.node.kill_agent()
    dra.start()
    dra.own("own", "0")
    eventually("a CPU has left", lambda: dra.cpus()["numa-node-0"] == 15, TIMEOUT_SECONDS)
    assert dra.writes() - before == 2, "a restart writes nothing"

    # What others remove comes back: one slice, and all of the node as starts of a kubelet remove
    # them.
    uids = dra.uids()
    of_node = {"fieldSelector": f"spec.nodeName={dra.name}"}
    for select in ({}, of_node, of_node):
        path = SLICES if select else f"{SLICES}/{metadata['name']}"
        dra.api.admin.request("DELETE", path, select, None)
        eventually("they are there again", dra.devices, BACK_SECONDS)
    assert dra.writes() - before == 8
    assert dra.uids() != uids

    # So does what they edit.
    dra.api.admin.merge(f"{SLICES}/{metadata['name']}", {"spec": {"devices": []}})
    eventually("the devices are there again", dra.devices, BACK_SECONDS)
    assert dra.writes() - before == 10


def test_the_cpus_of_bound_pods_leave_the_slices_in_few_writes(new_node: NewNode) -> None:
    dra = new_node("dra-owners")
    dra.machine(1, 2, 1, 16, 1)
    dra.start("--dra-order=numa-node")
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    assert dra.cpus() == {"numa-node-0": 16, "numa-node-1": 15}
    before, began = dra.writes(), time.monotonic()
    for cpu in range(10):
        dra.own(f"own-{cpu}", str(cpu))
    eventually("they have left", lambda: dra.cpus()["numa-node-0"] == 6, BACK_SECONDS)
    written = dra.writes() - before
    assert written <= time.monotonic() - began + 1
    assert [part["spec"]["pool"]["generation"] for part in dra.slices()] == [1 + written]


def test_the_order_of_devices_is_the_policy_s(new_node: NewNode) -> None:
    dra = new_node("dra-order")
    root = dra.machine(1, 3, 1, 8, 1)
    rdma = {
        "class": "0x020000\n",
        "vendor": "0x15b3\n",
        "numa_node": "0\n",
        "infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "infiniband/mlx5_0/node_guid": "0000:0000:0000:0001",
    }
    buses.add_function(root, "pci0000:00/0000:00:01.0", rdma)
    dra.own("own", "8-11")
    expected = {
        "numa-node": ["numa-node-0", "numa-node-1", "numa-node-2"],
        "devices-last": ["numa-node-1", "numa-node-2", "numa-node-0"],
        "spread": ["numa-node-0", "numa-node-2", "numa-node-1"],
    }
    for order, names in expected.items():
        dra.start(f"--dra-order={order}")
        eventually(
            f"the order is {order}",
            lambda names=names: dra.names() == names,  # type: ignore[misc]
            TIMEOUT_SECONDS,
        )
        dra.node.kill_agent()


def test_whole_cores_where_the_node_gives_no_others(new_node: NewNode) -> None:
    dra = new_node("dra-cores")
    dra.machine(1, 1, 1, 8, 2)
    label = {"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"}
    dra.api.admin.merge(f"/api/v1/nodes/{dra.name}", {"metadata": {"labels": label}})
    dra.own("own", "0")
    dra.start()
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    # One core has an owner, and one stays in the pool.
    assert dra.cpus() == {"numa-node-0": 12}
    policy = dra.devices()[0]["capacity"][f"{DRIVER}/cpu"]["requestPolicy"]
    assert policy == {"default": "2", "validRange": {"min": "2", "step": "2"}}
    dra.node.kill_agent()
    dra.start("--dra-devices=core")
    eventually("each core is a device", lambda: len(dra.devices()) == 6, TIMEOUT_SECONDS)
    assert not any("capacity" in device for device in dra.devices())


def test_a_node_of_many_cores_has_several_slices_of_one_pool(new_node: NewNode) -> None:
    dra = new_node("dra-many")
    dra.machine(2, 2, 1, 40, 2)
    before = dra.writes()
    dra.start("--dra-devices=core")
    eventually("all are published", lambda: len(dra.devices()) == 159, TIMEOUT_SECONDS)
    assert dra.writes() - before == 2
    dra.own("own", "0")
    eventually("a core has left", lambda: len(dra.devices()) == 158, BACK_SECONDS)
    pools = [part["spec"]["pool"] for part in dra.slices()]
    assert pools == [{"name": dra.name, "generation": 2, "resourceSliceCount": 2}] * 2


def test_a_static_kubelet_leaves_claims_what_it_strictly_reserves(new_node: NewNode) -> None:
    dra = new_node("dra-static")
    dra.machine(1, 1, 1, 8, 1)
    declared = {
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "6-7",
    }
    dra.configuration.write_text(json.dumps(declared))
    dra.start()
    dra.told("set its option strict-cpu-reservation, or its policy to none")
    assert dra.slices() == []
    assert dra.node.metric('topolet_source_problems{source="dra-driver"}') == 1
    dra.node.kill_agent()
    declared["cpuManagerPolicyOptions"] = {"strict-cpu-reservation": "true"}  # type: ignore[assignment]
    dra.configuration.write_text(json.dumps(declared))
    dra.start()
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    assert dra.devices()[0]["attributes"][f"{DRIVER}/cpuIDs"] == {"string": "6-7"}
    kept = {"node.koordinator.sh/reservation": json.dumps({"reservedCPUs": "6"})}
    dra.api.admin.merge(f"/api/v1/nodes/{dra.name}", {"metadata": {"annotations": kept}})
    eventually(
        "what the Node reserves is not offered",
        lambda: dra.devices()[0]["attributes"][f"{DRIVER}/cpuIDs"] == {"string": "7"},
        TIMEOUT_SECONDS,
    )


def test_slices_of_another_driver_for_cpus_end_ours_until_they_go(new_node: NewNode) -> None:
    dra = new_node("dra-rival")
    dra.machine(1, 1, 1, 8, 1)
    dra.start()
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    rival = {
        "metadata": {"name": "rival"},
        "spec": {
            "driver": PEER_DRIVER,
            "nodeName": dra.name,
            "pool": {"name": dra.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "cpudev000"}],
        },
    }
    dra.api.create(SLICES, rival)
    eventually("ours are withdrawn", lambda: not dra.slices(), BACK_SECONDS)
    dra.told("dra.cpu publishes CPUs of this node: cpu.topolet.io does not")
    dra.api.admin.delete(f"{SLICES}/rival")
    eventually("ours are back", dra.devices, BACK_SECONDS)


def since_1_36(apiserver: ApiServer) -> None:
    if apiserver.minor < 36:
        pytest.skip("Kubernetes has the feature gate from 1.36 on")


def test_a_server_that_counts_claims_as_requests_is_told_what_they_take(
    apiserver: ApiServer, new_node: NewNode
) -> None:
    """KEP-5517, by a gate that is off in Kubernetes 1.36 and 1.37. The API server of 1.37 refuses
    the slices of a Node that does not declare the feature, as a kubelet with the gate does."""
    since_1_36(apiserver)
    dra = new_node("dra-counted")
    dra.machine(1, 1, 1, 8, 1, hugepages=64)
    apiserver.restart_server("--feature-gates=DRANodeAllocatableResources=true")
    try:
        dra.start()
        eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
        if apiserver.minor == 36:
            (device,) = dra.devices()
            taken = device["nodeAllocatableResourceMappings"]
        else:
            assert "nodeAllocatableResources" not in dra.devices()[0]
            status = {"declaredFeatures": ["DRANodeAllocatableResources"]}
            apiserver.admin.merge(f"/api/v1/nodes/{dra.name}/status", {"status": status})
            eventually(
                "they say what they take",
                lambda: "nodeAllocatableResources" in dra.devices()[0],
                TIMEOUT_SECONDS,
            )
            (device,) = dra.devices()
            of_device = device["nodeAllocatableResources"]
            taken = {name: each["mapping"] for name, each in of_device.items()}
        names = {"cpu": "cpu", "memory": "memory", "hugepages-2Mi": "hugepages_2Mi"}
        assert {name: each["capacityKey"] for name, each in taken.items()} == {
            name: f"{DRIVER}/{capacity}" for name, capacity in names.items()
        }
        before = dra.writes()
        dra.own("own", "0")
        eventually("a CPU has left", lambda: dra.cpus()["numa-node-0"] == 6, TIMEOUT_SECONDS)
        assert dra.writes() - before == 1, "the server has what was written"
    finally:
        apiserver.restart_server()


def test_pcie_roots_are_published_to_a_server_that_has_lists(
    apiserver: ApiServer, new_node: NewNode
) -> None:
    """By a gate that is off in Kubernetes 1.36 and 1.37; a server without it refuses them, and the
    agent says so."""
    since_1_36(apiserver)
    dra = new_node("dra-roots")
    root = dra.machine(1, 2, 1, 8, 1)
    for number, path in enumerate(("pci0000:00/0000:00:01.0", "pci0000:17/0000:17:00.0")):
        buses.add_function(root, path, {"numa_node": "0\n", "class": f"0x01080{number}\n"})
    flags = ("--dra-pcie-roots=true", "--dra-order=numa-node")
    dra.start(*flags)
    dra.told(PCIE_ROOT)
    assert dra.slices() == []
    dra.node.kill_agent()
    apiserver.restart_server("--feature-gates=DRAListTypeAttributes=true")
    try:
        before = dra.writes()
        dra.start(*flags)
        eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
        near, far = (device["attributes"] for device in dra.devices())
        assert near[PCIE_ROOT] == {"strings": ["pci0000:00", "pci0000:17"]}
        assert PCIE_ROOT not in far
        dra.own("own", "0")
        eventually("a CPU has left", lambda: dra.cpus()["numa-node-0"] == 7, TIMEOUT_SECONDS)
        assert dra.writes() - before == 2, "the server has what was written"
    finally:
        dra.node.kill_agent()
        dra.api.admin.request(
            "DELETE", SLICES, {"fieldSelector": f"spec.nodeName={dra.name}"}, None
        )
        apiserver.restart_server()


def test_a_server_that_gives_devices_only_as_a_whole_is_a_problem(
    apiserver: ApiServer, new_node: NewNode
) -> None:
    """Before Kubernetes 1.36 a gate is off."""
    dra = new_node("dra-whole")
    dra.machine(1, 1, 1, 8, 1)
    apiserver.restart_server(*gate_flags(gates_without_parts()))
    try:
        dra.start()
        dra.told("feature gate DRAConsumableCapacity off")
        before = dra.writes()
        dra.own("own", "0")
        eventually("a CPU has left", lambda: dra.cpus()["numa-node-0"] == 6, TIMEOUT_SECONDS)
        assert dra.writes() - before == 1, "the server has what was written"
    finally:
        apiserver.restart_server()


def test_the_examples_of_the_document_are_accepted(claims_served: ApiServer) -> None:
    apiserver = claims_served
    text = (DOCS / "dra.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    examples = [each for block in blocks for each in yaml.safe_load_all(block) if "kind" in each]
    plurals = {"Pod": "pods"}
    apiserver.default_account("default")
    for example in examples:
        plural = plurals.get(example["kind"], f"{example['kind'].lower()}s")
        base = RESOURCES if plural != "pods" else "/api/v1"
        path = f"{base}/namespaces/default/{plural}"
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        apiserver.admin.request("POST", path, query, example)
    claims = [each for each in examples if each["kind"] == "ResourceClaim"]
    opaque = [config["opaque"] for each in claims for config in each["spec"]["devices"]["config"]]
    for each in opaque:
        assert cpu_parameters.parsed(json.dumps(each["parameters"]).encode())
    assert len(examples) == 7


def test_a_node_may_have_a_long_name(new_node: NewNode) -> None:
    dra = new_node("dra-long")
    dra.machine(1, 1, 1, 8, 1)
    name = dra.name = f"{'a-label.' * 31}node"
    dra.api.node(name)
    dra.start(f"--node-name={name}")
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    assert [part["spec"]["pool"]["name"] for part in dra.slices()] == [name]


def test_the_cpus_of_a_prepared_claim_leave_the_pool_and_come_back(new_node: NewNode) -> None:
    """Also over the end of an agent by SIGKILL."""
    dra = new_node("dra-claim")
    node = dra.node
    _, shared = run_pod(node.direct, node.spec("ls", "LS"))
    dra.start()
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    assert node.cpus(shared) == "0-1"
    assert dra.cpus() == {"numa-node-0": 1}
    claim, second = dra.claim("one", 1), dra.claim("two", 1)
    prepared = dra.prepare(claim)
    assert not prepared.error
    (device,) = prepared.devices
    assert (device.pool_name, device.device_name) == (dra.name, "numa-node-0")
    eventually("the pool has the other CPU", lambda: node.cpus(shared) in "01")
    pool = node.cpus(shared)
    (cdi,) = (json.loads(path.read_text()) for path in dra.cdi_dir.iterdir())
    (edits,) = (each["containerEdits"] for each in cdi["devices"])
    (variable,) = edits["env"]
    (own,) = {"0", "1"} - {pool}
    assert variable.endswith(f"={own}")
    assert Path(edits["mounts"][0]["hostPath"]).is_file()
    assert "the claim needs 1 CPUs" in dra.prepare(second).error
    assert dra.cpus() == {"numa-node-0": 1}, "a scheduler subtracts what it has allocated"

    node.kill_agent()
    dra.start()
    assert node.cpus(shared) == pool
    again = dra.prepare(claim)
    assert again == prepared, "a kubelet that starts again asks again"
    assert dra.unprepare(claim) == ""
    eventually("the CPU is back", lambda: node.cpus(shared) == "0-1")
    assert [*dra.cdi_dir.iterdir()] == []
    assert dra.unprepare(claim) == ""
    with contextlib.suppress(FileNotFoundError):
        assert json.loads((node.state / "claims.json").read_text()) == {"claims": []}


def test_the_weight_of_a_container_is_that_of_its_claim_until_that_ends(new_node: NewNode) -> None:
    """Also of its pod, and as the runtime stores it. The request has 256 shares."""
    dra = new_node("dra-weight")
    node = dra.node
    dra.start()
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    claim = dra.claim("one", 1)
    spec = node.spec("user", "LS", uid=dra.user("user", "one"), namespace=dra.name)
    _, container = run_pod(node.direct, spec)
    of_pod = kernel_group(node.direct.container_status(container).pid, "cpu").parent / "cpu.shares"
    of_pod.write_text("256")

    def weights() -> tuple[str, str]:
        return node.kernel_value(container, "cpu", "cpu.shares"), of_pod.read_text().strip()

    def stored() -> int | None:
        return node.direct.container_status(container).resources.shares

    assert weights() == ("256", "256")
    assert not dra.prepare(claim).error
    eventually("both have the weight of one CPU", lambda: weights() == ("1024", "1024"))
    eventually("the runtime stores it", lambda: stored() == 1024)
    assert dra.unprepare(claim) == ""
    eventually("both have that of the request", lambda: weights() == ("256", "256"))
    eventually("the runtime stores it", lambda: stored() == 256)


def test_the_status_of_a_claim_names_its_cpus_until_it_is_unprepared(new_node: NewNode) -> None:
    dra = new_node("dra-status")
    dra.machine(1, 2, 1, 4, 1)
    dra.start()
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    claim, gone = dra.claim("one", 2), dra.claim("two", 1)
    assert not dra.prepare(claim).error
    eventually("the status is written", lambda: dra.status(claim))
    (device,) = dra.status(claim)
    assert device["data"] == {"cpus": "0-1", "numaNodes": "0"}
    assert device["shareID"] == "00000000-0000-0000-0000-000000000001"
    (condition,) = device["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")

    cli, state = dra.node.run_cli, f"--state-dir={dra.node.state}"
    eventually(
        "people see the claim",
        lambda: (
            "numa-node-0, CPUs 0-1, which the node chose"
            in cli("explain", "node", "dra", state).stdout
        ),
    )
    endpoint = f"--runtime-endpoint=unix://{dra.node.containerd.socket}"
    told = cli("doctor", "--output=json", endpoint, state, f"--kubelet-dir={dra.kubelet_dir}")
    codes = [each["code"] for each in json.loads(told.stdout)["node"]]
    assert [code for code in codes if code.startswith("dra-")] == ["dra-not-registered"]

    path = f"{RESOURCES}/namespaces/{dra.name}/resourceclaims/{claim.name}"
    version = dra.read(path)["metadata"]["resourceVersion"]
    dra.node.kill_agent()
    dra.start()
    assert not dra.prepare(gone).error
    eventually("the other is written too", lambda: dra.status(gone))
    assert dra.read(path)["metadata"]["resourceVersion"] == version, "a restart changes nothing"
    assert dra.unprepare(claim) == ""
    eventually("it is empty", lambda: not dra.status(claim))


def test_a_real_runtime_says_where_it_looks_for_cdi_files(
    containerd: Containerd, containerd2: Containerd
) -> None:
    """`topolet preflight` compares it with the folder of the agent. containerd 1.6 knows no CDI."""
    for runtime in (containerd, containerd2):
        cri = Cri(runtime.socket)
        try:
            has_cdi = not cri.version().startswith("containerd 1.6.")
            assert cri.cdi_dirs() == ((str(runtime.folder / "cdi"),) if has_cdi else ())
        finally:
            cri.close()


@pytest.mark.long
def test_a_pod_whose_claim_the_node_cannot_prepare_is_evicted(new_node: NewNode) -> None:
    """The kubelet would ask for ever."""
    dra = new_node("dra-evict")
    dra.machine(1, 1, 1, 4, 1)
    dra.start()
    eventually("the devices are published", dra.devices, TIMEOUT_SECONDS)
    claim = dra.claim("large", 4)
    pods = f"/api/v1/namespaces/{dra.name}/pods"
    dra.user("waits", "large")
    deadline = time.monotonic() + TIMEOUT_SECONDS + REFUSED_SECONDS

    def leaves() -> bool:
        assert "the claim needs 4 CPUs" in dra.prepare(claim).error
        of_name = [pod for pod in dra.read(pods)["items"] if pod["metadata"]["name"] == "waits"]
        return not of_name or "deletionTimestamp" in of_name[0]["metadata"]

    eventually("the pod leaves", leaves, deadline - time.monotonic())
    dra.told("pod dra-evict/waits is evicted: another node may prepare its claim: ResourceClaim")
