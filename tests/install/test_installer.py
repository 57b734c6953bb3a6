"""An installation on a tree of files that fails, or is killed, at any moment."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.install import installer as journal
from agent.install import plan
from agent.install.installer import InstallError
from agent.install.plan import Put, Systemctl
from tests.install.host import Host, Killed, install, planned, remove
from tests.install.kubelets import (
    CONFIG,
    CONTAINERD,
    EACH_KUBELET,
    ENV,
    INSTANCE,
    KUBELETS,
    PROXY,
    Kubelet,
    write,
)

TWO = "2.0-0000000a"
NODES = st.sampled_from(KUBELETS)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A file system in memory, on which fsync is fast."""
MOMENTS = st.integers(1, 90).map(lambda each: each / 2 + 0.5)
"""Operations of an installation or its removal, which have at most 40."""


def new(root: Path, kubelet: Kubelet) -> Host:
    write(root, kubelet)
    return Host(root, kubelet)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return new(tmp_path, KUBELETS[0])


def killed_at(host: Host, moment: float, action: Callable[[Host], None]) -> bool:
    """Runs the action, which is killed at the moment; returns whether it was. The node works
    afterwards."""
    host.count, host.moment = 0, moment
    try:
        action(host)
        killed = False
    except Killed:
        killed = True
    host.moment = None
    assert host.works()
    return killed


@EACH_KUBELET
def test_installed_and_removed(tmp_path: Path, kubelet: Kubelet) -> None:
    host = new(tmp_path, kubelet)
    before = host.files()
    install(host)
    assert host.loaded == PROXY
    assert planned(host) == ()
    recorded = journal.read_journal(host.tree)
    assert recorded is not None
    assert recorded.runtime == kubelet.runtime
    remove(host)
    assert host.loaded == kubelet.runtime
    assert not host.proxy_runs
    assert host.files() == before
    assert not host.installer().remove()


def test_removed_after_a_refresh_of_the_snap(tmp_path: Path) -> None:
    """snapd copies the folder of the revision, and moves the link."""
    host = new(tmp_path, next(each for each in KUBELETS if "snapd" in each.name))
    snap = tmp_path / "var/snap/microk8s"
    before = (snap / "current/args/kubelet").read_text()
    install(host)
    shutil.copytree(snap / "9072", snap / "9100")
    (snap / "current").unlink()
    (snap / "current").symlink_to("9100")
    assert PROXY in (snap / "9100/args/kubelet").read_text()
    remove(host)
    assert (snap / "9100/args/kubelet").read_text() == before


def test_removed_after_somebody_named_the_proxy_by_hand(host: Host) -> None:
    """The kubelet was not restarted then."""
    file = host.root / ENV.lstrip("/")
    before = file.read_text()
    file.write_text(before.replace(CONTAINERD, PROXY))
    install(host)
    assert host.loaded == PROXY
    remove(host)
    assert (host.loaded, file.read_text()) == (CONTAINERD, before)


def test_the_proxy_serves_before_the_kubelet_changes(host: Host) -> None:
    steps = planned(host)
    texts = [each.change.path if isinstance(each, Put) else str(each) for each in steps]
    served = texts.index("systemctl restart topolet-proxy.service")
    answers = texts.index(f"wait until the runtime answers at {PROXY}")
    assert served < answers < texts.index(ENV) < texts.index("systemctl restart kubelet.service")


@given(kubelet=NODES, moment=MOMENTS)
def test_killed_while_it_installs(kubelet: Kubelet, moment: float) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        host = new(Path(folder), kubelet)
        before = host.files()
        if killed_at(host, moment, install):
            host.installer().recover()
            recorded = journal.read_journal(host.tree)
            if recorded is None or not recorded.installed:
                assert host.loaded == kubelet.runtime
        install(host)
        assert host.loaded == PROXY
        assert planned(host) == ()
        remove(host)
        assert host.files() == before


@given(kubelet=NODES, moments=st.lists(MOMENTS, min_size=1, max_size=4))
def test_killed_while_it_removes(kubelet: Kubelet, moments: list[float]) -> None:
    """Installations and removals are killed in turns."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        host = new(Path(folder), kubelet)
        before = host.files()
        for number, moment in enumerate(moments):
            killed_at(host, moment, remove if number % 2 else install)
        remove(host)
        assert host.files() == before
        assert host.loaded == kubelet.runtime
        assert not host.proxy_runs


@given(kubelet=NODES, moment=MOMENTS)
def test_killed_while_it_upgrades(kubelet: Kubelet, moment: float) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        host = new(Path(folder), kubelet)
        before = host.files()
        install(host)
        killed_at(host, moment, lambda each: install(each, TWO))
        assert host.loaded == PROXY
        install(host, TWO)
        assert host.tree.state(plan.CURRENT).link == TWO
        assert host.tree.names(plan.FOLDER) == [TWO, "current"]
        remove(host)
        assert host.files() == before


def failure(host: Host) -> bool | None:
    """Whether a failed installation is undone; None if it does not fail."""
    try:
        install(host)
    except InstallError as error:
        return error.undone
    return None


@given(kubelet=NODES, fault=st.integers(1, 40))
def test_a_step_that_fails(kubelet: Kubelet, fault: int) -> None:
    """A failed installation leaves everything as before."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        host = new(Path(folder), kubelet)
        before = host.files()
        host.fault = fault
        undone = failure(host)
        if undone is None:
            assert host.loaded == PROXY
            host.fault = None
            remove(host)
        else:
            assert undone
        assert host.files() == before
        assert host.loaded == kubelet.runtime
        assert not host.proxy_runs


def test_a_lost_container_undoes_the_installation(host: Host) -> None:
    before = host.files()
    host.loses_container = True
    with pytest.raises(
        InstallError, match=r"not run any more: app \(c1\); everything is as before"
    ):
        install(host)
    assert host.loaded == CONTAINERD
    assert host.files() == before


def test_without_the_runtime_nothing_is_changed(host: Host) -> None:
    before = host.files()
    host.runtime_fails = True
    with pytest.raises(InstallError, match="no answer; everything is as before"):
        install(host)
    assert host.files() == before
    assert host.commands == []


def test_other_folders_beside_the_versions_stay(host: Host) -> None:
    """The image has a virtual environment there."""
    host.tree.put(f"{plan.FOLDER}/pyvenv.cfg", plan.FileState("home = /usr\n"))
    host.tree.put(f"{plan.FOLDER}/lib/python3.13/a.py", plan.FileState("\n"))
    before = host.files()
    install(host)
    remove(host)
    assert host.files() == before


def test_an_upgrade_restarts_only_the_proxy(host: Host) -> None:
    install(host)
    host.commands.clear()
    install(host, TWO)
    assert host.commands == ["systemctl start topolet-proxy.socket", _RESTART]
    assert host.tree.names(plan.FOLDER) == [TWO, "current"]


_RESTART = "systemctl restart topolet-proxy.service"


def test_a_failed_upgrade_returns_to_the_version_before(host: Host) -> None:
    install(host)
    installed = host.files()
    host.count, host.fault = 0, 8
    with pytest.raises(InstallError):
        install(host, TWO)
    assert host.files() == installed
    assert host.commands[-1] == _RESTART
    assert host.loaded == PROXY


def test_changes_of_others_stay(host: Host) -> None:
    """kubeadm rewrites its file with another flag, and keeps the endpoint of the file."""
    install(host)
    host.tree.put(ENV, plan.FileState(f'A="--container-runtime-endpoint={PROXY} --new=1"\n'))
    remove(host)
    text = host.tree.state(ENV).text
    assert text == f'A="--container-runtime-endpoint={CONTAINERD} --new=1"\n'
    assert host.loaded == CONTAINERD


def test_an_endpoint_that_kubeadm_has_reset_stays(host: Host) -> None:
    before = host.files()
    install(host)
    written = 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///new.sock"\n'
    host.tree.put(ENV, plan.FileState(written))
    remove(host)
    assert host.files() == before | {ENV.lstrip("/"): written}


def test_an_endpoint_that_kubeadm_has_moved_to_other_files_is_given_back(host: Host) -> None:
    """`kubeadm upgrade node` to 1.34 or later."""
    install(host)
    field = f"containerRuntimeEndpoint: {PROXY}\n"
    moved = {ENV: 'KUBELET_KUBEADM_ARGS=""\n', INSTANCE: field, CONFIG: f"maxPods: 9\n{field}"}
    for path, text in moved.items():
        host.tree.put(path, plan.FileState(text))
    argv = ("/usr/bin/kubelet", f"--config={CONFIG}")
    host.kubelet = host.kubelet._replace(argv=argv, changed=moved)
    host.restart_kubelet()
    assert planned(host) == ()
    remove(host)
    assert host.loaded == CONTAINERD
    given_back = {path: text.replace(PROXY, CONTAINERD) for path, text in moved.items()}
    assert {path: host.tree.state(path).text for path in moved} == given_back
    assert not any(PROXY in text for text in host.files().values())


def test_a_file_of_crictl_stays(host: Host) -> None:
    host.tree.put(plan.CRICTL, plan.FileState("timeout: 5\n"))
    install(host)
    assert host.tree.state(plan.CRICTL).text == "timeout: 5\n"


def test_without_a_file_crictl_is_configured_with_the_runtime(host: Host) -> None:
    install(host)
    text = host.tree.state(plan.CRICTL).text
    assert text == f"runtime-endpoint: {CONTAINERD}\nimage-endpoint: {CONTAINERD}\n"


def test_a_file_of_crictl_that_others_have_changed_since_stays(host: Host) -> None:
    install(host)
    host.tree.put(plan.CRICTL, plan.FileState("debug: true\n"))
    remove(host)
    assert host.tree.state(plan.CRICTL).text == "debug: true\n"


def test_the_start_limit_of_the_kubelets_unit_is_reset(host: Host) -> None:
    steps = planned(host)
    restart = steps.index(Systemctl(("restart", "kubelet.service")))
    assert steps[restart - 1] == Systemctl(("reset-failed", "kubelet.service"))


def test_a_journal_that_cannot_be_read_is_named(host: Host) -> None:
    host.tree.put(journal.PATH, plan.FileState("{"))
    with pytest.raises(journal.InstallJournalError, match=journal.PATH):
        host.installer().recover()
