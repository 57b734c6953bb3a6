"""Finds the file that sets a kubelet's runtime endpoint, and changes its text to another endpoint.

The flag --container-runtime-endpoint overrides the field containerRuntimeEndpoint of the
KubeletConfiguration (since Kubernetes 1.27), which a drop-in overrides (--config-dir; kubelet:
cmd/kubelet/app/server.go). kubeadm writes the flag into /var/lib/kubelet/kubeadm-flags.env, from
1.34 on the field into instance-config.yaml beside the configuration, and from there into the
configuration whenever it writes that. k3s and RKE2 make their kubelet's configuration themselves,
and append the values of `kubelet-arg` as flags (docs.k3s.io, docs.rke2.io: Configuration File).
MicroK8s has the flags in a file (canonical.com/microk8s: Configuring MicroK8s services). k0s gives
its kubelet the endpoint of --cri-socket (docs.k0sproject.io: Runtime).

Files of a distribution's package are not edited: a drop-in in /etc overrides them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from agent.install import unitfiles
from agent.install.observe import FLAG, ObservedKubelet
from agent.install.tree import ABSENT, FileState, TextFile
from agent.install.unitfiles import Unit
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kubelet.configuration import flags
from agent.model.settings.options import RUNTIME_ENDPOINT, STATE_DIR, proxy_socket
from agent.node.kubelet_process import K3S_ENDPOINT

FIELD: Final = "containerRuntimeEndpoint"
PROXY_ENDPOINT: Final = f"unix://{proxy_socket(STATE_DIR)}"
DROP_IN: Final = "99-topolet.conf"
K3S_DROP_IN: Final = "99-topolet.yaml"
_K3S_ARG: Final = "kubelet-arg"
_K0S: Final = "k0s"
_SHELLS: Final = frozenset({"sh", "bash", "dash"})
_GIVEN: Final = re.compile(rf"(--{FLAG}(?:=|[ \t]+))([\"']?)([^\s\"'\\]+)")
_LINE: Final = re.compile(rf"^{FIELD}:.*$", re.MULTILINE)


class EndpointError(ValueError):
    """The endpoint can't be changed automatically; the message names the file, and what to do."""


class FileChange(msgspec.Struct, frozen=True):
    """A file of the host before and after."""

    path: str
    before: FileState
    after: FileState


def configured(kubelet: ObservedKubelet) -> str:
    """The endpoint that the kubelet uses. Raises EndpointError for a file that can't be read."""
    given = flags(kubelet.argv).get(FLAG)
    if given:
        return _url(given)
    found = None
    for file in (kubelet.config, *kubelet.drop_ins):
        if file is not None:
            content = _object(file)
            found = content.get(FIELD, found)
    if isinstance(found, str) and found:
        return _url(found)
    return K3S_ENDPOINT if kubelet.k3s_folder else RUNTIME_ENDPOINT


def changes(kubelet: ObservedKubelet, endpoint: str) -> tuple[FileChange, ...]:
    """The changes of files after which a restarted kubelet uses this endpoint; none if it already
    does. Raises EndpointError."""
    if configured(kubelet) == endpoint:
        return ()
    if kubelet.k3s_folder:
        return (_k3s_change(kubelet, endpoint),)
    if _program(kubelet.unit) == _K0S:
        raise EndpointError(
            f"{kubelet.unit.name}: k0s configures its kubelet anew at each start, so that no "
            "change of a file lasts: use topolet nri, or give k0s a containerd of the host by "
            f"--cri-socket=remote:{endpoint}, with a proxy in front of it"
        )
    if kubelet.args_file is not None:
        return (_args_change(kubelet.args_file, endpoint),)
    if flags(kubelet.argv).get(FLAG):
        return _flag_changes(kubelet, endpoint)
    if kubelet.config_dir:
        return (_drop_in_change(kubelet, endpoint),)
    if kubelet.config is not None:
        configs = filter(None, (kubelet.instance, kubelet.config))
        return tuple(_config_change(file, endpoint) for file in configs)
    return (_unit_change(kubelet.unit, endpoint, appended=True),)


def reverted(text: str, endpoint: str, former: str) -> str:
    """The text of a file that others changed since the installation, with the former endpoint."""
    return text.replace(endpoint, former)


def naming_proxy(kubelet: ObservedKubelet, runtime: str) -> tuple[FileChange, ...]:
    """The files of the kubelet that name the proxy, as changes that gave them this endpoint: an
    upgrade by kubeadm moves the endpoint from the file of flags to the files of the
    configuration."""
    return tuple(
        FileChange(file.path, _edited(file, before).after, file.state)
        for file in kubelet.files
        if (before := reverted(file.text, PROXY_ENDPOINT, runtime)) != file.text
    )


def _url(endpoint: str) -> str:
    path = endpoint.removeprefix("unix://")
    return f"unix://{path}" if path.startswith("/") else endpoint


def _object(file: TextFile) -> Mapping[str, Any]:
    try:
        content = documents.parse(file.text)
    except DocumentError as error:
        raise EndpointError(f"{file.path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise EndpointError(f"{file.path}: its content must be an object")
    return content


def _with_flag(text: str, endpoint: str) -> str:
    """The text with this value for each occurrence of the flag, except in comments."""
    return "".join(
        line
        if line.lstrip().startswith(("#", ";"))
        else _GIVEN.sub(lambda flag: f"{flag[1]}{flag[2]}{endpoint}", line)
        for line in text.splitlines(keepends=True)
    )


def _gives_flag(text: str) -> bool:
    """Whether it has the flag, except in comments."""
    return _with_flag(text, "") != text


def _edited(file: TextFile, text: str) -> FileChange:
    return FileChange(file.path, file.state, msgspec.structs.replace(file.state, text=text))


def _args_change(file: TextFile, endpoint: str) -> FileChange:
    if _gives_flag(file.text):
        return _edited(file, _with_flag(file.text, endpoint))
    return _edited(file, f"{file.text.rstrip()}\n--{FLAG}={endpoint}\n")


def _flag_changes(kubelet: ObservedKubelet, endpoint: str) -> tuple[FileChange, ...]:
    found = [
        _edited(file, _with_flag(file.text, endpoint))
        for file in kubelet.environment_files
        if _gives_flag(file.text)
    ]
    unit = kubelet.unit
    in_unit = any(map(_gives_flag, _values_with_flags(unit)))
    if in_unit:
        found.append(_unit_change(unit, endpoint))
    if not found:
        raise EndpointError(
            f"{unit.name}: the kubelet has the flag --{FLAG}, but neither the unit nor its "
            f"environment files contain it: change it to {endpoint} where this kubelet is started"
        )
    return tuple(found)


def _program(unit: Unit) -> str:
    """The name of the program that the unit starts, "" if it starts none or several."""
    commands = unit.values("ExecStart")
    words = unitfiles.words(commands[0]) if len(commands) == 1 else []
    return words[0].rpartition("/")[2].lstrip("-@:+!") if words else ""


def _values_with_flags(unit: Unit) -> Iterator[str]:
    yield from unit.values("ExecStart")
    yield from unit.environment.values()


def _unit_change(unit: Unit, endpoint: str, *, appended: bool = False) -> FileChange:
    """A drop-in with the changed values of the unit. `appended`: the command line has no such flag
    yet."""
    commands = unit.values("ExecStart")
    if len(commands) != 1:
        raise EndpointError(f"{unit.name}: ExecStart has {len(commands)} values, not one")
    command = _with_flag(commands[0], endpoint)
    if appended and not _gives_flag(command):
        if _program(unit) in _SHELLS:
            raise EndpointError(
                f"{unit.name}: a shell starts this kubelet: add --{FLAG}={endpoint} there"
            )
        command = f"{command} --{FLAG}={endpoint}"
    lines = ["[Service]"]
    if _gives_flag(command):
        lines += ["ExecStart=", f"ExecStart={command}"]
    variables = {
        name: _with_flag(value, endpoint)
        for name, value in unit.environment.items()
        if _gives_flag(value)
    }
    lines += [
        f"Environment={unitfiles.quoted(f'{name}={value}')}" for name, value in variables.items()
    ]
    path = f"/etc/systemd/system/{unit.name}.d/{DROP_IN}"
    before = next((file.state for file in unit.files if file.path == path), ABSENT)
    written = TextFile(path, FileState("\n".join(lines) + "\n"))
    after = unit.with_drop_in(written)
    if after.values("ExecStart") != [command] or not variables.items() <= after.environment.items():
        last = after.files[-1].path
        raise EndpointError(f"{unit.name}: {last} overrides {path}: change --{FLAG} there")
    return FileChange(path, before, written.state)


def _drop_in_change(kubelet: ObservedKubelet, endpoint: str) -> FileChange:
    path = f"{kubelet.config_dir}/{DROP_IN}"
    text = (
        "apiVersion: kubelet.config.k8s.io/v1beta1\n"
        f"kind: KubeletConfiguration\n{FIELD}: {endpoint}\n"
    )
    before = next((file.state for file in kubelet.drop_ins if file.path == path), ABSENT)
    later = [file.path for file in kubelet.drop_ins if file.path > path and FIELD in _object(file)]
    if later:
        raise EndpointError(f"{later[-1]}: overrides {path}: change {FIELD} there to {endpoint}")
    return FileChange(path, before, FileState(text))


def _config_change(config: TextFile, endpoint: str) -> FileChange:
    """Edits one line, so that comments and order stay; of JSON, the whole file is written."""
    content = _object(config)
    wanted = {**content, FIELD: endpoint}
    line = f"{FIELD}: {endpoint}"
    if config.text.lstrip().startswith("{"):
        text = json.dumps(wanted, indent=2) + "\n"
    elif _LINE.search(config.text):
        text = _LINE.sub(line, config.text)
    else:
        text = config.text.rstrip("\n") + f"\n{line}\n"
    change = _edited(config, text)
    try:
        is_edited = documents.parse(text) == wanted
    except DocumentError:
        is_edited = False
    if not is_edited:
        raise EndpointError(f"{config.path}: can't be edited safely: set {line} there")
    return change


def _k3s_change(kubelet: ObservedKubelet, endpoint: str) -> FileChange:
    commands = kubelet.unit.values("ExecStart")
    if any(f"--{_K3S_ARG}" in each for each in commands):
        raise EndpointError(
            f"{kubelet.unit.name}: gives --{_K3S_ARG} on the command line, which replaces those of "
            f"files: add --{_K3S_ARG}={FLAG}={endpoint} there"
        )
    folder = f"{kubelet.k3s_folder}/config.yaml.d"
    path = f"{folder}/{K3S_DROP_IN}"
    for file in kubelet.k3s_files:
        content = _object(file)
        if file.path.startswith(f"{folder}/") and file.path > path and _K3S_ARG in content:
            raise EndpointError(f"{file.path}: replaces the {_K3S_ARG} of {path}")
    before = next((file.state for file in kubelet.k3s_files if file.path == path), ABSENT)
    return FileChange(path, before, FileState(f"{_K3S_ARG}+:\n- {FLAG}={endpoint}\n"))
