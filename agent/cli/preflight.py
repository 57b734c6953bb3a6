"""Check that an agent with these options can run on this node, before it is installed: that the
container runtime answers on its socket, that the kubelet's folder is the right one, that cgroups
are usable, with --dra that runtime and kubelet look for the files of a DRA driver, and that the
options are valid and do not contradict the kubelet's configuration. The chart runs the command on
some nodes of each pool before it changes anything. It changes nothing. Exit code 0: the agent can
run; 1: it can't, for the reasons that are printed; 2: wrong usage, or an option that is not
valid."""

from __future__ import annotations

import argparse
import enum
import os
import stat
from collections.abc import Iterator
from typing import Final

import msgspec

from agent.cgroup.hierarchy import CgroupError
from agent.cli import options, processes
from agent.cri.client import Cri
from agent.model.dra.names import REGISTRY
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import (
    RUNTIME_ENDPOINT,
    STATE_DIR,
    SettingsError,
    proxy_socket,
    socket_path,
)
from agent.node import kubelet_configuration
from agent.node.node_configuration import CombinationError, check_combination
from agent.node.takeover import own_group_of
from agent.rpc.grpc import RpcError
from agent.view.format import printable


class Mode(enum.StrEnum):
    """What gives containers their CPUs: the agent alone, a proxy that runs already, or the NRI
    plugin."""

    RECONCILE = "reconcile"
    PROXY = "proxy"
    NRI = "nri"


NRI_SOCKET: Final = "/var/run/nri/nri.sock"
PROXY_SOCKET: Final = proxy_socket(STATE_DIR)
_RUNTIME_SOCKETS: Final = (
    socket_path(RUNTIME_ENDPOINT),
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
)
_ANSWER_SECONDS: Final = 10.0
_MAX_LINKS: Final = 40


def agent_problems(settings: AgentSettings, mode: Mode) -> Iterator[str]:
    """A sentence for each reason why the agent can't run there. Paths are the host's, and are read
    below `root`; `cgroup_root` is this process's own."""
    root = settings.root
    cdi_dir = settings.cdi_dir if settings.dra else ""
    yield from _of_runtime(root, socket_path(settings.runtime_endpoint), cdi_dir)
    folder = below(root, settings.kubelet_dir)
    if not os.path.isdir(os.path.join(folder, "pods")):
        yield (
            f"kubelet folder {settings.kubelet_dir}: it is not the kubelet's folder, which has a "
            "folder `pods`; name the one of its --root-dir (kubeletDir of the pool)"
        )
    elif settings.dra and not os.path.isdir(os.path.join(folder, REGISTRY)):
        yield (
            f"kubelet folder {settings.kubelet_dir}: it has no folder `{REGISTRY}`, where the "
            "kubelet looks for DRA drivers: restart the kubelet, which makes it"
        )
    try:
        group = own_group_of(settings, os.path.join(root, "proc"))
    except CgroupError as error:
        yield f"cgroups: {error}"
    else:
        reader = msgspec.structs.replace(settings, kubelet_dir=folder)
        if whole := kubelet_configuration.read(reader, lambda: group).whole:
            try:
                check_combination(settings, whole)
            except CombinationError as error:
                yield str(error)
    if mode is Mode.NRI and not _is_socket(below(root, NRI_SOCKET)):
        yield f"{NRI_SOCKET}: this socket does not exist: switch NRI on (docs/frontends.md)"
    if mode is Mode.PROXY and not _is_socket(below(root, PROXY_SOCKET)):
        yield (
            f"{PROXY_SOCKET}: this socket does not exist: run `topolet install-proxy` on the node, "
            "or set installProxy in the pool"
        )


def _of_runtime(root: str, path: str, cdi_dir: str) -> Iterator[str]:
    """`cdi_dir`: where the agent writes CDI files, "" if it writes none."""
    place = below(root, path)
    if not _is_socket(place):
        sockets = [each for each in _RUNTIME_SOCKETS if _is_socket(below(root, each))]
        hint = f"; the node has {', '.join(sockets)}" if sockets else ""
        yield f"runtime {path}: this socket does not exist{hint} (runtime of the pool)"
        return
    cri = Cri(place, _ANSWER_SECONDS)
    try:
        cri.version()
        dirs = cri.cdi_dirs() if cdi_dir else None
    except RpcError as error:
        yield f"runtime {path}: it does not answer: {error}"
    else:
        if dirs is not None and below(root, cdi_dir) not in {below(root, each) for each in dirs}:
            read = f"reads CDI files in {', '.join(dirs)}" if dirs else "reads no CDI files"
            yield (
                f"cdi-dir {cdi_dir}: the runtime {read}, so that containers do not learn the CPUs "
                "of their claims: change the option, or enable_cdi and cdi_spec_dirs of containerd"
            )
    finally:
        cri.close()


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def below(root: str, path: str) -> str:
    """The place below `root` of a path of the host, with links as the host resolves them."""
    resolved, rest, links = [""], path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name == "..":
            del resolved[max(1, len(resolved) - 1) :]
        if name in ("", ".", ".."):
            continue
        place = os.path.join(root, *resolved, name)
        if os.path.islink(place) and links < _MAX_LINKS:
            links += 1
            target = os.readlink(place)
            if target.startswith("/"):
                resolved = [""]
            rest += target.split("/")[::-1]
        else:
            resolved.append(name)
    return os.path.join(root, *resolved)


SETTINGS = AgentSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=tuple(Mode),
        default=Mode.RECONCILE,
        help="what gives containers their CPUs: the agent alone (reconcile), a proxy that runs "
        "already (proxy), or the NRI plugin (nri); default: reconcile",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        processes.AGENT.check(settings)
        found = list(agent_problems(settings, Mode(arguments.mode)))
    except SettingsError as error:
        return options.fail(error, 2)
    node = settings.node_name or os.uname().nodename
    for each in found:
        options.fail(RuntimeError(printable(f"node {node}: {each}")))
    if found:
        return 1
    print(f"node {node}: an agent with these options can run")
    return 0
