"""What two boots of a guest share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.vm.inside.conftest import containerd

__all__ = ["containerd", "kept"]


@pytest.fixture
def kept() -> Path:
    """A folder that outlives a boot."""
    return Path(os.environ["TOPOLET_GUEST"])
