"""`python -m tests.soak --hours N`: pods come and go on a whole cluster while things go wrong.

The cluster is that of tests/cluster, with the emulated machine as its second node where one can be
had. Exit code 1: CPUs had two users, the agent's values were not the kernel's, a pod did not run,
files, threads or cgroups were left open, memory grew faster than a bound, or creations of
containers became slower. `var/soak` gets the document and what was seen, and a folder of
`var/cluster` the logs of a day with findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import sys

import msgspec
import pytest

from benchmarks.soak import DOCUMENT
from tests.cluster import failures, guest, host
from tests.cluster.cluster import GUEST
from tests.soak.day import Day
from tests.soak.report import table
from tests.vm.guest import guest_lock, lacking


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--hours", type=float, required=True, help="length")
    parser.add_argument("--pods", type=int, help="ends earlier, when so many have come (no bound)")
    parser.add_argument("--seed", type=int, help="of the random numbers (random)")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--no-guest", action="store_true", help="only the node of this machine")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    reasons = ["--no-guest"] if given.no_guest else lacking()
    try:
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(host.running())
            cluster.install()
            if not reasons:
                stack.enter_context(guest_lock())
                guest.join(cluster)
            day = Day(cluster, given.hours * 3600, given.pods, seed)
            with failures.written(cluster, "soak"):
                day.prepare()
                report = day.run()
            if report.findings:
                print(f"logs and objects: {failures.collected(cluster, 'soak')}", file=sys.stderr)
    except pytest.skip.Exception as reason:
        print(f"no cluster can run here: {reason}", file=sys.stderr)
        return 2
    if reasons:
        report.left_out[f"node {GUEST}"] = "; ".join(reasons)
    document = json.dumps(msgspec.to_builtins(report))
    DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
    DOCUMENT.write_text(document)
    DOCUMENT.with_name("seen.json").write_bytes(msgspec.json.encode(day.seen))
    print(document if given.output == "json" else table(report))
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
