"""The proxy is installed for a running kubelet on a host of a real systemd, and removed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machine import ProgramError
from tests.deploy import chart
from tests.fixtures import image
from tests.fixtures.constants import INSTALL_DEADLINE
from tests.integration import image as built
from tests.integration import systemdhost
from tests.integration.systemdhost import CONFIG, ENV, RUNTIME, UNITS, SystemdHost
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)
FOLDERS = (UNITS, "/etc/crictl.yaml", "/opt", "/var/lib/topolet", CONFIG, ENV)
QUICK = ("--settle-seconds=3",)
INSTALLED = "/opt/topolet/current/bin/topolet"
OUR_IMAGE = "docker.io/library/topolet:installs-itself"
BROKEN = f"{UNITS}/topolet-proxy.service.d/50-broken.conf"


@pytest.fixture(scope="module")
def host() -> Iterator[SystemdHost]:
    with systemdhost.running(2) as host:
        host.start_kubelet(containerRuntimeEndpoint=RUNTIME)
        host.pod("first")
        yield host


@pytest.fixture
def node(host: SystemdHost) -> Iterator[SystemdHost]:
    with unchanged(host):
        yield host


@contextlib.contextmanager
def unchanged(host: SystemdHost) -> Iterator[None]:
    """Removes the proxy after the block, and compares files and containers with those before."""
    files, pods = host.files(*FOLDERS), host.running()
    assert "first" in pods
    yield
    try:
        host.topolet("install-proxy", "--undo", *QUICK)
        assert host.files(*FOLDERS) == files
        assert host.running() == pods
        assert host.unit_property("kubelet.service", "ActiveState") == "active"
    except (AssertionError, ProgramError):
        print(host.logs())
        raise


def test_installed_and_removed(node: SystemdHost) -> None:
    check_installed_and_removed(node)


def check_installed_and_removed(node: SystemdHost) -> None:
    files, pods = node.files(*FOLDERS), node.running()
    assert "restart kubelet.service" in node.topolet("install-proxy", "--dry-run", *QUICK)
    assert node.files(*FOLDERS) == files
    assert node.topolet("install-proxy", *QUICK).endswith("\ninstalled\n")
    assert node.running() == pods
    assert node.connections() > 0
    assert node.topolet("install-proxy", *QUICK) == "nothing to do: the kubelet uses it\n"
    nothing = node.topolet("install-proxy", *QUICK, program=INSTALLED)
    assert nothing == "nothing to do: the kubelet uses it\n"
    node.pod("second")
    node.delete_pod("second")
    undone = node.topolet("install-proxy", "--undo", *QUICK, program=INSTALLED)
    assert undone.endswith("\nremoved\n")
    # Otherwise `topolet doctor` finds a proxy that does not answer.
    node.run("test", "!", "-e", "/run/topolet/cri.sock")
    assert node.connections() == 0
    assert node.topolet("install-proxy", "--undo", *QUICK) == "nothing is installed\n"


def test_the_host_needs_no_python_and_no_library(node: SystemdHost) -> None:
    node.topolet("install-proxy", *QUICK)
    script = """mkdir -p /run/empty/bin /run/empty/opt /run/empty/proc
mount --bind /opt /run/empty/opt
cp "$1" /run/empty/bin/sh
ln -sf sh /run/empty/bin/readlink
ln -sf sh /run/empty/bin/dirname
chroot /run/empty "$2" proxy --help
"""
    busybox = image.busybox() or ""
    text = node.run("unshare", "--mount", "sh", "-ec", script, "sh", busybox, INSTALLED)
    assert text.startswith("usage: topolet proxy ")


def test_by_the_root_of_the_host_in_a_container(node: SystemdHost) -> None:
    script = """mkdir -p /run/outside
mount --rbind / /run/outside
cd "$1"
PYTHONPATH="$1" exec "$2" -m agent install-proxy --root=/run/outside \
    --cgroup-root=/run/outside/sys/fs/cgroup --settle-seconds=3
"""
    python = shutil.which("python3", path=f"{systemdhost.ROOT}/.venv/bin") or ""
    words = ("sh", "-ec", script, "sh", systemdhost.ROOT, python)
    assert node.run("unshare", "--mount", *words).endswith("\ninstalled\n")
    assert node.connections() > 0


def test_by_the_pods_of_the_chart(node: SystemdHost, tmp_path: Path) -> None:
    """Without privileges and with a read-only root, the agent's init container installs the proxy,
    and the pod of `helm uninstall` removes it, here without a cluster."""
    archive = node.world.folder / "topolet.tar"
    built.write_archive(archive, OUR_IMAGE)
    node.add_image(archive)
    found = chart.rendered(tmp_path, {"pools": [{"mode": "proxy", "installProxy": True}]})
    (agent,) = (each["spec"]["template"] for each in found if each["kind"] == "DaemonSet")
    (pool,) = next(
        json.loads(each["data"]["pools.json"])["pools"]
        for each in found
        if each["metadata"]["name"] == "topolet-uninstall" and each["kind"] == "ConfigMap"
    )
    files = node.files(*FOLDERS)
    try:
        run_first(node, "installer", agent["spec"], "initContainers", *QUICK)
        assert node.connections() > 0
        assert node.topolet("install-proxy", *QUICK, program=INSTALLED).startswith("nothing to do")
        run_first(node, "remover", pool["pod"]["spec"], "containers", "--without-cluster", *QUICK)
    finally:
        print(node.run("sh", "-c", "tail -n 99 /var/log/pods/*/*install*/*.log"))
    assert node.connections() == 0
    assert node.files(*FOLDERS) == files
    assert node.files("/run/topolet") == {}


def run_first(
    node: SystemdHost, name: str, spec: dict[str, Any], containers: str, *flags: str
) -> None:
    """Runs the container of this pod as an init container of a static pod, with these flags."""
    (container,) = spec[containers]
    first = {**container, "image": OUR_IMAGE, "args": [*container["args"], *flags]}
    used = {each["name"] for each in container["volumeMounts"]}
    node.pod(
        name,
        hostPID=spec["hostPID"],
        securityContext=spec["securityContext"],
        initContainers=[first],
        volumes=[each for each in spec["volumes"] if each["name"] in used],
    )
    node.delete_pod(name)


def test_a_proxy_that_does_not_start_changes_nothing(node: SystemdHost) -> None:
    files = node.files(*FOLDERS)
    node.run("mkdir", "-p", f"{UNITS}/topolet-proxy.service.d")
    node.write(BROKEN, "[Service]\nExecStart=\nExecStart=/bin/false\nType=simple\n")
    with pytest.raises(ProgramError, match="everything is as before"):
        node.topolet("install-proxy", constants={INSTALL_DEADLINE: 5})
    node.run("rm", "-r", f"{UNITS}/topolet-proxy.service.d")
    assert node.files(*FOLDERS) == files


def test_a_kubelet_that_does_not_reach_the_proxy_goes_back(node: SystemdHost) -> None:
    """Its configuration names the proxy, but another drop-in overrides the command."""
    files = node.files(*FOLDERS)
    command = node.unit_property("kubelet.service", "ExecStart")
    program = re.search(r"path=(\S+)", command)
    assert program is not None
    own = f"{UNITS}/kubelet.service.d/zz-own.conf"
    text = "/var/lib/kubelet/other.yaml"
    node.run("sh", "-ec", f"grep -v containerRuntimeEndpoint {CONFIG} >{text}")
    before = f"[Service]\nExecStart=\nExecStart={program[1]} --config={text}\n"
    node.write(own, before)  # takes effect with the next start only
    with pytest.raises(ProgramError, match=r"nothing is connected to .*everything is as before"):
        node.topolet("install-proxy", "--settle-seconds=1", constants={INSTALL_DEADLINE: 8})
    node.run("rm", own, text)
    node.systemctl("daemon-reload")
    node.systemctl("restart", "kubelet")
    assert node.files(*FOLDERS) == files


@pytest.mark.parametrize("step", ["copy the interpreter", "systemctl daemon-reload", "change /var"])
def test_killed(node: SystemdHost, step: str) -> None:
    """The next run undoes the changes of a killed one, and installs the proxy."""
    node.start_command("install", "install-proxy", *QUICK)
    eventually(step, lambda: step in node.world.log("install"), systemdhost.START_SECONDS)
    node.kill("install")
    eventually(
        "the kubelet runs",
        lambda: node.unit_property("kubelet.service", "ActiveState") == "active",
        systemdhost.START_SECONDS,
    )
    output = node.topolet("install-proxy", *QUICK)
    assert output.startswith("an earlier run did not finish: undoing its changes\n")
    assert output.endswith("\ninstalled\n")


def test_ended_by_sigterm(node: SystemdHost) -> None:
    """Like a deleted pod, it undoes its changes before it ends."""
    files = node.files(*FOLDERS)
    node.start_command("ended", "install-proxy", "--settle-seconds=15")
    reached = "wait until kubelet.service uses the proxy"
    eventually(reached, lambda: reached in node.world.log("ended"), systemdhost.START_SECONDS)
    node.kill("ended", "TERM")
    eventually("it ends", lambda: node.world.ended("ended") is not None, systemdhost.START_SECONDS)
    assert "ended by SIGTERM; everything is as before" in node.world.log("ended")
    assert node.files(*FOLDERS) == files


def test_a_deleted_socket_is_found_and_made_again_by_its_unit(node: SystemdHost) -> None:
    node.topolet("install-proxy", *QUICK)

    def lost() -> str:
        try:
            page = node.run("busybox", "wget", "-q", "-O-", "http://127.0.0.1:9327/metrics")
        except ProgramError:
            return "the proxy starts"
        (value,) = re.findall(r"^topolet_proxy_socket_lost (\d)", page, re.MULTILINE)
        return str(value)

    assert lost() == "0"
    node.run("rm", "/run/topolet/cri.sock")
    assert lost() == "1"
    with pytest.raises(ProgramError) as failed:
        node.topolet("doctor", f"--runtime-endpoint={RUNTIME}")
    assert "proxy-socket-lost: a proxy runs, and /run/topolet/cri.sock does not exist" in str(
        failed.value
    )
    node.systemctl("restart", "topolet-proxy.service")
    eventually("the proxy runs", lambda: lost() == "1", systemdhost.START_SECONDS)
    node.systemctl("restart", "topolet-proxy.socket")
    eventually("the socket is there", lambda: lost() == "0", systemdhost.START_SECONDS)
    node.systemctl("restart", "kubelet.service")
    eventually("the kubelet uses it", node.connections, systemdhost.START_SECONDS)


def test_the_units_are_valid_and_confined(node: SystemdHost) -> None:
    node.topolet("install-proxy", *QUICK)
    units = [f"{UNITS}/topolet-proxy.{each}" for each in ("socket", "service")]
    assert node.run("systemd-analyze", "verify", *units) == ""
    node.run("systemd-analyze", "security", "--offline=true", "--threshold=20", units[1])
    assert node.unit_property("topolet-proxy.service", "CapabilityBoundingSet") == ""
    assert node.unit_property("topolet-proxy.service", "NRestarts") == "0"


def test_installed_and_removed_by_a_flag_of_the_kubelet() -> None:
    """With containerd 1.6."""
    with systemdhost.running(1) as host:
        host.start_kubelet(f"--container-runtime-endpoint={RUNTIME}")
        host.pod("first")
        with unchanged(host):
            check_installed_and_removed(host)
