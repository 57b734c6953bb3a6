"""The wall clock can be set: only the listed modules read it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

AGENT = Path(__file__).resolve().parents[1] / "agent"
READS = re.compile(
    r"time\.(?:time|time_ns|localtime|ctime)|(?:datetime\.)?datetime\.(?:now|utcnow|today)"
)
REASONS = {
    "node.reconcile": "the age of an announced pod, compared with the runtime's times of "
    "other pods, which are of the wall clock too: an older pod does not get the CPUs of an owner",
    "node.devices": "the time of a condition, as the API has it",
    "node.gpus": "the time of a condition, as the API has it",
    "node.contention": "the time of what was found out, which another process reads",
    "node.sampler": "the end of the last day, whose changes are shown",
    "node.usage": "the time of a status, as the API has it, and the age of what a prediction has "
    "seen, which a restart continues",
    "dra.service": "the time of a report of health, as the kubelet reads it",
    "node.claim_reports": "the time of a condition, as the API has it",
    "node.resource_claims": "the time of a condition, as the API has it",
    "node.batch_resources": "the age of what was offered before a restart, and its time",
    "cli.explain": "the age of what a node offers",
    "node.rebinds": "the time of a status, as the API has it",
    "guard.records": "the times of lines of its log and of audit records",
    "install.installer": "the age of a container, compared with the runtime's times",
    "discover.gpuchild": "NVML's samples have the wall clock's time",
    "cli.audit": "the beginning of a period that ends now",
    "node.doctor": "the last minutes of the audit trail",
    "node.page": "the hour and the day up to now that a page shows, and its clock",
    "telemetry.exposition": "the start of a process, as its metric has it",
    "telemetry.audit": "the time of a record, and the age of a file",
    "kube.events": "the time of an Event",
    "scheduler.leader.election": "the times in a Lease, which no candidate compares with its clock",
    "scheduler.page": "the times that a viewer sees, all from one difference of the two clocks",
    "scheduler.rebind.controller": "the beginning of a plan, which the next leader reads, and the "
    "hours of the day in which rebinds may begin",
    "scheduler.state.pods_api": "the time of a condition",
}


def reading() -> Iterator[str]:
    for path in sorted(AGENT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = (each for each in ast.walk(tree) if isinstance(each, ast.Attribute))
        if any(READS.fullmatch(ast.unparse(each)) for each in names):
            yield path.relative_to(AGENT).with_suffix("").as_posix().replace("/", ".")


def test_every_use_of_the_wall_clock_has_a_reason() -> None:
    assert sorted(reading()) == sorted(REASONS)
