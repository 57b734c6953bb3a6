"""An API server that the scheduler's tests share with no others: they remove kinds, and apply
policies about who may write a pod's allocation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.apiserver import server
from tests.integration.apiserver.server import ApiServer


@pytest.fixture(scope="package")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real one; a test creates its own namespace and nodes, and leaves it running."""
    with server.running(tmp_path_factory.mktemp("apiserver")) as it:
        yield it
