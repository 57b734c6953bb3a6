"""Builds every set and says how long it took; what can't be had is said and left out."""

from __future__ import annotations

import os
import time

from tests.tools import ASSETS, NAMES, SOURCES, built, folder, source


def main() -> None:
    given = ASSETS if os.environ.get("KUBEBUILDER_ASSETS") else ()
    for name in NAMES:
        if name in given or folder(name).exists():
            continue
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
