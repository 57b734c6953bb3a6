"""Builds every set and prints the time; unavailable sets are reported and left out.

    python -m tests.tools [-n] [-a]

-n: only prints what would be built. -a: also the sets that only `make test-all` uses.
"""

from __future__ import annotations

import os
import sys
import time

from tests.tools import ASSETS, NAMES, ONLY_LONG, SOURCES, built, folder, source


def main() -> None:
    flags = sys.argv[1:]
    skipped = set(ASSETS) if os.environ.get("KUBEBUILDER_ASSETS") else set()
    if "-a" not in flags:
        skipped.update(ONLY_LONG)
    missing = [name for name in NAMES if name not in skipped and not folder(name).exists()]
    if "-n" in flags:
        if missing:
            print(f"build: {' '.join(folder(name).name for name in missing)}")
        return
    for name in missing:
        print(f"building: {folder(name).name}", flush=True)
        began = time.monotonic()
        where = built(name)
        if isinstance(where, str):
            print(f"tests that need it will be skipped: {where}")
        else:
            print(f"built: {where.name} in {time.monotonic() - began:.0f} s")
    for name in SOURCES:
        where = source(name)
        if isinstance(where, str):
            print(f"tests that need it will be skipped: {where}")


if __name__ == "__main__":
    main()
