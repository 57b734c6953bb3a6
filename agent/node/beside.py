"""The kubelet that runs on this node: how it is configured, from its command line and its file."""

from __future__ import annotations

import os

from agent.host import processes
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kubelet import configuration
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration


def configured(root: str) -> KubeletConfiguration | None:
    """`root` is where the host's files and /proc are. None where no kubelet runs. Raises
    ConfigurationError that names process, file and field; of several kubelets (a test cluster's)
    the first counts."""
    for pid, words in processes.named(os.path.join(root, "proc"), "kubelet"):
        path = configuration.flags(words).get("config", "")
        source = f"kubelet {pid}"
        content = None
        if path:
            source = f"{source}, {path}"
            try:
                content = documents.read(os.path.join(root, path.lstrip("/")))
            except (OSError, DocumentError) as error:
                raise ConfigurationError(f"{source}: {error}") from error
        return configuration.of_command_line(words, content, source)
    return None
