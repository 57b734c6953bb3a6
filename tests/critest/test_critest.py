"""The results of the CRI's conformance suite are the same behind agent and proxy."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest

from tests.critest.suite import RUN_SECONDS, Outcomes, suite
from tests.integration.harness import built_or_skip

_FEWEST_PASSED = 60
"""This number of specs passes on the oldest runtime; with fewer the suite did not really run."""


class Comparison(msgspec.Struct, frozen=True):
    """`again`: specs with different results, which were run once more on both sides."""

    runtime: str
    direct: Outcomes
    proxied: Outcomes
    again: tuple[str, ...]

    def table(self) -> str:
        """The sums, and every spec that did not pass on both sides."""
        rows = [("direct", "proxied", f"critest on {self.runtime}")]
        rows += [
            (_count(self.direct, state), _count(self.proxied, state), state)
            for state in ("passed", "failed", "skipped")
        ]
        rows += [
            (direct, proxied, name + (" (ran twice)" if name in self.again else ""))
            for name, direct, proxied in self._rows()
            if "failed" in direct + proxied or direct != proxied or name in self.again
        ]
        return "\n".join(f"{direct:18} {proxied:18} {what}" for direct, proxied, what in rows)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for name in sorted(self.direct.keys() | self.proxied.keys()):
            yield name, self.direct.get(name, "absent"), self.proxied.get(name, "absent")


def _count(outcomes: Outcomes, state: str) -> str:
    return str(sum(outcome.startswith(state) for outcome in outcomes.values()))


def compare(critest: pathlib.Path, find_programs: Callable[[], pathlib.Path | None]) -> Comparison:
    """Both sides at once, each on its own runtime; different results are run once more."""
    programs = find_programs()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        (runtime, direct), (_, proxied) = (
            stack.enter_context(suite(critest, programs, behind)) for behind in (False, True)
        )
        first, second = pool.map(lambda side: dict(side.run()), (direct, proxied))
        again = tuple(
            sorted(n for n in first.keys() | second.keys() if first.get(n) != second.get(n))
        )
        if again:
            for outcomes, side in ((first, direct), (second, proxied)):
                renewed = side.run(only=again)
                outcomes |= {name: renewed[name] for name in again if renewed[name] != "skipped"}
        return Comparison(runtime, first, second, again)


@pytest.fixture(scope="module")
def comparisons(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[Comparison]]]:
    """The selected ones of this machine's containerd ("installed") and containerd 2 ("built"); an
    unavailable one results in a skip.

    All at once: nearly all of a run is waiting, and four take hardly longer than one.
    """
    selected = {
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function)
    }
    critest = built_or_skip("cri-tools") / "critest"
    runtimes = {"installed": lambda: None, "built": lambda: built_or_skip("containerd")}
    with ThreadPoolExecutor(len(runtimes)) as pool:
        yield {name: pool.submit(compare, critest, runtimes[name]) for name in sorted(selected)}


@pytest.mark.timeout(3 * RUN_SECONDS)
@pytest.mark.parametrize("name", [pytest.param("installed", marks=pytest.mark.long), "built"])
def test_same_specs_pass_behind_the_proxy_as_directly(
    name: str,
    comparisons: Mapping[str, Future[Comparison]],
    record_property: Callable[[str, str], None],
) -> None:
    both = comparisons[name].result()
    record_property("summary", both.table())
    assert sum(outcome == "passed" for outcome in both.direct.values()) >= _FEWEST_PASSED
    assert both.proxied == both.direct
