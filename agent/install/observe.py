"""This node's kubelet as it is started and configured, read from its process and its files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.install import unitfiles
from agent.install.tree import HostTree, TextFile
from agent.install.unitfiles import Unit
from agent.kube import documents
from agent.kubelet.configuration import flags
from agent.node import kubelet_process
from agent.node.kubelet_process import KubeletProcess

FLAG: Final = "container-runtime-endpoint"
_INSTANCE: Final = "instance-config.yaml"
_K3S: Final = {
    "k3s.service": "/etc/rancher/k3s",
    "k3s-agent.service": "/etc/rancher/k3s",
    "rke2-server.service": "/etc/rancher/rke2",
    "rke2-agent.service": "/etc/rancher/rke2",
}
"""The configuration folder of k3s and RKE2, which contain a kubelet, by their services."""
_REVISION: Final = re.compile(r"^(/var/snap/[^/]+)/[^/]+/")


class ObservedKubelet(msgspec.Struct, frozen=True):
    """How this node's kubelet is started and configured."""

    unit: Unit
    """The systemd service that runs it."""
    argv: tuple[str, ...]
    """The kubelet's command line; for k3s and MicroK8s, whose kubelet has none, the flags in its
    files."""
    environment_files: tuple[TextFile, ...] = ()
    """The existing EnvironmentFiles of the unit."""
    config: TextFile | None = None
    """The file of --config, None without one."""
    instance: TextFile | None = None
    """The file beside it from which `kubeadm upgrade` takes the endpoint when it writes the file of
    --config anew."""
    config_dir: str = ""
    """The folder of --config-dir."""
    drop_ins: tuple[TextFile, ...] = ()
    """The files in that folder, in the kubelet's order."""
    k3s_folder: str = ""
    """The folder of k3s or RKE2, "" for other kubelets."""
    k3s_files: tuple[TextFile, ...] = ()
    """The configuration files in that folder, in their order."""
    args_file: TextFile | None = None
    """The file with the flags of MicroK8s' kubelet, None for other kubelets."""

    @property
    def files(self) -> tuple[TextFile, ...]:
        """All files that may name the endpoint, except those of the unit."""
        single = filter(None, (self.instance, self.config, self.args_file))
        return (*self.environment_files, *single, *self.drop_ins, *self.k3s_files)


class ObservationError(ValueError):
    """The kubelet, or the way it is started, can't be determined; the message says what to do."""


def kubelet(tree: HostTree, own_group: str | None) -> ObservedKubelet:
    """How the node's running kubelet is started and configured.

    `own_group`: the root of this process's cgroup namespace.

    Raises ObservationError, TreeError, DocumentError, ConfigurationError, OSError."""
    proc = tree.path("/proc")
    search = kubelet_process.find(proc, own_group)
    if search.doubts:
        raise ObservationError(f"the kubelet can't be determined: {search.doubts[0]}")
    if len(search.kubelets) > 1:
        several = ", ".join(candidate.title for candidate in search.kubelets)
        raise ObservationError(f"several kubelets run: {several}")
    if not search.kubelets:
        raise ObservationError("no kubelet runs on this node: start it first")
    (process,) = search.kubelets
    unit = unitfiles.read(tree, _unit_of(proc, process))
    if process.program == kubelet_process.KUBELITE:
        return _microk8s(tree, unit, process)
    return observed(tree, unit, process.argv)


def observed(tree: HostTree, unit: Unit, argv: Sequence[str]) -> ObservedKubelet:
    """How the kubelet with the command line `argv` is started and configured.

    Raises OSError, TreeError, DocumentError, ConfigurationError."""
    if folder := _K3S.get(unit.name):
        files = _k3s_files(tree, folder)
        contents = [documents.parse(file.text) or {} for file in files]
        given = kubelet_process.arguments_of_k3s(contents, folder)
        words = [argv[0] if argv else unit.name, *_k3s_endpoint(unit, contents), *given]
        return ObservedKubelet(unit, tuple(words), k3s_folder=folder, k3s_files=tuple(files))
    named = flags(argv)
    config = named.get("config", "")
    config_dir = named.get("config-dir", "").rstrip("/")
    return ObservedKubelet(
        unit,
        tuple(argv),
        tuple(_environment_files(tree, unit)),
        tree.file(config) if config.startswith("/") else None,
        tree.file(f"{os.path.dirname(config)}/{_INSTANCE}") if config.startswith("/") else None,
        config_dir,
        tuple(_drop_ins(tree, config_dir)) if config_dir else (),
    )


def _microk8s(tree: HostTree, unit: Unit, process: KubeletProcess) -> ObservedKubelet:
    """The file is changed below `current`, a link to the folder of the snap's revision: a refresh
    of the snap copies the folder and moves the link (snapcraft.io: Data locations).

    Raises ObservationError, OSError, TreeError."""
    named = flags(process.argv).get(kubelet_process.KUBELITE_ARGS_FLAG, "")
    path = _REVISION.sub(r"\1/current/", named)
    file = tree.file(path) if path.startswith("/") else None
    if file is None or file.path != tree.real(named):
        raise ObservationError(
            f"{process.title} is not that of a snap: change --{FLAG} by hand in "
            f"{named or 'the file of its flags'}, or use topolet nri"
        )
    given = kubelet_process.arguments_of_file(named, file.text)
    args_file = TextFile(path, file.state)
    return ObservedKubelet(unit, (process.argv[0], *given), args_file=args_file)


def _k3s_endpoint(unit: Unit, contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """The flag with the runtime endpoint that is configured for k3s; empty if k3s starts its own
    runtime. The command line overrides the files (docs.k3s.io: Configuration File)."""
    given = [content[FLAG] for content in contents if isinstance(content.get(FLAG), str)]
    for command in unit.values("ExecStart"):
        given += filter(None, [flags(unitfiles.words(command)).get(FLAG)])
    return [f"--{FLAG}={given[-1]}"] if given else []


def _unit_of(proc: str, kubelet: KubeletProcess) -> str:
    """The service of systemd that runs this process.

    Raises ObservationError."""
    try:
        with Process(proc, kubelet.pid) as process:
            groups = process.groups()
    except (ProcessGoneError, UnreadableError) as error:
        raise ObservationError(f"{kubelet.title}: {error}") from error
    group = groups.get("name=systemd") or groups.get("") or ""
    for part in reversed(group.split("/")):
        if part.endswith(".service"):
            return part
    raise ObservationError(
        f"{kubelet.title} is not a service of systemd (its cgroup is {group or 'unknown'}): set "
        "its runtime endpoint by hand, or use topolet nri"
    )


def _environment_files(tree: HostTree, unit: Unit) -> list[TextFile]:
    paths = [each.removeprefix("-") for each in unit.values("EnvironmentFile")]
    return [file for path in paths if path.startswith("/") and (file := tree.file(path))]


def _drop_ins(tree: HostTree, folder: str) -> list[TextFile]:
    """The files in the order of filepath.WalkDir."""
    files: list[TextFile] = []
    for name in tree.names(folder):
        path = os.path.join(folder, name)
        if tree.is_folder(path):
            files += _drop_ins(tree, path)
        elif name.endswith(".conf") and (file := tree.file(path)):
            # With the path in this folder, not the target of a link: the path determines the order.
            files.append(TextFile(path, file.state))
    return files


def _k3s_files(tree: HostTree, folder: str) -> list[TextFile]:
    paths = [f"{folder}/config.yaml"]
    paths += [
        f"{folder}/config.yaml.d/{name}"
        for name in tree.names(f"{folder}/config.yaml.d")
        if name.endswith((".yaml", ".yml"))
    ]
    return [TextFile(path, file.state) for path in paths if (file := tree.file(path))]
