"""A day on a cluster of one node on which something is wrong."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from tests.cluster import failures, host
from tests.cluster.cluster import HOST, Cluster
from tests.soak.day import Day
from tests.soak.report import WARM_SECONDS, table

log = logging.getLogger(__name__)

SEED = 24
LEAK = """import time
kept = []
while True:
    kept.append(open("/dev/null"))
    time.sleep(1)
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(2_700)]


@pytest.fixture
def installed() -> Iterator[Cluster]:
    """A cluster of its own, since a soak leaves agents and kubelet with other settings."""
    with host.running() as cluster, failures.written(cluster, "soak"):
        cluster.install()
        yield cluster


def test_a_cpu_with_two_users_and_a_leak_are_told(installed: Cluster) -> None:
    """Another program puts a pod of the pool on all CPUs, and a process with the name of one of
    Topolet's opens a file each second."""
    day = Day(installed, 2 * WARM_SECONDS, None, SEED)
    day.prepare()
    world = installed.control.world
    program = world.folder / "topolet"
    program.write_text(LEAK)
    world.start("leak", sys.executable, program, "nri")
    with installed.competing(f"ls-{HOST}", "0-1"):
        document = day.run()
    log.info("%s", table(document))
    assert any("class LS" in finding for finding in document.findings)
    assert document.overlaps > 0
    assert document.leaked_fds[f"{HOST} nri"] > 0
