"""The DRA driver for CPUs: what the order of its devices makes of a node's GPUs, and what the
preparation of a claim costs.

`gpus_in_use_vs_numa_order`, `cpu_pods_refused_more_percent`: a real kube-scheduler and API server
place pods on a machine with eight NUMA nodes of 32 CPUs, the first four of which have two GPUs each
(`--nodes`: on several, among which kube-scheduler takes the emptiest, so that the order matters
less). Jobs of a GPU with 12 CPUs of the same NUMA node (`matchAttribute`) arrive beside pods of 2
to 16 CPUs without a GPU; all by ResourceClaims, and all arrivals and ends are drawn once for both
arms. On average those that have arrived want 87 % of the GPUs and, with them, 87 % of the CPUs. The
arms differ in the order of the devices in the ResourceSlices: by NUMA node, as dra-driver-cpu has
them, and that of Topolet (`devices-last`). A pod that finds no place is refused and does not come
again. Time is simulated: `gpus_in_use` is the share of the GPUs in use over that time, after a
warm-up, and `cpu_pods_refused_more_percent` the share of pods without GPUs that Topolet's order
refuses beyond the other one's, in points.

`prepare_p50_ms`: a call of NodePrepareResources for a claim of four CPUs at the driver's socket, as
a kubelet makes it: the claim is read from a real API server, gets its CPUs, and is kept on the disk
of this machine before the answer. Driver and ledger run in this process, without the pass that
follows an answer.

`guard_mb`: the memory of the NRI plugin's guard, as `benchmarks/memory.py` measures it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import Row, arguments, ratio_row, report, value_row
from memory import GUARD, guard_mb
from peers import cluster as clusters
from peers.cluster import Cluster, NoClusterError

from agent.allocate.dra import slices
from agent.allocate.dra.groups import GroupRules, groups
from agent.kube.errors import NotFoundError
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.policies import GroupOrder
from agent.model.cpu.topology import NumaNode, Topology
from agent.model.dra.names import DRIVER
from conformance import machines

SHAPE: Final = (2, 4, 16, 2)
GPUS: Final = {0: 2, 1: 2, 2: 2, 3: 2}
"""By NUMA node."""
GPU_DRIVER: Final = "gpu.example.com"
GPU_CPUS: Final = 12
CPU_SIZES: Final = (2, 4, 8, 16)
LOAD: Final = 0.87
NAMESPACE: Final = "default"
RESERVED: Final = 2
"""CPUs of each node that no claim has, on its last NUMA node."""
_CLAIMS: Final = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
_DEADLINE_SECONDS: Final = 60.0


class Job(NamedTuple):
    """A pod of the trace. Times are simulated, in hours."""

    arrives: float
    stays: float
    cpus: int
    gpu: bool


class Outcome(NamedTuple):
    """What an arm made of a trace, in percent."""

    gpus_in_use: float
    cpu_pods_refused: float


def trace(nodes: int, jobs: int, seed: int) -> list[Job]:
    """The pods of both arms, in the order of their arrival. Pods stay an hour on average."""
    draw = random.Random(seed)
    cpus = nodes * (SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3] - RESERVED)
    gpu_jobs = LOAD * nodes * sum(GPUS.values())
    of_cpu = LOAD * cpus - gpu_jobs * GPU_CPUS
    cpu_jobs = of_cpu / statistics.mean(CPU_SIZES)
    rate = gpu_jobs + cpu_jobs
    now = 0.0
    arrivals = []
    for _ in range(jobs):
        now += draw.expovariate(rate)
        gpu = draw.random() < gpu_jobs / rate
        size = GPU_CPUS if gpu else draw.choice(CPU_SIZES)
        arrivals.append(Job(now, draw.expovariate(1.0), size, gpu))
    return arrivals


def node_topology() -> Topology:
    cpus = tuple(machines.cpus(SHAPE, "adjacent"))
    nodes = sorted({cpu.node for cpu in cpus})
    return Topology(
        cpus,
        tuple(
            NumaNode(node, CpuSet(cpu.id for cpu in cpus if cpu.node == node), 64 << 30)
            for node in nodes
        ),
        EMPTY,
        EMPTY,
        smt=True,
    )


def cpu_slices(node_name: str, order: GroupOrder) -> list[dict[str, Any]]:
    """The slices of Topolet's driver for a node, in this order."""
    topology = node_topology()
    layout = layouts.of_topology(topology)
    offered = topology.online - CpuSet(max(topology.online) - index for index in range(RESERVED))
    of_node = groups(
        topology, layout, offered, EMPTY, GroupRules(order=order), GPUS, pool_left=True
    )
    return slices.slices(node_name, "", slices.devices(of_node, layout, whole_cores=False), 1)


def gpu_slice(node_name: str) -> dict[str, Any]:
    """The slice of a driver for GPUs."""
    devices = [
        {
            "name": f"gpu-{node}-{index}",
            "attributes": {"resource.kubernetes.io/numaNode": {"int": node}},
        }
        for node, count in GPUS.items()
        for index in range(count)
    ]
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": slices.API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-{GPU_DRIVER}"},
        "spec": {"driver": GPU_DRIVER, "nodeName": node_name, "pool": pool, "devices": devices},
    }


def claim(name: str, job: Job) -> dict[str, Any]:
    """The claim of a pod."""
    requests = [
        {
            "name": "cpus",
            "exactly": {
                "deviceClassName": DRIVER,
                "capacity": {"requests": {f"{DRIVER}/cpu": str(job.cpus)}},
            },
        }
    ]
    devices: dict[str, Any] = {"requests": requests}
    if job.gpu:
        requests.append({"name": "gpu", "exactly": {"deviceClassName": GPU_DRIVER}})
        devices["constraints"] = [{"matchAttribute": "resource.kubernetes.io/numaNode"}]
    return {
        "apiVersion": slices.API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": devices},
    }


def pod(name: str, job: Job) -> dict[str, Any]:
    """A pod with the claim of its name."""
    resources = {"requests": {"cpu": str(job.cpus)}, "claims": [{"name": "cpus"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "cpus", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        },
    }


class Arm:
    """One run of a trace on nodes whose slices have this order."""

    def __init__(self, cluster: Cluster, nodes: int, order: GroupOrder) -> None:
        self._admin = cluster.api.admin
        self._names = [f"numa-{index}" for index in range(nodes)]
        for name in self._names:
            for each in (*cpu_slices(name, order), gpu_slice(name)):
                self._admin.create(_SLICES, each)

    def run(self, jobs: list[Job]) -> Outcome:
        """Places the pods in turn; the first third is a warm-up."""
        begins = jobs[len(jobs) // 3].arrives
        ends: list[tuple[float, str, bool]] = []
        in_use, area, now = 0, 0.0, begins
        refused = arrived = 0
        for index, job in enumerate(jobs):
            while ends and ends[0][0] <= job.arrives:
                ended, name, gpu = heapq.heappop(ends)
                area += in_use * max(0.0, ended - now)
                now = max(now, ended)
                in_use -= gpu
                self._remove(name)
            area += in_use * max(0.0, job.arrives - now)
            now = max(now, job.arrives)
            name = f"job-{index}"
            placed = self._place(name, job)
            measured = job.arrives >= begins
            arrived += measured and not job.gpu
            if placed:
                in_use += job.gpu
                heapq.heappush(ends, (job.arrives + job.stays, name, job.gpu))
            else:
                refused += measured and not job.gpu
        gpus = len(self._names) * sum(GPUS.values())
        share = area / (gpus * (jobs[-1].arrives - begins))
        return Outcome(100 * share, 100 * refused / max(1, arrived))

    def close(self) -> None:
        """Removes everything that the arm has created."""
        for name in [each["metadata"]["name"] for each in self._listed(_PODS)]:
            self._remove(name)
        for each in self._listed(_SLICES):
            self._admin.delete(f"{_SLICES}/{each['metadata']['name']}")

    def _listed(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self._admin.get(path))["items"]
        return items

    def _place(self, name: str, job: Job) -> bool:
        """Whether kube-scheduler finds a node; otherwise the pod is removed."""
        self._admin.create(_CLAIMS, claim(name, job))
        self._admin.create(_PODS, pod(name, job))
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            stored = json.loads(self._admin.get(f"{_PODS}/{name}"))
            if stored["spec"].get("nodeName"):
                return True
            conditions = stored["status"].get("conditions", ())
            if any(each.get("reason") == "Unschedulable" for each in conditions):
                self._remove(name)
                return False
            time.sleep(0.005)
        raise SystemExit(f"kube-scheduler does not answer about {name}")

    def _remove(self, name: str) -> None:
        """Nobody runs that frees the claims of ended pods."""
        self._admin.delete(f"{_PODS}/{name}")
        self._admin.merge(f"{_CLAIMS}/{name}", {"metadata": {"finalizers": None}})
        with suppress(NotFoundError):
            self._admin.delete(f"{_CLAIMS}/{name}")


def placement(cluster: Cluster, nodes: int, jobs: int, seeds: int) -> list[Row]:
    """Both arms on the same traces, in turns."""
    outcomes: dict[GroupOrder, list[Outcome]] = {
        GroupOrder.DEVICES_LAST: [],
        GroupOrder.NUMA_NODE: [],
    }
    for seed in range(seeds):
        arrivals = trace(nodes, jobs, seed)
        for order, of_order in outcomes.items():
            arm = Arm(cluster, nodes, order)
            try:
                of_order.append(arm.run(arrivals))
            finally:
                arm.close()
    ours, base = (
        Outcome(*(statistics.mean(values) for values in zip(*of_order, strict=True)))
        for of_order in outcomes.values()
    )
    more = ours.cpu_pods_refused - base.cpu_pods_refused
    return [
        ratio_row(
            "gpus_in_use_vs_numa_order",
            ours.gpus_in_use,
            base.gpus_in_use,
            "order by NUMA node",
            "% of GPUs in use",
        ),
        value_row("cpu_pods_refused_more_percent", more, "points"),
        value_row("cpu_pods_refused_percent", ours.cpu_pods_refused, "%"),
    ]


def prepared(cluster: Cluster, folder: Path, calls: int) -> Row:
    """The time of a preparation."""
    import grpc

    from agent.allocate.dra.offer import OfferedCpus
    from agent.dra.cdi import CdiFiles
    from agent.dra.server import DraServer, endpoint
    from agent.dra.service import SERVICE, DraService
    from agent.kube.cluster import Cluster as Store
    from agent.model.dra.names import CLAIMS_FILE
    from agent.node.reconcile import ClaimMoment
    from agent.node.resource_claims import ResourceClaims
    from agent.proto import dra_pb2 as pb

    store = Store(cluster.api.admin, "numa-0")
    claims = ResourceClaims(
        store.claim,
        "numa-0",
        str(folder / CLAIMS_FILE),
        CdiFiles(str(folder / "cdi"), str(folder / "plugin")),
        GroupRules(),
        lambda: None,
    )
    topology = node_topology()
    claims.follow(ClaimMoment(topology, OfferedCpus(topology.online)))
    uid = allocated_claim(cluster)
    message = pb.PrepareRequest(claims=[pb.Claim(namespace=NAMESPACE, name="measured", uid=uid)])
    server = DraServer(DraService(claims, endpoint(str(folder), "b")), str(folder), "b")
    server.start()
    milliseconds = []
    try:
        with grpc.insecure_channel(f"unix://{endpoint(str(folder), 'b')}") as channel:
            prepare = channel.unary_unary(f"/{SERVICE}/NodePrepareResources")
            unprepare = channel.unary_unary(f"/{SERVICE}/NodeUnprepareResources")
            for _ in range(calls):
                start = time.perf_counter()
                answer = prepare(message.SerializeToString(), timeout=30, wait_for_ready=True)
                milliseconds.append(1000 * (time.perf_counter() - start))
                error = pb.PrepareResponse.FromString(answer).claims[uid].error
                if error:
                    raise SystemExit(error)
                unprepare(message.SerializeToString(), timeout=30)
    finally:
        server.close()
    return value_row("prepare_p50_ms", statistics.median(milliseconds), "ms")


def allocated_claim(cluster: Cluster) -> str:
    """Creates a claim of four CPUs, with an allocation as kube-scheduler writes it. Returns its
    uid."""
    admin = cluster.api.admin
    created = json.loads(admin.create(_CLAIMS, claim("measured", Job(0, 0, 4, gpu=False))))
    taken = {
        "request": "cpus",
        "driver": DRIVER,
        "pool": "numa-0",
        "device": "numa-node-0",
        "shareID": created["metadata"]["uid"],
        "consumedCapacity": {f"{DRIVER}/cpu": "4"},
    }
    consumer = {"resource": "pods", "name": "measured", "uid": created["metadata"]["uid"]}
    status = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": [consumer]}
    admin.merge(f"{_CLAIMS}/measured/status", {"status": status})
    uid: str = created["metadata"]["uid"]
    return uid


@contextmanager
def scheduled(cluster: Cluster, folder: Path, nodes: int) -> Iterator[None]:
    """A kube-scheduler, nodes without kubelets, and the classes of both drivers. Raises
    NoClusterError."""
    from tests import tools
    from tests.integration.kubescheduler import objects
    from tests.integration.kubescheduler.process import KubeScheduler, credentials

    program = tools.kubernetes("kube-scheduler")
    if isinstance(program, str):
        raise NoClusterError(program)
    api = cluster.api
    for index in range(nodes):
        cpus = SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3]
        objects.ready_node(api, f"numa-{index}", {"cpu": str(cpus), "memory": "256Gi"})
    for driver in (DRIVER, GPU_DRIVER):
        selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
        body = {"metadata": {"name": driver}, "spec": {"selectors": [selector]}}
        api.admin.create(_CLASSES, body)
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(credentials(api)), "qps": 1000, "burst": 2000},
    }
    scheduler = KubeScheduler(program, settings, folder)
    try:
        yield
    finally:
        scheduler.stop()


def measured(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """All rows. Raises NoClusterError."""
    nodes, jobs, seeds = (
        (2, 60, 1) if options.quick else (options.nodes, options.jobs, options.seeds)
    )
    with clusters.running(folder) as cluster:
        yield prepared(cluster, folder, 50 if options.quick else 300)
        yield value_row(GUARD, guard_mb(), "MB")
        with scheduled(cluster, folder, nodes):
            yield from placement(cluster, nodes, jobs, seeds)


def _own_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=600, help="pods of a trace")
    parser.add_argument("--seeds", type=int, default=6, help="traces")


def main() -> None:
    options = arguments(__doc__, _own_arguments)
    # The path of a socket is bounded.
    with tempfile.TemporaryDirectory(prefix="dra") as name:
        try:
            rows = list(measured(Path(name), options))
        except NoClusterError as error:
            raise SystemExit(str(error)) from None
    report(rows, options.output)


if __name__ == "__main__":
    main()
