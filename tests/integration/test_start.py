"""The creation of an owner while runc delays the start of another container.

containerd reads a container's cpuset when StartContainer begins, and runc makes the cgroup later:
an update in between reaches neither.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading

import pytest

from agent.cri.client import Cri
from agent.model.verdict import Code
from agent.rpc.grpc import RpcError
from tests.fixtures.pods import create_container, create_request, run_sandbox, start_container
from tests.integration.harness import NO_FULL_PASS, fresh_node, private_containerd, write_runc
from tests.waiting import DEADLINE_SECONDS, eventually

_RUNC = """#!/bin/sh
case " $* " in *" create "*)
    if mv {folder}/delay {folder}/delayed 2>/dev/null; then
        until [ -e {folder}/release ]; do sleep 0.02; done
    fi
esac
exec {runc} "$@"
"""


class DelayedRunc:
    """A folder with a `runc` that delays the next `runc create` after `delay_next()`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        write_runc(folder, _RUNC)

    def delay_next(self) -> None:
        (self.folder / "delay").touch()

    @property
    def delayed(self) -> bool:
        return (self.folder / "delayed").exists()

    def release(self) -> None:
        (self.folder / "release").touch()


def test_an_owner_is_created_after_a_start_that_runc_delays(tmp_path: pathlib.Path) -> None:
    runc = DelayedRunc(tmp_path)
    with (
        private_containerd(tmp_path) as runtime,
        fresh_node(runtime) as node,
        contextlib.closing(Cri(node.cri_socket, DEADLINE_SECONDS)) as other,
    ):
        node.start_agent(NO_FULL_PASS)
        node.start_proxy()
        shared, owner = node.spec("ls", "LS"), node.spec("lse", "LSE", "1")
        request = create_request(shared, run_sandbox(node.proxied, shared))
        ls = create_container(node.proxied, request)
        runc.delay_next()
        starting = threading.Thread(target=start_container, args=(other, ls))
        starting.start()
        try:
            eventually("runc create has begun", lambda: runc.delayed)
            request = create_request(owner, run_sandbox(node.proxied, owner))
            with pytest.raises(RpcError) as refused:
                create_container(node.proxied, request)
        finally:
            runc.release()
            starting.join()
        assert refused.value.code == Code.UNAVAILABLE

        created: list[str] = []

        def create() -> bool:
            try:
                created.append(create_container(node.proxied, request))
            except RpcError:
                return False
            return True

        eventually("the owner is created", create)
        assert node.cpus(ls) == "0"
        start_container(node.proxied, created[0])
        assert (node.cpus(ls), node.cpus(created[0])) == ("0", "1")
        assert node.metric("topolet_cpu_overlaps_total") == 0
