"""Kubelets as distributions configure them: command line, unit and files, and the files that a
change of the endpoint changes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.node.procfs import process

CONTAINERD = "unix:///run/containerd/containerd.sock"
PROXY = "unix:///run/topolet/cri.sock"
CONFIG = "/var/lib/kubelet/config.yaml"
INSTANCE = "/var/lib/kubelet/instance-config.yaml"
UNIT = "/usr/lib/systemd/system/kubelet.service"
KUBEADM = f"{UNIT}.d/10-kubeadm.conf"
ENV = "/var/lib/kubelet/kubeadm-flags.env"
DROP_IN = "/etc/systemd/system/kubelet.service.d/99-topolet.conf"


class Kubelet(NamedTuple):
    """`argv`: of the running process. `files`: the content by path; a text that starts with `->` is
    a link. `changed`: the content of changed files after the installation."""

    name: str
    argv: tuple[str, ...]
    files: dict[str, str]
    changed: dict[str, str]
    runtime: str = CONTAINERD
    unit: str = "kubelet.service"


_KUBEADM_UNIT = """[Unit]
Description=kubelet: The Kubernetes Node Agent

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
"""
_KUBEADM_DROP_IN = f"""# Note: This dropin only works with kubeadm and kubelet v1.11+
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config={CONFIG}"
EnvironmentFile=-{ENV}
# --container-runtime-endpoint=unix:///not/this/one
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS \\
    $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
PACKAGE = {UNIT: _KUBEADM_UNIT, KUBEADM: _KUBEADM_DROP_IN}
"""The units of the packages of kubelet and kubeadm."""
_YAML = """apiVersion: kubelet.config.k8s.io/v1beta1
# a comment of an administrator
kind: KubeletConfiguration
clusterDNS:
- 10.96.0.10
"""


def _kubeadm(*flags: str) -> tuple[str, ...]:
    return ("/usr/bin/kubelet", "--kubeconfig=/etc/kubernetes/kubelet.conf", *flags)


_SNAP = "/var/snap/microk8s"
_KUBELITE = "/snap/microk8s/9072/kubelite"


def _microk8s(flag: str) -> dict[str, str]:
    return {
        "/etc/systemd/system/snap.microk8s.daemon-kubelite.service": "[Service]\n"
        "EnvironmentFile=-/etc/environment\n"
        "ExecStart=/usr/bin/snap run microk8s.daemon-kubelite\n"
        "SyslogIdentifier=microk8s.daemon-kubelite\nRestart=always\n"
        "WorkingDirectory=/var/snap/microk8s/9072\nType=simple\nKillMode=process\n",
        f"{_SNAP}/9072/args/kubelet": "# a comment\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n"
        f"{flag}\n",
        f"{_SNAP}/current": "->9072",
    }


KUBELETS = (
    Kubelet(
        "kubeadm 1.33, flag in its file",
        _kubeadm(
            f"--config={CONFIG}",
            f"--container-runtime-endpoint={CONTAINERD}",
            "--pod-infra-container-image=registry.k8s.io/pause:3.10",
        ),
        {
            **PACKAGE,
            CONFIG: _YAML,
            ENV: f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint={CONTAINERD} '
            '--pod-infra-container-image=registry.k8s.io/pause:3.10"\n',
        },
        {
            ENV: f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint={PROXY} '
            '--pod-infra-container-image=registry.k8s.io/pause:3.10"\n'
        },
    ),
    Kubelet(
        "kubeadm 1.36, field in the file",
        _kubeadm(f"--config={CONFIG}"),
        {
            **PACKAGE,
            CONFIG: f"{_YAML}containerRuntimeEndpoint: {CONTAINERD}\ncpuManagerPolicy: none\n",
            INSTANCE: f'containerRuntimeEndpoint: "{CONTAINERD}"\n',
            ENV: 'KUBELET_KUBEADM_ARGS=""\n',
        },
        {
            INSTANCE: f"containerRuntimeEndpoint: {PROXY}\n",
            CONFIG: f"{_YAML}containerRuntimeEndpoint: {PROXY}\ncpuManagerPolicy: none\n",
        },
    ),
    Kubelet(
        "field with the former name of /run",
        _kubeadm(f"--config={CONFIG}"),
        {
            **PACKAGE,
            CONFIG: f'{_YAML}containerRuntimeEndpoint: "/var/run/crio/crio.sock"\n',
        },
        {CONFIG: f"{_YAML}containerRuntimeEndpoint: {PROXY}\n"},
        runtime="unix:///var/run/crio/crio.sock",
    ),
    Kubelet(
        "nothing names the endpoint",
        _kubeadm("--config", CONFIG),
        {**PACKAGE, CONFIG: _YAML},
        {CONFIG: f"{_YAML}containerRuntimeEndpoint: {PROXY}\n"},
    ),
    Kubelet(
        "a file in JSON, as EKS has it",
        ("/usr/bin/kubelet", "--config=/etc/kubernetes/kubelet/config.json"),
        {
            UNIT: "[Service]\nExecStart=/usr/bin/kubelet $ARGS\n",
            "/etc/kubernetes/kubelet/config.json": '{"kind":"KubeletConfiguration","maxPods":29}',
        },
        {
            "/etc/kubernetes/kubelet/config.json": '{\n  "kind": "KubeletConfiguration",\n'
            f'  "maxPods": 29,\n  "containerRuntimeEndpoint": "{PROXY}"\n}}\n'
        },
    ),
    Kubelet(
        "a drop-in folder",
        ("kubelet", f"--config={CONFIG}", "--config-dir=/etc/kubernetes/kubelet.conf.d"),
        {
            UNIT: "[Service]\nExecStart=/usr/bin/kubelet $ARGS\n",
            CONFIG: f"{_YAML}containerRuntimeEndpoint: unix:///overridden\n",
            "/etc/kubernetes/kubelet.conf.d/10-cri.conf": "kind: KubeletConfiguration\n"
            f"containerRuntimeEndpoint: {CONTAINERD}\n",
            "/etc/kubernetes/kubelet.conf.d/a.yaml": "containerRuntimeEndpoint: unix:///not/read\n",
        },
        {
            "/etc/kubernetes/kubelet.conf.d/99-topolet.conf": "apiVersion: kubelet.config.k8s.io/"
            f"v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: {PROXY}\n"
        },
    ),
    Kubelet(
        "flag in the command of a unit of a package",
        ("/usr/bin/kubelet", f"--container-runtime-endpoint={CONTAINERD}", "--v=2"),
        {
            UNIT: "[Service]\nExecStart=/usr/bin/kubelet \\\n"
            f"  --container-runtime-endpoint={CONTAINERD} \\\n  --v=2\n",
        },
        {
            DROP_IN: "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet    "
            f"--container-runtime-endpoint={PROXY}    --v=2\n"
        },
    ),
    Kubelet(
        "OpenShift, whose unit of CRI-O's kubelet starts a wrapper",
        (
            *("/usr/bin/kubelet", "--config=/etc/kubernetes/kubelet.conf"),
            *("--container-runtime-endpoint=/var/run/crio/crio.sock", "--node-labels=os=rhel"),
        ),
        {
            "/etc/systemd/system/kubelet.service": "[Service]\nType=notify\n"
            "ExecStartPre=/bin/rm -f /var/lib/kubelet/cpu_manager_state\n"
            "EnvironmentFile=/etc/os-release\nEnvironmentFile=-/etc/kubernetes/kubelet-env\n"
            "ExecStart=/usr/local/bin/kubenswrapper \\\n    /usr/bin/kubelet \\\n"
            "      --config=/etc/kubernetes/kubelet.conf \\\n"
            "      --container-runtime-endpoint=/var/run/crio/crio.sock \\\n"
            "      --node-labels=os=${ID}\n",
            "/etc/os-release": "ID=rhel\n",
            "/etc/kubernetes/kubelet.conf": "kind: KubeletConfiguration\n",
        },
        {
            DROP_IN: "[Service]\nExecStart=\nExecStart=/usr/local/bin/kubenswrapper      "
            "/usr/bin/kubelet        --config=/etc/kubernetes/kubelet.conf        "
            f"--container-runtime-endpoint={PROXY}        --node-labels=os=${{ID}}\n"
        },
        runtime="unix:///var/run/crio/crio.sock",
    ),
    Kubelet(
        "flag in a variable of a unit",
        ("/usr/bin/kubelet", "--container-runtime-endpoint", CONTAINERD),
        {
            UNIT: "[Service]\nExecStart=/usr/bin/kubelet $KUBELET_ARGS\n",
            "/etc/systemd/system/kubelet.service.d/20-args.conf": "[Service]\n"
            f'Environment="KUBELET_ARGS=--container-runtime-endpoint {CONTAINERD}" A=1\n',
        },
        {DROP_IN: f'[Service]\nEnvironment="KUBELET_ARGS=--container-runtime-endpoint {PROXY}"\n'},
    ),
    Kubelet(
        "no file of its own, and no flag",
        ("/usr/bin/kubelet", "--v=2"),
        {UNIT: "[Service]\nExecStart=/usr/bin/kubelet --v=2\n"},
        {
            DROP_IN: "[Service]\nExecStart=\n"
            f"ExecStart=/usr/bin/kubelet --v=2 --container-runtime-endpoint={PROXY}\n"
        },
    ),
    Kubelet(
        "files of RHEL behind links",
        _kubeadm(f"--config={CONFIG}", f"--container-runtime-endpoint={CONTAINERD}"),
        {
            "/lib": "->/usr/lib",
            UNIT: _KUBEADM_UNIT,
            KUBEADM: _KUBEADM_DROP_IN.replace("/etc/default", "/etc/sysconfig"),
            CONFIG: _YAML,
            "/srv/kubelet": f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint={CONTAINERD}\n",
            "/etc/sysconfig/kubelet": "->/srv/kubelet",
        },
        {"/srv/kubelet": f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint={PROXY}\n"},
    ),
    Kubelet(
        "k3s, which hides its flags",
        ("/usr/local/bin/k3s server",),
        {
            "/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s \\\n"
            "    server \\\n",
            "/etc/rancher/k3s/config.yaml": "kubelet-arg:\n- max-pods=50\n",
        },
        {
            "/etc/rancher/k3s/config.yaml.d/99-topolet.yaml": "kubelet-arg+:\n"
            f"- container-runtime-endpoint={PROXY}\n"
        },
        runtime="unix:///run/k3s/containerd/containerd.sock",
        unit="k3s.service",
    ),
    Kubelet(
        "k3s as its script installs it: arguments in quotes, and a file of variables",
        ("/usr/local/bin/k3s agent",),
        {
            "/etc/systemd/system/k3s-agent.service": "[Service]\nType=exec\n"
            "EnvironmentFile=-/etc/default/%N\nEnvironmentFile=-/etc/sysconfig/%N\n"
            "EnvironmentFile=-/etc/systemd/system/k3s-agent.service.env\nKillMode=process\n"
            "Delegate=yes\nExecStart=/usr/local/bin/k3s \\\n    agent \\\n\t'--node-label' \\\n"
            "\t'a=b' \\\n\n",
            "/etc/systemd/system/k3s-agent.service.env": "K3S_TOKEN='secret'\n",
        },
        {
            "/etc/rancher/k3s/config.yaml.d/99-topolet.yaml": "kubelet-arg+:\n"
            f"- container-runtime-endpoint={PROXY}\n"
        },
        runtime="unix:///run/k3s/containerd/containerd.sock",
        unit="k3s-agent.service",
    ),
    Kubelet(
        "k3s with the host's containerd",
        ("/usr/local/bin/k3s server",),
        {
            "/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s \\\n"
            f"    server \\\n\t'--container-runtime-endpoint' \\\n\t'{CONTAINERD}' \\\n\n",
            "/etc/rancher/k3s/config.yaml": "container-runtime-endpoint: /run/not/this.sock\n",
        },
        {
            "/etc/rancher/k3s/config.yaml.d/99-topolet.yaml": "kubelet-arg+:\n"
            f"- container-runtime-endpoint={PROXY}\n"
        },
        unit="k3s.service",
    ),
    Kubelet(
        "k3s whose file names another runtime",
        ("/usr/local/bin/k3s server",),
        {
            "/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s server\n",
            "/etc/rancher/k3s/config.yaml": "container-runtime-endpoint: /run/crio/crio.sock\n",
        },
        {
            "/etc/rancher/k3s/config.yaml.d/99-topolet.yaml": "kubelet-arg+:\n"
            f"- container-runtime-endpoint={PROXY}\n"
        },
        runtime="unix:///run/crio/crio.sock",
        unit="k3s.service",
    ),
    Kubelet(
        "RKE2 from its archive, with drop-ins of an administrator",
        ("kubelet", "--container-runtime-endpoint=unix:///run/k3s/containerd/containerd.sock"),
        {
            "/usr/local/lib/systemd/system/rke2-server.service": "[Service]\n"
            "EnvironmentFile=-/etc/default/rke2-server\nKillMode=process\nDelegate=yes\n"
            "ExecStartPre=-/sbin/modprobe overlay\nExecStart=/usr/local/bin/rke2 server\n"
            'ExecStopPost=-/bin/sh -c "systemd-cgls /system.slice/%n | grep -Eo kubelet"\n',
            "/etc/rancher/rke2/config.yaml.d/10-own.yaml": "kubelet-arg:\n- max-pods=200\n",
        },
        {
            "/etc/rancher/rke2/config.yaml.d/99-topolet.yaml": "kubelet-arg+:\n"
            f"- container-runtime-endpoint={PROXY}\n"
        },
        runtime="unix:///run/k3s/containerd/containerd.sock",
        unit="rke2-server.service",
    ),
    Kubelet(
        "RKE2, whose kubelet is a process of its own",
        ("kubelet", "--container-runtime-endpoint=unix:///run/k3s/containerd/containerd.sock"),
        {"/usr/lib/systemd/system/rke2-agent.service": "[Service]\nExecStart=/bin/rke2 agent\n"},
        {
            "/etc/rancher/rke2/config.yaml.d/99-topolet.yaml": "kubelet-arg+:\n"
            f"- container-runtime-endpoint={PROXY}\n"
        },
        runtime="unix:///run/k3s/containerd/containerd.sock",
        unit="rke2-agent.service",
    ),
    Kubelet(
        "MicroK8s, whose file of flags has snapd's variables",
        (_KUBELITE, f"--kubelet-args-file={_SNAP}/9072/args/kubelet"),
        _microk8s("--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock"),
        {
            f"{_SNAP}/current/args/kubelet": "# a comment\n--root-dir=${SNAP_COMMON}/var/lib/"
            f"kubelet\n--container-runtime-endpoint={PROXY}\n"
        },
        runtime=f"unix://{_SNAP}/common/run/containerd.sock",
        unit="snap.microk8s.daemon-kubelite.service",
    ),
    Kubelet(
        "MicroK8s without the flag",
        (_KUBELITE, f"--kubelet-args-file={_SNAP}/current/args/kubelet"),
        _microk8s("--v=2"),
        {
            f"{_SNAP}/current/args/kubelet": "# a comment\n--root-dir=${SNAP_COMMON}/var/lib/"
            f"kubelet\n--v=2\n--container-runtime-endpoint={PROXY}\n"
        },
        unit="snap.microk8s.daemon-kubelite.service",
    ),
)

EACH_KUBELET = pytest.mark.parametrize("kubelet", KUBELETS, ids=[each.name for each in KUBELETS])


def write(root: Path, kubelet: Kubelet) -> None:
    """Writes the files and the process of this kubelet, on a host with systemd."""
    (root / "run/systemd/system").mkdir(parents=True)
    for path, text in sorted(kubelet.files.items()):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            target.symlink_to(text.removeprefix("->"))
        else:
            target.write_text(text)
    run(root, kubelet)


def run(root: Path, kubelet: Kubelet) -> None:
    process(root, 1, "/sbin/init", groups="0::/init.scope\n")
    name = "k3s-server" if kubelet.unit.startswith("k3s") else None
    process(
        root, 70, *kubelet.argv, name=name, parent=1, groups=f"0::/system.slice/{kubelet.unit}\n"
    )
