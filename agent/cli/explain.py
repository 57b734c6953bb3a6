"""Explain which nodes have room for a pod, which one it gets and why, and what has to change where
it gets none.

POD is the name of a pod, or a file (.yaml, .yml, .json) with a pod or a workload. The cluster is in
the files of --objects, as `kubectl get -o yaml` writes them: nodes, pods -A,
noderesourcetopologies, devices, and, if they exist, reservations and poddisruptionbudgets.

Exit code 0: the pod gets a node; 1: it gets none; 2: it can't be explained.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence

from agent.cli import options
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kube.objects import Object, ObjectKey
from agent.model import explanation
from agent.model.apiobjects import ApiPod
from agent.model.cpu.policies import Strategy
from agent.model.explanation import Explanation, Explanations
from agent.model.objects import ObjectError
from agent.model.settings.options import SettingsError
from agent.model.settings.scheduler import ExplainSettings
from agent.view import explanation as words
from agent.view import format

SETTINGS = ExplainSettings
_FILES = (".yaml", ".yml", ".json")


class ExplainError(RuntimeError):
    """The question can't be answered; the message is the reason."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", nargs="?", metavar="POD", help="name of a pod, or a file with one")
    parser.add_argument("-n", "--namespace", default="default", help="namespace of the pod")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument(
        "--objects", metavar="FOLDER", help="folder, or file, with saved objects of the cluster"
    )
    parser.add_argument(
        "--what-if",
        action="store_true",
        help="as if the pod were not there yet: without its node, CPUs and devices",
    )
    parser.add_argument(
        "--what-if-drained",
        action="append",
        default=[],
        metavar="NODE",
        help="as if the node were drained; without POD: explain each pod that the drain evicts",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        found = _offline(arguments, settings)
    except (SettingsError, ExplainError, DocumentError, ObjectError, OSError) as error:
        return options.fail(error, 2)
    try:
        _write(found, arguments.output)
    except OSError as error:
        return format.unwritten("explain", error)
    return 0 if all(each.winner for each in found) else 1


def _write(found: Sequence[Explanation], output: str) -> None:
    if output == "json":
        print(explanation.encode(Explanations(tuple(found))).decode(), flush=True)
        return
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
    print(
        format.encodable("\n".join(words.draw(each, width) for each in found)), end="", flush=True
    )


def _offline(arguments: argparse.Namespace, settings: ExplainSettings) -> Sequence[Explanation]:
    """Raises ExplainError, SettingsError, DocumentError, ObjectError and OSError."""
    from agent.scheduler import process
    from agent.scheduler.explain.explainer import Explainer
    from agent.scheduler.explain.saved import SavedCluster

    if not arguments.objects:
        raise ExplainError("--objects: a folder or file with saved objects is missing")
    agents = process.agent_selector(settings)
    args = process.scheduler_args(settings.scheduler_args_file)
    rules = process.allocator_rules(args, Strategy(settings.gpu_shares))
    saved = SavedCluster(documents.saved_objects(arguments.objects), agents, rules)
    for problem in saved.problems:
        print(f"topolet: {problem}", file=sys.stderr)
    drained = arguments.what_if_drained
    for name in drained:
        if saved.cluster.node(name) is None:
            raise ExplainError(f"node {name} is not among the saved objects")
    pods = _pods(arguments, saved.pods)
    explainer = Explainer(saved.cluster, settings.scheduler_name, budgets=saved.budgets, names=True)
    return explainer.explain_all(pods, drained)


def _pods(arguments: argparse.Namespace, saved: dict[ObjectKey, Object]) -> list[ApiPod]:
    """The pods to explain."""
    from agent.scheduler.explain.saved import drained_pods, saved_pod

    namespace, new = arguments.namespace, arguments.what_if
    if arguments.pod is None:
        if not arguments.what_if_drained:
            raise ExplainError("POD is missing")
        return [
            saved_pod(each, namespace, new=True)
            for node in arguments.what_if_drained
            for each in drained_pods(saved.values(), node)
        ]
    if arguments.pod.endswith(_FILES):
        found = documents.saved_objects(arguments.pod)
        return [saved_pod(each, namespace, new=new) for each in found]
    pod = saved.get(ObjectKey(namespace, arguments.pod))
    if pod is None:
        raise ExplainError(f"pod {namespace}/{arguments.pod} is not among the saved objects")
    return [saved_pod(pod, namespace, new=new)]
