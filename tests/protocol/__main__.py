"""Prints what the explorer visits: `python -m tests.protocol --faults 1`."""

from __future__ import annotations

import argparse
import sys
import time

import msgspec

from tests.protocol.explorer import BrokenError, explore
from tests.protocol.model import Bounds, Model


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--claims", type=int, nargs="+", default=[1, 0], help="bit masks, by pod")
    parser.add_argument("--faults", type=int, default=1)
    given = parser.parse_args()
    bounds = Bounds(given.cpus, tuple(given.claims), given.faults)
    began = time.process_time()
    try:
        explored = explore(Model(bounds))
    except BrokenError as error:
        print(error)
        return 1
    names = msgspec.structs.asdict(bounds) | msgspec.structs.asdict(explored)
    print(", ".join(f"{name} {value}" for name, value in names.items()), end="")
    print(f", {time.process_time() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
