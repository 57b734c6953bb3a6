"""Explain which nodes have room for a pod, which node it gets and why, and, if it gets none, what
has to change.

POD is the name of a pod, or a file (.yaml, .yml, .json) with a pod or a workload. The command sends
its request to the scheduler through the API server, with the rights of the caller: --kubeconfig,
else $KUBECONFIG, ~/.kube/config, or the service account of the pod. It names other pods and
PodDisruptionBudgets if the caller may list them, in all namespaces or in the namespace of the pod.
It says which CPUs the pod's ResourceClaims have, if the caller may get them. With --objects it
reads the cluster from files instead, as `kubectl get -o yaml` writes them: nodes, pods -A,
noderesourcetopologies, devices, and, if they exist, reservations, poddisruptionbudgets and
resourceclaims.

With --place it prints where the pod's containers run on its node, why not nearer to their devices,
and which CPUs its ResourceClaims have, or why they have none. That needs no scheduler: on the node
the files of the agent say it, elsewhere kubectl asks the agent's pod there, with the rights of the
caller.

With --now it looks twice at everything that runs on the pod's node, and prints in one sentence how
long the pod waited for CPUs in between and who had them, and in further ones who presses on its
memory or disks or shares its cores. If the pod owns CPUs, it then lists all that still ran there:
tasks of others, threads and interrupts of the kernel, interrupts of devices, and timers, with the
feature of --quiet that would take each away, or why nothing can. That needs no scheduler either.

With --values it prints each file of the pod's cgroups that has a value of Topolet, and what decides
about it: the strategy or annotation, where that comes from, and what it says; and whether the agent
may evict the pod. It asks as --now.

With the word node and a resource (`topolet explain node batch-cpu`) it prints how the agent of this
node computed how much of it the node offers; `topolet explain node strategies` prints Koordinator's
strategies that the agent of this node follows, and where each one comes from, and `topolet explain
node colocation` what it does by them, why BE pods have the CPU that they have, and which pod would
be evicted next; `topolet explain node dra` prints the devices that the agent of this node has for
ResourceClaims, which claims have their CPUs, and why something is not offered or not given.
`topolet explain node quiet` prints what leaves the CPUs of owners, and then, as --now, all that
still ran on the CPUs of each owner; those that ask for quiet CPUs are the first.

Exit code 0: the pod gets a node, or its place is known; 1: it gets none; 2: it can't be explained.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from agent.cli import options
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kube.errors import NotFoundError, StoreError
from agent.kube.objects import Object, ObjectKey
from agent.kube.transport import ResponseLimits
from agent.model import explanation
from agent.model.bounds import JsonError
from agent.model.explanation import Explanation, Explanations
from agent.model.objects import ObjectError
from agent.model.pod.apiobjects import from_object
from agent.model.settings.options import SettingsError
from agent.model.settings.scheduler import ExplainSettings
from agent.view import explanation as explanation_view
from agent.view import format

if TYPE_CHECKING:
    from agent.view.disturbers import DisturbedOwner
    from agent.view.dra import ShownDra
    from agent.view.evictions import ShownEvictions

USAGE = "topolet explain [OPTIONS] [POD | node RESOURCE]"
SETTINGS = ExplainSettings
_FILES = (".yaml", ".yml", ".json")
_LIMITS = ResponseLimits(read_seconds=30.0)
"""The scheduler sends the first byte of an explanation after up to 8 s."""


class ExplainError(RuntimeError):
    """The pod can't be explained; the message is the reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", nargs="?", metavar="POD", help="name of a pod, or a file with one")
    parser.add_argument(
        "resource",
        nargs="?",
        metavar="RESOURCE",
        help="after the word node: why this node offers so much of it, as batch-cpu or mid-memory; "
        "or the word strategies, colocation, quiet or dra",
    )
    parser.add_argument("-n", "--namespace", default="default", help="namespace of the pod")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument(
        "--objects", metavar="FOLDER", help="folder, or file, with saved objects of the cluster"
    )
    parser.add_argument(
        "--what-if",
        action="store_true",
        help="as if the pod did not exist yet: without its node, CPUs and devices",
    )
    parser.add_argument(
        "--what-if-drained",
        action="append",
        default=[],
        metavar="NODE",
        help="as if the node were drained; without POD: explain each pod that the drain evicts",
    )
    parser.add_argument(
        "--place",
        nargs="?",
        const="anywhere",
        choices=("anywhere", "here"),
        help="where the containers of the pod run on its node; here: only if it is this node",
    )
    parser.add_argument(
        "--now",
        nargs="?",
        const="anywhere",
        choices=("anywhere", "here"),
        help="who disturbs the pod now: takes its CPUs, presses on its memory or disks, shares its "
        "cores, or runs on CPUs that it owns; here: only if it is this node",
    )
    parser.add_argument(
        "--values",
        nargs="?",
        const="anywhere",
        choices=("anywhere", "here"),
        help="what Topolet has set in the cgroups of the pod, by which strategy or annotation; "
        "here: only if it is this node",
    )
    parser.add_argument(
        "--context",
        metavar="NAME",
        help="with --place, --now and --values: context of the kubeconfig",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        if arguments.resource:
            return _resource(arguments, settings)
        if arguments.place:
            return _place(arguments, settings)
        if arguments.now:
            return _now(arguments, settings)
        if arguments.values:
            return _values(arguments, settings)
        found = (_offline if arguments.objects else _online)(arguments, settings)
    except (
        SettingsError,
        ExplainError,
        DocumentError,
        ObjectError,
        StoreError,
        OSError,
    ) as error:
        return options.fail(error, 2)
    try:
        _write(found, arguments.output)
    except OSError as error:
        return format.unwritten("explain", error)
    return 0 if all(each.winner for each in found) else 1


def _resource(arguments: argparse.Namespace, settings: ExplainSettings) -> int:
    """Prints how a resource of this node was computed. Returns the exit code. Raises
    ExplainError and OSError."""
    from agent.usage import OFFERED_FILE, offered
    from agent.view import offered as offered_view

    if arguments.pod != "node":
        raise ExplainError(
            f"{arguments.resource} follows no pod: write `node {arguments.resource}`"
        )
    if arguments.resource in _OF_NODE:
        return _OF_NODE[arguments.resource](arguments, settings)
    path = os.path.join(settings.state_dir, OFFERED_FILE)
    try:
        shown = offered_view.explained(offered.read(path), arguments.resource, time.time())
    except FileNotFoundError:
        shown = None
    except JsonError as error:
        raise ExplainError(f"{path}: {error}") from None
    if shown is None:
        raise ExplainError(
            f"the agent of this node offers no {arguments.resource}: it does with --usage and "
            "--batch-resources=offer, unless koord-manager does or the Node's annotation forbids it"
        )
    draw = offered_view.as_json if arguments.output == "json" else offered_view.as_text
    return _printed(draw(shown))


def _strategies(arguments: argparse.Namespace, settings: ExplainSettings) -> int:
    """Prints the strategies that are in force. Returns the exit code. Raises ExplainError and
    OSError."""
    from agent.usage import STRATEGIES_FILE, strategies
    from agent.view import strategies as strategies_view

    path = os.path.join(settings.state_dir, STRATEGIES_FILE)
    try:
        in_force = strategies.read(path)
    except FileNotFoundError:
        raise ExplainError(
            "the agent of this node follows no strategies: it does with --usage and "
            "--node-slo=follow"
        ) from None
    except JsonError as error:
        raise ExplainError(f"{path}: {error}") from None
    draw = strategies_view.as_json if arguments.output == "json" else strategies_view.as_text
    return _printed(draw(in_force))


def _colocation(arguments: argparse.Namespace, settings: ExplainSettings) -> int:
    """Prints what colocation does. Returns the exit code. Raises ExplainError and OSError."""
    from agent.usage import COLOCATION_FILE
    from agent.view import colocation

    path = os.path.join(settings.state_dir, COLOCATION_FILE)
    try:
        shown = colocation.read(path)
    except FileNotFoundError:
        raise ExplainError(
            "the agent of this node follows no strategy: it does with --usage, --node-slo=follow "
            "and --colocation=act or observe"
        ) from None
    except JsonError as error:
        raise ExplainError(f"{path}: {error}") from None
    shown = msgspec.structs.replace(shown, evictions=_evictions(settings))
    draw = colocation.as_json if arguments.output == "json" else colocation.as_text
    return _printed(draw(shown))


def _quiet(arguments: argparse.Namespace, settings: ExplainSettings) -> int:
    """Prints what leaves the CPUs of owners, and what still runs there. Returns the exit code.
    Raises ExplainError and OSError."""
    from agent.cgroup.hierarchy import CgroupError
    from agent.node import contention, disturbers
    from agent.rpc.grpc import RpcError
    from agent.usage import QUIET_FILE
    from agent.view import disturbers as view
    from agent.view import quiet

    path = os.path.join(settings.state_dir, QUIET_FILE)
    shown = None
    try:
        shown = quiet.read(path)
    except FileNotFoundError:
        pass
    except JsonError as error:
        raise ExplainError(f"{path}: {error}") from None
    disturbed: tuple[DisturbedOwner, ...] = ()
    unseen = ""
    try:
        disturbed = disturbers.disturbed_now(settings, shown, contention.NOW_SECONDS)
    except (CgroupError, RpcError) as error:
        unseen = str(error)
    if shown is None and not (disturbed or unseen):
        raise ExplainError(
            "the agent of this node quiets no CPUs: it does with --quiet=act or observe"
        )
    now = view.quiet_now(shown, disturbed, unseen)
    return _printed(quiet.as_json(now) if arguments.output == "json" else view.as_text(now))


def _dra(arguments: argparse.Namespace, settings: ExplainSettings) -> int:
    """Prints what the DRA driver offers and has given. Returns the exit code. Raises ExplainError
    and OSError."""
    from agent.view import dra

    shown = _dra_file(settings)
    if shown is None:
        raise ExplainError("the agent of this node is no DRA driver: it is one with --dra")
    return _printed((dra.as_json if arguments.output == "json" else dra.as_text)(shown))


_OF_NODE: Final[Mapping[str, Callable[[argparse.Namespace, ExplainSettings], int]]] = {
    "strategies": _strategies,
    "colocation": _colocation,
    "quiet": _quiet,
    "dra": _dra,
}


def _dra_file(settings: ExplainSettings) -> ShownDra | None:
    """What the DRA driver tells; None if the agent is none. Raises ExplainError and OSError."""
    from agent.model.dra.names import SHOWN_FILE
    from agent.view import dra

    path = os.path.join(settings.state_dir, SHOWN_FILE)
    try:
        return dra.read(path)
    except FileNotFoundError:
        return None
    except JsonError as error:
        raise ExplainError(f"{path}: {error}") from None


def _evictions(settings: ExplainSettings) -> ShownEvictions | None:
    """What the agent tells of evictions; None if it tells nothing. Raises ExplainError and
    OSError."""
    from agent.usage import EVICTIONS_FILE
    from agent.view import evictions

    path = os.path.join(settings.state_dir, EVICTIONS_FILE)
    try:
        return evictions.read(path)
    except FileNotFoundError:
        return None
    except JsonError as error:
        raise ExplainError(f"{path}: {error}") from None


def _printed(text: str) -> int:
    """Prints a result. Returns the exit code."""
    try:
        print(format.encodable(text), end="", flush=True)
    except OSError as error:
        return format.unwritten("explain", error)
    return 0


def _place(arguments: argparse.Namespace, settings: ExplainSettings) -> int:
    """Prints the place of a pod's containers. Returns the exit code. Raises ExplainError."""
    from agent.cli.devices import read_snapshot
    from agent.model.snapshot import SnapshotError
    from agent.view import dra as dra_view
    from agent.view import place

    title = _running_pod(arguments, "--place")
    try:
        claims: tuple[str, ...] = ()
        if (dra := _dra_file(settings)) is not None:
            claims = dra_view.of_pod(dra, title)
        shown = place.shown(read_snapshot(settings.state_dir), title)
        if shown is None and claims:
            shown = place.PodOnNode(title, ())  # it waits for its claims
        if shown is not None:
            shown = msgspec.structs.replace(shown, claims=claims)
            draw = place.as_json if arguments.output == "json" else place.as_text
            print(format.encodable(draw(shown)), end="", flush=True)
            return 0
        reason = f"the agent of this node does not know pod {title}"
    except SnapshotError as error:
        reason = str(error)
    except OSError as error:
        return format.unwritten("explain", error)
    if arguments.place == "here":
        raise ExplainError(reason)
    return _on_its_node(arguments, settings, "--place")


def _now(arguments: argparse.Namespace, settings: ExplainSettings) -> int:
    """Prints who disturbs a pod. Returns the exit code. Raises ExplainError."""
    from agent.cgroup.hierarchy import CgroupError
    from agent.discover.sysfs import DiscoveryError
    from agent.node import contention
    from agent.rpc.grpc import RpcError
    from agent.view import contention as contention_view

    title = _running_pod(arguments, "--now")
    try:
        disturbance = contention.disturbance_now(settings, title)
        reason = f"the runtime of this node has no pod {title}"
    except (CgroupError, DiscoveryError, RpcError) as error:
        disturbance, reason = None, str(error)
    if disturbance is None and arguments.now == "here":
        raise ExplainError(reason)
    if disturbance is None:
        return _on_its_node(arguments, settings, "--now")
    json = arguments.output == "json"
    draw = contention_view.as_json if json else contention_view.as_text
    try:
        print(format.encodable(draw(disturbance)), end="", flush=True)
    except OSError as error:
        return format.unwritten("explain", error)
    return 0


def _values(arguments: argparse.Namespace, settings: ExplainSettings) -> int:
    """Prints what Topolet has set in a pod's cgroups. Returns the exit code. Raises ExplainError
    and OSError."""
    from agent.cgroup.hierarchy import CgroupError
    from agent.node.colocation import pod_values
    from agent.rpc.grpc import RpcError
    from agent.view import evictions as evictions_view
    from agent.view import pod_values as pod_values_view

    title = _running_pod(arguments, "--values")
    try:
        values = pod_values.values_now(settings, title)
        reason = f"the runtime of this node has no pod {title}"
    except (CgroupError, JsonError, RpcError) as error:
        values, reason = None, str(error)
    if values is None and arguments.values == "here":
        raise ExplainError(reason)
    if values is None:
        return _on_its_node(arguments, settings, "--values")
    if (evictions := _evictions(settings)) is not None:
        of_pod = evictions_view.of_pod(evictions, title)
        values = msgspec.structs.replace(values, evictions=of_pod)
    json = arguments.output == "json"
    return _printed((pod_values_view.as_json if json else pod_values_view.as_text)(values))


def _running_pod(arguments: argparse.Namespace, flag: str) -> str:
    """The title of the pod. Raises ExplainError."""
    if arguments.pod is None or arguments.objects or arguments.what_if_drained:
        raise ExplainError(f"{flag} needs the name of one pod that runs")
    return f"{arguments.namespace}/{arguments.pod}"


def _on_its_node(arguments: argparse.Namespace, settings: ExplainSettings, flag: str) -> int:
    """Runs the command in the agent's pod on the pod's node. Returns the exit code. Raises
    ExplainError."""
    from agent.cli import remote

    try:
        kubectl = remote.kubectl_of(arguments, flag)
        words = ("get", "pod", arguments.pod, "-n", arguments.namespace)
        node = remote.kubectl_output(kubectl, *words, "-o", "jsonpath={.spec.nodeName}").strip()
        if not node:
            raise ExplainError(f"pod {arguments.namespace}/{arguments.pod} has no node")
        at = argparse.Namespace(
            node=node, namespace=settings.release_namespace, context=arguments.context
        )
        agent = remote.find_agent(at)
    except remote.RemoteError as error:
        raise ExplainError(str(error)) from None
    flags = (f"--namespace={arguments.namespace}", f"--output={arguments.output}", f"{flag}=here")
    return remote.run(agent, ["topolet", "explain", *flags, arguments.pod])


def _write(found: Sequence[Explanation], output: str) -> None:
    if output == "json":
        text = explanation.encode(Explanations(tuple(found))).decode()
        print(format.printable_json(text), flush=True)
        return
    if not found:
        print("No pod would have to move.", flush=True)
        return
    width = format.columns(100)
    if len(found) == 1:
        text = explanation_view.draw(found[0], width)
    else:
        text = explanation_view.overview(found, width)
    print(format.encodable(text), end="", flush=True)


def _offline(arguments: argparse.Namespace, settings: ExplainSettings) -> Sequence[Explanation]:
    """Raises ExplainError, SettingsError, DocumentError, ObjectError and OSError."""
    from agent.scheduler.explain.explainer import Explainer, by_title
    from agent.scheduler.explain.saved import SavedCluster
    from agent.scheduler.rules import agent_selector, rules_of

    objects = documents.saved_objects(arguments.objects)
    saved = SavedCluster(objects, agent_selector(settings), rules_of(settings))
    for problem in saved.problems:
        options.fail(DocumentError(problem))
    drained = arguments.what_if_drained

    def pod_named(name: str) -> Object:
        pod = saved.pods.get(ObjectKey(arguments.namespace, name))
        if pod is None:
            raise ExplainError(f"pod {arguments.namespace}/{name} is not among the saved objects")
        return pod

    explainer = Explainer(saved.cluster, settings.scheduler_name, budgets=saved.budgets)
    if unknown := explainer.unknown(drained):
        raise ExplainError(f"node {unknown[0]} is not among the saved objects")

    def claim_named(namespace: str, name: str) -> bytes:
        claim = saved.claims.get(ObjectKey(namespace, name))
        if claim is None:
            raise NotFoundError("it is not among the saved objects")
        return documents.as_json(claim)

    pods = _pods(arguments, pod_named, lambda node: list(saved.pods.values()))
    explanations = explainer.explain_all(map(from_object, pods), drained, name=by_title)
    return _with_claims(arguments, explanations, pods, claim_named)


def _online(arguments: argparse.Namespace, settings: ExplainSettings) -> Sequence[Explanation]:
    """Raises ExplainError, DocumentError, ObjectError, OSError and StoreError."""
    from agent.kube import objects
    from agent.kube.transport import Transport
    from agent.scheduler.explain import endpoint

    access = options.caller_access(settings.kubeconfig)
    transport = Transport(access, user_agent="topolet-explain", limits=_LIMITS)

    def pod_named(name: str) -> Object:
        path = objects.pod_path(arguments.namespace, name)
        return {"kind": "Pod", **documents.from_json(transport.get(path))}

    def pods_of(node: str) -> list[Object]:
        query = {"fieldSelector": f"spec.nodeName={node}"}
        path = objects.path("", "v1", objects.POD.plural)
        items = documents.from_json(transport.get(path, query)).get("items") or []
        return [{"kind": "Pod", **each} for each in items]

    try:
        pods = _pods(arguments, pod_named, pods_of)
        if not pods:
            return ()
        explanations = endpoint.request_explanations(
            transport,
            settings.release_namespace,
            pods,
            arguments.what_if_drained,
        )
        return _with_claims(
            arguments,
            explanations,
            pods,
            lambda namespace, name: transport.get(objects.claim_path(namespace, name)),
        )
    finally:
        transport.close()


def _with_claims(
    arguments: argparse.Namespace,
    explanations: Sequence[Explanation],
    pods: Sequence[Object],
    claim_named: Callable[[str, str], bytes],
) -> Sequence[Explanation]:
    """Adds what the claims of a pod that exists have.

    `claim_named`: raises StoreError and DocumentError."""
    from agent.model.dra import claim_devices
    from agent.view import dra

    if arguments.pod is None or _is_file(arguments.pod) or arguments.what_if:
        return explanations
    (explained,), pod = explanations, from_object(pods[0])
    sentences: list[str] = []
    for name in dict.fromkeys(use.claim for use in pod.claims):
        try:
            claim = claim_devices.decode(claim_named(pod.namespace, name))
        except (DocumentError, ObjectError, StoreError) as error:
            sentences.append(f"claim {pod.namespace}/{name} can't be read: {error}")
        else:
            sentences += dra.of_status(claim)
    return [msgspec.structs.replace(explained, claims=tuple(sentences))]


def _is_file(pod: str) -> bool:
    return pod.endswith(_FILES) or "/" in pod


def _pods_in(path: str, namespace: str, new: bool) -> Iterator[Object]:
    """The pods of a file; a warning names its other objects.

    Raises ExplainError for a file without pods."""
    from agent.scheduler.explain.saved import pod_object

    has_pod = False
    for stored in documents.saved_objects(path):
        try:
            pod = pod_object(stored, namespace, new=new)
        except DocumentError as error:
            options.fail(DocumentError(f"{path}: {error}"))
            continue
        has_pod = True
        yield pod
    if not has_pod:
        raise ExplainError(f"{path}: has no pod and no workload")


def _pods(
    arguments: argparse.Namespace,
    pod_named: Callable[[str], Object],
    pods_of: Callable[[str], Iterable[Object]],
) -> list[Object]:
    """The pods to explain. `pods_of` returns all pods of a node."""
    from agent.scheduler.explain.saved import drained_pods, pod_object

    namespace, new = arguments.namespace, arguments.what_if
    if arguments.pod is None:
        if not arguments.what_if_drained:
            raise ExplainError("POD is missing")
        return [
            pod_object(pod, namespace, new=True)
            for node in arguments.what_if_drained
            for pod in drained_pods(pods_of(node), node)
        ]
    if _is_file(arguments.pod):
        return list(_pods_in(arguments.pod, namespace, new))
    return [pod_object(pod_named(arguments.pod), namespace, new=new)]
