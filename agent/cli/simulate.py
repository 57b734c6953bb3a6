"""Place the pods of a trace on the nodes of a trace with the scheduler's own code, and show how
much of the GPUs is allocated.

Both files are CSV. Nodes: cpu_milli, memory_mib, gpu, model. Pods: cpu_milli, memory_mib, num_gpu,
gpu_milli (of one GPU), and, if it exists, gpu_spec (the allowed models, separated by |). All pods
of the trace arrive in random order, followed by pods drawn from it at random, until together they
request --load times all GPUs; the seeds are 42, 43, ... With --departures pods leave too.

With --from-cluster or --objects the command places no pods: it shows what the cluster loses to
fragmentation, what rebinds would gain, and with --pod how many more pods like that one fit. It
reads the objects with the rights of the caller (--kubeconfig, else $KUBECONFIG, ~/.kube/config, or
the service account of the pod), or from files as `kubectl get -o yaml` writes them: nodes, pods -A,
noderesourcetopologies, devices, and, if they exist, reservations.

Exit code 0: done; 2: a file or the cluster can't be read, a file can't be written, or an argument
is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agent.cli import options
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kube.errors import StoreError
from agent.kube.objects import Object
from agent.model.cpu.policies import PlacementPolicy
from agent.model.objects import ObjectError
from agent.model.pod.apiobjects import ApiPod, from_object
from agent.model.settings.options import SettingsError
from agent.model.settings.scheduler import ExplainSettings
from agent.view import format
from agent.view import fragmentation as fragmentation_view

if TYPE_CHECKING:
    from agent.model.pod_request import PodKind
    from agent.scheduler.simulation import OccupancyResult, PolicyResult, SeedSpread, TraceNode

USAGE = "topolet simulate [--nodes CSV --pods CSV | --from-cluster | --objects PATH] [OPTIONS]"
SETTINGS = ExplainSettings
_TITLES: Final = {
    "alloc_pct_at_100": "allocated at 100 %",
    "alloc_pct_at_130": "allocated at 130 %",
    "frag_pct_at_100": "fragmented at 100 %",
    "alloc_pct_mean": "allocated, % over time",
    "queued_pods_mean": "pods in the queue",
    "longest_wait_lifetimes": "longest wait, lifetimes",
}
_MAX_LOAD: Final = 10.0
_MAX_SEEDS: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", metavar="CSV", help="the nodes of a trace")
    parser.add_argument("--pods", metavar="CSV", help="the pods of a trace")
    parser.add_argument(
        "--from-cluster", action="store_true", help="show the fragmentation of the cluster"
    )
    parser.add_argument(
        "--objects",
        metavar="PATH",
        help="show the fragmentation of a cluster whose objects are saved in this folder or file",
    )
    parser.add_argument(
        "--pod", metavar="FILE", help="count how many more pods like the one in this file fit"
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=[each.value for each in PlacementPolicy],
        help=f"placement policy; may be repeated ({PlacementPolicy.RESIDUAL})",
    )
    parser.add_argument(
        "--load",
        type=_load,
        default=1.3,
        help="GPUs that all pods together request, as a multiple of the GPUs that exist (1.3)",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=1,
        metavar="N",
        help="number of runs, with the seeds 42, 43, ... (1)",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--departures",
        action="store_true",
        help="pods also leave, and pods that do not fit wait; the result is an average over time, "
        "and --load is the mean load of the pods that have not left",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    from_traces = bool(arguments.nodes and arguments.pods)
    if from_traces + bool(arguments.from_cluster) + bool(arguments.objects) != 1:
        text = "give either --nodes and --pods, or --from-cluster, or --objects"
        return options.fail(ValueError(text), 2)
    return _run_traces(arguments) if from_traces else _run_fragmentation(arguments)


def _run_fragmentation(arguments: argparse.Namespace) -> int:
    from agent.model.pod_request import PodRequestError
    from agent.scheduler import fragmentation
    from agent.scheduler.explain.saved import SavedCluster
    from agent.scheduler.rules import agent_selector, rules_of

    try:
        settings = options.load(arguments, SETTINGS)
        rules = rules_of(settings)
        sample = _sample(arguments.pod) if arguments.pod else None
        objects = (
            documents.saved_objects(arguments.objects)
            if arguments.objects
            else _objects_of_cluster(settings)
        )
        saved = SavedCluster(objects, agent_selector(settings), rules)
        for problem in saved.problems:
            options.fail(DocumentError(problem))
        progress = format.Progress(sys.stderr, 1)
        pods = _decodable(saved.pods.values())
        found = fragmentation.fragmentation(saved.cluster, pods, sample, progress.part)
        progress.done("fragmentation")
    except (
        SettingsError,
        DocumentError,
        ObjectError,
        PodRequestError,
        StoreError,
        OSError,
    ) as error:
        return options.fail(error, 2)
    try:
        if arguments.output == "json":
            print(format.printable_json(msgspec.json.encode(found).decode()), flush=True)
        else:
            print(
                format.encodable(fragmentation_view.draw(found, format.columns(100))),
                end="",
                flush=True,
            )
    except OSError as error:
        return format.unwritten("simulate", error)
    return 0


def _sample(path: str) -> ApiPod:
    """Raises DocumentError, ObjectError and OSError."""
    from agent.scheduler.explain.saved import pod_object

    found = [pod_object(each, "default", new=True) for each in documents.saved_objects(path)]
    if len(found) != 1:
        raise DocumentError(f"{path}: has {len(found)} objects, not one")
    return from_object(found[0])


def _decodable(pods: Iterable[Object]) -> Iterator[ApiPod]:
    """Pods that can't be decoded are left out: SavedCluster has reported them."""
    for pod in pods:
        with contextlib.suppress(ObjectError):
            yield from_object(pod)


def _objects_of_cluster(settings: ExplainSettings) -> Iterator[Object]:
    """The cluster's objects, without kinds that it does not serve. Raises DocumentError, OSError
    and StoreError."""
    from agent.kube import objects, wire
    from agent.kube.transport import Transport

    access = options.caller_access(settings.kubeconfig)
    transport = Transport(access, user_agent="topolet-simulate")
    discovery = objects.Discovery(transport)
    try:
        for kind in (
            objects.NODE,
            objects.POD,
            objects.TOPOLOGY,
            objects.DEVICE,
            objects.RESERVATION,
        ):
            if (version := discovery.version(kind)) is not None:
                path = objects.path(kind.group, version, kind.plural)
                listed = wire.listed(path, {}, transport.get, bytes)
                for item in listed.found:
                    api = f"{kind.group}/{version}".lstrip("/")
                    yield {"apiVersion": api, **documents.from_json(item), "kind": kind.name}
    finally:
        transport.close()


def _run_traces(arguments: argparse.Namespace) -> int:
    from agent.scheduler import simulation

    try:
        nodes = simulation.read_nodes(_lines(arguments.nodes), arguments.nodes)
        pods = simulation.read_pods(_lines(arguments.pods), arguments.pods)
    except (simulation.TraceError, OSError) as error:
        return options.fail(error, 2)
    results = _simulate(nodes, pods, arguments)
    try:
        _write(results, arguments.output)
    except OSError as error:
        return format.unwritten("simulate", error)
    return 0


def _simulate(
    nodes: Sequence[TraceNode], pods: Sequence[PodKind], arguments: argparse.Namespace
) -> dict[str, PolicyResult | OccupancyResult]:
    """The result of each policy over all seeds."""
    from agent.scheduler import simulation

    policies = [
        PlacementPolicy(name)
        for name in dict.fromkeys(arguments.policy or [PlacementPolicy.RESIDUAL])
    ]
    seeds = range(simulation.FIRST_SEED, simulation.FIRST_SEED + arguments.seeds)
    progress = format.Progress(sys.stderr, len(policies) * len(seeds))
    results: dict[str, PolicyResult | OccupancyResult] = {}
    for policy in policies:
        runs, occupancies = [], []
        for seed in seeds:
            title = f"{policy}, seed {seed}"

            def show(part: float, title: str = title) -> None:
                progress.part(title, part)

            given = (nodes, pods, policy, arguments.load, seed, show)
            if arguments.departures:
                occupancies.append(simulation.run_with_departures(*given))
            else:
                runs.append(simulation.run(*given))
            progress.done(title)
        if arguments.departures:
            results[policy] = simulation.occupancy_result(occupancies)
        else:
            results[policy] = simulation.policy_result(runs)
    return results


def _write(results: Mapping[str, PolicyResult | OccupancyResult], output: str) -> None:
    from agent.scheduler.simulation import SimulationReport

    if output == "json":
        text = msgspec.json.encode(SimulationReport(results)).decode()
        print(format.printable_json(text), flush=True)
        return
    fields = list(
        dict.fromkeys(name for each in results.values() for name in each.__struct_fields__)
    )
    rows = [["policy", *(_TITLES[field] for field in fields)]]
    rows += [
        [policy, *(_cell(getattr(each, field)) for field in fields)]
        for policy, each in results.items()
    ]
    lines = format.table(rows, format.columns(100))
    print(format.encodable("\n".join(lines) + "\n"), end="", flush=True)


def _cell(spread: SeedSpread | None) -> str:
    return "-" if spread is None else f"{spread.mean:.2f} ± {spread.stdev:.2f}"


def _lines(path: str) -> Sequence[str]:
    """Raises OSError and TraceError."""
    from agent.scheduler.simulation import TraceError

    try:
        return Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is not UTF-8") from None


def _load(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MAX_LOAD:
        raise argparse.ArgumentTypeError(
            f"{text!r:.40} is not a number above 0 and at most {_MAX_LOAD:g}"
        )
    return value


def _seeds(text: str) -> int:
    value = options.positive(text)
    if value > _MAX_SEEDS:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is more than {_MAX_SEEDS}")
    return value
