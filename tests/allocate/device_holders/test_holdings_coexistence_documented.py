"""The documented table equals the one in the code."""

from __future__ import annotations

from pathlib import Path

from agent.allocate.device_holders.holdings import TABLE, Rule
from agent.model.devices.holding import Form

PAGE = Path(__file__).parents[3] / "docs" / "devices.md"
WORDS = {
    "refused": Rule.REFUSED,
    "kept": Rule.KEPT,
    "kept while all fit": Rule.FITTING,
    "another one of the same resource": Rule.OTHER_REPLICA,
    "another one": Rule.OTHER_PART,
    "other ones": Rule.OTHER_CPUS,
}


def test_the_documented_table_equals_the_code() -> None:
    lines = PAGE.read_text().split("### Sharing a device")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    (_, *columns), _, *rows = rows
    documented = {
        frozenset({Form(row[0]), Form(column)}): WORDS[cell]
        for row in rows
        for column, cell in zip(columns, row[1:], strict=True)
        if cell
    }
    assert documented == TABLE
