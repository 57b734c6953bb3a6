"""The mode of every file, folder and socket that Topolet creates, with umask 0."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.allocate.pools import Decision
from agent.cgroup.journal import Journal, Original
from agent.host import locks
from agent.host.listener import Listener
from agent.host.locks import Lock
from agent.koordinator.server import Registration
from agent.kube.store import EmbeddedStore
from agent.model.linux_resources import LinuxResources
from agent.model.pod.apiobjects import ApiNode
from agent.model.pod.qos import QoS
from agent.model.snapshot import LocalOwner, PodWanted, Wanted
from agent.node.cluster_view import ClusterCache, ClusterState
from agent.node.cpu_notices import CpuNotices
from agent.node.notifications import NotificationSocket
from agent.node.publisher import Publisher
from agent.scheduler.leader.candidate import IdentityFile, SentBindings
from agent.scheduler.state.pod_info import PodName
from tests.node.decisions import publish

EXPECTED = {
    "agent.lock": "-rw-------",
    "cluster.json": "-rw-------",
    "containers": "drwxr-xr-x",
    "containers/u": "drwxr-xr-x",
    "containers/u/c": "drwxr-xr-x",
    "containers/u/c/cpus": "-rw-r--r--",
    "door.lock": "-rw-------",
    "notifications.sock": "srw-------",
    "hooks": "drwxr-xr-x",
    "hooks/topolet.json": "-rw-r--r--",
    "journal": "-rw-------",
    "lease": "drwx------",
    "lease/identity": "-rw-------",
    "objects": "drwxr-xr-x",
    "objects/node": "drwxr-xr-x",
    "objects/node/n.yaml": "-rw-r--r--",
    "proxy.sock": "srw-------",
    "proxy.sock.lock": "-rw-------",
    "sent": "drwx------",
    "sent/BINDING": "-rw-------",
    "snapshot.json": "-rw-r--r--",
}
"""Other users may read the CPUs and devices of pods: containers do, and commands that show them."""


@pytest.fixture(autouse=True)
def _without_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


class _Source:
    def now(self) -> ClusterState:
        return ClusterState()


def _modes(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        name = "sent/BINDING" if name.startswith("sent/") else name
        found[name] = stat.filemode(path.lstat().st_mode)
    return dict(sorted(found.items()))


def test_every_created_file_has_its_mode(tmp_path: Path) -> None:
    state = tmp_path / "state"
    plugin_lock = locks.lock_for_plugin(str(state), 0)
    assert stat.filemode(state.stat().st_mode) == "drwxr-xr-x"
    agent = Lock(str(state / "agent.lock"))
    notification_socket = NotificationSocket(str(state / "notifications.sock"))
    listener = Listener(str(state / "proxy.sock"))
    Journal(state / "journal").update([Original("/kubepods/a", "0-3")])
    publish(Publisher(str(state / "snapshot.json"), "boot"))
    cache = ClusterCache(_Source(), str(state / "cluster.json"))
    cache.update(ClusterState(node=ApiNode("u")), ())
    pods = {"u": PodWanted("ns/p", QoS.LS, Wanted(LinuxResources("0-3")))}
    decision = Decision((), {}, (), pods, local_owners=(LocalOwner("u", "c", "0-3"),))
    assert CpuNotices(str(state)).write(decision, dynamic=True) == []
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}}}
    EmbeddedStore(str(state / "objects")).apply(node)
    Registration(str(state / "hooks"), "/a.sock", "Ignore", ("PreRunPodSandbox",)).write()
    identity = IdentityFile(str(state / "lease"), "new")
    sent = SentBindings(str(state / "sent"), valid=True, give_up=lambda reason: None)
    sent.began(PodName("ns", "p", "u"), "n", {})
    try:
        assert _modes(state) == EXPECTED
    finally:
        identity.close()
        listener.close()
        notification_socket.close()
        agent.release()
        plugin_lock.release()


def test_no_socket_is_ever_open_to_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a umask, and between the creation of the socket and `chmod`."""
    monkeypatch.setattr(os, "chmod", lambda *arguments, **options: None)
    notification_socket = NotificationSocket(str(tmp_path / "notification"))
    listener = Listener(str(tmp_path / "listener"))
    modes = {
        stat.filemode((tmp_path / each).stat().st_mode) for each in ("notification", "listener")
    }
    notification_socket.close()
    listener.close()
    assert modes == {"srw-------"}
