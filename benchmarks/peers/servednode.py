"""`servednode.py FOLDER` serves the page of a node with 512 CPUs, 100 pods and eight GPUs, as an
agent does. It prints its port. All loads change each second. A line on standard input starts an
owner, and the next line ends it."""

from __future__ import annotations

import gc
import random
import select
import sys
from pathlib import Path

if __name__ == "__main__":
    # As in benchmarks/peers/processes.py: a module that an installation does not have.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.host.daemon import return_large_blocks, use_one_malloc_arena
from tests.fixtures.page import LARGE, ServedNode, served

OWNERS, SHARED = 24, 76


def main(folder: Path) -> None:
    use_one_malloc_arena()
    return_large_blocks()
    rng = random.Random(7)
    node = ServedNode(folder, LARGE)
    for number in range(SHARED):
        node.pod(f"web-{number:02}", "LS" if number % 4 else "BE")
    for number in range(OWNERS):
        first = 8 * number
        cpus = f"{first}-{first + 3},{256 + first}-{259 + first}"
        node.pod(f"train-{number:02}", "LSE" if number % 2 else "LSR", cpus)
    node.reconcile()
    node.cards = {number: (f"ns/train-{number:02}",) for number in range(6)}
    owner_exists = False
    with served(node) as server:
        gc.collect()
        print(server.port, flush=True)
        while True:
            node.busy = {cpu: rng.random() for cpu in range(LARGE.cpus)}
            node.use = {number: rng.randrange(100) for number in range(LARGE.gpus)}
            node.load()
            readable, _, _ = select.select([sys.stdin], [], [], 1.0)
            if readable:
                if not sys.stdin.readline():
                    return
                if owner_exists:
                    node.end_pod("late")
                else:
                    node.pod("late", "LSE", "240-243,496-499")
                owner_exists = not owner_exists
                node.reconcile()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
