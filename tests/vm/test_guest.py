"""Agent, proxy, containerd and runc in an emulated machine with cgroup v2 and four NUMA nodes."""

import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.vm import guest

LIMIT_SECONDS = 420.0
"""An end to a guest that hangs; it is done in half of that."""


@pytest.fixture
def share() -> Iterator[pathlib.Path]:
    """What this machine and the guest both see."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-guest-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(bool(guest.lacking()), reason="; ".join(guest.lacking()))
@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_everything_holds_on_four_numa_nodes_with_cgroup_v2(
    share: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = time.monotonic()
    code, cases = guest.run(
        share, ["tests/vm/inside", "tests/cgroup/test_kernel.py"], LIMIT_SECONDS
    )
    with capsys.disabled():
        print(f"\nin the guest ({time.monotonic() - begin:.0f} s with its boot):")
        for each in cases:
            print(f"  {each.seconds:6.1f} s  {each.outcome:7}  {each.name}")
    assert code == 0, (share / "output.txt").read_text()
    # pytest is content with tests that skip themselves; these must have run.
    assert {each.outcome for each in cases if ".vm.inside." in each.name} == {"passed"}
