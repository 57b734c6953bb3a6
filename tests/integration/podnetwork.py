"""A CNI plugin that sets up the loopback device of a pod, and no other network."""

from __future__ import annotations

import json
import pathlib

# Installed as `loopback`, which containerd requires, and as the plugin of the list below.
_PLUGIN = """#!/bin/sh
case $CNI_COMMAND in
ADD)
    name=eth0
    [ "${0##*/}" = loopback ] && name=lo
    busybox nsenter --net="$CNI_NETNS" busybox ip link set lo up
    cat <<END
{"cniVersion": "0.3.1", "interfaces": [{"name": "$name", "sandbox": "$CNI_NETNS"}],
 "ips": [{"version": "4", "interface": 0, "address": "127.0.0.1/8"}]}
END
    ;;
VERSION) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.0", "0.3.1", "0.4.0"]}' ;;
esac
"""
_LIST = {"cniVersion": "0.3.1", "name": "pods", "plugins": [{"type": "nowhere"}]}


def install(folder: pathlib.Path) -> None:
    """Writes the plugin and its configuration into the CNI folder of a containerd."""
    folder.mkdir(parents=True)
    for name in ("loopback", "nowhere"):
        (folder / name).write_text(_PLUGIN)
        (folder / name).chmod(0o755)
    (folder / "10-nowhere.conflist").write_text(json.dumps(_LIST))
