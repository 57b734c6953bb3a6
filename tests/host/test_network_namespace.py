"""Network namespaces of a real kernel."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from agent.host import network_namespace
from tests.host.namespaces import BUS, needs_namespaces, process_in_namespace


@needs_namespaces
def test_the_interfaces_of_another_namespace_are_read_and_this_process_stays_in_its_own() -> None:
    own = [name for _, name in socket.if_nameindex()]
    with process_in_namespace() as pid:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        assert network_namespace.buses(namespace) == {"lo": "", "tap0": BUS}
        os.close(namespace)
    assert [name for _, name in socket.if_nameindex()] == own


def test_what_is_no_namespace_is_an_error() -> None:
    namespace = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        network_namespace.buses(namespace)
    os.close(namespace)
