"""Requests explanations, as `topolet explain` does. `python -m benchmarks.explanations PORT` reads
lines: `room` for a pod that fits a node, `none` for a pod that fits no node. It prints the
milliseconds of each reply."""

from __future__ import annotations

import sys
import time

from agent.kube.auth import FileAccess
from agent.kube.transport import ResponseLimits, Transport
from agent.scheduler.explain import endpoint
from tests.fixtures import fleet


def main() -> None:
    limits = ResponseLimits(read_seconds=30.0)
    transport = Transport(FileAccess(f"http://127.0.0.1:{sys.argv[1]}"), limits=limits)
    kinds = fleet.kinds()
    for number, line in enumerate(sys.stdin):
        room = line.strip() == "room"
        kind = kinds[number * 7 % len(kinds)] if room else fleet.owner(500, 8)
        body = {"pods": [kind.pod(f"new-{number}")], "drained": []}
        start = time.perf_counter()
        answer = transport.create(endpoint.PATH, body)
        took = (time.perf_counter() - start) * 1e3
        (found,) = endpoint.decode_answer(answer).explanations
        if found.nodes_left_out or bool(found.winner) != room:
            raise RuntimeError(f"{found.winner}, {found.nodes_left_out} nodes left out")
        print(took, flush=True)


if __name__ == "__main__":
    main()
