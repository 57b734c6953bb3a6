"""Fixtures: one containerd and one API server per session, one node per test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.fixtures.containerd import Containerd
from tests.integration.apiserver import server
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode, built_or_skip, fresh_node, private_containerd
from tests.integration.image import Image, built
from tests.integration.kubelet import standalone
from tests.integration.kubelet.standalone import Kubelet
from tests.integration.service_manager import ServiceManager

_STARTED = pytest.StashKey[float]()
_TEMPORARY = pytest.StashKey[Path]()
_END_CHARACTERS = 4_000


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> None:
    pytestconfig.stash[_TEMPORARY] = tmp_path_factory.getbasetemp()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_STARTED] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to the report of a failed test the ends of the logs that were written during the test,
    below pytest's temporary folder and below the folders of the test's fixtures."""
    report = yield
    if report.failed:
        fixtures = getattr(item, "funcargs", {}).values()
        of_fixtures = (getattr(each, "folder", None) for each in fixtures)
        folders = {each for each in of_fixtures if isinstance(each, str | Path)}
        if _TEMPORARY in item.config.stash:
            folders.add(item.config.stash[_TEMPORARY])
        logs = {log for folder in folders for log in Path(folder).rglob("*.log")}
        for each in sorted(logs):
            if each.stat().st_mtime >= item.stash[_STARTED]:
                text = each.read_text(errors="replace")[-_END_CHARACTERS:]
                report.sections.append((str(each), text))
    return report


@pytest.fixture(scope="session")
def containerd() -> Iterator[Containerd]:
    """A containerd of this machine's version that only the tests use."""
    with private_containerd() as runtime:
        yield runtime


@pytest.fixture(scope="session")
def containerd2() -> Iterator[Containerd]:
    """containerd 2 with NRI, whichever version this machine has."""
    with private_containerd(built_or_skip("containerd")) as runtime:
        yield runtime


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real kube-apiserver. A test creates its own namespace and nodes in it."""
    with server.running(tmp_path_factory.mktemp("apiserver")) as it:
        yield it


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    """A real kubelet with static policies. A test deletes its pods."""
    with private_containerd() as runtime, standalone.running(runtime) as it:
        yield it


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image of deploy/image, built from this checkout."""
    with built(tmp_path_factory.mktemp("image")) as it:
        yield it


@pytest.fixture
def service_manager(node: TestNode) -> Iterator[ServiceManager]:
    """A service manager for the node's proxy."""
    with contextlib.closing(ServiceManager(node)) as it:
        yield it


@pytest.fixture
def node(containerd: Containerd) -> Iterator[TestNode]:
    """A node on which the test starts agent and proxy."""
    with fresh_node(containerd) as it:
        yield it
