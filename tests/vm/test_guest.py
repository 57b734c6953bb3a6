"""Agent, proxy, containerd and runc in an emulated machine with cgroup v2 and four NUMA nodes."""

import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests import tools
from tests.vm import guest

LIMIT_SECONDS = 1200.0
"""An end to a guest that hangs; an idle machine is done in a sixth of that."""
KUBELET_LIMIT_SECONDS = 1500.0
"""The same where a kubelet starts, which emulated takes minutes."""


@pytest.fixture
def share() -> Iterator[pathlib.Path]:
    """What this machine and the guest both see."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-guest-"))
    yield folder
    shutil.rmtree(folder)


def test_guest_that_hangs_is_ended_and_quoted(
    share: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"echo booting; echo first step >{share}/output.txt; echo $$ >{share}/pid; sleep 1000"
    monkeypatch.setattr(guest, "command", lambda *_: ["sh", "-c", script])
    with pytest.raises(guest.GuestError, match=r"(?s)did not end in time.*booting.*first step"):
        guest.run(share, [], limit_seconds=0.5)
    assert not pathlib.Path("/proc", (share / "pid").read_text().strip()).exists()


@pytest.mark.parametrize(
    ("script", "boots"), [("kill -SEGV $$", 2), ("echo started >output.txt; kill -SEGV $$", 1)]
)
def test_guest_that_dies_before_its_first_step_is_booted_once_more(
    share: pathlib.Path, monkeypatch: pytest.MonkeyPatch, script: str, boots: int
) -> None:
    script = f"cd {share}; echo >>boots; {script}"
    monkeypatch.setattr(guest, "command", lambda *_: ["sh", "-c", script])
    with pytest.raises(guest.GuestError, match="ended with code -11"):
        guest.run(share, [], limit_seconds=120)
    assert len((share / "boots").read_text().splitlines()) == boots


@pytest.mark.skipif(bool(guest.lacking()), reason="; ".join(guest.lacking()))
@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_everything_holds_on_four_numa_nodes_with_cgroup_v2(
    share: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hold(
        share,
        capsys,
        [
            "tests/vm/inside",
            "tests/cgroup/test_kernel.py",
            "tests/cgroup/test_model.py",
            "tests/cgroup/test_values_kernel.py",
        ],
    )


@pytest.mark.skipif(bool(guest.lacking()), reason="; ".join(guest.lacking()))
@pytest.mark.timeout(KUBELET_LIMIT_SECONDS + 60)
def test_what_a_kubelet_tells_on_four_numa_nodes_with_cgroup_v2(
    share: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubelet = tools.kubernetes("kubelet")
    if isinstance(kubelet, str):
        pytest.skip(kubelet)
    hold(share, capsys, ["tests/vm/kubelet"], KUBELET_LIMIT_SECONDS)


def hold(
    share: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    paths: list[str],
    limit_seconds: float = LIMIT_SECONDS,
) -> None:
    """All tests of `paths` pass in the guest."""
    begin = time.monotonic()
    code, cases = guest.run(share, paths, limit_seconds)
    with capsys.disabled():
        print(f"\nin the guest ({time.monotonic() - begin:.0f} s with its boot):")
        for each in cases:
            print(f"  {each.seconds:6.1f} s  {each.outcome:7}  {each.name}")
    assert code == 0, (share / "output.txt").read_text()
    # pytest is content with tests that skip themselves; these must have run.
    ours = {each.outcome for each in cases if each.name.startswith("tests.vm.")}
    assert ours == {"passed"}
