"""Mutants that the unit suites kill, by cosmic-ray: `python -m tests.mutants --count 300 --seed 1`.

A mutant is one module with one small bug, such as `<` instead of `<=`. A sample of places, drawn by
the seed from the modules of SUITES, gets one mutant each; the suite of its package runs against it,
in a copy of the checkout, until a test fails. Annotations are not mutated: nothing reads them at
run time. The mutants that survive are printed, then the share that was killed.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

CHECKOUT: Final = Path(__file__).resolve().parent.parent

SUITES: Final = {
    "agent/allocate": "tests/allocate",
    "agent/hooks": "tests/hooks",
    "agent/cgroup": "tests/cgroup",
    "agent/relay": "tests/relay",
    "agent/scheduler/state": "tests/scheduler",
}
"""The folder of the tests, by the folder of the modules."""

VECTORS: Final = {"tests/allocate": "tests/conformance/test_vectors.py"}
"""The tests of the answers of other implementations, which belong to a suite too."""

LEFT_OUT: Final = ("tests/relay/test_fuzz_relay.py", "tests/relay/test_grpc_go.py")
"""Tests that take minutes, and such that start servers of others."""

TIMEOUT_SECONDS: Final = 300.0
"""The limit of one run of a suite; a mutant that does not end is killed."""

Place = tuple[int, int]
"""Line and column."""


class Mutant(msgspec.Struct, frozen=True):
    """One mutation of a module. `module` and `suite` are relative to the checkout."""

    module: str
    suite: str
    place: Place
    operator: str
    occurrence: int
    """The number of this mutation among those of the operator in the module."""

    @property
    def code(self) -> str:
        """The mutated module."""
        source = (CHECKOUT / self.module).read_text()
        mutated = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        assert mutated is not None, self
        return str(mutated)

    @property
    def change(self) -> str:
        """The mutated line, before and after."""
        line = self.place[0] - 1
        lines = (CHECKOUT / self.module).read_text().splitlines(), self.code.splitlines()
        before, after = (each[line].strip() for each in lines)
        return f"{self.module}:{line + 1} {self.operator}: {before}  ->  {after}"


def mutants() -> Iterator[Mutant]:
    """All mutants of all modules of SUITES."""
    operators = {
        name: operator()
        for name in operator_names()
        if not (operator := get_operator(name)).arguments()
    }
    for folder, suite in SUITES.items():
        for module in sorted((CHECKOUT / folder).rglob("*.py")):
            source = module.read_text()
            nodes = list(ast_nodes(get_ast(source)))
            unread = _annotations(source)
            for name, operator in operators.items():
                places = [place for node in nodes for place, _ in operator.mutation_positions(node)]
                for occurrence, place in enumerate(places):
                    if not any(first <= place < last for first, last in unread):
                        relative = str(module.relative_to(CHECKOUT))
                        yield Mutant(relative, suite, place, name, occurrence)


def _annotations(source: str) -> list[tuple[Place, Place]]:
    """The beginnings and ends of all annotations."""
    annotations: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotations.append(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            annotations.append(node.annotation)
    return [
        ((each.lineno, each.col_offset), (each.end_lineno or 0, each.end_col_offset or 0))
        for each in annotations
        if each is not None
    ]


def sample(count: int, seed: int) -> list[Mutant]:
    """One random mutant of each of `count` random places."""
    rng = random.Random(seed)
    of_place: dict[tuple[str, Place], list[Mutant]] = {}
    for mutant in mutants():
        of_place.setdefault((mutant.module, mutant.place), []).append(mutant)
    places = rng.sample(sorted(of_place), min(count, len(of_place)))
    return [rng.choice(of_place[place]) for place in places]


def passes(checkout: Path, suite: str, first: Sequence[str] = ()) -> bool:
    """Whether all tests of a suite pass in a checkout, and those in the files `first`, which run
    before the others."""
    left_out = [f"--ignore={each}" for each in LEFT_OUT]
    vectors = [VECTORS[suite]] if suite in VECTORS else []
    options = ("-x", "-q", "-m", "not long", "--fuzz=0.1", "-p", "no:cacheprovider")
    try:
        return not subprocess.run(
            [sys.executable, "-m", "pytest", *options, *left_out, *first, suite, *vectors],
            cwd=checkout,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
        ).returncode
    except subprocess.TimeoutExpired:
        return False


def survives(mutant: Mutant, checkout: Path) -> bool:
    """Whether the suite passes with the mutant, which the checkout has during the call only."""
    module = checkout / mutant.module
    original = module.read_text()
    folder = Path("tests", *Path(mutant.module).parent.parts[1:])
    own = sorted((checkout / folder).glob(f"test_{module.stem}*.py"))
    try:
        module.write_text(mutant.code)
        return passes(checkout, mutant.suite, [str(each.relative_to(checkout)) for each in own])
    finally:
        module.write_text(original)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="the number of copies in use")
    given = parser.parse_args()
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True, text=True
    )
    files = [name for name in listed.stdout.split("\0") if name and (CHECKOUT / name).is_file()]
    chosen = sample(given.count, given.seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topolet-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.workers):
            copy = Path(folder, str(number))
            for name in files:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, copy / name)
            copies.put(copy)
        broken = [suite for suite in SUITES.values() if not passes(Path(folder, "0"), suite)]
        if broken:
            print(f"These suites fail without a mutant: {', '.join(broken)}")
            return 1

        def tried(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                survived = survives(mutant, copy)
            finally:
                copies.put(copy)
            if survived:
                print(mutant.change, flush=True)
            return survived

        with ThreadPoolExecutor(given.workers) as pool:
            outcomes = list(pool.map(tried, chosen))
    _print_shares(chosen, outcomes)
    print(f"seed {given.seed}, {time.monotonic() - began:.0f} s")
    return 0


def _print_shares(chosen: Sequence[Mutant], survived: Sequence[bool]) -> None:
    of_suite = Counter(mutant.suite for mutant in chosen)
    alive = Counter(mutant.suite for mutant, lives in zip(chosen, survived, strict=True) if lives)
    for suite, count in [*sorted(of_suite.items()), ("all", len(chosen))]:
        killed = count - (alive[suite] if suite != "all" else alive.total())
        print(f"{suite}: {killed} of {count} mutants killed, {killed / count:.1%}")


if __name__ == "__main__":
    sys.exit(main())
