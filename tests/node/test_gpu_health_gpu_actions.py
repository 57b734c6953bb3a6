"""Actions for GPU errors: the catalogue of XIDs, and the overrides of a site."""

from __future__ import annotations

import pytest

from agent.node import gpu_health as gpu_actions
from agent.node.gpu_health import CATALOGUE, Action, GpuActionError, GpuActions, parse_actions


@pytest.mark.parametrize(
    ("xid", "action"),
    [
        (13, Action.RESTART_APP),
        (31, Action.RESTART_APP),
        (43, Action.IGNORE),
        (45, Action.IGNORE),
        (48, Action.RESET),
        (62, Action.RESET),
        (63, Action.IGNORE),
        (64, Action.RESET),
        (74, Action.RESET),
        (79, Action.REBOOT),
        (94, Action.RESTART_APP),
        (95, Action.RESET),
        (109, Action.RESET),
        (119, Action.RESET),
        (120, Action.RESET),
        (140, Action.RESET),
        (149, Action.RESET),
        (154, Action.IGNORE),
        (158, Action.RESET),
        (54, Action.SUPPORT),
        (61, Action.SUPPORT),
        (9999, Action.SUPPORT),
    ],
)
def test_the_catalogue(xid: int, action: Action) -> None:
    assert GpuActions({})[gpu_actions.xid_reason(xid)] is action


def test_each_xid_is_in_one_row() -> None:
    rows = [set(gpu_actions.xids(text)) for text in gpu_actions.CATALOGUE_ROWS.values()]
    assert sum(map(len, rows)) == len(CATALOGUE)


def test_a_site_overrides_the_catalogue() -> None:
    actions = parse_actions(" 109=ignore, 64 = support ,*=reset, RowRemapPending=ignore,")
    assert (actions["XID109"], actions["XID64"]) == (Action.IGNORE, Action.SUPPORT)
    assert (actions["XID9999"], actions["XID94"]) == (Action.RESET, Action.RESTART_APP)
    assert (actions["RowRemapPending"], actions["GpuLost"]) == (Action.IGNORE, Action.REBOOT)
    assert (actions["DriverMismatch"], actions["XIDx"]) == (Action.SUPPORT, Action.SUPPORT)
    assert parse_actions("")["XID109"] is Action.RESET


@pytest.mark.parametrize(
    "text", ["109", "109=", "=reset", "x=reset", "109=panic", "-1=reset", "1²=reset", "12345=reset"]
)
def test_invalid_entries_are_named(text: str) -> None:
    with pytest.raises(GpuActionError, match="GPU action"):
        parse_actions(text)
