"""Topolet reads and changes the files that kubeadm itself writes, of the release that puts the
runtime's endpoint into a flag, and of those that put it into the configuration."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from agent.cli.preflight import Mode, agent_problems
from agent.model.settings.agent import AgentSettings, KubeletStateSettings
from agent.node import doctor, kubelet_configuration
from agent.proto import cri_pb2 as pb
from tests import tools
from tests.faults.runtime import SimulatedRuntime
from tests.fixtures.ports import free_port
from tests.install.host import install, planned, remove
from tests.install.kubelets import CONFIG, ENV, INSTANCE, PROXY
from tests.integration.apiserver import server
from tests.integration.apiserver.certificates import serving_secret
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubeadm import MANIFEST, KubeadmHost
from tests.integration.kubescheduler import objects, schedulers
from tests.integration.kubescheduler.nodes import SYSTEM
from tests.integration.kubescheduler.process import program_or_skip
from tests.integration.kubescheduler.workload import cpus, workload_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(os.geteuid()), reason="needs root: kubeadm changes its root"),
]
ROOT = Path(__file__).resolve().parents[2]
CONTAINERD, CRI_O = "unix:///var/run/containerd/containerd.sock", "unix:///var/run/crio/crio.sock"


class Configuration(NamedTuple):
    """What an administrator gives kubeadm, and which node of the cluster it is."""

    socket: str
    kubelet: dict[str, Any]
    joins: bool = False


STATIC = {
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "topologyManagerPolicy": "restricted",
    "reservedSystemCPUs": "0",
}
CONFIGURATIONS = {
    "defaults": Configuration(CONTAINERD, {}),
    "static policy and CRI-O": Configuration(CRI_O, STATIC),
    "a node that joins": Configuration(CRI_O, STATIC, joins=True),
}


@pytest.fixture(scope="module")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server whose cluster is kubeadm's."""
    with server.running(tmp_path_factory.mktemp("apiserver")) as it:
        yield it


@pytest.fixture(scope="module", params=tools.KUBEADM)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def configuration(request: pytest.FixtureRequest) -> Configuration:
    return CONFIGURATIONS[request.param]


@pytest.fixture(scope="module")
def host(apiserver: ApiServer, release: str, configuration: Configuration) -> Iterator[KubeadmHost]:
    """A node that kubeadm has made. Tests leave its files as they are."""
    with short_folder() as folder:
        first = KubeadmHost(folder / "first", apiserver, release, configuration.socket)
        first.init(f"first-{release}", configuration.kubelet)
        if configuration.joins:
            first.publish()
            joined = KubeadmHost(folder / "joined", apiserver, release, configuration.socket)
            joined.join("joined", first)
            yield joined
        else:
            yield first


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="topolet-") as path:
        yield Path(path)


def test_the_proxy_is_put_into_the_files_and_removed(host: KubeadmHost, release: str) -> None:
    before, configured = host.contents(), host.configuration()
    assert host.loaded == host.kubelet.runtime
    install(host)
    assert host.loaded == PROXY
    after = host.contents()
    changed = {path for path, content in before.items() if after[path] != content}
    assert changed == ({ENV} if release == "1.33" else {CONFIG, INSTANCE})
    field = {} if release == "1.33" else {"containerRuntimeEndpoint": PROXY}
    assert host.configuration() == configured | field
    assert planned(host) == ()
    remove(host)
    assert host.contents() == before
    assert host.loaded == host.kubelet.runtime


def test_the_kubelets_configuration_is_read(
    host: KubeadmHost, configuration: Configuration
) -> None:
    settings = AgentSettings(root=str(host.root), runtime_endpoint=configuration.socket)
    reading = kubelet_configuration.read(settings, lambda: "/")
    assert not any(reading.problems.values())
    assert reading.whole is not None
    assert reading.whole.runtime_endpoint == configuration.socket
    assert reading.whole.cgroup_driver == "systemd"
    assert reading.whole.static == bool(configuration.kubelet)
    assert str(reading.whole.reserved_cpus) == configuration.kubelet.get("reservedSystemCPUs", "")
    policy = configuration.kubelet.get("topologyManagerPolicy", "none")
    assert reading.whole.topology_manager_policy == policy
    folder = f"{host.root}/var/lib/kubelet"
    examined = KubeletStateSettings(root=str(host.root), kubelet_dir=folder)
    status, unreadable = doctor.observed_kubelet(examined)
    assert status.configuration is not None
    assert (status.program, status.unread, unreadable) == ("kubelet", (), ())
    assert status.configuration.runtime_endpoint == configuration.socket


def test_preflight_accepts_the_node(host: KubeadmHost, configuration: Configuration) -> None:
    (host.root / "var/lib/kubelet/pods").mkdir()  # the kubelet makes it
    settings = AgentSettings(root=str(host.root), runtime_endpoint=configuration.socket)
    socket = host.root / configuration.socket.removeprefix("unix:///var/")
    socket.parent.mkdir(parents=True)
    runtime = SimulatedRuntime(socket, lambda group, cpus: None)
    runtime.replies = {"Version": pb.VersionResponse(runtime_name="c").SerializeToString()}
    try:
        assert list(agent_problems(settings, Mode.RECONCILE)) == []
        others = list(agent_problems(AgentSettings(root=str(host.root)), Mode.RECONCILE))
        named = ["the node has /run/crio/crio.sock" in text for text in others]
        assert named == ([] if configuration.socket == CONTAINERD else [True])
    finally:
        runtime.close()


@pytest.mark.parametrize(
    ("former", "later"),
    [("1.33", "1.33"), ("1.33", "1.36"), ("1.36", "1.36"), ("1.36", "1.37")],
)
def test_a_node_that_kubeadm_upgrades_stays_behind_the_proxy(
    apiserver: ApiServer, folder: Path, former: str, later: str
) -> None:
    """From 1.34 on, kubeadm moves the endpoint from the flags to the configuration, which it writes
    anew."""
    host = KubeadmHost(folder, apiserver, former, CRI_O)
    host.init(f"from-{former}-to-{later}", STATIC)
    host.publish()
    install(host)
    host.upgrade(later)
    has_flag = later == "1.33"
    assert ("container-runtime-endpoint" in host.text(ENV)) == has_flag
    assert host.configuration()["containerRuntimeEndpoint"] == ("" if has_flag else PROXY)
    assert host.loaded == PROXY
    assert planned(host) == ()
    remove(host)
    assert host.loaded == CRI_O
    assert host.configuration()["containerRuntimeEndpoint"] == ("" if has_flag else CRI_O)
    for path in {ENV, CONFIG, INSTANCE} & host.contents().keys():
        assert PROXY not in host.text(path)


def documented() -> tuple[dict[str, Any], dict[str, Any]]:
    """The KubeSchedulerConfiguration of docs/install.md, and the fields of `scheduler` in the
    ClusterConfiguration."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/install.md").read_text(), re.DOTALL)
    contents = [yaml.safe_load(block) for block in blocks]
    (settings,) = (each for each in contents if each.get("kind") == "KubeSchedulerConfiguration")
    (cluster,) = (each for each in contents if "extraArgs" in each.get("scheduler", {}))
    return settings, cluster["scheduler"]


def test_the_documented_extender_is_called_by_kubeadms_scheduler(
    apiserver: ApiServer, folder: Path, tmp_path: Path
) -> None:
    settings, fields = documented()
    (extender,) = settings["extenders"]
    own = Path(extender["tlsConfig"]["caFile"]).parent
    host = KubeadmHost(folder / "root", apiserver, "1.36", CONTAINERD)
    host.init("first", {}, fields)
    (container,) = yaml.safe_load(host.text(MANIFEST))["spec"]["containers"]
    assert {"mountPath": str(own), "name": "topolet", "readOnly": True} in container["volumeMounts"]
    (config,) = (word for word in container["command"] if word.startswith("--config="))

    secret = serving_secret(SYSTEM, schedulers.ACCOUNT)["stringData"]
    pki = host.root / str(own).lstrip("/")
    pki.mkdir()
    for name, text in secret.items():
        (pki / name).write_text(text)
    schedulers.install(apiserver)
    topolet = schedulers.Topolet(
        apiserver, tmp_path, f"--tls-dir={pki}", f"--client-ca-file={pki}/ca.crt"
    )
    extender["urlPrefix"] = f"https://127.0.0.1:{topolet.port}"
    (host.root / config.removeprefix("--config=/")).write_text(json.dumps(settings))
    shutil.copy(program_or_skip(), host.root / "kube-scheduler")
    command = ("chroot", host.root, "/kube-scheduler", *container["command"][1:])
    topolet.lead()
    try:
        with (
            (tmp_path / "kube-scheduler.log").open("wb") as log,
            workload_for(apiserver, "documented extender") as workload,
            subprocess.Popen(
                [*command, f"--secure-port={free_port()}"], stdout=log, stderr=log
            ) as scheduler,
        ):
            try:
                node = workload.nodes.add()
                pod = objects.pod_manifest(
                    workload.name,
                    "owner",
                    {"cpu": "2", "memory": "64Mi"},
                    scheduler="default-scheduler",
                    labels={"koordinator.sh/qosClass": "LSE"},
                    nodeSelector=workload.nodes.selector,
                )
                objects.create(apiserver, pod)
                bound = workload.wait_bound("owner")["owner"]
                assert bound["spec"]["nodeName"] == node
                assert len(cpus(bound)) == 2
            finally:
                scheduler.kill()
    finally:
        topolet.kill()
