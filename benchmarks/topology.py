"""Discovery of the CPU topology in a running interpreter, compared with tools on the same tree.

The trees are generated machines of 128, 256 and 512 CPUs, and the largest snapshots of real
machines in tests/data/sysfs.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent.discover import cpus
from benchmarks import common
from tests.fixtures import trees

SHAPES = {"": (2, 2, 2, 8, 2), "_256": (2, 4, 2, 8, 2), "_512": (2, 4, 4, 8, 2)}
"""The case without a suffix has 128 CPUs."""

SYSFS = Path(__file__).resolve().parents[1] / "tests" / "data" / "sysfs"
SNAPSHOTS = ("128arm-2pa2n8cluster4co", "256ia64-64n2s2c")


def main() -> None:
    options = common.arguments(__doc__)
    rounds = 10 if options.quick else 50
    rows: list[common.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for suffix, root in roots(folder, options.quick):
            rows += compare(suffix, root, rounds)
    common.report(rows, options.output)


def roots(folder: str, quick: bool) -> Iterator[tuple[str, str]]:
    """The suffix of the case and the root of each tree.

    `quick` omits trees that take seconds to write.
    """
    for suffix, shape in SHAPES.items():
        if not quick or suffix != "_512":
            root = os.path.join(folder, f"machine{suffix}")
            yield suffix, trees.write(root, trees.machine(*shape))
    if quick:
        return
    for name in SNAPSHOTS:
        with tarfile.open(SYSFS / f"{name}.tar.bz2") as archive:
            archive.extractall(os.path.join(folder, name), filter="tar")
        (root,) = Path(folder, name).iterdir()
        yield "_" + re.sub("[^a-z0-9]+", "_", name), str(root)


def compare(suffix: str, root: str, rounds: int) -> Iterator[common.Row]:
    """A row for each tool."""
    ours = partial(cpus.read, root)
    tools = {
        "lscpu": ["lscpu", "-e", "--sysroot", root],
        "lstopo": ["lstopo-no-graphics", "--if", "fsroot", "--input", root, "--disallowed"],
    }
    for tool, command in tools.items():
        case = f"discover_vs_{tool}{suffix}"
        reason = unusable(command)
        calls = [ours] if reason else [ours, partial(run_silently, command)]
        samples = common.interleaved(calls, rounds)
        our_ms = statistics.median(samples[0]) * 1e3
        if reason:
            yield common.skipped_row(case, our_ms, "ms", reason)
            continue
        yield common.ratio_row(
            case,
            our_ms,
            statistics.median(samples[1]) * 1e3,
            tool,
            "ms",
            p99=common.percentile(samples[0], 99) * 1e3,
        )


def unusable(command: list[str]) -> str | None:
    """The reason why the tool can't read the tree, or None."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"{command[0]} fails"])[0]


def run_silently(command: list[str]) -> None:
    """Runs a tool to its end and discards its output."""
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
