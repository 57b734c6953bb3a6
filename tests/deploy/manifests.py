"""The manifests below deploy/, as tests want them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
AGENT = "system:serviceaccount:topolet-system:topolet-agent"
SCHEDULER = "system:serviceaccount:topolet-system:topolet-scheduler"


EVERYTHING = ("overlays/webhook", "overlays/scheduler-evict")
"""The overlays that have all objects between them."""


def listed(folder: str) -> list[Path]:
    """The files that a kustomization names, with those of the folders that it names, in order."""
    names = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["resources"]
    paths = [(DEPLOY / folder / name).resolve() for name in names]
    return [
        file
        for path in paths
        for file in (listed(str(path.relative_to(DEPLOY))) if path.is_dir() else [path])
    ]


def objects(*folders: str) -> list[Object]:
    """All objects of the kustomizations, each file once, in their order."""
    paths = dict.fromkeys(path for folder in folders for path in listed(folder))
    return [each for path in paths for each in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> dict[str, Object]:
    """By name."""
    found = objects(*EVERYTHING)
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def kustomized(overlay: str, home: Path) -> list[Object]:
    """What kustomize makes of an overlay; the test is skipped where there is none."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl, which brings kustomize")
    built = subprocess.run(
        [kubectl, "kustomize", str(DEPLOY / "overlays" / overlay)],
        capture_output=True,
        check=True,
        text=True,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    return list(yaml.safe_load_all(built.stdout))


def pod_of(overlay: str) -> Object:
    """The pod of the DaemonSet with the overlay's patch merged by name."""
    pod: Object = of_kind("DaemonSet")["topolet-agent"]["spec"]["template"]["spec"]
    path = DEPLOY / "overlays" / overlay / "agent.yaml"
    if not path.exists():
        return pod
    merged: Object = _patched(pod, yaml.safe_load(path.read_text())["spec"]["template"]["spec"])
    return merged


def _patched(value: Any, patch: Any) -> Any:
    """As kustomize merges: objects by field, lists by the names of their entries."""
    if isinstance(value, dict) and isinstance(patch, dict):
        changed = {key: _patched(value.get(key), below) for key, below in patch.items()}
        return {**value, **changed}
    if isinstance(value, list) and isinstance(patch, list):
        patches = {each["name"]: each for each in patch}
        kept = [_patched(each, patches.pop(each["name"], {})) for each in value]
        return kept + list(patches.values())
    return patch


def complaints(value: object, schema: Object, at: str = "") -> list[str]:
    """What a structural schema has against a value, also fields that it would prune."""
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, int) or bool(re.search(schema["pattern"], str(value)))
        return [] if fits else [f"{at}: {value!r} is no quantity"]
    kind = schema["type"]
    python = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}[kind]
    if not isinstance(value, python) or (kind == "integer" and isinstance(value, bool)):
        return [f"{at}: {value!r} is no {kind}"]
    found = []
    if isinstance(value, dict):
        found += [f"{at}: no {each}" for each in schema.get("required", ()) if each not in value]
        known = schema.get("properties", {})
        more = schema.get("additionalProperties")
        for name, below in value.items():
            if name in known:
                found += complaints(below, known[name], f"{at}.{name}")
            elif more:
                found += complaints(below, more, f"{at}.{name}")
            elif known:
                found.append(f"{at}: {name} is not known")
    elif isinstance(value, list):
        for place, below in enumerate(value):
            found += complaints(below, schema["items"], f"{at}[{place}]")
    elif "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    return found
