"""A node of 512 CPUs with 100 pods and eight GPUs in a process of its own, as an agent serves its
page: run with a folder. It prints its port, and each second all loads change. A line on standard
input lets an owner come, the next one lets it go."""

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

OWNERS, SHARERS = 24, 76


def main(folder: Path) -> None:
    use_one_malloc_arena()
    return_large_blocks()
    chance = random.Random(7)
    node = ServedNode(folder, LARGE)
    for number in range(SHARERS):
        node.pod(f"web-{number:02}", "LS" if number % 4 else "BE")
    for number in range(OWNERS):
        first = 8 * number
        cpus = f"{first}-{first + 3},{256 + first}-{259 + first}"
        node.pod(f"train-{number:02}", "LSE" if number % 2 else "LSR", cpus)
    node.reconcile()
    node.cards = {number: (f"ns/train-{number:02}",) for number in range(6)}
    present = False
    with served(node) as server:
        gc.collect()
        print(server.port, flush=True)
        while True:
            node.busy = {cpu: chance.random() for cpu in range(LARGE.cpus)}
            node.use = {number: chance.randrange(100) for number in range(LARGE.gpus)}
            node.load()
            readable, _, _ = select.select([sys.stdin], [], [], 1.0)
            if readable:
                if not sys.stdin.readline():
                    return
                if present:
                    node.ends("late")
                else:
                    node.pod("late", "LSE", "240-243,496-499")
                present = not present
                node.reconcile()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
