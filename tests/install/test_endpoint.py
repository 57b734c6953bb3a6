from __future__ import annotations

from pathlib import Path

import pytest

from agent.install import endpoint, observe
from agent.install.endpoint import EndpointError
from agent.install.observe import ObservationError
from agent.install.tree import HostTree
from tests.install.kubelets import (
    CONFIG,
    CONTAINERD,
    DROP_IN,
    EACH_KUBELET,
    KUBELETS,
    PROXY,
    UNIT,
    Kubelet,
    write,
)
from tests.node.procfs import process


def observed(root: Path) -> observe.ObservedKubelet:
    return observe.kubelet(HostTree(str(root)), "/")


@EACH_KUBELET
def test_the_endpoint_of_a_kubelet(tmp_path: Path, kubelet: Kubelet) -> None:
    write(tmp_path, kubelet)
    assert endpoint.configured(observed(tmp_path)) == kubelet.runtime


@EACH_KUBELET
def test_files_that_a_new_endpoint_changes(tmp_path: Path, kubelet: Kubelet) -> None:
    write(tmp_path, kubelet)
    changes = endpoint.changes(observed(tmp_path), PROXY)
    assert {each.path: each.after.text for each in changes} == kubelet.changed


@EACH_KUBELET
def test_files_that_name_the_endpoint_before_a_restart_stay(
    tmp_path: Path, kubelet: Kubelet
) -> None:
    write(tmp_path, kubelet)
    for change in endpoint.changes(observed(tmp_path), PROXY):
        HostTree(str(tmp_path)).put(change.path, change.after)
    for change in endpoint.changes(observed(tmp_path), PROXY):
        assert change.before == change.after


def refused(root: Path, argv: tuple[str, ...], files: dict[str, str], unit: str = "") -> str:
    write(root, Kubelet("", argv, files, {}, unit=unit or "kubelet.service"))
    with pytest.raises((EndpointError, ObservationError)) as error:
        endpoint.changes(observed(root), PROXY)
    return str(error.value)


FLAG = f"--container-runtime-endpoint={CONTAINERD}"


def test_a_flag_of_a_script_is_left_to_the_administrator(tmp_path: Path) -> None:
    text = refused(tmp_path, ("kubelet", FLAG), {UNIT: "[Service]\nExecStart=/opt/start-it\n"})
    assert "kubelet.service" in text
    assert f"change it to {PROXY} where this kubelet is started" in text


def test_a_shell_that_starts_the_kubelet_gets_no_flag_appended(tmp_path: Path) -> None:
    unit = "[Service]\nExecStart=/bin/sh -c 'exec kubelet --v=2'\n"
    assert "a shell starts this kubelet" in refused(tmp_path, ("kubelet", "--v=2"), {UNIT: unit})


def test_a_later_drop_in_of_the_unit_is_named(tmp_path: Path) -> None:
    last = "/etc/systemd/system/kubelet.service.d/99-zone.conf"
    command = f"[Service]\nExecStart=\nExecStart=/usr/bin/kubelet {FLAG}\n"
    files = {UNIT: "[Service]\nExecStart=/usr/bin/kubelet\n", last: command}
    assert f"{last} overrides {DROP_IN}" in refused(tmp_path, ("kubelet", FLAG), files)


def test_a_later_drop_in_of_the_configuration_is_named(tmp_path: Path) -> None:
    last = "/etc/k/99-zone.conf"
    files = {
        UNIT: "[Service]\nExecStart=/usr/bin/kubelet\n",
        last: f"containerRuntimeEndpoint: {CONTAINERD}\n",
    }
    assert f"{last}: overrides" in refused(tmp_path, ("kubelet", "--config-dir=/etc/k"), files)


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {containerRuntimeEndpoint: unix:///a}\n--- \n",
        "b: |\n  x\n ? containerRuntimeEndpoint\n",
        "- a list\n",
        "containerRuntimeEndpoint: >-\n  unix:///run/containerd/containerd.sock\n",
    ],
)
def test_a_configuration_that_can_not_be_edited_safely_is_named(tmp_path: Path, text: str) -> None:
    files = {UNIT: "[Service]\nExecStart=/usr/bin/kubelet\n", CONFIG: text}
    assert refused(tmp_path, ("kubelet", f"--config={CONFIG}"), files).startswith(CONFIG)


def test_kubelet_args_of_the_command_line_of_k3s_are_not_changed(tmp_path: Path) -> None:
    unit = "[Service]\nExecStart=/usr/local/bin/k3s server --kubelet-arg=max-pods=5\n"
    files = {"/etc/systemd/system/k3s.service": unit}
    text = refused(tmp_path, ("/usr/local/bin/k3s server",), files, "k3s.service")
    assert text.startswith("k3s.service: gives --kubelet-arg on the command line")


@pytest.mark.parametrize("flag", [(), (FLAG,)], ids=["field", "flag"])
def test_a_kubelet_that_k0s_configures_anew_at_each_start_is_refused(
    tmp_path: Path, flag: tuple[str, ...]
) -> None:
    config = "/var/lib/k0s/kubelet-config.yaml"
    unit = "[Service]\nExecStart=/usr/local/bin/k0s worker --token-file=/etc/k0stoken\n"
    files = {
        "/etc/systemd/system/k0sworker.service": unit,
        config: "containerRuntimeEndpoint: unix:///run/k0s/containerd.sock\n",
    }
    argv = ("/var/lib/k0s/bin/kubelet", f"--config={config}", *flag)
    text = refused(tmp_path, argv, files, "k0sworker.service")
    assert text.startswith("k0sworker.service: k0s configures its kubelet anew at each start")
    assert f"--cri-socket=remote:{PROXY}" in text


@pytest.mark.parametrize("path", ["", "/var/snap/other/1/args/kubelet"])
def test_a_kubelite_whose_file_is_not_that_of_the_current_snap(tmp_path: Path, path: str) -> None:
    argv = ("/snap/microk8s/9072/kubelite", *([f"--kubelet-args-file={path}"] if path else []))
    files = {"/etc/systemd/system/k.service": "[Service]\nExecStart=/usr/bin/snap run k\n"}
    text = refused(tmp_path, argv, files, "k.service")
    assert f"--container-runtime-endpoint by hand in {path or 'the file of its flags'}" in text


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("0::/user.slice/user-0.slice/session-1.scope\n", "is not a service of systemd"),
        ("1:name=systemd:/\n3:cpuset:/\n0::/\n", "is not a service of systemd"),
    ],
)
def test_a_kubelet_that_systemd_did_not_start(tmp_path: Path, groups: str, message: str) -> None:
    write(tmp_path, KUBELETS[0])
    process(tmp_path, 70, *KUBELETS[0].argv, groups=groups)
    with pytest.raises(ObservationError, match=message):
        observed(tmp_path)


def test_no_kubelet(tmp_path: Path) -> None:
    process(tmp_path, 1, "/sbin/init")
    with pytest.raises(ObservationError, match="no kubelet runs"):
        observed(tmp_path)


def test_two_kubelets(tmp_path: Path) -> None:
    write(tmp_path, KUBELETS[0])
    process(tmp_path, 71, "/usr/bin/kubelet", "--root-dir=/other")
    with pytest.raises(ObservationError, match="several kubelets run: kubelet 70, kubelet 71"):
        observed(tmp_path)
