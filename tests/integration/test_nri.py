"""The NRI plugin on a real containerd 2."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.hooks.requests import Changes
from agent.model.linux_resources import LinuxResources
from agent.model.pod.annotations import (
    DEVICE_ALLOCATED,
    EXTENDED_RESOURCE_SPEC,
    RESOURCE_STATUS,
    SHARED_CONTAINERS,
)
from agent.nri import conflicts
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
    update_container,
)
from tests.integration.harness import NO_FULL_PASS
from tests.integration.nri_node import NriNode, nri_node, other_plugin
from tests.waiting import eventually


@pytest.fixture
def nri(containerd2: Containerd) -> Iterator[NriNode]:
    """A node on which no process of Topolet runs yet."""
    with nri_node(containerd2) as it:
        yield it


@pytest.fixture
def both(nri: NriNode) -> NriNode:
    """A node on which agent and plugin run."""
    nri.node.start_agent(NO_FULL_PASS)
    nri.start_plugin()
    return nri


def test_containers_run_on_their_cpus_from_their_creation(both: NriNode) -> None:
    node = both.node
    sandbox, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    assert node.cpus(lse) == "1"
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    assert node.cpus(ls) == "0"
    _, be = run_pod(node.direct, node.spec("be", "BE", kube_class="besteffort"))
    assert node.cpus(be) == "0"
    assert node.metric("topolet_cpu_overlaps_total") == 0

    remove_pod(node.direct, sandbox)
    eventually("LS has CPU 1 again", lambda: node.cpus(ls) == "0-1")
    assert both.metric("topolet_nri_conflicts_total") == 0
    assert both.metric("topolet_nri_hook_errors_total") == 0


def test_no_owner_starts_while_a_created_container_has_its_cpu(
    both: NriNode,
) -> None:
    """The plugin gets the agent's update and may not have the new value yet. Then the creation of
    the owner waits, or a second attempt succeeds."""
    node = both.node
    spec, owner = node.spec("ls", "LS"), node.spec("lse", "LSE", "1")
    waiting = create_container(node.direct, create_request(spec, run_sandbox(node.direct, spec)))
    sandbox = run_sandbox(node.direct, owner)
    created: list[str] = []

    def attempt() -> bool:
        with contextlib.suppress(RpcError):
            created.append(create_container(node.direct, create_request(owner, sandbox)))
        return bool(created)

    eventually("the owner is created", attempt)
    assert node.direct.container_status(waiting).resources.cpuset == "0"
    for each in (waiting, created[0]):
        start_container(node.direct, each)
    assert (node.cpus(waiting), node.cpus(created[0])) == ("0", "1")
    assert node.metric("topolet_cpu_overlaps_total") == 0


def test_an_update_keeps_the_wanted_cpus(both: NriNode) -> None:
    node = both.node
    _, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    update_container(node.direct, lse, cpuset_cpus="0-1", cpu_shares=300)
    assert node.cpus(lse) == "1"
    resources = node.direct.container_status(lse).resources
    assert (resources.cpuset, resources.shares) == ("1", 300)


def test_changes_of_the_agent_are_unsolicited_updates(nri: NriNode) -> None:
    nri.publish()
    nri.start_plugin()
    _, ls = run_pod(nri.node.direct, nri.node.spec("ls", "LS"))
    nri.publish(**{ls: "1"})
    eventually("the runtime moved it", lambda: nri.node.cpus(ls) == "1")
    assert nri.node.direct.container_status(ls).resources.cpuset == "1"
    eventually("it is counted", lambda: nri.metric("topolet_nri_updates_total") == 1)
    nri.publish(**{ls: "7"})
    eventually("it was refused", lambda: nri.metric("topolet_nri_failed_updates_total") == 1)
    assert nri.node.cpus(ls) == "1"
    assert "the runtime refuses a change" in nri.node.log("nri")


def test_a_restarted_plugin_corrects_what_it_missed(nri: NriNode) -> None:
    node = nri.node
    nri.publish()
    nri.start_plugin()
    nri.kill_plugin()
    sandbox, ls = run_pod(node.direct, node.spec("ls", "LS"))
    assert node.cpus(ls) == "0-1", "pods start without a plugin too"
    nri.publish(**{ls: "1"})
    nri.start_plugin()
    eventually("the plugin has synchronised", lambda: node.cpus(ls) == "1")
    assert nri.metric("topolet_nri_updates_total") == 0, "sent in the synchronisation"
    assert nri.stop_plugin() == 0
    remove_pod(node.direct, sandbox)


def test_the_plugin_synchronises_again_with_a_restarted_runtime(nri: NriNode) -> None:
    node, runtime = nri.node, nri.node.containerd
    nri.publish()
    nri.start_plugin()
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    runtime.kill()
    nri.publish(**{ls: "1"})
    runtime.start()
    node.direct.close()
    eventually("the plugin has synchronised again", lambda: node.cpus(ls) == "1")
    _, more = run_pod(node.direct, node.spec("more", "LS"))
    assert node.cpus(more) == "0-1"
    assert nri.metric("topolet_nri_sessions_total") >= 2


def test_a_plugin_that_was_stopped_recovers(
    nri: NriNode,
) -> None:
    node = nri.node
    nri.publish()
    nri.start_plugin()
    sandbox = run_sandbox(node.direct, node.spec("p", "LS"))
    nri.signal(signal.SIGSTOP)
    for name in ("a", "b", "c"):
        create_container(node.direct, create_request(node.spec("p", "LS"), sandbox, name))
    nri.signal(signal.SIGCONT)
    eventually("a new session", lambda: nri.metric("topolet_nri_sessions_total") >= 2)
    eventually("it is ready again", lambda: nri.metric("topolet_nri_ready") == 1)
    calls = nri.metric("topolet_nri_adjusted_containers_total")
    create_container(node.direct, create_request(node.spec("p", "LS"), sandbox, "d"))
    assert nri.metric("topolet_nri_adjusted_containers_total") == calls + 1


def test_another_plugin_that_pins_cpus_is_found_and_named(nri: NriNode) -> None:
    node = nri.node
    nri.publish()
    nri.start_plugin()
    spec = node.spec("p", "LS")
    sandbox = run_sandbox(node.direct, spec)
    with (
        other_plugin(node.containerd, "pinner", Changes(LinuxResources("0"))),
        pytest.raises(RpcError, match='"50-pinner" and "10-topolet" both tried to set'),
    ):
        create_container(node.direct, create_request(spec, sandbox))
    assert nri.metric("topolet_nri_conflicts_total") == 1
    assert "was not created after the plugin's answer" in node.log("nri")
    if conflicts.connected_processes(node.containerd.nri_socket):  # not every kernel reports it
        assert re.search(rf"may set its CPUs too: .*\({os.getpid()}\)", node.log("nri"))
    create_container(node.direct, create_request(spec, sandbox, "again"))


def test_environments_and_answers_beyond_one_buffer_are_received(nri: NriNode) -> None:
    node = nri.node
    large = "x" * 6_000
    spec = node.spec("p")
    with other_plugin(
        node.containerd, "giver", Changes(environment=(("GIVEN", large), ("PATH", "/bin")))
    ):
        sandbox = run_sandbox(node.direct, spec)
        request = create_request(spec, sandbox)
        container_id = create_container(node.direct, request)
    status = node.direct.call(
        "ContainerStatus",
        pb.ContainerStatusRequest(container_id=container_id, verbose=True),
        pb.ContainerStatusResponse,
    )
    environment = json.loads(status.info["info"])["runtimeSpec"]["process"]["env"]
    assert f"GIVEN={large}" in environment
    assert [each for each in environment if each.startswith("PATH=")] == ["PATH=/bin"]


HOSTILE = {
    "nesting": {RESOURCE_STATUS: "[" * 200_000},
    "numbers": {RESOURCE_STATUS: f'{{"numaNodeResources": [{{"node": {"9" * 4_000}}}]}}'},
    "claim of all CPUs": {RESOURCE_STATUS: '{"cpuset": "0-8191"}'},
    "claim of the owner's CPU": {RESOURCE_STATUS: '{"cpuset": "1"}'},
    "containers": {
        EXTENDED_RESOURCE_SPEC: '{"containers":{' + '"c":{},' * 30_000 + '"d":{}}}',
        SHARED_CONTAINERS: "a," * 100_000,
    },
    "devices": {DEVICE_ALLOCATED: '{"gpu":[' + '{"minor":0},' * 15_000 + '{"minor":-1}]}'},
    "keys": {f"example.com/{number}": "x" for number in range(20_000)},
    "CDI names": {"cdi.k8s.io/a": "nvidia.com/gpu=" + "9" * 100_000},
}
"""Annotations of the largest size that the API allows; tests/relay and test_hostile_pods.py send
similar ones through the proxy."""


def test_hostile_annotations_end_neither_the_plugin_nor_an_owners_cpus(both: NriNode) -> None:
    node = both.node
    _, owner = run_pod(node.direct, node.spec("own", "LSE", "1"))
    for number, notes in enumerate(HOSTILE.values()):
        for qos in ("", "LSE"):
            spec = node.spec(f"hostile-{number}-{qos.lower()}", qos, annotations=notes)
            with contextlib.suppress(RpcError):
                _, container = run_pod(node.direct, spec)
                assert node.cpus(container) == "0", spec.name
            assert node.cpus(owner) == "1", spec.name
    assert both.metric("topolet_nri_hook_errors_total") == 0
    assert node.metric("topolet_cpu_overlaps_total") == 0
    _, later = run_pod(node.direct, node.spec("later", "LS"))
    assert node.cpus(later) == "0"


@pytest.mark.parametrize("size_bytes", [3 << 20, 5 << 20], ids=["within", "beyond a message"])
def test_a_huge_environment_affects_only_its_own_container(both: NriNode, size_bytes: int) -> None:
    node = both.node
    _, owner = run_pod(node.direct, node.spec("own", "LSE", "1"))
    spec = node.spec("huge")
    request = create_request(spec, run_sandbox(node.direct, spec))
    for number in range(size_bytes // 65_536):
        request.config.envs.add(key=f"V{number}", value=b"x" * 65_000)
    with contextlib.suppress(RpcError):
        create_container(node.direct, request)
    assert node.cpus(owner) == "1"
    _, later = node.run_retrying(node.direct, node.spec("later", "LS"))
    eventually("a later container shares the pool", lambda: node.cpus(later) == "0")
    assert both.metric("topolet_nri_hook_errors_total") == 0


def test_only_one_kind_of_frontend_runs(nri: NriNode) -> None:
    node = nri.node
    nri.start_plugin()
    common = (f"--state-dir={node.state}",)
    proxy = node.run_cli("proxy", *common, "--http=")
    assert proxy.returncode == 1
    assert "door.lock is held by topolet nri (process" in proxy.stderr
    assert "only one of proxy, NRI plugin and hook server" in proxy.stderr
    second = node.run_cli("nri", *common, "--http=")
    assert second.returncode == 1
    assert "held by topolet nri" in second.stderr


def test_a_plugin_that_the_runtime_launches_ends_with_it(nri: NriNode) -> None:
    node, runtime = nri.node, nri.node.containerd
    folder = runtime.folder / "nri"
    folder.mkdir(exist_ok=True)
    script = folder / "07-launched"
    nri.publish()
    runtime.kill()
    log = node.folder / "launched.log"
    log.touch()
    script.write_text(
        "#!/bin/sh\n"
        f"cd {Path(__file__).parents[2]}\n"
        f"exec {sys.executable} -m agent nri --state-dir={node.state} --http= 2>>{log}\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    try:
        runtime.start()
        node.direct.close()
        eventually(
            "the plugin is registered",
            lambda: "registered with the runtime as 07-l" in log.read_text(),
        )
        run_pod(node.direct, node.spec("ls", "LS"))
        door = node.state / "door.lock"
        pid = int(door.read_text().rpartition(" ")[2].rstrip(")\n"))
        runtime.kill()
        eventually("the plugin ends", lambda: not Path(f"/proc/{pid}/fd").exists())
    finally:
        runtime.kill()
        script.unlink()
        runtime.start()
        node.direct.close()
