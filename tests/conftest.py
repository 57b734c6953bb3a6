"""Fixtures and hooks for several suites: files of tests/data, the modules of each worker,
summaries."""

from __future__ import annotations

import gc
import logging
import resource
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from agent.telemetry.logs import Logfmt
from tests import tools
from tests.fixtures import trees

# Tests may be slow on a busy machine.
settings.register_profile(
    "no-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no-deadline")

pytest_plugins = ("tests.alone", "tests.skips", "tests.fuzz")

DATA = Path(__file__).resolve().parent / "data"


def pytest_configure() -> None:
    """Fails if TOPOLET_KUBERNETES is not a known version."""
    try:
        tools.kubernetes_version()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header() -> str:
    return f"Kubernetes: {tools.kubernetes_version()}"


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Restores log handlers and level after a test that runs a command in its process."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in root.handlers[:]:
        if isinstance(handler.formatter, Logfmt):
            root.removeHandler(handler)
            root.setLevel(level)


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The root of a snapshot, by the name of its tarball; unpacked once per session."""
    folders: dict[str, str] = {}

    def unpacked(name: str) -> str:
        if name not in folders:
            folders[name] = trees.unpack(name, tmp_path_factory.mktemp("snapshot"))
        return folders[name]

    return unpacked


_SLOW_SUITES = (
    "tests/vm/",
    "tests/cluster/",
    "tests/critest/",
    "tests/integration/",
    "tests/relay/test_hostile.py",
    "tests/kube/test_listwatch.py",
    "tests/parsers/",
    "tests/cri/test_hostile_runtime.py",
    "tests/test_pictures.py",
)
"""Suites and modules that start first, so that all workers end at about the same time."""
_ONE_WORKER = {
    "tests/cluster/": "cluster",
    "tests/vm/": "guests",
    "tests/critest/": "critest",
    "tests/integration/test_image.py": "image",
    "tests/integration/test_daemonset.py": "image",
}
"""Workers by the prefix of a test's id. Modules of one worker share servers or resources."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Excludes the collected tests from garbage collection: they live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        ranks = (each for each, suite in enumerate(_SLOW_SUITES) if item.nodeid.startswith(suite))
        return next(ranks, len(_SLOW_SUITES))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assigns whole modules to a worker, or all modules with one name in _ONE_WORKER. (The marker
    xdist_group has no effect with pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class ByModule(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            names = (name for start, name in _ONE_WORKER.items() if nodeid.startswith(start))
            return next(names, nodeid.partition("::")[0])

    return ByModule(config, log)


_CPU: Final = "cpu seconds"
_MODULES: Final = 20
_cpu_seconds = 0.0


def _spent_cpu_seconds() -> float:
    """The CPU time of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in usages)


def pytest_sessionstart() -> None:
    global _cpu_seconds
    _cpu_seconds = _spent_cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the CPU time since the last report to each report; that of servers when they end."""
    global _cpu_seconds
    report = yield
    before, _cpu_seconds = _cpu_seconds, _spent_cpu_seconds()
    report.user_properties.append((_CPU, _cpu_seconds - before))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the "summary" properties of tests, and the time and CPU time of each suite (a folder
    below tests/) and of the modules that compute longest."""
    seconds: Counter[str] = Counter()
    cpu_seconds: Counter[str] = Counter()
    of_module: Counter[str] = Counter()
    summaries: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                module = report.nodeid.partition("::")[0]
                suite = "/".join(module.split("/")[:2])
                seconds[suite] += report.duration
                for name, value in report.user_properties:
                    if name == _CPU:
                        cpu_seconds[suite] += float(str(value))
                        of_module[module] += float(str(value))
                    elif name == "summary" and report.when == "call":
                        summaries.append(str(value))
    for summary in summaries:
        terminalreporter.section("summary")
        terminalreporter.write_line(summary)
    terminalreporter.section("suites: time, and CPU time with that of ended children")
    for suite, each in sorted(seconds.items()):
        terminalreporter.write_line(f"{each:7.1f} s {cpu_seconds[suite]:7.1f} s  {suite}")
    terminalreporter.section("modules with the most CPU time")
    for module, each in of_module.most_common(_MODULES):
        terminalreporter.write_line(f"{each:7.1f} s  {module}")
