"""Move pods of a node to better CPUs: create a RebindResource, and show its plan.

The leading scheduler makes the plan: which pods move to which CPUs, and what that improves. The
command creates the object with the rights of the caller: --kubeconfig, else $KUBECONFIG,
~/.kube/config, or the service account of the pod. The object stays when the rebind has ended:
`kubectl delete rebindresource NAME` deletes it. An object that no scheduler takes within 30 s is
deleted at once.

Exit code 0: a scheduler has taken the object, or, with --wait or --dry-run, the rebind succeeded;
1: it failed, or no scheduler has taken the object; 2: the object can't be created.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from agent.cli import options
from agent.kube.errors import ConflictError, StoreError
from agent.model import rebind_resource
from agent.model.objects import ObjectError
from agent.model.pod.annotations import RESOURCE_STATUS, AnnotationError, resource_status
from agent.model.rebind_resource import RebindPhase, RebindRequest, StatusPlan
from agent.model.settings.options import CallerSettings, SettingsError
from agent.view import format

if TYPE_CHECKING:
    from agent.kube.transport import Transport

USAGE = "topolet rebind [OPTIONS] NODE"
SETTINGS = CallerSettings
POLL_SECONDS: Final = 0.5
UNTAKEN_SECONDS: Final = 30.0
"""A scheduler takes an object in a second; its successor leads after 15 s."""
_MEASURES: Final = ("NUMA crossings", "broken cores", "cores in use", "NUMA nodes in use")


class UntakenError(RuntimeError):
    """No scheduler has taken the object; the message says whether it is deleted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="name of the node")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and move no pod")
    parser.add_argument(
        "--max-pods", type=options.positive, metavar="N", help="move at most N pods"
    )
    parser.add_argument("--wait", action="store_true", help="wait until the pods are moved")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        found, text = _requested(arguments, settings)
    except (SettingsError, ObjectError, StoreError, OSError) as error:
        return options.fail(error, 2)
    except UntakenError as error:
        return options.fail(error, 1)
    if arguments.output == "text":
        width = format.columns(100)
        text = format.encodable(draw(found, width))
    else:
        text = format.printable_json(text)
    try:
        print(text, end="", flush=True)
    except OSError as error:
        return format.unwritten("rebind", error)
    status = found.status
    return 0 if status.taken and status.phase in (RebindPhase.SUCCEED, RebindPhase.PENDING) else 1


def _requested(
    arguments: argparse.Namespace, settings: CallerSettings
) -> tuple[RebindRequest, str]:
    """The object and its JSON.

    Raises StoreError, ObjectError and UntakenError."""
    from agent.kube import objects
    from agent.kube.transport import Transport

    access = options.caller_access(settings.kubeconfig)
    transport = Transport(access, user_agent="topolet-rebind")
    kind = objects.REBIND
    path = objects.path(kind.group, kind.versions[0], kind.plural)
    try:
        body = rebind_resource.new(
            arguments.node, dry_run=arguments.dry_run, max_pods=arguments.max_pods
        )
        created = rebind_resource.decode(transport.create(path, body))
        path = objects.path(kind.group, kind.versions[0], kind.plural, created.name)
        print(f"RebindResource {created.name} is created", file=sys.stderr, flush=True)
        while True:
            text = followed(lambda: transport.get(path), wait=arguments.wait or arguments.dry_run)
            current = rebind_resource.decode(text)
            if current.status.taken or current.status.ended or _withdrawn(transport, path, current):
                return current, text.decode() + "\n"
    finally:
        transport.close()


def _withdrawn(transport: Transport, path: str, untaken: RebindRequest) -> bool:
    """Deletes the object unless it has changed, and raises UntakenError. Returns False if it has
    changed, because a scheduler has taken it."""
    why = f"no scheduler has taken RebindResource {untaken.name} within {UNTAKEN_SECONDS:g} s"
    preconditions = {"resourceVersion": untaken.resource_version, "uid": untaken.uid}
    try:
        transport.request("DELETE", path, body={"preconditions": preconditions})
    except ConflictError:
        return False
    except StoreError as error:
        raise UntakenError(
            f"{why}, and it is not deleted ({error}): kubectl delete rebindresource {untaken.name}"
        ) from None
    raise UntakenError(
        f"{why}, so it is deleted: topolet explain and the log of the scheduler say whether one "
        "leads"
    )


def followed(
    read: Callable[[], bytes],
    *,
    wait: bool,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bytes:
    """Polls the object by `read` until the rebind has ended, until a scheduler has taken it
    (without `wait`), or until UNTAKEN_SECONDS have passed and none has taken it. Returns its
    JSON."""
    until = clock() + UNTAKEN_SECONDS
    while True:
        text = read()
        status = rebind_resource.decode(text).status
        if status.ended or (status.taken and not wait):
            return text
        if not status.taken and clock() >= until:
            return text
        pause(POLL_SECONDS)


def draw(request: RebindRequest, width: int) -> str:
    """The phase, and, if there is a plan, its moves and the measures before and after."""
    status = request.status
    lines = [f"RebindResource {request.name} of node {request.node}: {status.phase}"]
    if status.reason:
        lines[0] += f": {status.reason}"
    if status.plan is not None:
        lines += ["", *_moves(status.plan, width), "", *_measures(status.plan, width)]
    return "\n".join(lines) + "\n"


def _moves(plan: StatusPlan, width: int) -> list[str]:
    rows = [("POD", "FROM", "TO")]
    rows += [
        (each.pod, _cpus_or_nodes(each.source), _cpus_or_nodes(each.target)) for each in plan.moves
    ]
    return format.table(rows, width)


def _measures(plan: StatusPlan, width: int) -> list[str]:
    before, after = map(msgspec.structs.astuple, (plan.before, plan.after))
    rows = [("MEASURE", "BEFORE", "AFTER")]
    rows += [
        (name, str(old), str(new)) for name, old, new in zip(_MEASURES, before, after, strict=True)
    ]
    return format.table(rows, width)


def _cpus_or_nodes(text: str) -> str:
    try:
        status = resource_status({RESOURCE_STATUS: text})
        nodes = ",".join(map(str, sorted(status.amounts())))
        return str(status.cpus()) or f"NUMA nodes {nodes}"
    except AnnotationError:
        return text
