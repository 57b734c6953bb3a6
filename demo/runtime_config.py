"""containerd's configuration for a private one: 1.x reads version 2 of it, 2.x version 3."""

from __future__ import annotations

import json
import pathlib

_COMMON = """version = {version}
root = {root}
state = {state}
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
 "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
 "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = {socket}
[ttrpc]
address = {ttrpc}
"""

_ONE = """[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = {image}
restrict_oom_score_adj = true
disable_apparmor = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = {snapshotter}
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {cni}
conf_dir = {cni}
"""

_TWO = """[plugins.'io.containerd.cri.v1.images']
snapshotter = {snapshotter}
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = {image}
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
disable_apparmor = true
cdi_spec_dirs = [{cdi}]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [{cni}]
conf_dir = {cni}
[plugins.'io.containerd.grpc.v1.cri']
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins.'io.containerd.nri.v1.nri']
disable = false
socket_path = {nri}
plugin_path = {nri_plugins}
plugin_config_path = {nri_plugins}
plugin_request_timeout = "5s"
"""


def text(major: int, folder: pathlib.Path, socket: str, image: str, snapshotter: str) -> str:
    """The file for containerd `major`.x; everything of it lies below `folder`.

    2.x: NRI listens on `nri.sock` there, and CDI's specifications are in `cdi`. 1.x: neither, which
    1.6 has not, or has not switched on.
    """
    values = {
        "root": folder / "root",
        "state": folder / "state",
        "cni": folder / "cni",
        "cdi": folder / "cdi",
        "nri": folder / "nri.sock",
        "nri_plugins": folder / "nri",
        "socket": socket,
        "ttrpc": f"{socket}.ttrpc",
        "image": image,
        "snapshotter": snapshotter,
    }
    template = _COMMON + (_TWO if major >= 2 else _ONE)
    quoted = {name: json.dumps(str(value)) for name, value in values.items()}
    return template.format(version=3 if major >= 2 else 2, **quoted)
