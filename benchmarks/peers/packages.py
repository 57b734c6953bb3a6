"""Packages that only a base or a server needs: `pip install .` does not install them."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path


class NoPackageError(Exception):
    """The reason why a package can't be installed."""


@functools.cache
def cached(name: str, modules: tuple[str, ...]) -> Path | None:
    """The folder in the cache with the packages of `pip install NAME...`; None if this interpreter
    has all `modules`. `name`: one or more names, with spaces. Raises NoPackageError.
    """
    if all(importlib.util.find_spec(module) for module in modules):
        return None
    home = os.environ.get("TOPOLET_CACHE") or Path.home() / ".cache" / "topolet"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    target = Path(home) / f"{name.replace(' ', '-')}-{version}"
    if not all((target / module).is_dir() for module in modules):
        words = ["-m", "pip", "install", "-q", "--target", str(target), *name.split()]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoPackageError(f"{name} can't be installed: {done.stderr.strip()[-200:]}")
    return target


def imported(name: str, modules: tuple[str, ...]) -> None:
    """Makes the modules importable in this process. Raises NoPackageError."""
    target = cached(name, modules)
    if target is not None and str(target) not in sys.path:
        sys.path.append(str(target))
