from __future__ import annotations

import pytest

from agent.kubelet.statefile import Checked, matching_version

FORMS = [(2, 20), (2, 21), (3, 30)]


@pytest.mark.parametrize(
    ("recorded", "forms", "version", "checked"),
    [
        (20, FORMS, 2, Checked.VERIFIED),
        (30, FORMS, 3, Checked.VERIFIED),
        (99, FORMS, 2, Checked.MISMATCH),
        (0, FORMS, 2, Checked.UNKNOWN),
        (0, [(2, 0)], 2, Checked.UNKNOWN),
        (99, [], None, Checked.UNKNOWN),
    ],
)
def test_matching_version(
    recorded: int, forms: list[tuple[int, int]], version: int | None, checked: Checked
) -> None:
    assert matching_version(recorded, forms) == (version, checked)
