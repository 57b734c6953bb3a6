"""A real kubelet, which sees a machine of 16 CPUs, admits and rejects the pods of a table as the
scheduler expects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from agent.model import quantities
from tests.allocate.kubelet.whole_core_pods import FULL_PCPUS_ONLY, PODS, Pod
from tests.fixtures import image, trees
from tests.fixtures.containerd import Containerd
from tests.integration.harness import private_containerd
from tests.integration.kubelet import standalone
from tests.integration.kubelet.standalone import Kubelet
from tests.waiting import eventually


@pytest.fixture(scope="module")
def runtime() -> Iterator[Containerd]:
    """A kubelet removes containers that it does not know."""
    with private_containerd() as it:
        yield it


@contextlib.contextmanager
def kubelet_with(runtime: Containerd, folder: Path, option: str) -> Iterator[Kubelet]:
    """The kubelet's static policy has this option. CPUs 2n and 2n + 1 are siblings, and 4n to
    4n + 3 a NUMA node; CPU 0 is reserved."""
    siblings = [2 * core + thread for thread in (0, 1) for core in range(8)]
    files = trees.machine(2, 2, 1, 2, 2, numbers=siblings, memory_kb=1 << 20)
    files |= {f"{trees.CPU}/cpu{cpu}/online": "1" for cpu in range(16)}
    links = [(f"{trees.NODE}/node{n // 4}/cpu{n}", f"../../cpu/cpu{n}") for n in range(16)]
    machine = trees.write(str(folder), files, links)
    more = {
        "cpuManagerPolicyOptions": {option: "true"},
        "memoryManagerPolicy": "None",
        "reservedMemory": [],
    }
    with standalone.running(runtime, more=more, machine=machine) as kubelet:
        assert str(kubelet.reserved) == "0"
        yield kubelet


def start(kubelet: Kubelet, pod: Pod) -> None:
    spec = pod.spec()
    for each in (*spec["containers"], *spec["initContainers"]):
        each |= {"image": image.NAME, "imagePullPolicy": "Never", "command": list(image.SLEEP)}
    kubelet.run(pod.name, spec.pop("containers"), {"labels": pod.labels}, **spec)


def rejected(kubelet: Kubelet, pod: Pod) -> bool:
    words = (f'object="default/{pod.name}-{standalone.NODE}"', 'reason="SMTAlignmentError"')
    return any(all(word in line for word in words) for line in kubelet.log.splitlines())


def admitted(kubelet: Kubelet, pod: Pod) -> bool:
    """The kubelet creates sandboxes of admitted pods only."""
    return any(each.name == f"{pod.name}-{standalone.NODE}" for each in kubelet.cri.sandboxes())


def rejected_by(kubelet: Kubelet, pods: Sequence[Pod]) -> list[str]:
    """The names of the pods that the kubelet rejects if they come together."""
    for pod in pods:
        start(kubelet, pod)

    def decided() -> bool:
        return all(rejected(kubelet, pod) or admitted(kubelet, pod) for pod in pods)

    names = [pod.name for pod in pods]
    eventually(f"the kubelet decides about {names}", decided, standalone.START_SECONDS)
    found = [pod.name for pod in pods if rejected(kubelet, pod)]
    for name in names:
        kubelet.end(name)
    return found


def fitting_together(pods: Iterable[Pod]) -> list[list[Pod]]:
    """The pods in groups that request at most 14 CPUs, init containers included."""
    groups: list[list[Pod]] = [[]]
    left = 14_000
    for pod in pods:
        milli = sum(quantities.milli(each.cpu) for each in (*pod.init, *pod.containers))
        milli = max(milli, quantities.milli(pod.pod_cpu or "0"))
        if milli > left:
            groups.append([])
            left = 14_000
        groups[-1].append(pod)
        left -= milli
    return groups


def test_full_pcpus_only_rejects_what_the_scheduler_declines(
    runtime: Containerd, tmp_path: Path
) -> None:
    with kubelet_with(runtime, tmp_path, FULL_PCPUS_ONLY) as kubelet:
        refused = [pod for pod in PODS if pod.refused]
        assert rejected_by(kubelet, refused) == [pod.name for pod in refused]
        for group in fitting_together(pod for pod in PODS if not pod.refused):
            assert rejected_by(kubelet, group) == []
