"""Replace the agents of a DaemonSet, one node after the other, and stop at the first node on which
`topolet doctor` finds what it did not find before.

The DaemonSet must have the update strategy OnDelete (updateStrategy of a pool of the chart), so
that its controller replaces no pod by itself. On each node with an old agent the command runs
`topolet doctor` in the agent's pod, deletes that pod, waits until the new one is Ready, and runs
`topolet doctor` in it: warnings, and what was found before, do not stop the command. It also runs
`topolet doctor` on nodes that have the new agent already: after a stop, run it again. It waits for
the agent of a node that has none, and skips nodes that are not Ready. It runs kubectl with the
caller's rights: read nodes, DaemonSets, ControllerRevisions and pods, delete pods, and create
pods/exec.

Exit code 0: every node has the new agent, or --max-nodes nodes got it, and nothing new was found;
1: the command stopped at a node, or skipped one; 2: it can't run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.cli import options, remote
from agent.cli.remote import Agent, NodeExamination, RemoteError
from agent.view.format import count, printable

USAGE: Final = "topolet rollout [OPTIONS] DAEMONSET"
REVISION: Final = "controller-revision-hash"
"""The label that the DaemonSet controller gives to pods and ControllerRevisions."""
POLL_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 30.0
"""Time for which findings do not count: until the first pass of the new agent has corrected
cgroups, `topolet doctor` may report differences."""
NO_ANSWER: Final = "doctor"
_EXAMINE_SECONDS: Final = 60.0
_OBSERVE_SECONDS: Final = 60.0


class AgentPod(msgspec.Struct, frozen=True):
    """The pod of an agent."""

    agent: Agent
    revision: str
    """The revision of its pod template."""
    problem: str
    """Why it is not Ready, "" if it is."""
    ending: bool = False
    """It is being deleted."""


class StoppedError(RuntimeError):
    """The rollout can't go on; the message names the node."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("daemonset", metavar="DAEMONSET", help="name of the DaemonSet")
    parser.add_argument(
        "--max-nodes",
        type=options.positive,
        metavar="N",
        help="replace the agents of at most N nodes",
    )
    parser.add_argument(
        "--node-seconds",
        type=options.positive,
        metavar="SECONDS",
        default=600,
        help="longest time until the new agent of a node is Ready (default: 600)",
    )
    remote.add_agent_options(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        cluster = Agents(
            remote.kubectl_of(arguments, "rollout"), arguments.namespace, arguments.daemonset
        )
        return rolled_out(cluster, arguments.max_nodes, arguments.node_seconds)
    except RemoteError as error:
        return options.fail(error, 2)
    except StoppedError as error:
        return options.fail(error, 1)


class Agents:
    """The pods of a DaemonSet, by kubectl. Methods raise RemoteError."""

    def __init__(self, kubectl: tuple[str, ...], namespace: str, name: str) -> None:
        self.title = f"DaemonSet {namespace}/{name}"
        self._kubectl = kubectl
        self._namespace = namespace
        self._name = name
        self._owner = ""
        self._selector = ""
        self._nodes: list[str] = []
        self.desired = 0
        """The number of nodes that should have an agent, after a call of `revision`."""

    def revision(self) -> str:
        """The hash of the DaemonSet's pod template, after its controller has observed the
        template."""
        until = time.monotonic() + _OBSERVE_SECONDS
        while True:
            found = self._get("daemonset", self._name)
            strategy = found["spec"].get("updateStrategy", {}).get("type")
            if strategy != "OnDelete":
                raise RemoteError(
                    f"{self.title}: spec.updateStrategy.type is {strategy}, so its controller "
                    "replaces all agents by itself: give the pool `updateStrategy: OnDelete`"
                )
            if found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]:
                break
            if time.monotonic() > until:
                raise RemoteError(
                    f"{self.title}: its controller has not observed its template for "
                    f"{_OBSERVE_SECONDS:g} s"
                )
            time.sleep(POLL_SECONDS)
        self._owner = found["metadata"]["uid"]
        self._nodes = remote.node_selectors(found["spec"]["template"]["spec"])
        self.desired = found["status"]["desiredNumberScheduled"]
        labels = found["spec"]["selector"]["matchLabels"]
        self._selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        return newest(self._owned("controllerrevisions"), self.title)

    def pods(self) -> list[AgentPod]:
        """Call `revision` before."""
        return [
            AgentPod(
                remote.agent_of(self._kubectl, self._namespace, each),
                each["metadata"].get("labels", {}).get(REVISION, ""),
                ending or problem(each),
                bool(ending),
            )
            for each in self._owned("pods")
            for ending in (remote.why_ending(each),)
        ]

    def nodes(self) -> dict[str, bool]:
        """By name, whether a node that the DaemonSet selects is Ready. Call `revision` before."""
        found: dict[str, bool] = {}
        for selector in self._nodes:
            found |= remote.nodes_of(self._kubectl, selector)
        return found

    def delete(self, pod: AgentPod) -> None:
        words = ("delete", "pod", pod.agent.pod, "-n", self._namespace)
        remote.kubectl_output(self._kubectl, *words, "--wait=false", "--ignore-not-found")

    def doctor(self, pod: AgentPod) -> dict[str, str]:
        """What `topolet doctor` finds in the pod (`errors_in`), or why it has no answer."""
        try:
            return errors_in(remote.examine(pod.agent, _EXAMINE_SECONDS))
        except RemoteError as error:
            return {NO_ANSWER: str(error)}

    def _owned(self, kind: str) -> list[dict[str, Any]]:
        listed = self._get(kind, "-l", self._selector)["items"]
        return [
            each
            for each in listed
            if any(
                owner["uid"] == self._owner
                for owner in each["metadata"].get("ownerReferences") or ()
            )
        ]

    def _get(self, *words: str) -> Any:
        return json.loads(
            remote.kubectl_output(self._kubectl, "get", *words, "-n", self._namespace, "-o", "json")
        )


def errors_in(examination: NodeExamination) -> dict[str, str]:
    """The findings of an examination that are not warnings: by what identifies a finding in a
    later examination, its text."""
    errors = {
        each.code: f"{each.code}: {each.text}"
        for each in examination.node
        if each.severity == "error"
    }
    for each in examination.findings:
        if each.severity == "error":
            name = f"{each.container}: {each.kind}"
            errors[name] = ", ".join(filter(None, (name, each.detail)))
    return {name: printable(text) for name, text in errors.items()}


def newest(revisions: Sequence[Mapping[str, Any]], title: str) -> str:
    """The hash of the newest ControllerRevision. Raises RemoteError if there is none."""
    if not revisions:
        raise RemoteError(f"{title} has no ControllerRevision")
    last = max(revisions, key=lambda each: int(each["revision"]))
    return str(last["metadata"]["labels"][REVISION])


def problem(pod: Mapping[str, Any]) -> str:
    """Why a pod is not Ready, "" if it is."""
    status = pod.get("status", {})
    for each in status.get("conditions") or ():
        if each["type"] == "Ready" and each["status"] == "True":
            return ""
    for statuses in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(statuses) or ():
            for state in ("waiting", "terminated"):
                found = each.get("state", {}).get(state)
                if found and found.get("exitCode", 1):
                    reason = f"{found.get('reason', state)} {found.get('message', '')}".strip()
                    return f"container {each['name']}: {reason}"
    return f"phase {status.get('phase', 'unknown')}, not Ready"


def rolled_out(
    agents: Agents,
    max_nodes: int | None,
    node_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Replaces the agents; returns the exit code. Raises RemoteError, StoppedError."""
    revision = agents.revision()
    nodes = agents.nodes()
    pods = {
        each.agent.node: each
        for each in agents.pods()
        if each.agent.node in nodes and not each.ending
    }
    # A taint may keep agents off a node that the DaemonSet selects: the status has their number.
    without_agent = nodes.keys() - pods.keys() if len(pods) < agents.desired else ()
    old = {node for node, pod in pods.items() if pod.revision != revision}
    # The other nodes first: a finding there stops the rollout before it replaces an agent.
    order = sorted((*pods, *without_agent), key=lambda node: (node in old, node))
    skipped, replaced = [], 0
    for node in order:
        before: Collection[str] = ()
        if not nodes[node]:
            skipped.append(node)
            continue
        if node in old:
            if replaced == max_nodes:
                print(f"{count(replaced, 'agent')} replaced; the other nodes keep their old agent")
                break
            if not pods[node].problem:
                # A new agent that does not answer stops the rollout, whatever the old one did.
                before = agents.doctor(pods[node]).keys() - {NO_ANSWER}
            agents.delete(pods[node])
            replaced += 1
        pod = _await_ready(agents, node, revision, node_seconds, clock, pause)
        _await_no_findings(agents, pod, before, clock, pause)
        print(f"node {node}: the new agent is Ready, topolet doctor finds nothing new", flush=True)
    if skipped:
        raise StoppedError(f"skipped, because they are not Ready: {', '.join(skipped)}")
    return 0


def _await_ready(
    agents: Agents,
    node: str,
    revision: str,
    seconds: float,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> AgentPod:
    until = clock() + seconds
    while True:
        found = [each for each in agents.pods() if each.agent.node == node]
        for each in found:
            if each.revision == revision and not each.problem:
                return each
        if clock() > until:
            reasons = [
                f"pod {each.agent.pod}: {each.problem or 'another revision'}" for each in found
            ]
            reason = "; ".join(reasons) or "it has no pod"
            raise StoppedError(f"node {node}: the agent is not Ready after {seconds:g} s: {reason}")
        pause(POLL_SECONDS)


def _await_no_findings(
    agents: Agents,
    pod: AgentPod,
    before: Collection[str],
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> None:
    """Waits until the doctor finds nothing but what it found `before` (names of `errors_in`)."""
    until = clock() + SETTLE_SECONDS
    while True:
        new = [text for name, text in agents.doctor(pod).items() if name not in before]
        if not new:
            return
        if clock() > until:
            print("\n".join(new), flush=True)
            raise StoppedError(f"node {pod.agent.node}: topolet doctor has findings")
        pause(POLL_SECONDS)
