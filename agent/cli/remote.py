"""Finds the pods of agents and of the leading scheduler, and runs commands in an agent's pod: by
the caller's kubectl, so with the caller's kubeconfig and rights (list pods, and create pods/exec,
in the agent's namespace)."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.cli import options
from agent.model import bounds
from agent.model.settings.agent import AGENT_PORT
from agent.model.settings.options import Options
from agent.model.settings.scheduler import LEASE_NAME, SCHEDULER_PORT
from agent.view.format import columns, printable_lines

SELECTOR: Final = "app.kubernetes.io/name=topolet,app.kubernetes.io/component=agent"
_CONTAINER: Final = "agent"
_SCHEDULER_CONTAINER: Final = "scheduler"
_DNS_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_READY: Final = (
    'jsonpath={range .items[*]}{.metadata.name}{" "}'
    '{.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'
)
_KLOG: Final = re.compile(r"^[EWI]\d{4} [\d:.]+ +\d+ \S+\.go:\d+\].*\n?", re.MULTILINE)
"""A line that a library of kubectl logs, such as for each attempt to find out what a server
serves; kubectl's own error follows."""
_REMOTE_CODE: Final = re.compile(r"^command terminated with exit code \d+\n?", re.MULTILINE)
"""The line that kubectl exec writes to standard error after a command that failed."""
_MAX_ERROR_BYTES: Final = 64 << 10
_MAX_LOG_BYTES: Final = 8 << 20
KUBECTL_SECONDS: Final = 120.0
"""For one call of kubectl that reads; commands in a pod have no deadline."""


_MAX_EXAMINATION_BYTES: Final = 32 << 20
"""The largest output of one doctor."""


class RemoteError(RuntimeError):
    """The command can't run on that node; the message says what to do."""


class DoctorFinding(msgspec.Struct, frozen=True):
    """A finding about the node itself, as `topolet doctor --output=json` prints it."""

    severity: str
    code: str
    text: str
    remedy: str


class ContainerFinding(msgspec.Struct, frozen=True):
    """A finding about a container."""

    severity: str
    kind: str
    container: str
    expected: str | None
    """The expected CPUs, None if unknown."""
    found: str | None
    """The CPUs that it has, None if unknown."""
    detail: str
    remedy: str


class NodeExamination(msgspec.Struct, frozen=True):
    """What `topolet doctor` finds on a node."""

    node: tuple[DoctorFinding, ...]
    findings: tuple[ContainerFinding, ...]


_EXAMINATION: Final = msgspec.json.Decoder(NodeExamination)


def examination(output: bytes | str, code: int, error: str = "") -> NodeExamination:
    """Reads the output of `topolet doctor --output=json`, which ended with this exit code and this
    standard error. Whoever controls the node chooses the output: raises RemoteError for one that
    can't be read."""
    try:
        return bounds.decode(_EXAMINATION, output)
    except bounds.JsonError as invalid:
        words = " ".join(error.split()) or f"its output {invalid}"
        raise RemoteError(f"topolet doctor ends with exit code {code}: {words}") from None


class Agent(msgspec.Struct, frozen=True):
    """The agent's pod on a node."""

    kubectl: tuple[str, ...]
    """The program with the caller's options."""
    namespace: str
    pod: str
    node: str
    http_port: int
    """The port with the name `http` of the agent's container."""


class LeadingScheduler(msgspec.Struct, frozen=True):
    """The pod of the scheduler that leads."""

    kubectl: tuple[str, ...]
    namespace: str
    pod: str
    http_port: int
    holder: str
    """The identity of that scheduler in the leader's Lease, which only a caller that may read the
    Lease knows."""


_NODE_HELP: Final = "run the command in the agent's pod on that node, by kubectl"


def add_arguments(
    parser: argparse.ArgumentParser, text: str = _NODE_HELP, when: str = "with NODE: "
) -> None:
    """Adds NODE, and the options with which its agent is found.

    `text`: the help of NODE.
    `when`: the first words of the help of these options."""
    parser.add_argument("node", nargs="?", metavar="NODE", help=text)
    add_agent_options(parser, when)


def add_agent_options(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Adds the namespace of the agents and the context of the kubeconfig.

    `when`: the first words of their help."""
    parser.add_argument(
        "-n",
        "--namespace",
        default="topolet-system",
        help=f"{when}namespace of Topolet (default: topolet-system)",
    )
    parser.add_argument("--context", metavar="NAME", help=f"{when}context of the kubeconfig")


def find_agent(arguments: argparse.Namespace) -> Agent:
    """The running agent of the node `arguments.node`. Raises RemoteError."""
    node, namespace = arguments.node, arguments.namespace
    if not _DNS_NAME.fullmatch(node):
        raise RemoteError(f"NODE: {node!r:.80} is not the name of a Node")
    kubectl = kubectl_of(arguments, "NODE")
    words = ("get", "pods", "-n", namespace, "-l", SELECTOR, "-o", "json")
    listed = json.loads(kubectl_output(kubectl, *words, f"--field-selector=spec.nodeName={node}"))
    if not listed["items"]:
        raise RemoteError(_why_no_pod(kubectl, node, namespace))
    reasons = []
    for pod in listed["items"]:
        name = pod["metadata"]["name"]
        if reason := why_ending(pod) or why_not_running(pod):
            reasons.append(f"pod {namespace}/{name}: {reason}")
        else:
            return agent_of(kubectl, namespace, pod)
    raise RemoteError(
        f"the agent of node {node} does not run: {'; '.join(reasons)}. kubectl -n {namespace} "
        "describe pod, and kubectl logs --previous, say more"
    )


def list_agents(kubectl: tuple[str, ...], namespace: str) -> dict[str, Agent | str]:
    """By node, its running agent, or why none runs though the node has a pod for it. Raises
    RemoteError."""
    words = ("get", "pods", "-n", namespace, "-l", SELECTOR, "-o", "json")
    found: dict[str, Agent | str] = {}
    for pod in json.loads(kubectl_output(kubectl, *words))["items"]:
        name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "")
        reason = why_ending(pod) or why_not_running(pod)
        if not reason:
            found[node] = agent_of(kubectl, namespace, pod)
        elif node:
            found.setdefault(node, f"pod {namespace}/{name}: {reason}")
    return found


def nodes_of(kubectl: Sequence[str], selector: str = "") -> dict[str, bool]:
    """By name, whether a Node that the label selector selects is Ready. Raises RemoteError."""
    where = ("-l", selector) if selector else ()
    lines = kubectl_output(kubectl, "get", "nodes", *where, "-o", _READY).splitlines()
    return {name: ready == "True" for name, _, ready in (each.partition(" ") for each in lines)}


def node_selectors(pod: Mapping[str, Any]) -> list[str]:
    """Label selectors which together select the nodes that a pod's spec does. Operators that label
    selectors lack (Gt, Lt) are left out."""
    exactly = [f"{key}={value}" for key, value in sorted((pod.get("nodeSelector") or {}).items())]
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    found = []
    for term in required.get("nodeSelectorTerms") or [{}]:
        words = [*exactly]
        for each in term.get("matchExpressions") or ():
            key, values = each["key"], ",".join(each.get("values") or ())
            match each["operator"]:
                case "In":
                    words.append(f"{key} in ({values})")
                case "NotIn":
                    words.append(f"{key} notin ({values})")
                case "Exists":
                    words.append(key)
                case "DoesNotExist":
                    words.append(f"!{key}")
        found.append(",".join(words))
    return found


def find_leader(arguments: argparse.Namespace) -> LeadingScheduler:
    """The scheduler that holds the Lease, in `arguments.namespace`. Raises RemoteError."""
    from agent.scheduler.leader.election import host_of

    kubectl, namespace = kubectl_of(arguments, "--scheduler"), arguments.namespace
    found = json.loads(
        kubectl_output(kubectl, "get", "lease", LEASE_NAME, "-n", namespace, "-o", "json")
    )
    holder = str(found.get("spec", {}).get("holderIdentity") or "")
    if not holder:
        raise RemoteError(f"lease {namespace}/{LEASE_NAME}: no scheduler leads now")
    name = host_of(holder)
    if not _DNS_NAME.fullmatch(name):
        raise RemoteError(f"lease {namespace}/{LEASE_NAME}: {name!r:.80} is not the name of a pod")
    words = ("get", "pod", name, "-n", namespace, "--ignore-not-found", "-o", "json")
    text = kubectl_output(kubectl, *words)
    if not text.strip():
        raise RemoteError(
            f"lease {namespace}/{LEASE_NAME}: the pod of its holder, {name}, does not exist"
        )
    port = _http_port(json.loads(text), _SCHEDULER_CONTAINER)
    return LeadingScheduler(kubectl, namespace, name, port or SCHEDULER_PORT, holder)


def kubectl_of(arguments: argparse.Namespace, needed_by: str) -> tuple[str, ...]:
    """The program kubectl with the caller's options.

    `needed_by`: the argument or command that the error names.

    Raises RemoteError."""
    program = shutil.which("kubectl")
    if program is None:
        raise RemoteError(f"{needed_by} needs kubectl, which is not in PATH")
    return (program, *([f"--context={arguments.context}"] if arguments.context else []))


def why_ending(pod: dict[str, Any]) -> str:
    """A sentence that the pod is being deleted, and what ends it sooner; "" if it is not. No other
    agent starts on its node before it has ended, and a kubelet that has begun to end it ignores a
    shorter time."""
    until = pod["metadata"].get("deletionTimestamp")
    if until is None:
        return ""
    return (
        f"it is being deleted, and has until {until} to end; on its node, crictl stop --timeout=0 "
        f"with the id of its container {_CONTAINER} ends it at once"
    )


def why_not_running(pod: dict[str, Any]) -> str:
    """Why the agent's container does not run, "" if it does."""
    status = pod.get("status", {})
    for each in status.get("containerStatuses") or ():
        if each.get("name") != _CONTAINER:
            continue
        for state in ("waiting", "terminated"):
            if found := each.get("state", {}).get(state):
                return f"{found.get('reason', state)} {found.get('message', '')}".strip()
        return ""
    return f"phase {status.get('phase', 'unknown')}"


def agent_of(kubectl: tuple[str, ...], namespace: str, pod: dict[str, Any]) -> Agent:
    """The agent in a pod, which is an object of the API server."""
    node = pod.get("spec", {}).get("nodeName", "")
    port = _http_port(pod, _CONTAINER) or AGENT_PORT
    return Agent(kubectl, namespace, pod["metadata"]["name"], node, port)


def _http_port(pod: dict[str, Any], name: str) -> int | None:
    for container in pod.get("spec", {}).get("containers") or ():
        for port in container.get("ports") or ():
            if (container.get("name"), port.get("name")) == (name, "http"):
                return int(port["containerPort"])
    return None


def _why_no_pod(kubectl: Sequence[str], node: str, namespace: str) -> str:
    # Not every caller may read Nodes.
    with contextlib.suppress(RemoteError):
        if not kubectl_output(
            kubectl, "get", "node", node, "--ignore-not-found", "-o", "name"
        ).strip():
            return f"node {node} does not exist"
    return (
        f"no agent runs on node {node}: no pod with {SELECTOR} in namespace {namespace}. Is it "
        "installed in another one (-n), or does the DaemonSet select other nodes?"
    )


def command_line(
    command: str, arguments: argparse.Namespace, kind: type[Options], *flags: str
) -> list[str]:
    """The subcommand with `flags` and with the options of `kind` that the caller gave."""
    given = [
        f"--{encoded}={value}"
        for name, encoded in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        if (value := getattr(arguments, name, None)) is not None
    ]
    return ["topolet", command, *flags, *given]


def run(agent: Agent, command: Sequence[str], *, terminal: bool = False) -> int:
    """Runs a command in the agent's container, with the caller's standard output and error. Returns
    its exit code, 2 if kubectl failed.

    `terminal`: the command draws on the caller's terminal."""
    exec_ = _exec(agent)
    if terminal and sys.stdin.isatty() and sys.stdout.isatty():
        return subprocess.run([*exec_, "-it", "--", *command], check=False).returncode
    # The command in the pod does not know the caller's terminal.
    width = columns(0)
    words = [*exec_, "--", *(["env", f"COLUMNS={width}"] if width else []), *command]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    error, code = _result(done.returncode, done.stderr)
    sys.stderr.write(printable_lines(error))
    return code


def output_of(agent: Agent, command: Sequence[str], max_bytes: int) -> tuple[int, bytes]:
    """Runs a command in the agent's container. Returns the exit code, as `run` does, and the
    standard output. Raises RemoteError for an output of more than `max_bytes`."""
    code, output, error = captured(agent, command, max_bytes)
    sys.stderr.write(printable_lines(error))
    return code, output


def captured(
    agent: Agent, command: Sequence[str], max_bytes: int, seconds: float | None = None
) -> tuple[int, bytes, str]:
    """The exit code, standard output and standard error of a command, as `output_of` runs it.

    Raises RemoteError also after `seconds`."""
    with tempfile.TemporaryFile() as errors:
        words = [*_exec(agent), "--", *command]
        late = threading.Event()
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors) as running:

            def end() -> None:
                late.set()
                running.kill()

            timer = threading.Timer(seconds, end) if seconds else None
            if timer:
                timer.start()
            try:
                output = running.stdout.read(max_bytes + 1) if running.stdout else b""
                if len(output) > max_bytes:
                    running.kill()
                running.wait()
            finally:
                if timer:
                    timer.cancel()
        problem = f"writes more than {max_bytes} bytes" if len(output) > max_bytes else ""
        if late.is_set():
            problem = f"has not ended after {seconds:g} s"
        if problem:
            title = f"pod {agent.namespace}/{agent.pod}: {' '.join(command[:2])}"
            raise RemoteError(f"{title} {problem}")
        errors.seek(0)
        error = errors.read(_MAX_ERROR_BYTES).decode(errors="replace")
    text, code = _result(running.returncode, error)
    return code, output, text


def examine(agent: Agent, seconds: float) -> NodeExamination:
    """Runs `topolet doctor` in the agent's container. Raises RemoteError, also after `seconds`."""
    command = ("topolet", "doctor", "--output=json")
    code, output, error = captured(agent, command, _MAX_EXAMINATION_BYTES, seconds)
    return examination(output, code, error)


def logs(agent: Agent, lines: int) -> dict[str, str]:
    """The last lines of the log of the agent's container and of its previous instance, by file
    name; without a log that kubectl does not return."""
    found = {}
    command = ("logs", "-n", agent.namespace, agent.pod, "-c", _CONTAINER)
    limits = (f"--tail={lines}", f"--limit-bytes={_MAX_LOG_BYTES}")
    for name, flags in (("agent.log", ()), ("agent.previous.log", ("--previous",))):
        with contextlib.suppress(RemoteError):
            found[name] = kubectl_output(agent.kubectl, *command, *limits, *flags)
    return found


def _exec(agent: Agent) -> list[str]:
    return [*agent.kubectl, "exec", "-n", agent.namespace, agent.pod, "-c", _CONTAINER]


def _result(kubectl_code: int, error: str) -> tuple[str, int]:
    """kubectl's standard error without the line that kubectl adds, and the exit code of the command
    that kubectl ran, 2 if kubectl itself failed."""
    text, command_failed = _REMOTE_CODE.subn("", error)
    if not command_failed and kubectl_code:
        text = _KLOG.sub("", text) or text
    return text, kubectl_code if command_failed or kubectl_code == 0 else 2


def kubectl_output(kubectl: Sequence[str], *words: str) -> str:
    """The standard output of kubectl with these arguments. Raises RemoteError, also for a call that
    takes longer than KUBECTL_SECONDS."""
    try:
        done = subprocess.run(
            [*kubectl, *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=KUBECTL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RemoteError(f"kubectl {words[0]} takes longer than {KUBECTL_SECONDS:g} s") from None
    if done.returncode:
        error = _KLOG.sub("", done.stderr).strip() or done.stderr.strip()
        raise RemoteError(f"kubectl {words[0]} {words[1]}: {error}")
    return done.stdout


def run_on_node(
    command: str,
    arguments: argparse.Namespace,
    kind: type[Options],
    *flags: str,
) -> int:
    """Runs the subcommand in the agent's pod on `arguments.node`, with the options of `kind` that
    the caller gave. Returns its exit code; writes the reason and returns 2 if it can't run."""
    try:
        agent = find_agent(arguments)
    except RemoteError as error:
        return options.fail(error, 2)
    return run(agent, command_line(command, arguments, kind, *flags))
