"""The results of the CRI's conformance suite are the same directly and with agent and proxy."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest

from tests.critest.suite import RUN_SECONDS, Outcomes, suite
from tests.integration.harness import built_or_skip

_MIN_PASSED = 60
"""Fewer specs pass if the suite does not run; the oldest runtime passes this number."""


class Comparison(msgspec.Struct, frozen=True):
    """`repeated`: specs with different results, which were run a second time on both sides."""

    runtime: str
    direct: Outcomes
    proxied: Outcomes
    repeated: tuple[str, ...]

    def table(self) -> str:
        """The sums, and the specs that did not pass on both sides."""
        rows = [("direct", "proxied", f"critest on {self.runtime}")]
        rows += [
            (_count(self.direct, state), _count(self.proxied, state), state)
            for state in ("passed", "failed", "skipped")
        ]
        rows += [
            (direct, proxied, name + (" (ran twice)" if name in self.repeated else ""))
            for name, direct, proxied in self._rows()
            if "failed" in direct + proxied or direct != proxied or name in self.repeated
        ]
        return "\n".join(f"{direct:18} {proxied:18} {what}" for direct, proxied, what in rows)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for name in sorted(self.direct.keys() | self.proxied.keys()):
            yield name, self.direct.get(name, "absent"), self.proxied.get(name, "absent")


def _count(outcomes: Outcomes, state: str) -> str:
    return str(sum(outcome.startswith(state) for outcome in outcomes.values()))


def compare(critest: pathlib.Path, find_programs: Callable[[], pathlib.Path | None]) -> Comparison:
    """Runs both sides at the same time on two runtimes; repeats specs with different results."""
    programs = find_programs()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        (runtime, direct), (_, proxied) = (
            stack.enter_context(suite(critest, programs, with_proxy))
            for with_proxy in (False, True)
        )
        first, second = pool.map(lambda side: dict(side.run()), (direct, proxied))
        repeated = tuple(
            sorted(n for n in first.keys() | second.keys() if first.get(n) != second.get(n))
        )
        if repeated:
            for outcomes, side in ((first, direct), (second, proxied)):
                second_run = side.run(only=repeated)
                outcomes |= {
                    name: second_run[name] for name in repeated if second_run[name] != "skipped"
                }
        return Comparison(runtime, first, second, repeated)


@pytest.fixture(scope="module")
def comparisons(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[Comparison]]]:
    """The comparisons for the selected runtimes: this machine's containerd ("installed") and
    containerd 2 ("built"). They run at the same time, because a run mostly waits.
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
def test_the_same_specs_pass_with_the_proxy(
    name: str,
    comparisons: Mapping[str, Future[Comparison]],
    record_property: Callable[[str, str], None],
) -> None:
    comparison = comparisons[name].result()
    record_property("summary", comparison.table())
    assert sum(outcome == "passed" for outcome in comparison.direct.values()) >= _MIN_PASSED
    assert comparison.proxied == comparison.direct
