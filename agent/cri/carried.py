"""What a runtime's verbose ContainerStatus tells of how devices came to a container.

containerd tells the request (`config`) and the OCI spec, CRI-O the spec and whether it is
privileged. What was made counts before what was asked for: plugins in the runtime change it."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.allocate.device_holders.grants import Carriers
from agent.model import bounds, visible


class _Variable(msgspec.Struct):
    key: str = ""
    value: str = ""


class _RequestedMount(msgspec.Struct):
    container_path: str = ""


class _RequestedDevice(msgspec.Struct):
    container_path: str = ""
    host_path: str = ""


class _CdiDevice(msgspec.Struct):
    name: str = ""


class _Security(msgspec.Struct):
    privileged: bool = False


class _RequestedLinux(msgspec.Struct):
    security_context: _Security | None = None


class _Config(msgspec.Struct, rename={"cdi": "CDI_devices"}):
    envs: list[_Variable] | None = None
    mounts: list[_RequestedMount] | None = None
    devices: list[_RequestedDevice] | None = None
    cdi: list[_CdiDevice] | None = None
    annotations: dict[str, str] | None = None
    linux: _RequestedLinux | None = None


class _Process(msgspec.Struct):
    env: list[str] | None = None


class _Mount(msgspec.Struct):
    destination: str = ""


class _Node(msgspec.Struct):
    path: str = ""


class _Linux(msgspec.Struct):
    devices: list[_Node] | None = None


class _Spec(msgspec.Struct):
    process: _Process | None = None
    mounts: list[_Mount] | None = None
    annotations: dict[str, str] | None = None
    linux: _Linux | None = None


class _Info(msgspec.Struct, rename={"spec": "runtimeSpec"}):
    privileged: bool = False
    config: _Config | None = None
    spec: _Spec | None = None


_decoder: Final = msgspec.json.Decoder(_Info)


def carriers(info: str) -> Carriers:
    """Of the text under `info`; nothing where it can't be read. The spec's values are last, so that
    they count for a variable that is set twice: images and CDI add more than was requested."""
    try:
        told = bounds.decode(_decoder, info or "{}")
    except bounds.JsonError:
        return Carriers()
    config = told.config or _Config()
    spec = told.spec or _Spec()
    linux, process = spec.linux or _Linux(), spec.process or _Process()
    security = (config.linux or _RequestedLinux()).security_context or _Security()
    asked = config.devices or ()
    # Where a container has its node elsewhere, only the request knows which one it is.
    moved = {each.container_path for each in asked if each.container_path != each.host_path}
    environment = [(each.key, each.value) for each in config.envs or ()]
    for each in process.env or ():
        key, _, value = each.partition("=")
        environment.append((key, value))
    if spec.mounts is None:
        mounts = [mount.container_path for mount in config.mounts or ()]
    else:
        mounts = [mount.destination for mount in spec.mounts]
    # What the runtime reads itself stands in no spec.
    annotations = {
        key: value
        for key, value in (config.annotations or {}).items()
        if told.spec is None or key.startswith(visible.CDI_OF_RUNTIME)
    }
    nodes = [
        *(device.host_path for device in asked),
        *(node.path for node in linux.devices or () if node.path not in moved),
    ]
    return Carriers(
        tuple(environment),
        tuple(device.name for device in config.cdi or ()),
        tuple((annotations | (spec.annotations or {})).items()),
        tuple(dict.fromkeys(mounts)),
        tuple(dict.fromkeys(nodes)),
        told.privileged or security.privileged,
    )
