"""Pods in groups of core scheduling: real processes in real cgroups, with the rules of a kernel
that has it, and with the kernel of this machine."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from agent.cgroup.core_scheduling import CoreCookies, CoreGroups
from agent.cgroup.hierarchy import Controllers, Hierarchy, mounted
from agent.cgroup.limits import CORE_GROUP
from agent.model.node_slo import KIND, CpuQos, NodeSlo, QosClass, QosPolicies, ResourceQos
from agent.model.pod.annotations import CORE_GROUP_LABEL, CORE_POLICY_LABEL
from agent.model.pod.qos import KubeClass
from agent.node.colocation.core_scheduling import CoreScheduling
from agent.node.colocation.pod_values import values_of
from agent.node.colocation.writer import Colocation
from agent.node.features import CHECK_SECONDS, Feature, WouldWrite
from agent.node.sources import SourceName
from agent.usage.strategies import Strategies
from agent.view.pod_values import FileValue
from tests.cgroup.core_scheduling_kernel import SchedCoreKernel
from tests.cgroup.real_groups import RealGroups
from tests.node.colocation.colocated import ColocatedNode

ROOT: Final = "/sys/fs/cgroup"


def strategies(policy: str = "coreSched", **classes: CpuQos) -> Strategies:
    of_classes = {name: QosClass(cpu_qos=cpu_qos) for name, cpu_qos in classes.items()}
    policies = QosPolicies(cpu_policy="coreSched" if policy == "coreSched" else "groupIdentity")
    slo = NodeSlo(resource_qos_strategy=ResourceQos(policies, **of_classes))
    return Strategies(slo, {"resourceQOSStrategy": KIND})


BOTH: Final = {
    "ls_class": CpuQos(enable=True, core_expeller=True),
    "be_class": CpuQos(enable=True),
}


class CoreNode(ColocatedNode):
    """Pods with a process in the cgroup of each container."""

    def __init__(self, folder: Path, groups: RealGroups, library: str | None) -> None:
        """`library`: None for the kernel of this machine."""
        self.cookies = CoreCookies(library)
        self.real = groups
        super().__init__(folder, groups)
        self.strategies = strategies(**BOTH)

    def start(self, features: str = "", *, acts: bool = True) -> Colocation:
        """As an agent that starts: it knows only the journal."""
        self.core = CoreGroups(Hierarchy(ROOT), lambda: self.journal.values, self.cookies)
        self.controllers = Controllers(ROOT, others={"core_sched": lambda: self.core})
        return super().start(features, acts=acts)

    def further_features(self) -> tuple[Feature, ...]:
        return (CoreScheduling(self.core),)

    def busy(self, name: str, kube_class: KubeClass = "burstable", **labels: str) -> int:
        """The process of a new pod with one container.

        `labels`: group and policy."""
        keys = {"group": CORE_GROUP_LABEL, "policy": CORE_POLICY_LABEL}
        of_api: dict[str, Any] = {"labels": {keys[key]: text for key, text in labels.items()}}
        group = self.run(name, kube_class, **of_api)
        return self.real.process(f"{group}/main").pid

    def step(self) -> str:
        """The problems of the feature and its writes."""
        self.now += CHECK_SECONDS
        self.colocation.step()
        state = self.colocation.state
        return "; ".join((state.wanted[CoreScheduling.name].problem, *state.failed)).strip("; ")


@pytest.fixture
def real() -> Iterator[RealGroups]:
    mounts = {} if os.geteuid() else {each: mounted(ROOT, each) for each in ("cpu", "cpuset")}
    present = {each: mount for each, mount in mounts.items() if mount is not None}
    if "cpuset" not in present:
        pytest.skip("no cgroups of the cpuset controller can be made here")
    groups = RealGroups(present)
    yield groups
    groups.close()


@pytest.fixture
def kernel(tmp_path: Path) -> SchedCoreKernel:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the library with prctl")
    return SchedCoreKernel(tmp_path)


@pytest.fixture
def node(tmp_path: Path, real: RealGroups, kernel: SchedCoreKernel) -> CoreNode:
    return CoreNode(tmp_path, real, kernel.library)


def test_pods_share_cores_with_those_of_their_group(
    node: CoreNode, kernel: SchedCoreKernel
) -> None:
    web, cache = node.busy("web"), node.busy("cache")
    alone, other = node.busy("alone", policy="exclusive"), node.busy("other", policy="exclusive")
    named, also = node.busy("named", group="g"), node.busy("also", group="g")
    none = node.busy("none", policy="none")
    batch, of_batch = node.busy("batch", "besteffort"), node.busy("of", "besteffort", group="g")
    assert node.step() == ""
    groups = ((web, cache), (alone,), (other,), (named, also), (batch,), (of_batch,), (none,))
    cookies = [{kernel.cookie(pid) for pid in group} for group in groups]
    assert all(len(of_group) == 1 for of_group in cookies)
    assert len(set().union(*cookies)) == len(groups)
    assert cookies[-1] == {0}
    assert node.colocation.state.wanted[CoreScheduling.name].notes == (
        "group expeller/ has 2 pods",
        "group expeller/g has 2 pods",
        "group group/ has 1 pod",
        "group group/g has 1 pod",
        "group pod/alone has 1 pod",
        "group pod/other has 1 pod",
    )


def test_pods_have_cookies_as_long_as_the_strategy_wants_it(
    node: CoreNode, kernel: SchedCoreKernel
) -> None:
    web, batch = node.busy("web", group="g"), node.busy("batch", "besteffort")
    node.start(acts=False)
    assert node.step() == ""
    group = f"{node.real.top}/kubepods/burstable/podweb/main"
    assert node.colocation.state.would_write[CoreScheduling.name] == WouldWrite(
        2,
        (
            f"{node.real.top}/kubepods/besteffort/podbatch/main {CORE_GROUP}: none -> group/",
            f"{group} {CORE_GROUP}: none -> expeller/g",
        ),
    )
    assert not kernel.cookies()
    node.start()
    assert node.step() == ""
    cookies = kernel.cookie(web), kernel.cookie(batch)
    (reason,) = values_of(node.pods["web"], node.controllers, str(node.folder)).values
    assert reason.value == FileValue("main", CORE_GROUP, "expeller/g", "none")
    node.start()
    assert node.step() == ""
    assert (kernel.cookie(web), kernel.cookie(batch)) == cookies, "it starts again"
    late = node.real.process(group).pid
    assert node.step() == ""
    assert kernel.cookie(late) == cookies[0]
    node.strategies = strategies("groupIdentity", **BOTH)
    assert node.step() == ""
    assert not {web, batch, late} & kernel.cookies().keys()
    assert not [file for _, file in node.journal.values if file == CORE_GROUP]


def test_a_command_takes_the_cookies_away(node: CoreNode, kernel: SchedCoreKernel) -> None:
    pids = node.busy("web"), node.busy("batch", "besteffort")
    assert node.step() == ""
    assert set(pids) <= kernel.cookies().keys()
    command = (sys.executable, "-m", "agent", "restore", "--runtime-endpoint=/nowhere")
    subprocess.run(
        [*command, f"--state-dir={node.folder}"],
        env={**os.environ, "LD_PRELOAD": kernel.library},
        check=True,
        timeout=60,
    )
    assert not set(pids) & kernel.cookies().keys()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENODEV])
def test_where_the_kernel_has_none_that_is_said_and_nothing_else_happens(
    node: CoreNode, kernel: SchedCoreKernel, number: int
) -> None:
    node.strategies = strategies("groupIdentity", **BOTH)
    node.busy("web")
    kernel.refuse(number)
    assert node.step() == "", "nothing wants it"
    node.strategies = strategies(**BOTH)
    assert node.step() == node.core.problem() != ""
    assert node.problems[SourceName.COLOCATION.value] == 1
    assert CORE_GROUP not in {file for _, file in node.journal.values}


def test_this_kernel_has_core_scheduling_or_says_so(tmp_path: Path, real: RealGroups) -> None:
    node = CoreNode(tmp_path, real, None)
    pid = node.busy("web")
    problem = node.step()
    if problem == "":
        assert node.cookies.of(pid) != 0
        node.strategies = strategies("groupIdentity", **BOTH)
        assert node.step() == ""
        assert node.cookies.of(pid) == 0
    else:
        assert "core scheduling" in problem or "hardware threads" in problem
        assert CORE_GROUP not in {file for _, file in node.journal.values}
