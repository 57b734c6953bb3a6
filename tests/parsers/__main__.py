"""Tries many inputs with each parser: `python -m tests.parsers --count 1000000 --seed S [NAME...]`.

Prints a line for each, and the slips with their seed and number; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.parsers.target import SlipError, run
from tests.parsers.targets import targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.parsers")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("names", nargs="*", help="parts of the names of parsers; without, all")
    given = parser.parse_args()
    logging.disable()
    slips = 0
    with tempfile.TemporaryDirectory() as folder:
        for each in targets(Path(folder)):
            if given.names and not any(part in each.name for part in given.names):
                continue
            began = time.process_time()
            try:
                slowest = run(each, given.count, given.seed, given.first)
                result = f"ok, the slowest took {slowest * 1000:.1f} ms"
            except SlipError as slip:
                slips += 1
                result = f"{slip}: {slip.__cause__!r}"
            took = time.process_time() - began
            print(f"{each.name}: {given.count} inputs, {took:.0f} s: {result}", flush=True)
    return int(slips > 0)


if __name__ == "__main__":
    sys.exit(main())
