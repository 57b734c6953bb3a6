"""Cgroups that a kubelet would remove, removed where there is none."""

from __future__ import annotations

import contextlib
import os
import pathlib

MOUNTS = pathlib.Path("/sys/fs/cgroup")


def remove_cgroups(group: str) -> None:
    """Removes an empty cgroup with all below it, in every hierarchy."""
    for mount in ("", *os.listdir(MOUNTS)):
        top = MOUNTS / mount / group.lstrip("/")
        if not top.is_dir():
            continue
        for path, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
