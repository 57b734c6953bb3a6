"""A kubelet with a containerd of its own, because it removes containers that it does not know."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests import tools
from tests.fixtures.containerd import Containerd
from tests.integration.kubelet import standalone
from tests.integration.kubelet.standalone import Kubelet
from tests.vm.inside.conftest import containerd

__all__ = ["containerd", "kubelet", "program_on_tmpfs"]


@pytest.fixture(scope="session")
def program_on_tmpfs() -> Iterator[None]:
    """The kubelet's program is on tmpfs, as the guest maps files of the host slowly."""
    program = tools.kubernetes("kubelet")
    assert isinstance(program, pathlib.Path), program
    folder = tempfile.mkdtemp(prefix="topolet-")
    shutil.copy(program, folder)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KUBEBUILDER_ASSETS", folder)
        yield
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def kubelet(containerd: Containerd, program_on_tmpfs: None) -> Iterator[Kubelet]:
    """One kubelet for all tests of this folder."""
    with standalone.running(containerd) as it:
        yield it
