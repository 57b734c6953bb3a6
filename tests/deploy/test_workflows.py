"""The workflows of GitHub, and the files by which others take part."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release import CHART, ROOT
from tests import tools

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
USES = re.compile(r"^ *(?:- )?uses: (.+)$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
WRITES = {
    ("release.yaml", "publish"): {"contents", "packages", "id-token", "attestations"},
    ("security.yaml", "codeql"): {"security-events"},
    ("security.yaml", "scorecard"): {"security-events", "id-token"},
}
"""The permissions to write, by workflow and job. No other job has one."""
CATEGORIES = {
    "ai-machine-learning",
    "database",
    "integration-delivery",
    "monitoring-logging",
    "networking",
    "security",
    "skip-prediction",
    "storage",
    "streaming-messaging",
}
"""Those of Artifact Hub."""
REBIND = "A request to give a running pod other CPUs."
TAKING_PART = [
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "MAINTAINERS.md",
    ROOT / "ROADMAP.md",
    GITHUB / "pull_request_template.md",
]


def load(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(file.read_text(), yaml.BaseLoader)
    return loaded


def file_name(file: Path) -> str:
    return file.name


@pytest.mark.parametrize("file", WORKFLOWS, ids=file_name)
def test_every_action_is_pinned_by_its_commit_with_its_version(file: Path) -> None:
    for used in USES.findall(file.read_text()):
        if used.startswith("./"):
            assert (ROOT / used).is_file()
        else:
            assert PINNED.fullmatch(used), used


def test_an_action_has_one_commit_in_all_workflows() -> None:
    commits: dict[str, set[str]] = {}
    for file in WORKFLOWS:
        for action, pin in re.findall(r"uses: ([\w.-]+/[\w.-]+)\S*@(.+)", file.read_text()):
            commits.setdefault(action, set()).add(pin)
    assert {action: pins for action, pins in commits.items() if len(pins) > 1} == {}
    assert len(commits) > 5


@pytest.mark.parametrize("file", WORKFLOWS, ids=file_name)
def test_a_job_has_only_the_permissions_that_it_needs(file: Path) -> None:
    workflow = load(file)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        permissions = job.get("permissions", {})
        writes = {scope for scope, access in permissions.items() if access != "read"}
        assert writes == WRITES.get((file.name, name), set())
        if "uses" not in job:
            assert int(job["timeout-minutes"]) <= 90
            assert not job["runs-on"].endswith("-latest")


@pytest.mark.parametrize("file", WORKFLOWS, ids=file_name)
def test_no_script_contains_an_expression_and_no_checkout_keeps_its_token(file: Path) -> None:
    """A title or the name of a branch in a script would be executed: scripts read variables."""
    for job in load(file)["jobs"].values():
        for step in job.get("steps", []):
            assert "${{" not in step.get("run", "")
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] == "false"


def test_a_tag_publishes_only_after_the_tests() -> None:
    workflow = load(GITHUB / "workflows/release.yaml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    assert workflow["jobs"]["publish"]["needs"] == "test"
    assert workflow["jobs"]["test"]["uses"] == "./.github/workflows/ci.yaml"
    assert "workflow_call" in load(GITHUB / "workflows/ci.yaml")["on"]


def test_the_cosign_that_tests_run_is_the_one_that_signs() -> None:
    steps = load(GITHUB / "workflows/release.yaml")["jobs"]["publish"]["steps"]
    versions = [
        step["with"]["cosign-release"] for step in steps if "cosign" in step.get("uses", "")
    ]
    assert versions == [tools.version("cosign")]


def test_no_provenance_in_the_registry_hides_the_attestations_of_cosign() -> None:
    """cosign 3 reads no attestation of cosign 2 if an image also has a bundle in the registry."""
    for step in load(GITHUB / "workflows/release.yaml")["jobs"]["publish"]["steps"]:
        assert step.get("with", {}).get("push-to-registry", "false") == "false"


def test_dependencies_are_updated_where_they_are_pinned() -> None:
    updated = set()
    for entry in load(GITHUB / "dependabot.yml")["updates"]:
        for folder in entry.get("directories", [entry.get("directory")]):
            updated.add((entry["package-ecosystem"], folder))
    assert {("github-actions", "/"), ("pip", "/"), ("pip", "/deploy/image")} <= updated
    for _, folder in updated:
        assert (ROOT / folder.strip("/")).is_dir()


def test_artifact_hub_gets_the_definitions_of_the_chart() -> None:
    annotations = load(CHART / "Chart.yaml")["annotations"]
    assert annotations["artifacthub.io/category"] in CATEGORIES
    assert annotations["artifacthub.io/license"] in (ROOT / "pyproject.toml").read_text()
    definitions = []
    for file in sorted((CHART / "files/crds").glob("*.yaml")):
        definition = load(file)
        versions = definition["spec"]["versions"]
        (version,) = (version for version in versions if version["storage"] == "true")
        schema = version["schema"]["openAPIV3Schema"]
        kind = definition["spec"]["names"]["kind"]
        definitions.append(
            {
                "kind": kind,
                "version": version["name"],
                "name": definition["metadata"]["name"],
                "displayName": kind,
                # Not every definition describes itself.
                "description": schema.get("description", REBIND),
            }
        )
    assert yaml.safe_load(annotations["artifacthub.io/crds"]) == definitions


@pytest.mark.parametrize("file", TAKING_PART, ids=file_name)
def test_links_of_the_files_about_taking_part_lead_to_files(file: Path) -> None:
    links = re.findall(r"\]\(([^()\s#]+)[^()\s]*\)", file.read_text())
    assert links
    for link in links:
        assert "://" in link or (file.parent / link).exists(), link


def test_a_form_for_issues_asks_for_what_a_report_needs() -> None:
    forms = {
        file.stem: load(file)
        for file in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml")
        if file.stem != "config"
    }
    assert forms.keys() == {"bug", "proposal"}
    for form in forms.values():
        assert form.keys() == {"name", "description", "labels", "body"}
        names = [field["id"] for field in form["body"] if "id" in field]
        assert len(names) == len(set(names)) > 1
        for field in form["body"]:
            assert field["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
            assert "value" in field["attributes"] or "label" in field["attributes"]
    required = {
        field["id"]
        for field in forms["bug"]["body"]
        if field.get("validations", {}).get("required") == "true"
    }
    assert required == {"happened", "expected", "version", "doctor"}
    assert load(GITHUB / "ISSUE_TEMPLATE/config.yml")["blank_issues_enabled"] == "false"
