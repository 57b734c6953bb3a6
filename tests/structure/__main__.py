"""Prints the figures with their limits; exit code 1 if one is above its limit.

`python -m tests.structure FIGURE` lists the items of one of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.structure.figures import Figures, measure

_PACKAGE = Path(__file__).resolve().parents[2] / "agent"
_GENERATED = frozenset({"proto"})
_LIMITS = {
    "duplicate_classes": 0,
    "citations": 0,
    "missing_names": 0,
}
_MEANINGS = {
    "modules": "modules",
    "short_modules": "modules of fewer than 60 lines",
    "largest_module": "lines of the largest module",
    "single_importer": "modules with a single importer",
    "longest_chain": "modules on the longest chain of imports",
    "duplicate_classes": "public class names that are defined twice",
    "constructor_arguments": "arguments of the widest constructor",
    "citations": "citations of documents outside the repository",
    "missing_names": "names of modules in the text that do not exist",
    "code_lines": "lines of code without docstrings and comments",
}


def main(words: list[str]) -> int:
    figures = measure(_PACKAGE, _GENERATED)
    if words:
        for each in figures.offenders.get(words[0], ()):
            print(each)
        return 0
    return _report(figures)


def _report(figures: Figures) -> int:
    above = False
    print(f"{'':48}{'is':>8}{'limit':>8}")
    for name, meaning in _MEANINGS.items():
        value, limit = getattr(figures, name), _LIMITS.get(name)
        if limit is None:
            print(f"{meaning:48}{value:8,}")
            continue
        above = above or value > limit
        print(f"{meaning:48}{value:8,}{limit:8,}{'   above the limit' * (value > limit)}")
    return int(above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
