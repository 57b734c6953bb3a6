"""docs/security.md: every named test exists, and its permissions are those of deploy/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests import proposals

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/security.md").read_text()
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
CLAIMS = (
    "Trusted input",
    "A tenant",
    "A neighbour on the network",
    "A process on the node",
    "A stolen agent",
    "A stolen scheduler",
    "A hostile runtime",
)


def rows(section: str) -> list[list[str]]:
    """The rows of the table in a section, without its head."""
    text = PAGE.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def documents() -> Iterator[dict[str, Any]]:
    for path in sorted((ROOT / "deploy").rglob("*.yaml")):
        if ROOT / "deploy/chart" in path.parents:
            continue
        for each in yaml.safe_load_all(path.read_text()):
            if isinstance(each, dict):
                yield each


def pod_specs() -> Iterator[dict[str, Any]]:
    for each in documents():
        if each.get("kind") in ("DaemonSet", "Deployment"):
            yield each["spec"]["template"]["spec"]


def test_each_claim_has_a_test() -> None:
    lacking = [
        (section, row[0])
        for section in CLAIMS
        for row in rows(section)
        if len(row) != 2 or not TEST.search(row[1])
    ]
    assert lacking == []


def test_each_named_test_exists() -> None:
    named = TEST.findall(PAGE)
    assert len(named) > 50
    assert [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / "tests" / file).is_file() or name not in proposals.tests_in(file)
    ] == []


def granted() -> dict[tuple[str, str], str]:
    """The verbs by account and resource. A service account has the roles of its name or longer."""
    accounts: dict[str, set[str]] = {}
    roles: dict[str, list[dict[str, Any]]] = {}
    for each in documents():
        if each.get("kind") in ("ClusterRoleBinding", "RoleBinding"):
            for subject in each["subjects"]:
                accounts.setdefault(subject["name"], set()).add(each["roleRef"]["name"])
        elif each.get("kind") in ("ClusterRole", "Role"):
            roles[each["metadata"]["name"]] = each.get("rules") or []
    found: dict[tuple[str, str], set[str]] = {}
    for account, names in accounts.items():
        for rule in (rule for name in names for rule in roles.get(name, ())):
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    name = f"{resource}.{group}" if group else resource
                    found.setdefault((account, name), set()).update(rule["verbs"])
    return {key: " ".join(sorted(verbs)) for key, verbs in sorted(found.items())}


def test_the_permissions_in_the_api_are_those_of_deploy() -> None:
    listed = {
        (account.strip("`"), resource.strip("`")): verbs
        for account, resource, verbs, *_ in rows("Permissions in the API")
    }
    assert dict(sorted(listed.items())) == granted()


def test_the_folders_of_the_host_are_those_of_deploy() -> None:
    found: dict[tuple[str, str], str] = {}
    host_paths: dict[str, set[str]] = {}
    for spec in pod_specs():
        for volume in spec.get("volumes") or ():
            if "hostPath" in volume:
                host_paths.setdefault(volume["name"], set()).add(volume["hostPath"]["path"])
    for spec in pod_specs():
        volumes = {each["name"]: each.get("hostPath", {}) for each in spec.get("volumes") or ()}
        for container in spec.get("containers") or ():
            for mount in container.get("volumeMounts") or ():
                own = volumes.get(mount.get("name"), {}).get("path")
                paths = {own} if own else host_paths.get(mount.get("name", ""), set())
                for path in paths if "$patch" not in mount else ():
                    found[container["name"], path] = "read" if mount.get("readOnly") else "write"
    listed = {
        (container.strip("`"), folder.strip("`")): access
        for container, folder, access, *_ in rows("Permissions on the node")
    }
    assert listed == found


def test_the_capabilities_of_the_installer_are_those_of_the_chart() -> None:
    helpers = (ROOT / "deploy/chart/templates/_helpers.tpl").read_text()
    (added,) = re.findall(r"add: \[([^\]]*)\]", helpers)
    (sentence,) = re.findall(r"`topolet install-proxy` has [^.]* the capabilities ([^.]*)\.", PAGE)
    assert re.findall("`([A-Z_]+)`", sentence) == added.split(", ")
