"""Replace the agents of a DaemonSet, one node after the other, and stop at the first node whose
doctor finds something.

The DaemonSet has the update strategy OnDelete (updateStrategy of a pool of the chart), so that its
controller replaces no pod by itself. On each node with an earlier agent the command deletes the
agent's pod, waits until its successor is Ready, and runs `topolet doctor` there. It also examines
nodes that have the new agent already: run it again after a stop. Nodes that are not Ready are left
out. It works by kubectl and with the caller's rights: read nodes, DaemonSets, ControllerRevisions
and pods, delete pods, and create pods/exec.

Exit code 0: every node has the new agent, or --max-nodes nodes got it, and nothing was found; 1: it
stopped at a node, or left one out; 2: it can't run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.cli import options, remote
from agent.cli.remote import Agent, RemoteError
from agent.view.format import count

REVISION: Final = "controller-revision-hash"
"""The label that the DaemonSet controller gives to pods and ControllerRevisions."""
POLL_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 30.0
"""The doctor may find differences meanwhile: pods start, and the first pass corrects cgroups."""
_OBSERVE_SECONDS: Final = 60.0
_READY: Final = (
    'jsonpath={range .items[*]}{.metadata.name}{" "}'
    '{.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'
)


class AgentPod(msgspec.Struct, frozen=True):
    """An agent on a node. `problem`: why it is not Ready, "" if it is."""

    agent: Agent
    revision: str
    problem: str


class StoppedError(RuntimeError):
    """A node is not as it should be; the message names it."""


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
    remote.add_place(parser)


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

    def revision(self) -> str:
        """Of its pod template, as soon as its controller has seen it."""
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
                raise RemoteError(f"{self.title}: its controller does not see its template")
            time.sleep(POLL_SECONDS)
        self._owner = found["metadata"]["uid"]
        labels = found["spec"]["selector"]["matchLabels"]
        self._selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        return newest(self._owned("controllerrevisions"), self.title)

    def pods(self) -> list[AgentPod]:
        """Without those that are being deleted; after `revision`."""
        return [
            AgentPod(
                remote.agent_of(self._kubectl, self._namespace, each),
                each["metadata"].get("labels", {}).get(REVISION, ""),
                problem(each),
            )
            for each in self._owned("pods")
            if "deletionTimestamp" not in each["metadata"]
        ]

    def ready_nodes(self) -> set[str]:
        lines = remote.answer(self._kubectl, "get", "nodes", "-o", _READY).splitlines()
        return {line.split(" ")[0] for line in lines if line.endswith(" True")}

    def delete(self, pod: AgentPod) -> None:
        words = ("delete", "pod", pod.agent.pod, "-n", self._namespace)
        remote.answer(self._kubectl, *words, "--wait=false", "--ignore-not-found")

    def doctor(self, pod: AgentPod) -> tuple[int, str]:
        """Its exit code and its findings."""
        code, output = remote.output(pod.agent, ["topolet", "doctor"])
        return code, output.decode(errors="replace")

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
            remote.answer(self._kubectl, "get", *words, "-n", self._namespace, "-o", "json")
        )


def newest(revisions: Sequence[Mapping[str, Any]], title: str) -> str:
    """The hash of the newest ControllerRevision. Raises RemoteError where there is none."""
    if not revisions:
        raise RemoteError(f"{title}: it has no ControllerRevision")
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
    """The exit code. Raises RemoteError, StoppedError."""
    revision = agents.revision()
    ready, pods = agents.ready_nodes(), {each.agent.node: each for each in agents.pods()}
    # The nodes of an earlier run first: what is wrong there now ends this one before it begins.
    order = sorted(pods, key=lambda node: (pods[node].revision != revision, node))
    left_out, replaced = [], 0
    for node in order:
        pod = pods[node]
        if node not in ready:
            left_out.append(node)
            continue
        if pod.revision != revision:
            if replaced == max_nodes:
                print(f"{count(replaced, 'node')} replaced, others have the agent of before")
                break
            agents.delete(pod)
            replaced += 1
        pod = _ready(agents, node, revision, node_seconds, clock, pause)
        _examine(agents, pod, clock, pause)
        print(f"node {node}: its agent is Ready, and its doctor finds nothing", flush=True)
    if left_out:
        raise StoppedError(f"left out, since they are not Ready: {', '.join(left_out)}")
    return 0


def _ready(
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
            said = "; ".join(reasons) or "it has no pod"
            raise StoppedError(f"node {node}: its agent is not Ready after {seconds:g} s: {said}")
        pause(POLL_SECONDS)


def _examine(
    agents: Agents, pod: AgentPod, clock: Callable[[], float], pause: Callable[[float], None]
) -> None:
    until = clock() + SETTLE_SECONDS
    while True:
        code, findings = agents.doctor(pod)
        if code == 0:
            return
        if clock() > until:
            print(findings, end="", flush=True)
            raise StoppedError(f"node {pod.agent.node}: its doctor finds something")
        pause(POLL_SECONDS)
