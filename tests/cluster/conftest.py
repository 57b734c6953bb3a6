"""One cluster for all tests of this folder. The guest joins when a test first needs it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import failures, guest, host
from tests.cluster.cluster import Cluster
from tests.vm.guest import guest_lock

DELETION_SECONDS = 600.0
"""Pods of the guest end slowly."""


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Control plane and node `n1`, with Topolet's proxy only."""
    with host.running() as it:
        yield it


@pytest.fixture(scope="package")
def installed(cluster: Cluster) -> Cluster:
    """Like `cluster`, with Topolet's agent and scheduler, installed as documented."""
    with failures.written(cluster, "install"):
        cluster.install()
    return cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the tests with a cluster of their own first, before another cluster is started, and
    those with the guest last, as the guest uses much CPU time."""
    folder = Path(__file__).parent
    places = [place for place, each in enumerate(items) if each.path.is_relative_to(folder)]
    own = [items[place] for place in places]
    own.sort(key=_order)
    for place, each in zip(places, own, strict=True):
        items[place] = each


def _order(item: pytest.Item) -> int:
    names = set(getattr(item, "fixturenames", ()))
    return ("with_guest" in names) - bool({"bare", "units_node"} & names)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a failed test that uses the cluster names the folder of collected files."""
    report = yield
    found = [each for each in getattr(item, "funcargs", {}).values() if isinstance(each, Cluster)]
    noted = call.excinfo is not None and hasattr(call.excinfo.value, "__notes__")
    if report.failed and found and not noted:
        where = failures.collected(found[0], item.name)
        report.sections.append(("logs and objects", str(where)))
    return report


@pytest.fixture
def no_pods(installed: Cluster) -> Iterator[None]:
    """Deletes all pods before and after a test, so that no test gets those of another."""
    words = ("delete", "pods", "--all", "-n", "default", "--grace-period=1", "--wait=false")
    installed.kubectl(*words)
    installed.eventually("no pod is left", lambda: not installed.objects("pods"), DELETION_SECONDS)
    yield
    installed.kubectl(*words)


@pytest.fixture(scope="package")
def with_guest(installed: Cluster) -> Iterator[Cluster]:
    """Like `installed`, with a second node `g1`, emulated and slow, on which the agent is Ready."""
    with guest_lock():
        guest.join(installed)
        yield installed
