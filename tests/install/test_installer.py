"""An installation on a real tree of files that fails, or is killed, at any moment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.install import journal, plan
from agent.install.installer import InstallError
from agent.install.plan import ObservedNode, Put, Systemctl
from agent.install.unitfiles import read as read_unit
from tests.install.host import Host, Killed
from tests.install.kubelets import CONTAINERD, ENV, KUBELETS, PROXY, Kubelet, write

UNITS = {plan.SERVICE: "[Service]\n", plan.SOCKET: "[Socket]\n"}
ONE, TWO = "1.0-00000001", "2.0-0000000a"
TABLE = pytest.mark.parametrize("it", KUBELETS, ids=[each.name for each in KUBELETS])
NODES = st.sampled_from(KUBELETS)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where a flush to the disk takes no time."""
MOMENTS = st.integers(1, 90).map(lambda each: each / 2 + 0.5)
"""Of an installation and its removal; it takes at most 40 operations."""


def new(root: Path, it: Kubelet) -> Host:
    write(root, it)
    return Host(root, it)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return new(tmp_path, KUBELETS[0])


def planned(host: Host, version: str = ONE) -> tuple[plan.Step, ...]:
    noted = journal.read(host.tree)
    node = ObservedNode(
        host.observed(),
        {path: host.tree.state(path) for path in plan.OWN_FILES},
        read_unit(host.tree, plan.SERVICE),
        host.proxy_runs,
        noted.runtime if noted else "",
    )
    return plan.install(node, version, plan.runtime_endpoint(node), UNITS)


def install(host: Host, version: str = ONE) -> None:
    installer = host.installer()
    installer.recover()
    installer.install(planned(host, version), host.it.unit, host.it.runtime)


def remove(host: Host) -> None:
    host.installer().remove()


def mortal(host: Host, moment: float, act: Callable[[Host], None]) -> bool:
    """Whether it was killed. The node works whenever that was."""
    host.count, host.moment = 0, moment
    try:
        act(host)
        killed = False
    except Killed:
        killed = True
    host.moment = None
    assert host.works()
    return killed


@TABLE
def test_installed_and_removed(tmp_path: Path, it: Kubelet) -> None:
    host = new(tmp_path, it)
    before = host.files()
    install(host)
    assert host.loaded == PROXY
    assert planned(host) == ()
    text = journal.read(host.tree)
    assert text is not None
    assert text.runtime == it.runtime
    remove(host)
    assert host.loaded == it.runtime
    assert not host.proxy_runs
    assert host.files() == before
    assert not host.installer().remove()


def test_the_proxy_serves_before_the_kubelet_changes(host: Host) -> None:
    steps = planned(host)
    texts = [each.change.path if isinstance(each, Put) else str(each) for each in steps]
    served = texts.index("systemctl restart topolet-proxy.service")
    answers = texts.index(f"wait until the runtime answers at {PROXY}")
    assert served < answers < texts.index(ENV) < texts.index("systemctl restart kubelet.service")


@given(it=NODES, moment=MOMENTS)
def test_killed_while_it_installs(it: Kubelet, moment: float) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        host = new(Path(folder), it)
        before = host.files()
        if mortal(host, moment, install):
            host.installer().recover()
            noted = journal.read(host.tree)
            if noted is None or not noted.installed:
                assert host.loaded == it.runtime
        install(host)
        assert host.loaded == PROXY
        assert planned(host) == ()
        remove(host)
        assert host.files() == before


@given(it=NODES, moments=st.lists(MOMENTS, min_size=1, max_size=4))
def test_killed_while_it_takes_back(it: Kubelet, moments: list[float]) -> None:
    """Also several times: of an installation, or of its removal."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        host = new(Path(folder), it)
        before = host.files()
        for number, moment in enumerate(moments):
            mortal(host, moment, remove if number % 2 else install)
        remove(host)
        assert host.files() == before
        assert host.loaded == it.runtime
        assert not host.proxy_runs


@given(it=NODES, moment=MOMENTS)
def test_killed_while_it_upgrades(it: Kubelet, moment: float) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        host = new(Path(folder), it)
        before = host.files()
        install(host)
        mortal(host, moment, lambda each: install(each, TWO))
        assert host.loaded == PROXY
        install(host, TWO)
        assert host.tree.state(plan.CURRENT).link == TWO
        assert host.tree.names(plan.FOLDER) == [TWO, "current"]
        remove(host)
        assert host.files() == before


def failure(host: Host) -> bool | None:
    """None of an installation that does not fail."""
    try:
        install(host)
    except InstallError as error:
        return error.undone
    return None


@given(it=NODES, fault=st.integers(1, 40))
def test_a_step_that_fails(it: Kubelet, fault: int) -> None:
    """Whichever it is, everything is as before."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        host = new(Path(folder), it)
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
        assert host.loaded == it.runtime
        assert not host.proxy_runs


def test_a_container_that_is_lost_takes_everything_back(host: Host) -> None:
    before = host.files()
    host.loses_container = True
    with pytest.raises(
        InstallError, match=r"not run any more: app \(c1\); everything is as before"
    ):
        install(host)
    assert host.loaded == CONTAINERD
    assert host.files() == before


def test_without_the_runtime_nothing_begins(host: Host) -> None:
    before = host.files()
    host.runtime_away = True
    with pytest.raises(InstallError, match="no answer; everything is as before"):
        install(host)
    assert host.files() == before
    assert host.commands == []


def test_other_folders_next_to_the_versions_stay(host: Host) -> None:
    """A virtual environment, as the image has it."""
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


def test_what_others_changed_meanwhile_stays(host: Host) -> None:
    """kubeadm rewrites its file with another flag, and keeps the endpoint that it finds there."""
    install(host)
    host.tree.put(ENV, plan.FileState(f'A="--container-runtime-endpoint={PROXY} --new=1"\n'))
    remove(host)
    text = host.tree.state(ENV).text
    assert text == f'A="--container-runtime-endpoint={CONTAINERD} --new=1"\n'
    assert host.loaded == CONTAINERD


def test_an_upgrade_of_kubeadm_that_took_the_endpoint_back(host: Host) -> None:
    before = host.files()
    install(host)
    written = 'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///new.sock"\n'
    host.tree.put(ENV, plan.FileState(written))
    remove(host)
    assert host.files() == before | {ENV.lstrip("/"): written}


def test_a_file_of_crictl_stays(host: Host) -> None:
    host.tree.put(plan.CRICTL, plan.FileState("timeout: 5\n"))
    install(host)
    assert host.tree.state(plan.CRICTL).text == "timeout: 5\n"


def test_without_a_file_crictl_asks_the_runtime_itself(host: Host) -> None:
    install(host)
    text = host.tree.state(plan.CRICTL).text
    assert text == f"runtime-endpoint: {CONTAINERD}\nimage-endpoint: {CONTAINERD}\n"


def test_the_kubelet_is_restarted_also_after_it_failed_too_often(host: Host) -> None:
    steps = planned(host)
    restart = steps.index(Systemctl(("restart", "kubelet.service")))
    assert steps[restart - 1] == Systemctl(("reset-failed", "kubelet.service"))


def test_a_journal_that_cannot_be_read_is_named(host: Host) -> None:
    host.tree.put(journal.PATH, plan.FileState("{"))
    with pytest.raises(journal.InstallJournalError, match=journal.PATH):
        host.installer().recover()
