"""Prints what is wrong with the structure of `agent`; exit code 1 if anything is."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.structure.checks import problems

_PACKAGE = Path(__file__).resolve().parents[2] / "agent"


def main() -> int:
    found = problems(_PACKAGE, frozenset({"proto"}))
    for each in found:
        print(each)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
