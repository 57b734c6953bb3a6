"""README.md and docs/: link targets, commands and options exist, and pictures equal the output of
the tools."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent import WHEEL
from agent.cli import options
from agent.cli.commands import COMMANDS, subcommand
from agent.model.settings.agent import AgentSettings
from agent.node import koordlet_process
from agent.node.drift import DriftKind
from agent.node.node_findings import NodeCode
from conformance.files import KINDS
from tests import proposals
from tests.conftest import DATA
from tests.view import decided

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = "<!-- The rest of this page is written by docs/reference.py. -->\n"
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
ANNOTATED = re.compile(
    r"(scheduling|node|kubelet|runtimeproxy)\.koordinator\.sh/(?!v1alpha1).+"
    r"|koordinator\.sh/(qosClass|priority-class|gpu-isolation-provider)"
    r"|topolet\.io/(?!agent$|scheduler$).+"
)
"""Keys of annotations, labels and conditions, without resources, versions of APIs and the names of
the components in Events."""


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, with continued lines joined."""
    found = BLOCK.findall(page.read_text())
    return [text.replace("\\\n", " ") for kind, text in found if kind == language]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links, as GitHub makes them."""
    text = BLOCK.sub("", page.read_text())
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def commands(program: str) -> Iterator[tuple[str, list[str]]]:
    """By page, the words of each command in blocks of shell and in `code` that call the program."""
    for page in PAGES:
        lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
        text = BLOCK.sub("", page.read_text())
        lines += re.findall(rf"`({program} [^`]+)`", text)
        for line in lines:
            for part in re.split(r"&&|\||;|\s--\s(?=topolet)|\s#\s", line):
                words = shlex.split(part.strip().removesuffix("&").replace("'", '"'), comments=True)
                if words and words[0] == program:
                    yield names(page), words[1:]


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    missing = []
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_every_page_is_reached_from_the_readme_over_the_index() -> None:
    def linked(page: Path) -> set[str]:
        return {link.partition("#")[0] for link in LINK.findall(page.read_text())}

    index = ROOT / "docs/README.md"
    assert names(index) in linked(ROOT / "README.md")
    assert {page.name for page in PAGES[1:]} <= linked(index) | {index.name}


def test_commands_of_topolet_exist_with_their_options() -> None:
    """Each command in a document is read by the parser of its subcommand."""
    wrong = []
    read = 0
    plugin = ((page, words[1:]) for page, words in commands("kubectl") if words[0] == "topolet")
    for page, words in (*commands("topolet"), *plugin):
        if words[0] not in COMMANDS:
            wrong.append((page, words))
            continue
        parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
        subcommand(words[0]).add_arguments(parser)
        flags = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", parser.format_help()))
        unknown = [
            each for each in words[1:] if each[0] == "-" and each.partition("=")[0] not in flags
        ]
        read += 1
        if unknown:
            wrong.append((page, [words[0], *unknown]))
    assert wrong == []
    assert read > 30


def test_topolet_is_installed_from_its_own_wheel_never_by_name_from_a_package_index() -> None:
    """Whoever uploads a package of that name to PyPI would get the reader's kubeconfig. The rule is
    for documents and for messages of the program."""
    texts = [*PAGES, *ROOT.glob("*.md"), *(ROOT / "agent").rglob("*.py"), ROOT / "pyproject.toml"]
    installed = [
        (names(each), words)
        for each in texts
        for words in re.findall(r"\bpipx? install ([^`\n]+)", each.read_text())
        if re.search("topolet|WHEEL", words)
    ]
    wheel = re.compile(rf"'?({re.escape(WHEEL)}|\{{WHEEL\}})")
    assert [each for each in installed if not wheel.match(each[1])] == []
    assert len(installed) > 3


def test_metrics_and_reasons_of_events_exist() -> None:
    """docs/monitoring.md has what the processes declare (`docs/reference.py --check`)."""
    metrics = (ROOT / "docs/monitoring.md").read_text().partition(MARK)[2]
    declared = set(re.findall(r"^\| `(topolet_\w+)`", metrics, re.M))
    wrong = [
        (names(page), name)
        for page in PAGES
        for name in re.findall(
            r"`(topolet_[a-z_]+)", page.read_text().partition("\n## Names of metrics\n")[0]
        )
        if name not in declared
    ]
    assert wrong == []
    source = "\n".join(each.read_text() for each in (ROOT / "agent").rglob("*.py"))
    others = {"FailedMount", "FailedScheduling", "NodeNotReady", "Unhealthy"}  # of Kubernetes
    for reason in re.findall(r"Event `(\w+)`", (ROOT / "docs/troubleshooting.md").read_text()):
        assert reason in others or f'"{reason}"' in source, reason


def test_every_fault_has_an_alert_a_symptom_a_finding_and_a_remedy() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    table = page[page.index("### By fault") : page.index("### From a workstation")]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")][1:]
    alerts = {
        rule["alert"]
        for group in yaml.safe_load((ROOT / "deploy/chart/files/alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    }
    codes = {str(each) for kind in (NodeCode, DriftKind) for each in kind}
    assert len(rows) >= 10
    for fault, alert, symptom, finding, remedy in rows:
        named = re.findall(r"\[(Topolet\w+)\]\(monitoring\.md#(\w+)\)", alert)
        assert named or alert.startswith("none"), fault
        assert all(name in alerts and name.lower() == anchor for name, anchor in named), fault
        assert re.search(r"Event `\w+`|`topolet_\w+`", symptom), fault
        found = re.findall(r"`([a-z-]+)`", finding)
        assert found or finding.startswith("none"), fault
        assert set(found) <= codes, fault
        assert remedy


def test_settings_in_toml_are_accepted(tmp_path: Path) -> None:
    read = 0
    for page in PAGES:
        for block in blocks(page, "toml"):
            if "plugins" not in block:  # those of runtimes
                file = tmp_path / "config.toml"
                file.write_text(block)
                options.load(argparse.Namespace(config=str(file)), AgentSettings)
                read += 1
    assert read


def test_the_picture_of_the_concepts_equals_the_output_of_the_tool() -> None:
    picture = next(text for text in blocks(ROOT / "docs/concepts.md", "") if "Owners" in text)
    assert picture == decided.picture_of_every_kind_of_pod()


def test_the_comparison_with_koordinator_equals_the_output_of_the_tool() -> None:
    """`python -m conformance FILE`, run as the page of differences shows it."""
    (block,) = (
        text
        for text in blocks(ROOT / "docs/compatibility.md", "")
        if "$ python -m conformance" in text
    )
    command, *lines = block.splitlines()
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[2:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
    )
    shown = done.stdout.splitlines()
    for line in lines:
        assert any(each.startswith(line.removesuffix(" (...)")) for each in shown), line


def test_the_named_rows_of_the_differences_are_those_that_conformance_declares() -> None:
    text = (ROOT / "docs/compatibility.md").read_text()
    declared = {each.name for kind in KINDS for each in kind.load().differences}
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)) == declared


def test_every_annotation_and_label_of_the_code_is_on_its_page() -> None:
    """Names that follow a key with the same prefix stand without it."""
    text = (ROOT / "docs/annotations.md").read_text()
    known = [key for key in proposals.keys_of_the_code() if ANNOTATED.fullmatch(key)]
    assert known
    missing = [
        key for key in known if f"`{key}" not in text and f"`{key.partition('/')[2]}`" not in text
    ]
    assert missing == []


def first_cells(section: str) -> Iterator[tuple[str, str]]:
    """The names in code of the first cell of each row, with the row's second cell."""
    page = (ROOT / "docs/migrating-from-koordlet.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        if line.startswith("| `"):
            first, second = line.split("|")[1:3]
            yield from ((name, second.strip()) for name in re.findall(r"`([^`]+)`", first))


def of_koordlet(file: str) -> list[list[str]]:
    return [line.split("\t") for line in (DATA / "koordlet" / file).read_text().splitlines()]


def test_every_gate_and_flag_of_koordlet_has_a_counterpart_or_a_reason() -> None:
    gates = {name: default == "true" for _, name, default in of_koordlet("gates.tsv")}
    assert {name: default == "on" for name, default in first_cells("Gates")} == gates
    flags = sorted(name for _, name in of_koordlet("flags.tsv"))
    assert sorted(name for name, _ in first_cells("Flags")) == flags
    for known in (koordlet_process.OF_CPUS_AND_DEVICES, koordlet_process.OF_COLOCATION):
        assert known.items() <= gates.items()
