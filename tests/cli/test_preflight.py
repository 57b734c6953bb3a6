from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest

from agent.cli.preflight import NRI_SOCKET, PROXY_SOCKET, Mode, agent_problems, below
from agent.model.settings.agent import AgentSettings
from agent.proto import cri_pb2 as pb
from tests.cli.conftest import Topolet
from tests.faults.runtime import SimulatedRuntime
from tests.node.procfs import process


def test_every_reason_is_printed_with_the_node(tmp_path: Path, topolet: Topolet) -> None:
    words = ["--node-name=n1", "--mode=nri", f"--root={tmp_path}", "--kubelet-dir=/k"]
    lines = topolet("preflight", *words, code=1).err.splitlines()
    assert len(lines) >= 3
    assert all(each.startswith("topolet: node n1: ") for each in lines)


KUBELET = "/var/lib/kubelet"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return host(tmp_path)


def host(folder: Path) -> Path:
    """A host with a kubelet, and links as distributions have them."""
    (folder / "run").mkdir()
    (folder / "var").mkdir()
    (folder / "var/run").symlink_to("/run")
    (folder / f"data{KUBELET}/pods").mkdir(parents=True)
    (folder / "var/lib").mkdir()
    (folder / "var/lib/kubelet").symlink_to(f"/data{KUBELET}")
    process(folder, 7, "/usr/bin/kubelet", "--cpu-manager-policy=static")
    return folder


def found(root: Path, mode: Mode = Mode.RECONCILE, **settings: object) -> list[str]:
    given = AgentSettings(root=str(root), **settings)  # type: ignore[arg-type]
    return list(agent_problems(given, mode))


def listening(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    folder = os.getcwd()
    os.chdir(path.parent)  # paths of tests are longer than those of sockets may be
    try:
        listener.bind(path.name)
    finally:
        os.chdir(folder)
    return listener


def test_a_path_of_the_host_has_its_links_resolved_below_the_root(root: Path) -> None:
    assert below(str(root), "/var/run/nri/nri.sock") == f"{root}/run/nri/nri.sock"
    assert below(str(root), KUBELET) == f"{root}/data{KUBELET}"
    assert below(str(root), "/var/run/../../../etc/./x") == f"{root}/etc/x"
    assert below("/", "/proc/nothing") == "/proc/nothing"
    (root / "loop").symlink_to("loop")
    assert below(str(root), "/loop").startswith(str(root))


def test_a_wrong_runtime_is_named_with_those_of_the_node(root: Path) -> None:
    listening(root / "run/crio/crio.sock").close()
    (wrong,) = found(root)
    assert wrong == (
        "runtime /run/containerd/containerd.sock: this socket does not exist; the node has "
        "/run/crio/crio.sock (runtime of the pool)"
    )


def test_a_runtime_that_nobody_serves_does_not_answer(root: Path) -> None:
    listening(root / "run/c.sock").close()
    (wrong,) = found(root, runtime_endpoint="unix:///run/c.sock")
    assert wrong.startswith("runtime /run/c.sock: it does not answer: ")


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"cdiSpecDirs": ["/etc/cdi", "/run/cdi"]}, ""),
        ({"cdiSpecDirs": ["/etc/cdi"]}, "the runtime reads CDI files in /etc/cdi, so"),
        ({"enableCDI": False, "cdiSpecDirs": ["/run/cdi"]}, "the runtime reads no CDI files, so"),
        ({}, "the runtime reads no CDI files, so"),
    ],
)
def test_a_dra_driver_needs_a_runtime_that_reads_its_cdi_files(
    config: dict[str, object], wrong: str
) -> None:
    """`/run/cdi` is `/var/run/cdi` by a link of the host."""
    with tempfile.TemporaryDirectory() as folder:
        root = host(Path(folder))
        runtime = SimulatedRuntime(root / "run/c.sock", lambda group, cpus: None)
        text = {"config": json.dumps({"containerd": {}, **config})}
        runtime.replies = {
            "Version": pb.VersionResponse(runtime_name="c").SerializeToString(),
            # Its field `info` is that of a StatusResponse.
            "Status": pb.PodSandboxStatusResponse(info=text).SerializeToString(),
        }
        try:
            for dra in (False, True):
                lines = found(root, runtime_endpoint="unix:///run/c.sock", dra=dra)
                about_cdi = [line for line in lines if line.startswith("cdi-dir /var/run/cdi: ")]
                assert len(about_cdi) == bool(dra and wrong)
                assert all(wrong in line for line in about_cdi)
        finally:
            runtime.close()


def test_a_dra_driver_needs_the_kubelets_folder_of_plugins(root: Path) -> None:
    (*_, wrong) = found(root, dra=True)
    assert wrong.startswith("kubelet folder /var/lib/kubelet: it has no folder `plugins_registry`")
    (root / f"data{KUBELET}/plugins_registry").mkdir()
    assert len(found(root, dra=True)) == 1


def test_a_folder_that_is_not_the_kubelets_is_named(root: Path) -> None:
    wrong = found(root, kubelet_dir="/var/snap/kubelet")[1]
    assert wrong.startswith("kubelet folder /var/snap/kubelet: it is not the kubelet's folder")


def test_settings_that_contradict_the_kubelets_configuration_are_named(root: Path) -> None:
    process(root, 7, "/usr/bin/kubelet", "--memory-manager-policy=Static")
    wrong = found(root, bind_memory=True)[1]
    assert wrong.startswith("bind-memory is on, and the kubelet's memoryManagerPolicy is Static")


def test_cgroups_without_a_cpuset_controller_are_named(root: Path) -> None:
    (root / "empty").mkdir()
    wrong = found(root, cgroup_root=str(root / "empty"))[1]
    assert wrong.startswith("cgroups: ")


@pytest.mark.parametrize(("mode", "path"), [(Mode.NRI, NRI_SOCKET), (Mode.PROXY, PROXY_SOCKET)])
def test_a_frontend_needs_its_socket(root: Path, mode: Mode, path: str) -> None:
    assert found(root, mode)[1].startswith(f"{path}: this socket does not exist: ")
    listening(Path(below(str(root), path))).close()
    assert len(found(root, mode)) == 1
