"""Find what is wrong with a node. The command checks whether agent, proxy, runtime, cgroups and the
kubelet's state can be used, and whether another component sets the same values. Then it compares
the CPUs, memory nodes and devices that each container should have with those that it has.

The columns of the table are the CPUs in the pod's annotation, in the kubelet's checkpoint, in the
agent's decision, in the cgroup, and of the processes in it. With NODE the command runs in the
agent's pod on that node, by kubectl and with the caller's rights; with --all on every node, and
prints a table of the findings. --bundle also writes an archive of what a maintainer needs. The
command changes nothing. Exit code 0: no finding, apart from warnings; 1: there are findings, or
with --all nodes that can't be examined; 2: wrong usage, or the containers can't be examined.
"""

from __future__ import annotations

import argparse
import enum
import functools
import json
import sys
import tarfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from agent.cli import options, remote
from agent.cli.remote import Agent, NodeExamination, RemoteError
from agent.model.cpu.cpuset import CpuSet
from agent.model.settings.agent import KubeletStateSettings
from agent.model.settings.options import SettingsError
from agent.node import doctor
from agent.node.doctor import Examination
from agent.node.drift import Finding
from agent.node.node_findings import NodeFinding
from agent.view import format
from agent.view.format import count, printable

SCHEMA_VERSION: Final = 1
"""The version of the JSON output, which changes when a field changes its meaning or goes."""
_MAX_TEXT: Final = 1000
_NODES_HEAD: Final = ("NODE", "SEVERITY", "FINDING", "TEXT")


class ClusterCode(enum.StrEnum):
    """The kinds of findings about a node that no doctor has examined; scripts may rely on the
    values."""

    NOT_READY = "node-not-ready"
    NO_AGENT = "agent-not-running"
    NOT_SELECTED = "node-without-agent"
    NO_ANSWER = "doctor-does-not-answer"


_ON_HOST: Final = (
    "on the host run `topolet doctor` (/opt/topolet/current/bin/topolet where the proxy is "
    "installed), which names what does not answer"
)
REMEDIES: Final = {
    ClusterCode.NOT_READY: f"repair the kubelet or the node's network; {_ON_HOST}",
    ClusterCode.NO_AGENT: "read the pod's Events (kubectl describe pod) and its log "
    "(docs/troubleshooting.md)",
    ClusterCode.NOT_SELECTED: "leave it if the node shall have no agent; otherwise give it the "
    "label of a pool, or the release a pool without a nodeSelector (docs/install.md)",
    ClusterCode.NO_ANSWER: f"{_ON_HOST}, since `kubectl exec` passes through the runtime, and "
    "through the proxy where there is one",
}


class ClusterFinding(msgspec.Struct, frozen=True):
    """One finding about one node."""

    severity: str
    """It is `error` or `warning`."""
    code: str
    subject: str
    """The finding is about this container, or about the node itself if this is empty."""
    text: str
    remedy: str


class ExaminedNode(msgspec.Struct, frozen=True):
    """A node with the findings about it."""

    node: str
    examined: bool
    """Whether its doctor has answered."""
    findings: tuple[ClusterFinding, ...]

    @property
    def errors(self) -> int:
        return sum(each.severity == "error" for each in self.findings)


NODES_AT_ONCE: Final = 16
Ask = Callable[[Agent], NodeExamination]
"""The examination by the doctor of an agent's node. It may raise RemoteError."""


def examine_nodes(
    kubectl: tuple[str, ...], namespace: str, node_seconds: float
) -> list[ExaminedNode]:
    """All nodes of the cluster, sorted by name; the doctors of NODES_AT_ONCE nodes run at the same
    time, each for at most `node_seconds`. Raises RemoteError if nodes or pods can't be listed."""
    ready = remote.nodes_of(kubectl)
    agents = remote.list_agents(kubectl, namespace)
    selected = frozenset[str]()
    if ready.keys() - agents.keys():
        selected = _selected(kubectl, namespace)
    ask = functools.partial(remote.examine, seconds=node_seconds)
    with ThreadPoolExecutor(NODES_AT_ONCE) as pool:
        return list(
            pool.map(
                lambda node: _of_node(
                    node, agents.get(node), ask, ready=ready[node], selected=node in selected
                ),
                sorted(ready),
            )
        )


def _selected(kubectl: tuple[str, ...], namespace: str) -> frozenset[str]:
    """The nodes that a DaemonSet of agents selects."""
    words = ("get", "daemonsets", "-l", remote.SELECTOR, "-n", namespace, "-o", "json")
    daemonsets = json.loads(remote.kubectl_output(kubectl, *words))["items"]
    pods = (daemonset["spec"]["template"]["spec"] for daemonset in daemonsets)
    selectors = {selector for pod in pods for selector in remote.node_selectors(pod)}
    return frozenset(node for selector in selectors for node in remote.nodes_of(kubectl, selector))


def _of_node(
    node: str, agent: Agent | str | None, ask: Ask, *, ready: bool, selected: bool
) -> ExaminedNode:
    problem: tuple[ClusterCode, str]
    if not ready:
        problem = ClusterCode.NOT_READY, "the Node is not Ready, so no command was run there"
    elif isinstance(agent, str):
        problem = ClusterCode.NO_AGENT, agent
    elif agent is not None:
        try:
            return ExaminedNode(node, True, findings_in(ask(agent)))
        except RemoteError as error:
            problem = ClusterCode.NO_ANSWER, str(error)
    elif selected:
        problem = ClusterCode.NO_AGENT, "a DaemonSet of agents selects the node, which has no pod"
    else:
        problem = ClusterCode.NOT_SELECTED, "no DaemonSet of agents selects the node"
    code, text = problem
    severity = "warning" if code is ClusterCode.NOT_SELECTED else "error"
    finding = ClusterFinding(severity, code, "", _bounded(text), REMEDIES[code])
    return ExaminedNode(node, False, (finding,))


def findings_in(examination: NodeExamination) -> tuple[ClusterFinding, ...]:
    """The findings of an examination, errors first."""
    findings = [
        ClusterFinding(each.severity, each.code, "", each.text, each.remedy)
        for each in examination.node
    ]
    for each in examination.findings:
        parts = (
            f"should be {each.expected}" if each.expected else "",
            f"is {each.found}" if each.found else "",
            each.detail,
        )
        text = ", ".join(filter(None, parts))
        findings.append(ClusterFinding(each.severity, each.kind, each.container, text, each.remedy))
    clean = [
        ClusterFinding(*(_bounded(text) for text in msgspec.structs.astuple(each)))
        for each in findings
    ]
    return tuple(sorted(clean, key=lambda each: each.severity != "error"))


def _bounded(text: str) -> str:
    return printable(text[:_MAX_TEXT])


def body_of_nodes(nodes: Sequence[ExaminedNode]) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "nodes": msgspec.to_builtins(nodes)}


def described_nodes(nodes: Sequence[ExaminedNode], width: int) -> str:
    """A row for each finding, the remedy of each kind of finding, and the numbers of nodes."""
    rows = [
        (
            each.node,
            finding.severity,
            finding.code,
            ": ".join(filter(None, (finding.subject, finding.text))),
        )
        for each in nodes
        for finding in each.findings
    ]
    lines = format.table([_NODES_HEAD, *rows], width) if rows else []
    remedies = {finding.code: finding.remedy for each in nodes for finding in each.findings}
    if rows:
        lines.append("")
    for code, remedy in sorted(remedies.items()):
        lines += textwrap.wrap(f"{code} -> {remedy}", max(width, 40), subsequent_indent="     ")
    if rows:
        lines.append("")
    unexamined = [each for each in nodes if not each.examined]
    wrong = [each for each in nodes if each.examined and each.errors]
    lines.append(
        f"{count(len(nodes), 'node')}: {len(wrong)} with findings, "
        f"{len(nodes) - len(wrong) - len(unexamined)} without, {len(unexamined)} not examined"
    )
    return "".join(f"{each}\n" for each in lines)


USAGE = "topolet doctor [OPTIONS] [NODE | --all]"
SETTINGS = KubeletStateSettings

_HEAD = ("CONTAINER", "QOS", "ANNOTATION", "KUBELET", "AGENT", "CGROUP", "PROCESSES", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument(
        "--bundle",
        metavar="FILE.tar.gz",
        help="also write an archive of what a maintainer needs, without secrets (-: to standard "
        "output, without the findings)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="examine every node of the cluster, by kubectl, and print one table",
    )
    parser.add_argument(
        "--node-seconds",
        type=options.positive,
        default=30,
        metavar="SECONDS",
        help="with --all: longest time until the doctor of a node answers (default: 30)",
    )
    remote.add_arguments(parser)
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    if arguments.all:
        return _on_all_nodes(arguments)
    if arguments.node:
        return _on_node(arguments)
    try:
        settings = options.load(arguments, SETTINGS)
        examined = doctor.examine(settings)
    except SettingsError as error:
        return options.fail(error, 2)
    archive = b""
    if arguments.bundle:
        # Imported only here: the archive needs more modules than an examination.
        from agent.cli import bundle

        config = options.config_path(arguments)
        text, namespace = described(examined, 200), arguments.namespace
        archive = bundle.archive_of(settings, examined, text, config, namespace)
        if arguments.bundle != "-":
            try:
                _write(arguments.bundle, archive)
            except OSError as error:
                return options.fail(error, 2)
    try:
        if arguments.bundle == "-":
            sys.stdout.buffer.write(archive)
            sys.stdout.flush()
        elif arguments.output == "json":
            json.dump(doctor.body(examined), sys.stdout, indent=1)
            print(flush=True)
        else:
            print(format.encodable(described(examined, format.columns(200))), end="", flush=True)
    except OSError as error:
        return format.unwritten("doctor", error)
    return _exit_code(examined)


def _exit_code(examined: Examination) -> int:
    if examined.seen is None:
        return 2
    return 1 if examined.errors else 0


def _write(path: str, archive: bytes) -> None:
    """Raises OSError."""
    with open(path, "xb") as file:
        file.write(archive)
    print(f"topolet: {path}: {len(archive)} bytes", file=sys.stderr)


def _on_node(arguments: argparse.Namespace) -> int:
    if not arguments.bundle:
        flags = [f"--output={arguments.output}"]
        return remote.run_on_node("doctor", arguments, SETTINGS, *flags)
    from agent.cli import bundle

    try:
        agent = remote.find_agent(arguments)
        command = remote.command_line("doctor", arguments, SETTINGS, "--bundle=-")
        code, archive = remote.output_of(agent, command, bundle.MAX_ARCHIVE_BYTES)
        if archive:
            _write(
                arguments.bundle, bundle.with_logs(archive, remote.logs(agent, bundle.LOG_LINES))
            )
    except (remote.RemoteError, OSError, tarfile.TarError) as error:
        return options.fail(error, 2)
    return code


def _on_all_nodes(arguments: argparse.Namespace) -> int:
    from agent.cli import doctor

    if arguments.node or arguments.bundle:
        return options.fail(ValueError("--all: it takes neither NODE nor --bundle"), 2)
    try:
        nodes = doctor.examine_nodes(
            remote.kubectl_of(arguments, "--all"),
            arguments.namespace,
            arguments.node_seconds,
        )
    except remote.RemoteError as error:
        return options.fail(error, 2)
    try:
        if arguments.output == "json":
            json.dump(doctor.body_of_nodes(nodes), sys.stdout, indent=1)
            print(flush=True)
        else:
            text = doctor.described_nodes(nodes, format.columns(200))
            print(format.encodable(text), end="", flush=True)
    except OSError as error:
        return format.unwritten("doctor", error)
    return 1 if any(each.errors for each in nodes) else 0


def described(examined: Examination, width: int) -> str:
    """The text output: the findings about the node, a row for each container, then a line for each
    finding about a container."""
    lines = []
    for problem in examined.node:
        lines += [
            *_folded(_marked(f"{problem.code}: {problem.text}", problem), width),
            *_folded(f"  -> {problem.remedy}", width),
        ]
    if examined.node:
        lines.append("")
    if facts := [f"{name.replace('_', ' ')}: {value}" for name, value in _known_facts(examined)]:
        lines += [*_folded(", ".join(facts), width), ""]
    if examined.seen is None:
        text = f"No container was examined, {count(len(examined.node), 'finding')}"
        lines += _folded(text, width)
        return _joined(lines)
    wrong = {finding.container for finding in examined.findings}
    rows = [
        (
            each.title,
            each.qos.value,
            *(_cpus(cpus) for cpus in (each.claimed, each.kubelet, each.wanted, each.group)),
            _cpus(each.processes),
            "<- drift" if each.title in wrong else "",
        )
        for each in examined.seen
    ]
    lines += format.table([_HEAD, *rows], width) if rows else ["No containers run."]
    lines.append("")
    for finding in examined.findings:
        lines += [
            *_folded(_sentence(finding), width),
            *_folded(f"  -> {finding.remedy}", width),
        ]
    containers = count(len(examined.seen), "container")
    found = len(examined.node) + len(examined.findings)
    lines.append(f"{containers}, {count(found, 'finding')}")
    return _joined(lines)


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{format.printable(line)}\n" for line in lines)


def _marked(text: str, finding: NodeFinding | Finding) -> str:
    return f"{text} (warning)" if finding.severity == "warning" else text


def _known_facts(examined: Examination) -> list[tuple[str, str]]:
    pairs = msgspec.structs.asdict(examined.facts).items()
    return [(name, value) for name, value in pairs if value]


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        format.printable(text),
        max(width, 40),
        subsequent_indent="     ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _cpus(cpus: CpuSet | None) -> str:
    return "-" if cpus is None else str(cpus)


def _sentence(finding: Finding) -> str:
    parts = [f"{finding.container}: {finding.kind}"]
    if finding.expected:
        parts.append(f"should be {finding.expected}")
    if finding.found:
        parts.append(f"is {finding.found}")
    if finding.detail:
        parts.append(finding.detail)
    return _marked(", ".join(parts), finding)
