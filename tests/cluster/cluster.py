"""The functions of scenarios: actions of a user on a cluster, and reads of the kernel's files."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.model.cpu.cpuset import CpuSet
from agent.model.nrt.node_annotations import CPU_MANAGER_POLICY, RESERVATION
from agent.model.pod.annotations import RESOURCE_STATUS
from tests import tools
from tests.cluster import pods
from tests.cluster.controlplane import ControlPlane
from tests.cluster.machine import ProgramError
from tests.cluster.node import Node
from tests.deploy.manifests import DEPLOY, kustomization
from tests.fixtures import near_devices
from tests.integration.apiserver.certificates import serving_secret
from tests.waiting import eventually

Object = dict[str, Any]

NAMESPACE = "topolet-system"
HOST, GUEST = "n1", "g1"
ON_GUEST: Object = {"node": GUEST, "hostNetwork": True}
"""These arguments of `pod` put a pod on the guest, without a pod network: its plugins take seconds
each there."""
START_SECONDS = 300.0
"""The timeout of actions that take seconds on an idle machine, without the guest."""

_POLL_SECONDS = 0.1
_ROOT = Path(__file__).resolve().parents[2]
# The exit code 1 of the command means that the pod gets no node.
_EXPLAIN = 'PYTHONPATH=$1 "$2" -m agent explain "$3" --kubeconfig="$4" || test $? = 1'
_AGENT_PORT, _SCHEDULER_PORT = 9326, 9329


class Cluster:
    """A cluster with its nodes by name. A test's pods are in namespace default. `images`: the
    folder with the images of all nodes."""

    def __init__(self, control: ControlPlane, images: Path) -> None:
        self.control = control
        self.images = images
        self.nodes: dict[str, Node] = {}

    # a user's actions
    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Raises ProgramError."""
        return self.control.kubectl(*words, stdin=stdin)

    def apply(self, folder: str, *components: str) -> None:
        """Applies a kustomization below deploy/, as in docs/install.md, with components."""
        path = self._kustomization(folder, components)
        self.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(path))

    def delete(self, folder: str) -> None:
        """Deletes all objects of a kustomization below deploy/."""
        self.kubectl("delete", "--ignore-not-found", "-k", str(self._kustomization(folder, ())))

    def _kustomization(self, folder: str, components: tuple[str, ...]) -> Path:
        if tools.kubernetes_minor() < 36:
            components += ("before-1.36",)
        if not components:
            return DEPLOY / folder
        user = self.control.world.folder / "kustomizations" / "-".join(components)
        written = user / f"my-{Path(folder).name}"
        return written if written.exists() else kustomization(user, folder, components)

    def create(self, *objects: Object) -> None:
        """Raises ProgramError where the server refuses one."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("create", "-f", "-", stdin=text)

    def pod(self, name: str, **words: Any) -> None:
        """Creates a pod (arguments as of `pods.manifest`) and waits until its containers run."""
        self.create(pods.manifest(name, **words))
        self.wait_running(name)

    def bind_as_scheduler(self, name: str, node: str, cpuset: str, *words: str) -> None:
        """Sends the Binding of a pod with these CPUs, with the account of Topolet's scheduler.
        `words`: further arguments of kubectl."""
        notes = {RESOURCE_STATUS: json.dumps({"cpuset": cpuset})}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "annotations": notes},
            "target": {"kind": "Node", "name": node},
        }
        self.kubectl(
            *("create", "--raw", f"/api/v1/namespaces/default/pods/{name}/binding", "-f", "-"),
            f"--as=system:serviceaccount:{NAMESPACE}:topolet-scheduler",
            *words,
            stdin=json.dumps(binding),
        )

    def delete_pod(self, *names: str, namespace: str = "default") -> None:
        """Deletes pods; returns when the API server does not have them any more."""
        self.kubectl("delete", "pod", "-n", namespace, *names)

    def annotate(self, kind: str, name: str, **annotations: str) -> None:
        """Sets annotations as `kubectl annotate` does."""
        words = [f"{key}={value}" for key, value in annotations.items()]
        self.kubectl("annotate", "--overwrite", kind, name, *words)

    @contextlib.contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Kills the API server by SIGKILL. At the end of the block it is ready again."""
        self.control.stop_server()
        try:
            yield
        finally:
            self.control.start_server()

    @contextlib.contextmanager
    def hanging_api_server(self) -> Iterator[None]:
        """The API server answers nobody, and goes on at the end of the block."""
        self.control.signal_server(signal.SIGSTOP)
        try:
            yield
        finally:
            self.control.signal_server(signal.SIGCONT)

    def wait_while_recording(self, seconds: float) -> None:
        """Waits while a block of `following` records every change."""
        time.sleep(seconds)

    def delete_component(self, name: str) -> None:
        """Deletes all pods of a component of Topolet; its controller creates new ones."""
        self.kubectl("delete", "pods", "-n", NAMESPACE, *_selector(name))

    def install_scheduler(self) -> None:
        """Installs scheduler and agent as in docs/scheduler.md, in the mode reconcile."""
        self.kubectl("apply", "-f", str(DEPLOY / "base" / "namespace.yaml"))
        self.create(serving_secret(NAMESPACE, "topolet-scheduler"))
        self.apply("overlays/scheduler")

    def install(self) -> None:
        """Installs agent and scheduler as documented, with the proxy on node `n1`. Returns when all
        are Ready."""
        self.install_scheduler()
        self.apply("overlays/proxy")
        self.wait_agent_ready(HOST)
        self.wait_ready("scheduler")
        self.wait_ready("kube-scheduler", 2)

    # reads
    @property
    def start_seconds(self) -> float:
        """The default timeout. With the guest it is longer: the emulator computes at a small part
        of the machine's speed, and slows the other node down."""
        return START_SECONDS * (2 if GUEST in self.nodes else 1)

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The object, or None if it does not exist."""
        words = ("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "json")
        text = self.kubectl(*words)
        found: Object | None = json.loads(text) if text.strip() else None
        return found

    def objects(self, kind: str, *words: str, namespace: str = "default") -> list[Object]:
        """`words`: further arguments of kubectl, such as a selector."""
        text = self.kubectl("get", kind, "-n", namespace, "-o", "json", *words)
        found: list[Object] = json.loads(text)["items"]
        return found

    def wait_running(self, *names: str, seconds: float | None = None) -> None:
        """Waits until all containers of these pods run."""
        for name in names:
            self.eventually(
                f"pod {name} runs",
                lambda name=name: _runs(self.get("pod", name)),
                seconds,
            )

    def wait_ready(self, component: str, count: int = 1, seconds: float | None = None) -> None:
        """Waits until this number of pods of a Topolet component are Ready."""

        def ready() -> bool:
            found = self.objects("pods", *_selector(component), namespace=NAMESPACE)
            return sum(_condition(each, "Ready") for each in found) >= count

        self.eventually(f"{count} pods of {component} are Ready", ready, seconds)

    def wait_deleted(self, component: str, seconds: float | None = None) -> None:
        """Waits until no pod of a Topolet component exists."""

        def deleted() -> bool:
            return not self.objects("pods", *_selector(component), namespace=NAMESPACE)

        self.eventually(f"the pods of {component} are deleted", deleted, seconds)

    def wait_agent_ready(self, node: str, seconds: float | None = None) -> None:
        """Waits until the node has exactly one agent that is not being deleted, and it is Ready."""

        def ready() -> bool:
            found = self._agent_pods(node)
            return len(found) == 1 and _condition(found[0], "Ready")

        self.eventually(f"the agent of {node} is Ready", ready, seconds)

    def wait_node_ready(self, name: str, seconds: float | None = None) -> None:
        """Waits until the node accepts pods: Ready, and without the not-ready taint."""

        def ready() -> bool:
            self.nodes[name].kubelet_runs()
            node = self.get("node", name)
            if node is None or not _condition(node, "Ready"):
                return False
            taints = node["spec"].get("taints", ())
            return not any("node.kubernetes.io/not-ready" in each["key"] for each in taints)

        self.eventually(f"node {name} is Ready", ready, seconds)

    def eventually(self, what: str, check: Any, seconds: float | None = None) -> None:
        """Waits until `check()` is true, by default for `start_seconds`. A program that fails, such
        as kubectl without an API server, counts as false."""

        def checked() -> object:
            try:
                return check()
            except ProgramError:
                return False
            finally:
                time.sleep(_POLL_SECONDS)

        eventually(what, checked, self.start_seconds if seconds is None else seconds)

    def allocated(self, name: str) -> CpuSet:
        """The CPUs in the pod's annotation; none without an annotation."""
        pod = self.get("pod", name)
        text = (pod or {}).get("metadata", {}).get("annotations", {}).get(RESOURCE_STATUS, "{}")
        return CpuSet.parse(json.loads(text).get("cpuset", ""))

    def unschedulable_message(self, name: str) -> str:
        """The message of the pod's condition PodScheduled if it is False; "" otherwise."""
        pod = self.get("pod", name)
        for each in (pod or {}).get("status", {}).get("conditions", ()):
            if each["type"] == "PodScheduled" and each["status"] == "False":
                return str(each.get("message", ""))
        return ""

    def reserved(self, node: str) -> str:
        """The reserved CPUs in the node's NodeResourceTopology."""
        return str(self._topology_annotation(node, RESERVATION).get("reservedCPUs", ""))

    def events(self, name: str, reason: str) -> list[str]:
        """The notes of Events with that reason about the pod, without those about an earlier pod
        with its name."""
        pod = self.get("pod", name)
        assert pod is not None, f"no pod {name}"
        about = f"reason={reason},involvedObject.uid={pod['metadata']['uid']}"
        found = self.objects("events", f"--field-selector={about}")
        return [str(each.get("message", "")) for each in found]

    def explained(self, name: str) -> str:
        """The output of `topolet explain` about the pod for the administrator, on one line."""
        config = self.control.config("admin")
        words = ("sh", "-c", _EXPLAIN, "sh", _ROOT, sys.executable, name, config)
        return " ".join(self.control.world.run(*words).split())

    def logs(self, name: str) -> str:
        """The log of the pod's container."""
        return self.kubectl("logs", name)

    def cpu_manager_policy(self, node: str) -> str:
        """The kubelet's policy in the node's NodeResourceTopology."""
        return str(self._topology_annotation(node, CPU_MANAGER_POLICY).get("policy", ""))

    def agent_restarts(self, node: str) -> int:
        """The number of restarts of the container of the agent's pod on that node."""
        pod = self.get("pod", self.agent_pod(node), NAMESPACE)
        assert pod is not None
        return sum(int(each["restartCount"]) for each in pod["status"]["containerStatuses"])

    def agent_pod(self, node: str) -> str:
        """The name of the agent's pod on that node, ignoring any that is being deleted."""
        (found,) = self._agent_pods(node)
        return str(found["metadata"]["name"])

    def agent_pid(self, node: str) -> str:
        """The process of the agent on that node, in the namespace of its machine."""
        for path, text in self.nodes[node].machine.read("/proc/[0-9]*/cmdline").items():
            words = text.split("\0")
            if "agent" in words[:4] and any(each.startswith("--kubelet-configz") for each in words):
                return path.split("/")[2]
        raise AssertionError(f"no agent runs on {node}")

    def agent_metric(self, node: str, name: str) -> float:
        """The sum of the series with that name of the agent on that node."""
        return sum(self._series(self.agent_pod(node), _AGENT_PORT, name))

    def metrics_addresses(self, component: str) -> list[str]:
        """ADDRESS:PORT of /metrics of each pod of the agent or the scheduler."""
        port = {"agent": _AGENT_PORT, "scheduler": _SCHEDULER_PORT}[component]
        found = self.objects("pods", *_selector(component), namespace=NAMESPACE)
        existing = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        return [f"{each['status']['podIP']}:{port}" for each in existing]

    def scheduler_metric(self, name: str) -> float:
        """The sum of the series with that name of all extenders."""
        found = self.objects("pods", *_selector("scheduler"), namespace=NAMESPACE)
        pods = [each["metadata"]["name"] for each in found]
        return sum(each for pod in pods for each in self._series(pod, _SCHEDULER_PORT, name))

    # the contents of the kernel's files
    def cpus_of(self, name: str, container: str = "main") -> CpuSet:
        """The CPUs on which a container of a running pod may run. Raises KeyError if it does not
        have a cgroup."""
        node, pattern = self.cpuset_files_of(name, container)
        for text in node.machine.read(*pattern).values():
            return CpuSet.parse(text.strip())
        raise KeyError(f"no cgroup of {name}/{container} on {node.name}")

    def cpus(self, *names: str) -> dict[str, str]:
        """The CPUs of several pods, as lists such as 0-3,7."""
        return {name: str(self.cpus_of(name)) for name in names}

    def memory_nodes(self, name: str) -> set[int]:
        """The NUMA nodes of heap and stack of the pod's container."""
        node, patterns = self.cpuset_files_of(name, "main")
        processes = [f"{each.rpartition('/')[0]}/cgroup.procs" for each in patterns]
        (pids,) = node.machine.read(*processes).values()
        maps = node.machine.read(*(f"/proc/{pid}/numa_maps" for pid in pids.split()))
        return {number for text in maps.values() for number in near_devices.memory_nodes(text)}

    @contextlib.contextmanager
    def following(self, *names: str) -> Iterator[dict[str, list[str]]]:
        """Each cpuset that the pods' containers had during the block, in order; filled at its
        end."""
        seen: dict[str, list[str]] = {}
        files = {name: self.cpuset_files_of(name, "main") for name in names}
        with contextlib.ExitStack() as stack:
            followed = {
                name: stack.enter_context(node.machine.following(patterns))
                for name, (node, patterns) in files.items()
            }
            yield seen
        for name, texts in followed.items():
            seen[name] = [text.strip() for each in texts.values() for text in each]

    @contextlib.contextmanager
    def moments(self, *names: str) -> Iterator[list[dict[str, CpuSet]]]:
        """The CPUs that the pods, all on one node, had at one time during the block, by name and in
        order; filled at its end."""
        seen: list[dict[str, CpuSet]] = []
        files = {name: self.cpuset_files_of(name, "main") for name in names}
        node = next(iter(files.values()))[0]
        of_path = {
            path: name
            for name, (_, patterns) in files.items()
            for path in node.machine.read(*patterns)
        }
        with node.machine.moments(list(of_path)) as recorded:
            yield seen
        seen += [
            {of_path[path]: CpuSet.parse(text.strip()) for path, text in each.items()}
            for each in recorded
        ]

    @contextlib.contextmanager
    def competing(self, name: str, cpus: str) -> Iterator[None]:
        """Another program writes these CPUs to the container's cgroup during the block, five times
        a second."""
        node, patterns = self.cpuset_files_of(name, "main")
        (path,) = node.machine.read(*patterns)
        file = path.removesuffix(".effective")
        loop = f"while :; do echo {cpus} >{file}; sleep 0.2; done"
        node.machine.start("competing", "sh", "-c", loop)
        try:
            yield
        finally:
            node.machine.end("competing", signal.SIGKILL)

    def _topology_annotation(self, node: str, key: str) -> Object:
        topology = self.get("noderesourcetopologies.topology.node.k8s.io", node)
        annotations = (topology or {}).get("metadata", {}).get("annotations", {})
        found: Object = json.loads(annotations.get(key, "{}"))
        return found

    def _series(self, pod: str, port: int, name: str) -> list[float]:
        found = self.get("pod", pod, NAMESPACE)
        assert found is not None, f"no pod {pod}"
        node = self.nodes[found["spec"]["nodeName"]]
        url = f"http://{found['status']['podIP']}:{port}/metrics"
        lines = node.machine.run("busybox", "wget", "-q", "-O-", url).splitlines()
        series = [each for each in lines if each.startswith((f"{name} ", f"{name}{{"))]
        assert series, f"{pod} has no metric {name}"
        return [float(each.rpartition(" ")[2]) for each in series]

    def _agent_pods(self, node: str) -> list[Object]:
        words = (*_selector("agent"), f"--field-selector=spec.nodeName={node}")
        found = self.objects("pods", *words, namespace=NAMESPACE)
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def container_id(self, name: str, container: str = "main") -> str:
        """The runtime's id of a container of a pod."""
        pod = self.get("pod", name)
        assert pod is not None, f"no pod {name}"
        (full,) = (
            each["containerID"]
            for each in pod["status"]["containerStatuses"]
            if each["name"] == container
        )
        return str(full.rpartition("//")[2])

    def cpuset_files_of(self, name: str, container: str) -> tuple[Node, list[str]]:
        """The node of a running pod, and patterns of the cpuset file of one of its containers."""
        pod = self.get("pod", name)
        assert pod is not None, f"no pod {name}"
        node = self.nodes[pod["spec"]["nodeName"]]
        return node, node.cpuset_files(self.container_id(name, container))


def _selector(component: str) -> tuple[str, str]:
    return "-l", f"app.kubernetes.io/component={component}"


def _runs(pod: Object | None) -> bool:
    statuses = (pod or {}).get("status", {}).get("containerStatuses", ())
    return bool(statuses) and all("running" in each["state"] for each in statuses)


def _condition(thing: Object, kind: str) -> bool:
    conditions = thing.get("status", {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)
