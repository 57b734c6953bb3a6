"""Carriers: the places of a request to create a container that name GPUs, and the forms of such
names.

A name is a UUID, NVML's number of a card (`1`) or of a MIG instance (`1:0`), `gpu` or `mig` with
such a number behind it, or `all`. A qualified name has its CDI kind before it (`nvidia.com/gpu=1`).
NVIDIA's runtime accepts more (libnvidia-container: src/cli/common.c, select_devices): a PCI
address, a sign or a blank before a number, any text behind `1:0`. These spellings are not
understood here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from agent.hooks.requests import CarriedNode
from agent.model.devices.visibility import (
    KUBELET_DIR,
    MOUNT_ROOT,
    NOTHING_NAMED,
    DeviceNode,
    VisibleGpu,
    cleaned,
    kind_and_name,
    mounted,
    split,
)
from agent.model.dra.names import CDI_KIND

PRELOAD: Final = "LD_PRELOAD"
DEV_NULL: Final = "/dev/null"

_CARD: Final = re.compile(r"/dev/nvidia\d+|/dev/nvidia-caps/nvidia-cap\d+")
_CAPABILITY: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)")
_NO_INSTANCE: Final = frozenset({"0", "1", "2"})
_NODES_BY_TYPE: Final = {
    "rdma": re.compile(r"/dev/infiniband/(?:uverbs|umad|issm|ucm)\d+"),
    "fpga": re.compile(r"/dev/(?:dfl-(?:fme|port)\.|intel-fpga-(?:fme|port)\.|xclmgmt)\d+"),
}
_SERVING: Final = ("device-plugins", "pod-resources")
"""The kubelet's folder has these folders."""
_SERVED: Final = (
    "/run/topolet/pod-resources",
    "/var/run/topolet/pod-resources",
    "/etc/kubernetes/node-feature-discovery",
)
_SERVING_NAMES: Final = tuple(
    f"/{name}" for name in (*_SERVING, *(os.path.basename(each) for each in _SERVED))
)
_ALL: Final = "all"
_CLAIMED: Final = re.compile(
    r"k8s\.gpu\.nvidia\.com/(?:device|claim)=(?:.+-)?(gpu-([0-9]+)(?:-mig-.+)?)"
)
_NUMBER: Final = re.compile(r"(gpu|mig)?([0-9]+(?::[0-9]+)?)")
_UNDERSTOOD: Final = re.compile(
    r"(?i:all|none|void|(?:GPU|MIG)-[0-9a-z][-0-9a-z/]*(?:::[-0-9a-z]+)?)"
    r"|(?:gpu|mig)?[0-9]+(?::[0-9]+)?(?:::[-0-9A-Za-z]+)?",
    re.ASCII,
)
_INSTANCE_OF_CARD: Final = re.compile(r"(?i:MIG-(GPU-[^/]+)/.+)|(?:mig)?([0-9]+):[0-9]+")
_WITHOUT_CARDS: Final = re.compile(
    r"(?:.+\.)?nvidia\.com/(?:gds|gdrcopy|mofed|nvswitch|imex-channel)"
    r"|(?:.+\.)?compute-domain\.nvidia\.com/.+"
)
"""NVIDIA's CDI kinds that give no card (container toolkit: pkg/nvcdi, and its DRA driver for
compute domains)."""


class Carried(msgspec.Struct, frozen=True):
    """All parts of a request that may name devices, in the request's order. `environment`: the
    values of NVIDIA_VISIBLE_DEVICES that are not the image's. `mounts`: paths in the container that
    name devices (`visibility.mounted`), with any source. `annotations`: those that CDI reads.
    `serving`: the host's paths of mounts that may be folders through which the kubelet or others
    find the node's devices. `of_pod`: the values of the pod's annotations that CDI may read
    (`visibility.of_pod`), which no frontend can change. `claim_variables`: it has the variable of
    a claim on CPUs, which CDI sets."""

    environment: tuple[str, ...] = ()
    preload: str = ""
    mounts: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    nodes: tuple[CarriedNode, ...] = ()
    privileged: bool = False
    serving: tuple[str, ...] = ()
    of_pod: tuple[str, ...] = ()
    claim_variables: bool = False

    @property
    def has_cpu_claim(self) -> bool:
        """Whether it names CPUs of a ResourceClaim."""
        names = (
            *self.cdi_devices,
            *(name for _, value in self.annotations for name in split(value)),
        )
        return self.claim_variables or any(kind_and_name(name)[0] == CDI_KIND for name in names)

    @property
    def has_devices(self) -> bool:
        """Whether it may name a device, of any kind."""
        return bool(self.nodes) or any(True for _ in self._listed())

    def names(self) -> Iterator[str]:
        """The names of GPUs, without their kind, from every carrier but device nodes. A text that
        is not a CDI name counts as the name of a GPU."""
        return _gpu_names(self._listed())

    def names_of_pod(self) -> Iterator[str]:
        """The names of GPUs in the pod's annotations, without their kind."""
        return _gpu_names(name for value in self.of_pod for name in split(value))

    def claimed(self) -> Iterator[tuple[str, str]]:
        """The names of NVIDIA's other CDI kinds that may give a card, each with the card's device
        node. Only names of NVIDIA's DRA driver tell the card; the node of other names is ""."""
        for each in self._listed():
            kind, _ = kind_and_name(each)
            if match := _CLAIMED.fullmatch(each):
                yield match[1], f"/dev/nvidia{match[2]}"
            elif _is_nvidias(kind) and not is_gpu_kind(kind) and not _WITHOUT_CARDS.fullmatch(kind):
                yield each, ""

    def _listed(self) -> Iterator[str]:
        """Every name of a device, qualified or not."""
        for value in self.environment:
            if value not in NOTHING_NAMED and value != MOUNT_ROOT:
                yield from split(value)
        for value in (*(value for _, value in self.annotations), *self.of_pod):
            yield from split(value)
        yield from self.cdi_devices
        yield from filter(None, map(mounted, self.mounts))


def _gpu_names(listed: Iterable[str]) -> Iterator[str]:
    for each in listed:
        kind, name = kind_and_name(each)
        if not kind or is_gpu_kind(kind):
            yield name


def is_gpu_kind(kind: str) -> bool:
    """Whether CDI devices of the kind are NVIDIA's cards or instances."""
    return _is_nvidias(kind) and kind.endswith("/gpu")


def _is_nvidias(kind: str) -> bool:
    return f".{kind.partition('/')[0]}".endswith(".nvidia.com")


def names_gpu(text: str) -> bool:
    """Whether the text is the name of a GPU, qualified or not."""
    kind, _ = kind_and_name(text)
    return not kind or is_gpu_kind(kind)


def mounted_name(container_path: str) -> str | None:
    """The GPU that a mount names, qualified or not; None for any other mount."""
    name = mounted(container_path)
    return name if name is not None and names_gpu(name) else None


def serving(host_paths: Iterable[str]) -> tuple[str, ...]:
    """The mounted paths that `serves` may accept."""
    return tuple(
        cleaned(path) for path in host_paths if any(name in path for name in _SERVING_NAMES)
    )


def serves(serving_paths: Iterable[str], kubelet_dir: str) -> bool:
    """Whether a container that mounts one of the host's paths offers or reads the node's devices:
    device plugins, exporters, feature discovery. `kubelet_dir`: the kubelet's folder on the host.
    Its folder of device plugins is the default one whatever its --root-dir is."""
    folders = (
        *_SERVED,
        *(f"{each}/{name}" for each in (kubelet_dir, KUBELET_DIR) for name in _SERVING),
    )
    return any(f"{path}/".startswith(f"{each}/") for path in serving_paths for each in folders)


def mount_path(name: str) -> str:
    """The path in the container of the mount that names the GPU."""
    kind, equals, plain = name.rpartition("=")
    return f"{MOUNT_ROOT}/cdi/{kind}/{plain}" if equals else f"{MOUNT_ROOT}/{name}"


def is_card_node(path: str) -> bool:
    """Whether the node belongs to one card or instance, unlike the driver's common nodes."""
    return _CARD.fullmatch(path) is not None


def is_instance_node(path: str) -> bool:
    """Whether the node opens a MIG instance; the first two of its kind are for configuration and
    monitoring."""
    capability = _CAPABILITY.fullmatch(path)
    return capability is not None and capability[1] not in _NO_INSTANCE


def is_node_of(device_type: str, path: str) -> bool:
    """Whether it is a node of one device of the type (which /dev/infiniband/rdma_cm is not)."""
    pattern = _NODES_BY_TYPE.get(device_type)
    return pattern is not None and pattern.fullmatch(path) is not None


def names_all(value: str) -> bool:
    """Whether NVIDIA's runtime reads the list as every GPU."""
    return any(name.lower() == _ALL for name in split(value))


def is_understood(name: str) -> bool:
    """Whether `refers` can decide for every GPU whether the name, without its kind, means it.
    NVIDIA's runtime may take another name for any GPU."""
    return _UNDERSTOOD.fullmatch(name) is not None


def is_number(name: str) -> bool:
    """Whether it is NVML's number of a card or an instance."""
    return _NUMBER.fullmatch(_without_replica(name)) is not None


def card_of(name: str) -> str:
    """The card in the name of an instance (`GPU-a` in `MIG-GPU-a/1/0`, `1` in `1:0`); "" for other
    names."""
    match = _INSTANCE_OF_CARD.fullmatch(_without_replica(name))
    return match[1] or match[2] if match else ""


def is_mig_name(name: str) -> bool:
    """Whether the name means a MIG instance."""
    number = _NUMBER.fullmatch(name)
    return name[:4].upper() == "MIG-" or bool(number and ":" in number[2])


def refers(name: str, uuid: str, index: str) -> bool:
    """Whether the name means the device. NVIDIA's runtime accepts a prefix of a UUID in any case or
    a UUID without hyphens, and `01` for `1`; the number of a replica follows `::`."""
    name = _without_replica(name)
    number = _NUMBER.fullmatch(name)
    if number:
        return _numbers(number[2]) == _numbers(index)
    return bool(name) and _plain(uuid).startswith(_plain(name))


def _without_replica(name: str) -> str:
    return name.partition("::")[0]


def _plain(uuid: str) -> str:
    return uuid.upper().replace("-", "")


def _numbers(index: str) -> list[str]:
    """The parts of an index without leading zeros; as texts, since a request may have a number of
    any length."""
    return [part.lstrip("0") for part in index.split(":")] if index else []


def name_like(names: Iterable[str], gpu: VisibleGpu) -> str | None:
    """The GPU's number in the form of the names, if all of them are numbers; otherwise its UUID.
    None if its number is needed and not known."""
    numbers = [_NUMBER.fullmatch(name) for name in names if name != _ALL]
    if not numbers or not all(numbers):
        return gpu.uuid
    if not gpu.index:
        return None
    plain = any(number is not None and number[1] is None for number in numbers)
    return gpu.index if plain else f"{'mig' if gpu.is_mig else 'gpu'}{gpu.index}"


def replaced_nodes(
    present: Sequence[CarriedNode], wanted: Sequence[DeviceNode], nodes: Sequence[CarriedNode]
) -> tuple[tuple[CarriedNode, ...], tuple[CarriedNode, ...]]:
    """The `present` nodes that are not wanted, and the wanted nodes that the request (`nodes`)
    lacks, with the permissions of the present ones."""
    paths = {each.path for each in wanted}
    requested_paths = {each.host_path for each in nodes}
    permissions = present[0].permissions if present else "rw"
    return (
        tuple(each for each in present if each.host_path not in paths),
        tuple(
            CarriedNode(each.path, each.path, permissions, each.major, each.minor)
            for each in dict.fromkeys(wanted)
            if each.path not in requested_paths
        ),
    )
