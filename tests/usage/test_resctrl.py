"""Groups of resctrl, in folders as the kernel makes them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agent.host.files import Tree
from agent.usage.resctrl import Monitored, Resctrl


def monitor(folder: Path, domain: str, *values: str) -> None:
    """Makes mon_data of a group. `values`: of occupancy, all traffic and local traffic."""
    (folder / "mon_data" / domain).mkdir(parents=True, exist_ok=True)
    files = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    for file, value in zip(files, values, strict=False):
        (folder / "mon_data" / domain / file).write_text(f"{value}\n")


def test_groups_and_domains(tmp_path: Path) -> None:
    root = tmp_path / "sys/fs/resctrl"
    monitor(root, "mon_L3_00", "4096", "900", "800")
    monitor(root, "mon_L3_01", "8192", "Unavailable", "Error")
    monitor(root, "mon_PERF_PKG_00", "1")
    monitor(root / "BE", "mon_L3_00", "1")
    monitor(root / "BE/mon_groups/one", "mon_L3_00", "2", "3")
    monitor(root / "mon_groups/two", "mon_L3_00", "4")
    monitor(root / "mon_groups/\udcff", "mon_L3_00", "4")
    (root / "info/L3_MON").mkdir(parents=True)
    assert Resctrl(Tree(str(tmp_path))).monitored() == {
        ("/", "0"): Monitored(4096, 900, 800),
        ("/", "1"): Monitored(8192, None, None),
        ("/BE", "0"): Monitored(1, None, None),
        ("/BE/mon_groups/one", "0"): Monitored(2, 3, None),
        ("/mon_groups/two", "0"): Monitored(4, None, None),
    }


def test_control_groups_are_read_before_monitor_groups(tmp_path: Path) -> None:
    root = tmp_path / "sys/fs/resctrl"
    monitor(root, "mon_L3_00", "1")
    monitor(root / "LS", "mon_L3_00", "1")
    for number in range(300):
        monitor(root / f"mon_groups/{number:03}", "mon_L3_00", "1")
    groups = [group for group, _ in Resctrl(Tree(str(tmp_path))).monitored()]
    assert groups == ["/", "/LS", *(f"/mon_groups/{number:03}" for number in range(254))]


def test_a_machine_without_it_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    resctrl = Resctrl(Tree(str(tmp_path)))
    for _ in range(2):
        assert resctrl.monitored() == {}
    assert caplog.messages == ["nothing is monitored in /sys/fs/resctrl of this machine"]
