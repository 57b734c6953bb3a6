"""Builds every set and says how long it took; what can't be had is said and left out."""

from __future__ import annotations

import time

from tests.tools import NAMES, built, folder


def main() -> None:
    for name in NAMES:
        if folder(name).exists():
            continue
        print(f"building: {folder(name).name}", flush=True)
        began = time.monotonic()
        where = built(name)
        if isinstance(where, str):
            print(f"tests that need it will be skipped: {where}")
        else:
            print(f"built: {where.name} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
