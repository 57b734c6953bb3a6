"""An API server of the scheduler's tests alone: they remove CRDs, and apply policies that restrict
who may write the allocation of a pod."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.apiserver import server
from tests.integration.apiserver.server import ApiServer


@pytest.fixture(scope="package")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server. Each test creates its own namespace and nodes, and does not stop it."""
    with server.running(tmp_path_factory.mktemp("apiserver")) as it:
        yield it
