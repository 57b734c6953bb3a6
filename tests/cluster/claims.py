"""The DRA driver for CPUs on the node of this machine: how a test turns it on, and reads what it
keeps."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pytest

from agent.model.cpu.cpuset import CpuSet, union
from agent.model.dra.names import CLAIMS_FILE, DRIVER, SHOWN_FILE
from tests import tools
from tests.cluster.cluster import HOST, NAMESPACE, Cluster, Object
from tests.cluster.node import start_containerd
from tests.cluster.pods import manifest
from tests.integration.apiserver import server
from tests.integration.apiserver.server import feature_gates, gates_without_parts

FOLDER: Final = "/run/topolet"
STATE: Final = f"{FOLDER}/{CLAIMS_FILE}"
SHOWN: Final = f"{FOLDER}/{SHOWN_FILE}"
CDI: Final = "/var/run/cdi"
WAIT_SECONDS: Final = 45.0
"""A kubelet that was refused prepares the claims of a pod again only after more than a minute."""
ALL: Final = CpuSet((0, 1))


@contextlib.contextmanager
def driver(cluster: Cluster) -> Iterator[None]:
    """The agents are a DRA driver during the block. Skips the test where Kubernetes has no
    claims."""
    if tools.kubernetes_minor() < 34:
        pytest.skip("Kubernetes has resource.k8s.io/v1 from 1.34 on")
    cluster.apply("overlays/proxy", "dra")
    wait_rolled_out(cluster)
    wait_published(cluster)
    try:
        yield
    finally:
        cluster.apply("overlays/proxy")
        for kind in ("resourceclaimtemplates", "resourceclaims", "resourceslices", "deviceclasses"):
            cluster.kubectl("delete", kind, "--all", "--wait=false")
        wait_rolled_out(cluster)


@contextlib.contextmanager
def undivided(cluster: Cluster) -> Iterator[None]:
    """Devices have no parts during the block, as by default before Kubernetes 1.36."""
    _restart_with(cluster, gates_without_parts())
    try:
        yield
    finally:
        _restart_with(cluster, feature_gates())


def _restart_with(cluster: Cluster, gates: Mapping[str, bool]) -> None:
    cluster.control.restart_with(gates)
    cluster.nodes[HOST].restart_kubelet(featureGates=dict(gates))
    cluster.wait_node_ready(HOST)
    # A server keeps the fields of gates that are off in objects that have them.
    cluster.kubectl("delete", "resourceslices", "--all")
    wait_published(cluster)


def with_options(cluster: Cluster, *options: str) -> None:
    """Adds options to the agent's command; returns when it runs with them."""
    added = [
        {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": option}
        for option in options
    ]
    cluster.kubectl(*_DAEMONSET, "--type=json", "-p", json.dumps(added))
    wait_rolled_out(cluster)


@contextlib.contextmanager
def no_agent(cluster: Cluster) -> Iterator[None]:
    """No agent runs during the block."""
    node = {"spec": {"template": {"spec": {"nodeSelector": {"topolet.test/none": ""}}}}}
    cluster.kubectl(*_DAEMONSET, "-p", json.dumps(node))
    cluster.wait_deleted("agent")
    try:
        yield
    finally:
        node["spec"]["template"]["spec"]["nodeSelector"] = {"topolet.test/none": None}
        cluster.kubectl(*_DAEMONSET, "-p", json.dumps(node))
        wait_rolled_out(cluster)


_DAEMONSET: Final = ("patch", "-n", NAMESPACE, "daemonset", "topolet-agent")


@contextlib.contextmanager
def kubelet_dir(cluster: Cluster, folder: str) -> Iterator[None]:
    """The kubelet has this root folder during the block, and the agent that of its own pod."""
    node = cluster.nodes[HOST]
    usual = node.kubelet_dir
    parts = {"dra-registry": "plugins_registry", "dra-plugin": f"plugins/{DRIVER}"}
    mounts = [{"name": "kubelet", "mountPath": f"/host{folder}", "readOnly": True}]
    mounts += [{"name": name, "mountPath": f"{folder}/{part}"} for name, part in parts.items()]
    mounts += [
        {"$patch": "delete", "mountPath": f"{place}{usual}{part}"}
        for place, part in [("/host", ""), *(("", f"/{part}") for part in parts.values())]
    ]
    volumes = [{"name": "kubelet", "hostPath": {"path": folder}}]
    volumes += [
        {"name": name, "hostPath": {"path": f"{folder}/{part}"}} for name, part in parts.items()
    ]
    env = [{"name": "KUBELET_DIR", "value": folder}]
    agent = {"name": "agent", "env": env, "volumeMounts": mounts}
    patch = {"spec": {"template": {"spec": {"containers": [agent], "volumes": volumes}}}}
    node.kubelet_dir = folder
    try:
        node.restart_kubelet()
        cluster.kubectl(*_DAEMONSET, "-p", json.dumps(patch))
        wait_rolled_out(cluster)
        yield
    finally:
        node.kubelet_dir = usual
        node.restart_kubelet()
        # An apply leaves what a patch has added.
        cluster.kubectl("delete", *_DAEMONSET[1:])
        cluster.apply("overlays/proxy", "dra")
        wait_rolled_out(cluster)


def empty_folder(cluster: Cluster) -> None:
    """Removes all files of the agent's state folder, and leaves the proxy's socket."""
    cluster.nodes[HOST].machine.run("find", FOLDER, "-type", "f", "-delete")


def tear_file(cluster: Cluster) -> None:
    """Leaves the first half of the file of claims."""
    machine = cluster.nodes[HOST].machine
    text = machine.read(STATE)[STATE]
    machine.write(STATE, text[: len(text) // 2])


def wait_rolled_out(cluster: Cluster) -> None:
    """Returns when the agent of the latest template is Ready."""
    words = ("rollout", "status", "-n", NAMESPACE, "daemonset/topolet-agent", "--timeout=120s")
    cluster.eventually("the agent is rolled out", lambda: cluster.kubectl(*words))


def wait_published(cluster: Cluster, cpus: CpuSet | None = None) -> None:
    """Returns when there are devices, with these CPUs alone if they are given."""

    def published() -> bool:
        offered = cpus_offered(cluster)
        return bool(offered) if cpus is None else offered == cpus

    cluster.eventually(f"the slices have CPUs {cpus or ''}", published)


def slices(cluster: Cluster) -> list[Object]:
    """Those of the driver."""
    return [each for each in cluster.objects("resourceslices") if each["spec"]["driver"] == DRIVER]


def devices(cluster: Cluster) -> list[Object]:
    """Those that the driver publishes."""
    return [device for each in slices(cluster) for device in each["spec"].get("devices", ())]


def cpus_offered(cluster: Cluster) -> CpuSet:
    """The CPUs of all devices in slices of the driver."""
    return union(
        CpuSet.parse(device["attributes"][f"{DRIVER}/cpuIDs"]["string"])
        for device in devices(cluster)
    )


def slice_writes(cluster: Cluster) -> int:
    """The requests to write slices that the API server has had since its start."""
    return server.slice_writes(cluster.kubectl("get", "--raw", "/metrics"))


def exactly(cpus: int, **more: Any) -> Object:
    """A request of this number of CPUs."""
    return {
        "name": "cpus",
        "exactly": {
            "deviceClassName": DRIVER,
            "capacity": {"requests": {f"{DRIVER}/cpu": str(cpus)}},
            **more,
        },
    }


def claim(name: str, cpus: int, parameters: Object | None = None) -> Object:
    """A ResourceClaim on this number of CPUs."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": _devices(cpus, parameters)},
    }


def template(name: str, cpus: int) -> Object:
    """A ResourceClaimTemplate on this number of CPUs."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": _devices(cpus, None)}},
    }


def stale(cluster: Cluster, name: str) -> None:
    """Creates a pod with a claim of its name on one CPU, which a scheduler has allocated by slices
    that were outdated. Returns when the kubelet asks for the claim."""
    cluster.create(claim(name, 1), claimant(name, schedulerName="none"))
    uids = {}
    for kind in ("pod", "resourceclaim"):
        stored = cluster.get(kind, name)
        assert stored is not None
        uids[kind] = stored["metadata"]["uid"]
    device = {
        "request": "cpus",
        "driver": DRIVER,
        "pool": HOST,
        "device": "numa-node-0",
        "shareID": uids["pod"],
        "consumedCapacity": {f"{DRIVER}/cpu": "1"},
    }
    user = {"resource": "pods", "name": name, "uid": uids["pod"]}
    status = {"allocation": {"devices": {"results": [device]}}, "reservedFor": [user]}
    words = ("patch", "resourceclaim", name, "--subresource=status", "--type=merge", "-p")
    cluster.kubectl(*words, json.dumps({"status": status}))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": HOST},
    }
    path = f"/api/v1/namespaces/default/pods/{name}/binding"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    wait_asked(cluster, uids["resourceclaim"])


def wait_asked(cluster: Cluster, uid: str) -> None:
    """Returns when the kubelet asks the driver for the claim: it notes each one just before."""
    node = cluster.nodes[HOST]
    path = f"{node.kubelet_dir}/dra_manager_state"
    cluster.eventually(
        f"the kubelet asks for claim {uid}", lambda: uid in node.machine.read(path).get(path, "")
    )


def _devices(cpus: int, parameters: Object | None) -> Object:
    devices: Object = {"requests": [exactly(cpus)]}
    if parameters is not None:
        own = {
            "apiVersion": f"{DRIVER}/v1alpha1",
            "kind": "CpuParameters",
            **parameters,
        }
        devices["config"] = [
            {"requests": ["cpus"], "opaque": {"driver": DRIVER, "parameters": own}}
        ]
    return devices


def use(name: str, key: str = "resourceClaimName") -> Object:
    """A pod's use of a claim with that name, or of a template with another `key`."""
    return {"resourceClaims": [{"name": "cpus", key: name}]}


def claimant(name: str, of: str = "", *, container: Object | None = None, **spec: Any) -> Object:
    """A pod whose containers use the claim `of`, by default that of its own name."""
    resources = {"requests": {"cpu": "100m"}, "claims": [{"name": "cpus"}]}
    return manifest(
        name,
        container={"resources": resources, **(container or {})},
        **{**use(of or name), **spec},
    )


def prepared(cluster: Cluster) -> dict[str, CpuSet]:
    """By name, the CPUs of the claims that the agent keeps."""
    texts = cluster.nodes[HOST].machine.read(STATE)
    kept = json.loads(texts[STATE])["claims"] if texts else []
    return {
        each["name"]: CpuSet.parse(",".join(group.get("cpus", "") for group in each["groups"]))
        for each in kept
        if "name" in each
    }


def shown(cluster: Cluster) -> Object:
    """What the agent tells people; nothing before it does."""
    of_agent: Object = json.loads(cluster.nodes[HOST].machine.read(SHOWN).get(SHOWN, "{}"))
    return of_agent


def cdi_files(cluster: Cluster) -> dict[str, str]:
    """The driver's CDI files."""
    return cluster.nodes[HOST].machine.read(f"{CDI}/{DRIVER}-*")


def wait_nothing_left(cluster: Cluster) -> None:
    """Returns when no claim, no file of one and no CPU is left, and all but the kept core is
    offered again."""
    cluster.kubectl("delete", "resourceclaims", "--all", "--wait=false")
    cluster.eventually("no claim is left", lambda: not cluster.objects("resourceclaims"), 90)
    cluster.eventually("no claim is prepared", lambda: not prepared(cluster), 90)
    assert not cdi_files(cluster)
    node = cluster.nodes[HOST]
    assert not node.machine.read(f"{node.kubelet_dir}/plugins/{DRIVER}/metadata/**/*.json")
    cluster.eventually("a CPU is offered", lambda: len(cpus_offered(cluster)) == 1, 60)


def delete_claimants(cluster: Cluster, *names: str) -> None:
    """Deletes pods and all claims."""
    cluster.delete_pod(*names)
    wait_nothing_left(cluster)


def overlaps(
    moments: Iterable[Mapping[str, str]], old: str, new: str, *others: str
) -> list[tuple[str, ...]]:
    """The cpusets of containers at moments at which that of `new` had a CPU of another one.
    `moments`: files of cgroups by path; `old`: its claim had the CPUs before."""
    shared = []
    for moment in moments:
        cpus = {path.split("/")[-2]: CpuSet.parse(text.strip()) for path, text in moment.items()}
        own = cpus.get(new, CpuSet(()))
        of_others = [cpus.get(each, CpuSet(())) for each in (old, *others)]
        if any(own & each for each in of_others):
            shared.append(tuple(str(each) for each in (own, *of_others)))
    return shared


def processes(cluster: Cluster, name: str, container: str = "main") -> list[str]:
    """The processes of a pod's container on the node."""
    node, patterns = cluster.cpuset_files_of(name, container)
    files = [f"{each.rpartition('/')[0]}/cgroup.procs" for each in patterns]
    return [pid for text in node.machine.read(*files).values() for pid in text.split()]


def restarts(cluster: Cluster, name: str) -> int:
    pod = cluster.get("pod", name)
    assert pod is not None
    return sum(int(each["restartCount"]) for each in pod["status"].get("containerStatuses", ()))


def kill_container(cluster: Cluster, name: str, container: str = "main") -> None:
    """SIGKILL; returns when the kubelet has started it again."""
    before = restarts(cluster, name)
    pids = processes(cluster, name, container)
    # The others end with the first one.
    cluster.nodes[HOST].machine.run("sh", "-c", 'kill -KILL "$@" || :', "sh", *pids)
    cluster.eventually(f"{name} is restarted", lambda: restarts(cluster, name) > before)
    cluster.wait_running(name)


def kill_agent(cluster: Cluster) -> None:
    """SIGKILL; returns when the next agent is Ready."""
    before = cluster.agent_restarts(HOST)
    cluster.nodes[HOST].machine.run("kill", "-KILL", cluster.agent_pid(HOST))
    cluster.eventually("the agent restarts", lambda: cluster.agent_restarts(HOST) > before)
    cluster.wait_agent_ready(HOST)


def reboot(cluster: Cluster) -> None:
    """Ends all processes of the node at once, and starts it again without the files that a reboot
    removes; returns when it is Ready."""
    node = cluster.nodes[HOST]
    node.stop_kubelet(signal.SIGKILL)
    node.machine.end("containerd", signal.SIGKILL)
    node.machine.end("proxy")
    node.machine.run("sh", "-c", _REBOOT)
    start_containerd(node.machine)
    node.start_proxy("--http=0.0.0.0:9327")
    node.restart_kubelet()
    cluster.wait_node_ready(HOST)


_REBOOT: Final = """for group in $(find /sys/fs/cgroup -path '*kubepods*' -name cgroup.procs); do
    kill -KILL $(cat $group) 2>/dev/null
done
for process in /proc/[0-9]*; do
    case $(cat $process/comm 2>/dev/null) in
    containerd-shim*) kill -KILL ${process#/proc/} ;;
    esac
done
grep -o ' /run/containerd/[^ ]*' /proc/mounts | sort -r | xargs -r -n1 umount -l
rm -rf /run/topolet/* /run/cdi /run/containerd/*
"""


def kill_kubelet(cluster: Cluster) -> None:
    """SIGKILL, and a start; returns when the node is Ready."""
    node = cluster.nodes[HOST]
    node.stop_kubelet(signal.SIGKILL)
    node.restart_kubelet()
    cluster.wait_node_ready(HOST)
