"""Which options of agent and scheduler a user can't set in the values of the Helm chart."""

from __future__ import annotations

from typing import Final

OWN_OPTIONS: Final = frozenset(
    {
        *("node-name", "root", "cgroup-root", "kubelet-dir"),
        *("runtime-endpoint", "kubelet-configz", "http", "node-addresses"),
        *("state-dir", "kubeconfig"),
        *("https", "scheduler-name", "tls-dir"),
        *("client-ca-file", "client-names", "release-namespace"),
        "evict",
    }
)
"""The templates set these options, or they have no effect in a pod."""
