"""A real kubelet whose BE pods are idle, suppressed and given back."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.pod.annotations import OOM_SCORES
from agent.usage import COLOCATION_FILE
from tests.cluster import host
from tests.cluster.cluster import HOST, Cluster
from tests.cluster.node import RUNTIME

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
SLO = "/run/slo"
IDLES = {"clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}
SUPPRESSES = {
    "clusterStrategy": {
        "enable": True,
        "cpuSuppressPolicy": "cfsQuota",
        "cpuSuppressThresholdPercent": 65,
    }
}
BURSTS = {"clusterStrategy": {"policy": "cpuBurstOnly"}}
LEAST = {"requests": {"cpu": "100m"}, "limits": {"cpu": "500m"}}
_WRITTEN = """
for folder in cpu blkio; do
    find "/sys/fs/cgroup/$folder/kubepods" -name cpu.idle -o -name cpu.shares \
        -o -name 'cpu.cfs_*_us' -o -name 'blkio.throttle.*_device'
done | while read -r file; do
    echo "$file" $(cat "$file")
done
find /sys/fs/cgroup/cpu/kubepods -name cgroup.procs -exec cat {} + | while read -r process; do
    echo "$process" $(cat "/proc/$process/oom_score_adj")
done
"""
"""What features of colocation write on cgroup v1 and this kernel."""
RESIZE = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}}
KUBEPODS = "/sys/fs/cgroup/cpu/kubepods"
SHARED = ("", "burstable", "besteffort")
REFUSED = re.compile(r"/cpu[./].*invalid argument")


class ColocatedCluster:
    """A node whose agent follows strategies in files."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = cluster.nodes[HOST]
        self.machine = self.node.machine

    def follow(self, qos: object = IDLES, threshold: object = None, burst: object = None) -> None:
        self.machine.write(f"{SLO}/resource-qos-config", json.dumps(qos))
        self.machine.write(f"{SLO}/resource-threshold-config", json.dumps(threshold or {}))
        self.machine.write(f"{SLO}/cpu-burst-config", json.dumps(burst or {}))

    def start_agent(self, colocation: str) -> None:
        self.machine.start(
            "agent",
            *("env", f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-um"),
            *("agent", "agent", "--http=", f"--node-name={HOST}"),
            f"--kubeconfig={self.cluster.control.config('admin')}",
            f"--runtime-endpoint={RUNTIME}",
            *("--usage", "--node-slo=follow", f"--slo-config={SLO}", f"--colocation={colocation}"),
        )

    def end_agent(self) -> None:
        self.machine.end("agent")

    def kill_agent(self) -> None:
        self.machine.end("agent", signal.SIGKILL)

    def group(self, pod: str) -> str:
        """The folder of the pod's cgroup."""
        uid = self._object(pod)["metadata"]["uid"]
        folders = (f"{KUBEPODS}/pod{uid}", f"{KUBEPODS}/*/pod{uid}")
        (path,) = self.machine.read(*(f"{each}/cpu.shares" for each in folders))
        return path.rpartition("/")[0]

    def value(self, pod: str, file: str) -> str:
        return self._text(f"{self.group(pod)}/{file}")

    def cpu_values(self, pod: str) -> list[str]:
        files = ("cpu.idle", "cpu.shares", "cpu.cfs_quota_us")
        return [self.value(pod, file) for file in files]

    def shared_value(self, kube_class: str, file: str) -> str:
        """Of the kubelet's group of all pods of the class; "": of all pods."""
        return self._text(f"{KUBEPODS}/{kube_class}/{file}".replace("//", "/"))

    def quota_of_all(self) -> str:
        return self.shared_value("besteffort", "cpu.cfs_quota_us")

    def wait_idle(self, pod: str) -> None:
        self.cluster.eventually("it is idle", lambda: self.value(pod, "cpu.idle") == "1")

    def status(self, pod: str) -> tuple[str, int]:
        """Id and restarts of the container."""
        (only,) = self._object(pod)["status"]["containerStatuses"]
        return str(only["containerID"]), int(only["restartCount"])

    def kill_container(self, pod: str) -> None:
        """Kills its first process, with which all end."""
        container = self.status(pod)[0].rpartition("//")[2]
        pids = self._text(f"{self.group(pod)}/{container}/cgroup.procs").split()
        self.machine.run("kill", "-KILL", min(pids, key=int))

    def wait_restarted(self, pod: str) -> None:
        self.cluster.eventually("it has been restarted", lambda: self.status(pod)[1] == 1)
        self.cluster.wait_running(pod)

    def failed_writes(self) -> list[str]:
        """What the agent tells people."""
        failed: list[str] = json.loads(self._text(f"/run/topolet/{COLOCATION_FILE}"))["failed"]
        return failed

    def _object(self, pod: str) -> dict[str, Any]:
        there = self.cluster.get("pod", pod)
        assert there is not None
        return there

    def _text(self, path: str) -> str:
        (text,) = self.machine.read(path).values()
        return text.strip()

    def written(self) -> dict[str, str]:
        lines = self.machine.run("sh", "-ec", _WRITTEN).splitlines()
        return {words[0]: " ".join(words[1:]) for words in map(str.split, lines)}

    def disk(self) -> str:
        """One of the machine."""
        names = self.machine.run("ls", "/sys/class/block").split()
        return next(name for name in names if not name.startswith(("loop", "ram")))

    def restart_kubelet(self) -> None:
        """Returns when it has told the API server that it is Ready."""

        def beat() -> str:
            node = self.cluster.get("node", HOST)
            assert node is not None
            return next(
                str(each["lastHeartbeatTime"])
                for each in node["status"]["conditions"]
                if each["type"] == "Ready"
            )

        before = beat()
        self.node.restart_kubelet()
        self.cluster.eventually("the kubelet tells", lambda: beat() != before)
        self.cluster.wait_node_ready(HOST)


@pytest.fixture(scope="module")
def bare() -> Iterator[ColocatedCluster]:
    """A separate cluster, with the proxy only."""
    with host.running() as cluster:
        cluster.eventually(
            "the default account exists",
            lambda: cluster.get("serviceaccount", "default", "default"),
        )
        yield ColocatedCluster(cluster)


@pytest.fixture(autouse=True)
def no_agent(bare: ColocatedCluster) -> Iterator[None]:
    yield
    bare.end_agent()


def test_a_kubelet_starts_again_while_be_pods_are_idle_and_suppressed(
    bare: ColocatedCluster,
) -> None:
    """A kubelet can't (koordinator issue 2732) where the group of all BE pods is idle."""
    node, cluster = bare, bare.cluster
    node.follow()
    cluster.pod("be", qos="BE")
    # BE does not count in this pod, so that the kubelet can resize it.
    cluster.pod("labelled", qos="BE", cpu="100m")
    cluster.pod("ls", qos="LS", cpu="100m")
    pods = ("be", "labelled", "ls")
    before = {pod: node.cpu_values(pod) for pod in pods}
    started = {pod: node.status(pod) for pod in pods}
    node.start_agent("act")
    node.wait_idle("be")
    group = node.group("be")
    with node.machine.following([f"{group}/cpu.idle"]) as seen:
        node.restart_kubelet()
        cluster.pod("later", qos="BE")
        node.wait_idle("later")
        assert {pod: node.status(pod) for pod in pods} == started
        node.kill_container("be")
        node.wait_restarted("be")
        node.follow(threshold=SUPPRESSES)
        cluster.eventually("BE pods have a quota", lambda: node.quota_of_all() != "-1")
        node.restart_kubelet()
        cluster.pod("last", qos="BE")
        node.wait_idle("last")
    assert [text.strip() for text in seen[f"{group}/cpu.idle"]] == ["1"]
    assert [node.value(pod, "cpu.idle") for pod in ("labelled", "ls")] == ["0", "0"]
    assert node.quota_of_all() != "-1"
    assert [node.shared_value(name, "cpu.idle") for name in SHARED] == ["0"] * 3
    assert [node.shared_value(name, "cpu.cfs_quota_us") for name in SHARED[:2]] == ["-1"] * 2
    assert node.failed_writes() == []
    cluster.kubectl("patch", "pod", "labelled", "--subresource=resize", "-p", json.dumps(RESIZE))
    cluster.eventually("it has more", lambda: node.value("labelled", "cpu.shares") == "204")
    node.kill_agent()
    node.start_agent("off")
    cluster.eventually("the quota is given back", lambda: node.quota_of_all() == "-1")
    cluster.eventually("and the priority", lambda: node.value("be", "cpu.idle") == "0")
    after = {pod: node.cpu_values(pod) for pod in pods}
    assert after == {**before, "labelled": ["0", "204", "-1"]}
    refused = [line for line in node.machine.log("kubelet").splitlines() if REFUSED.search(line)]
    assert refused == []


def test_one_switch_gives_back_what_all_features_have_written(bare: ColocatedCluster) -> None:
    """Memory QoS and cache have no files on this machine."""
    node, cluster = bare, bare.cluster
    cluster.pod("batch", qos="BE")
    scores = {OOM_SCORES: "1000"}
    cluster.pod("service", qos="LS", container={"resources": LEAST}, annotations=scores)
    before = node.written()
    block = {"name": f"/dev/{node.disk()}", "type": "device", "ioCfg": {"readBPS": 1 << 40}}
    of_batch = {
        **IDLES["clusterStrategy"]["beClass"],
        "blkioQOS": {"enable": True, "blocks": [block]},
    }
    node.follow({"clusterStrategy": {"beClass": of_batch}}, SUPPRESSES, BURSTS)
    node.start_agent("act")

    def kinds() -> set[str]:
        """The names of the files with another value; digits for a process."""
        now = node.written()
        return {name.rpartition("/")[2] for name, text in before.items() if now[name] != text}

    files = {
        "cpu.idle",
        "cpu.cfs_quota_us",
        "cpu.cfs_burst_us",
        "blkio.throttle.read_bps_device",
    }
    cluster.eventually("all features have written", lambda: files < kinds())
    assert any(map(str.isdecimal, kinds())), "a process of the service too"
    assert node.failed_writes() == []
    node.kill_agent()
    node.start_agent("off")
    cluster.eventually("all is as before", lambda: node.written() == before)
