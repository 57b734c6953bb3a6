"""Reads the manifests below deploy/ for tests."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli import options
from agent.model.settings.options import Kind
from tests import tools

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def account(namespace: str, name: str) -> str:
    """The user name of a service account."""
    return f"system:serviceaccount:{namespace}:{name}"


AGENT = account("topolet-system", "topolet-agent")
SCHEDULER = account("topolet-system", "topolet-scheduler")


EVERYTHING = ("overlays/webhook", "overlays/scheduler-evict")
"""Overlays that together have all objects."""


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(text: str) -> list[Any]:
    """All documents of a YAML text, with the C loader if PyYAML has it."""
    return list(yaml.load_all(text, _LOADER))


@functools.cache
def _documents_of(path: Path) -> list[Any]:
    """Parsed once; callers must not change the result."""
    return documents(path.read_text())


def listed(folder: str) -> list[Path]:
    """The files of a kustomization and of the folders it lists, in order."""
    (described,) = _documents_of(DEPLOY / folder / "kustomization.yaml")
    names = [*described.get("resources", ()), *described.get("components", ())]
    paths = [(DEPLOY / folder / name).resolve() for name in names]
    return [
        file
        for path in paths
        for file in (listed(str(path.relative_to(DEPLOY))) if path.is_dir() else [path])
    ]


def objects(*folders: str) -> list[Object]:
    """All objects of the kustomizations, each file once, in their order: variables have their
    values, patches are left out."""
    paths = dict.fromkeys(path for folder in folders for path in listed(folder))
    return [_filled(each) for path in paths for each in _documents_of(path) if not is_local(each)]


def is_local(body: Object) -> bool:
    """Whether only kustomize reads the object."""
    return "config.kubernetes.io/local-config" in body["metadata"].get("annotations", {})


@functools.cache
def variables() -> dict[str, str]:
    """The default values of the variables `$(NAME)`."""
    folder = DEPLOY / "policies"
    (described,) = _documents_of(folder / "kustomization.yaml")
    bodies = [each for name in described["resources"] for each in _documents_of(folder / name)]
    found = {}
    for each in described["vars"]:
        (value,) = (
            body
            for body in bodies
            if body["metadata"]["name"] == each["objref"]["name"]
            and body["kind"] == each["objref"]["kind"]
        )
        for part in each["fieldref"]["fieldpath"].split("."):
            value = value[part]
        found[each["name"]] = str(value)
    return found


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_filled(each) for each in value]
    if isinstance(value, str):
        for name, text in variables().items():
            value = value.replace(f"$({name})", text)
    return value


def of_kind(kind: str, bodies: Iterable[Object] | None = None) -> dict[str, Object]:
    """The objects by name: those of all manifests if none are given."""
    chosen = objects(*EVERYTHING) if bodies is None else bodies
    return {body["metadata"]["name"]: body for body in chosen if body["kind"] == kind}


def pod_spec(body: Object) -> Object:
    """The pod of a DaemonSet or a Deployment."""
    spec: Object = body["spec"]["template"]["spec"]
    return spec


def container_of(pod: Object, name: str = "agent") -> Object:
    named: Object = next(body for body in pod["containers"] if body["name"] == name)
    return named


def rules(role: Object) -> dict[tuple[str, str], set[str]]:
    """The verbs that a role allows for each group and resource."""
    allowed: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                allowed.setdefault((group, resource), set()).update(rule["verbs"])
    return allowed


def written(role: Object) -> set[tuple[str, str]]:
    """The groups and resources that a role may change."""
    changing = {"create", "patch", "update", "delete"}
    return {resource for resource, verbs in rules(role).items() if changing & verbs}


def matched(policies: Iterable[Object]) -> set[tuple[str, str]]:
    """The groups and resources that admission policies match."""
    return {
        (group, resource)
        for policy in policies
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def kustomized(overlay: str, home: Path) -> list[Object]:
    """The output of kustomize for an overlay; without kustomize the test is skipped."""
    return kustomized_folder(DEPLOY / "overlays" / overlay, home)


def kustomization(
    folder: Path, resource: str, components: tuple[str, ...] = (), **fields: Any
) -> Path:
    """A user's kustomization with one below deploy/ as its base."""
    made = folder / f"my-{Path(resource).name}"
    made.mkdir(parents=True)

    def ours(name: str) -> str:
        return os.path.relpath(DEPLOY / name, made.resolve())

    fields["resources"] = [ours(resource)]
    if components:
        fields["components"] = [ours(f"components/{each}") for each in components]
    (made / "kustomization.yaml").write_text(yaml.safe_dump(fields))
    return made


def kustomized_folder(folder: Path, home: Path) -> list[Object]:
    """The output of kustomize for a folder; without kustomize the test is skipped."""
    kubectl = tools.kubernetes("kubectl")
    if isinstance(kubectl, str):
        pytest.skip(kubectl)
    built = subprocess.run(
        [kubectl, "kustomize", str(folder)],
        capture_output=True,
        check=True,
        text=True,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    return documents(built.stdout)


NODE_ADDRESS = "127.0.0.1"


def environment(container: Object) -> dict[str, str]:
    """The variables of a container that have a value, and those with the node's address, as the
    kubelet makes them: a value may name variables before it."""
    values: dict[str, str] = {}
    for each in container.get("env", ()):
        if "value" in each:
            values[each["name"]] = _expanded(each["value"], values)
        elif each["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}:
            values[each["name"]] = NODE_ADDRESS
    return values


def arguments(container: Object) -> list[str]:
    """Those of a container, with its variables in their places."""
    values = environment(container)
    return [_expanded(each, values) for each in container["args"]]


def settings_of(words: Sequence[str], kind: type[Kind]) -> Kind:
    """The settings of a command's flags, which it has to know without argparse."""
    given = options.plain(words, kind)
    assert given is not None
    return options.load(given, kind)


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), text)


def pod_of(overlay: str) -> Object:
    """The pod of the DaemonSet that the overlay's component adds, or else of the agent's with the
    component's patch merged by name."""
    another = DEPLOY / "components" / overlay / "daemonset.yaml"
    if another.exists():
        (daemonset,) = documents(another.read_text())
        return pod_spec(daemonset)
    of_the_agent = pod_spec(of_kind("DaemonSet")["topolet-agent"])
    path = DEPLOY / "components" / overlay / "agent.yaml"
    if not path.exists():
        return of_the_agent
    (patch,) = documents(path.read_text())
    merged: Object = _patched(of_the_agent, pod_spec(patch))
    return merged


def _patched(value: Any, patch: Any) -> Any:
    """Merges like kustomize: objects by field, lists by the names of their entries."""
    if isinstance(value, dict) and isinstance(patch, dict):
        changed = {key: _patched(value.get(key), child) for key, child in patch.items()}
        return {**value, **changed}
    if isinstance(value, list) and isinstance(patch, list):
        patches = {each["name"]: each for each in patch}
        kept = [_patched(each, patches.pop(each["name"], {})) for each in value]
        return kept + list(patches.values())
    return patch


def schema_errors(value: object, schema: Object, at: str = "") -> list[str]:
    """The errors of a value by a structural schema, including fields that it would prune."""
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, int) or bool(re.search(schema["pattern"], str(value)))
        return [] if fits else [f"{at}: {value!r} is not a quantity"]
    kind = schema["type"]
    python = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}[kind]
    if not isinstance(value, python) or (kind == "integer" and isinstance(value, bool)):
        return [f"{at}: {value!r} is not a {kind}"]
    found = []
    if isinstance(value, dict):
        found += [f"{at}: no {each}" for each in schema.get("required", ()) if each not in value]
        known = schema.get("properties", {})
        more = schema.get("additionalProperties")
        for name, child in value.items():
            if name in known:
                found += schema_errors(child, known[name], f"{at}.{name}")
            elif more:
                found += schema_errors(child, more, f"{at}.{name}")
            elif known:
                found.append(f"{at}: {name} is not known")
    elif isinstance(value, list):
        for place, child in enumerate(value):
            found += schema_errors(child, schema["items"], f"{at}[{place}]")
    elif "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    return found


HARDENED = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
