"""Renders the manifests for kustomize, and daemonset.yaml, from the chart; `--check` compares them
with the files instead of writing them.

python deploy/render.py [--helm PROGRAM] [--check]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys

DEPLOY = pathlib.Path(__file__).resolve().parent
CHART = DEPLOY / "chart"
_VALUES = DEPLOY / "kustomize.values.yaml"

_GPU_POOL = {"name": "nvidia", "nodeSelector": {"nvidia.com/gpu.present": "true"}, "gpu": True}
_EVICTIONS = {"colocation": "act", "evictions": "CPUEvict"}
_COMPONENTS: tuple[dict[str, object], ...] = (
    {"webhook.enabled": True, "agent.kubeletConfigz": True, "scheduler.evict": True},
    {"pools": [_GPU_POOL]},
    {"pools": [{"settings": {"dra": True, "kai-placements": True, "usage": True, **_EVICTIONS}}]},
)
"""Values that make the chart render further files."""

_FOLDERS = {
    "policies/": "policies/",
    "scheduler/": "components/scheduler/",
    "webhook/": "components/webhook/",
    "agent/": "base/",
}
_FILES = {
    "namespace.yaml": "base/namespace.yaml",
    "scheduler/account.yaml": "policies/accounts.yaml",
    "scheduler/evict.yaml": "components/scheduler-evict/rbac.yaml",
    "agent/kubelet-configz.yaml": "components/kubelet-configz/rbac.yaml",
    "agent/kai.yaml": "components/kai/rbac.yaml",
    "agent/usage.yaml": "components/usage/rbac.yaml",
    "agent/evictions.yaml": "components/evictions/rbac.yaml",
    "agent/dra.yaml": "components/dra/objects.yaml",
}
"""Paths below deploy/, by paths below templates/."""

_OBJECTS = {
    ("DaemonSet", "topolet-agent-nvidia"): "components/nvidia/daemonset.yaml",
    ("CustomResourceDefinition", "devices.scheduling.koordinator.sh"): "crds/devices.yaml",
    (
        "CustomResourceDefinition",
        "noderesourcetopologies.topology.node.k8s.io",
    ): "crds/noderesourcetopologies.yaml",
    (
        "CustomResourceDefinition",
        "rebindresources.scheduling.koordinator.sh",
    ): "components/scheduler/rebindresources.yaml",
}
"""Paths below deploy/, by kind and name of an object."""


def manifests(helm: str) -> dict[str, str]:
    """The texts of all files below deploy/ that come from the chart, by path. Raises
    CalledProcessError."""
    found = _rendered(helm)
    for values in _COMPONENTS:
        flags = (f"--set-json={name}={json.dumps(value)}" for name, value in values.items())
        more = _rendered(helm, *flags)
        found = more | found
    return found


def _rendered(helm: str, *more: str) -> dict[str, str]:
    command = [helm, "template", "topolet", str(CHART), "--namespace=topolet-system"]
    values = (f"--values={_VALUES}", "--kube-version=1.36.0")
    rendered = subprocess.run(
        [*command, *values, *more], capture_output=True, check=True, text=True
    ).stdout
    found: dict[str, list[str]] = {}
    for part in re.split(r"^---\n(?=# Source: )", rendered, flags=re.MULTILINE)[1:]:
        source, text = part.split("\n", 1)
        kind = re.search(r"^kind: (\S+)", text, re.MULTILINE)
        name = re.search(r"^  name: (\S+)", text, re.MULTILINE)
        assert kind is not None, f"{source}: an object without kind"
        assert name is not None, f"{source}: an object without name"
        path = _OBJECTS.get((kind[1], name[1])) or _path(source.partition("/templates/")[2])
        found.setdefault(path, []).append(text.strip("\n") + "\n")
    return {path: "---\n".join(texts) for path, texts in found.items()}


def _path(template: str) -> str:
    folder, _, name = template.rpartition("/")
    return _FILES.get(template) or _FOLDERS[f"{folder}/"] + name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", default="helm")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    differ = []
    for path, text in manifests(arguments.helm).items():
        file = DEPLOY / path
        if file.exists() and file.read_text() == text:
            continue
        differ.append(path)
        if not arguments.check:
            file.write_text(text)
    if differ and arguments.check:
        print(f"run make manifests: deploy/{', deploy/'.join(differ)}", file=sys.stderr)
    return int(bool(differ) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
