"""`topolet doctor --all`: the findings of the doctors of all nodes in one table.

The doctor runs in the agent's pod of each node, on some nodes at the same time, and each has a
deadline, since `kubectl exec` passes through the node's runtime, which may hang. Nodes without an
answer are rows of the table too.
"""

from __future__ import annotations

import enum
import functools
import json
import textwrap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from agent.cli import remote
from agent.cli.remote import Agent, NodeExamination, RemoteError
from agent.view import format
from agent.view.format import count, printable

SCHEMA_VERSION: Final = 1
"""The version of the JSON output, which changes when a field changes its meaning or goes."""
_MAX_TEXT: Final = 1000
_HEAD: Final = ("NODE", "SEVERITY", "FINDING", "TEXT")


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
    lines = format.table([_HEAD, *rows], width) if rows else []
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
