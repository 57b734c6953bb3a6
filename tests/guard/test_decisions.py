"""Which containers the guard refuses: alone, and compared with the hooks of the plugin."""

from __future__ import annotations

import json
import random
from fnmatch import fnmatchcase

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.shares import pool_of
from agent.guard import decisions
from agent.guard.decisions import Decisions, SnapshotFormError, cpu_mask, kube_class, refusal
from agent.guard.request import CPU_CLAIM, CPU_CLAIM_VARIABLE, ValidatedContainer
from agent.hooks import cpuset
from agent.hooks.requests import CreateContainer, announced, announced_pod
from agent.model import bounds, snapshot
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.devices.visibility import (
    DeviceNode,
    NodeVisibility,
    Visibility,
    VisibleGpu,
)
from agent.model.dra import names
from agent.model.linux_resources import LinuxResources
from agent.model.pod import annotations, qos
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.model.verdict import Wait
from agent.nri import messages
from agent.proto import nri_pb2 as pb
from tests.guard.containers import BASE, PARENTS, SHARED, container, pod


def read(it: Snapshot) -> Decisions:
    return Decisions(snapshot.encode(it))


def changed(**fields: object) -> Decisions:
    return read(msgspec.structs.replace(BASE, **fields))


STATUS = '{"cpuset":"2"}'


@pytest.mark.parametrize(
    ("created", "why"),
    [
        (container(pod("own"), "4-7"), ""),
        (
            container(pod("own")),
            "pod ns/own owns CPUs 4-7, but its container main would start on any CPU",
        ),
        (
            container(pod("own"), "4-6"),
            "pod ns/own owns CPUs 4-7, but its container main would start on CPUs 4-6",
        ),
        (container(pod("own"), "0-3", "sidecar"), ""),
        (container(pod("ls"), "0-3"), ""),
        (container(pod("ls"), "1"), ""),
        (
            container(pod("ls"), "3-5"),
            "container main of pod ns/ls would start on CPUs 3-5, but pod ns/own owns CPUs 4-5",
        ),
        (
            container(pod("ls")),
            "container main of pod ns/ls would start on any CPU, but pod ns/own owns CPUs 4-7",
        ),
        (container(pod("new"), "0"), ""),
        (
            container(pod("new"), "0-15:2/4"),
            "container main of pod ns/new would start on CPUs 0-15:2/4, "
            "but pod ns/own owns CPUs 4-7",
        ),
        (
            container(pod("new", status=STATUS), "2"),
            "pod ns/new claims CPUs, and the agent has not decided about it",
        ),
        (container(pod("new", status='{"cpuset":""}'), "2"), ""),
        (container(pod("new", status='{"cpuset":"x"}'), "2"), ""),
        (container(pod("new", status="[" * 10_000), "2"), ""),
        (container(pod("new", status='{"a":"' + "x" * 20_000 + '","cpuset":"2"}'), "2"), ""),
        (container(pod("new", devices="{}"), "2"), ""),
        (container(pod("new", kube="guaranteed"), "2", shares=2048), ""),
        (container(pod("other", namespace="quiet")), ""),
        (container(pod("own", namespace="quiet")), ""),
    ],
)
def test_a_container_by_the_snapshot(created: ValidatedContainer, why: str) -> None:
    assert refusal(created, read(BASE)) == why


def test_be_pods_may_run_on_the_cpus_of_lsr_pods() -> None:
    lsr = changed(owners=(Owner("own", "ns/own", QoS.LSR, "4-7"),))
    assert refusal(container(pod("new", "BE", "besteffort"), "0-7"), lsr) == ""
    assert refusal(container(pod("new", "", "besteffort"), "0-7"), lsr) == ""
    assert refusal(container(pod("new", "", "besteffort"), "0-7"), read(BASE)) != ""
    assert refusal(container(pod("new", "BE", "burstable"), "0-7"), lsr) != ""
    bound = container(pod("new", "", "besteffort", status='{"cpuSharedPools":[{}]}'), "0-7")
    assert refusal(bound, lsr) != ""


def test_a_pod_that_uses_the_claim_of_another_runs_on_its_cpus() -> None:
    owner = Owner("other", "ns/other", QoS.LSE, "4-7", claims=True, sharers=("own",))
    sharing = changed(owners=(owner,))
    assert not refusal(container(pod("own"), "4-7"), sharing, ())
    assert "pod ns/other owns CPUs 4-5" in refusal(container(pod("ls"), "3-5"), sharing, ())


@pytest.mark.parametrize(
    ("cpus", "why"),
    [
        ("2-7", ""),
        ("4-7", ""),
        ("1,4-7", ""),
        ("2-6", "owns CPUs 4-7, but its container main would start on CPUs 2-6"),
        ("", "owns CPUs 4-7, but its container main would start on any CPU"),
        ("0-7", "would start on CPUs 0-7, but pod ns/other owns CPUs 0"),
    ],
)
def test_a_mixed_container_has_its_own_cpus_and_none_of_others(cpus: str, why: str) -> None:
    """Its share may be that of another moment: the snapshot has 2-3."""
    mixed = Wanted(LinuxResources("2-7"), exclusive=True, shared="2-3")
    owners = (*BASE.owners, Owner("other", "ns/other", QoS.LSE, "0"))
    pods = {"own": PodWanted("ns/own", QoS.LSE, mixed)}
    refused = refusal(container(pod("own"), cpus), changed(owners=owners, pods=pods))
    assert why in refused
    assert bool(refused) == bool(why)


def test_a_mixed_container_of_a_static_kubelet_waits_for_its_checkpoint() -> None:
    mixed = Wanted(LinuxResources("2-5"), exclusive=True, kubelet=True, shared="2-3")
    read_by_agent = changed(
        kubelet_static=True,
        owners=(Owner("own", "ns/own", QoS.LS, "4-5", kubelet=True),),
        pods={"own": PodWanted("ns/own", QoS.LS, mixed)},
    )
    of_pod = pod("own", kube="guaranteed")
    assert refusal(container(of_pod, "2-5", shares=2048), read_by_agent) == ""
    unread = refusal(container(of_pod, "2-3,6-7", shares=2048), read_by_agent)
    assert "has not read that the kubelet assigned CPUs" in unread


def test_without_a_snapshot_only_claims_are_refused() -> None:
    assert refusal(container(pod("new")), None) == ""
    assert refusal(container(pod("new", status=STATUS)), None) != ""
    assert refusal(container(pod("new", devices="{}")), None) != ""


def test_exempt_namespaces_pass() -> None:
    patterns = ("topolet-system", "kube-*/dns-?")
    for namespace, uid, passes in (
        ("topolet-system", "any", True),
        ("kube-system", "dns-1", True),
        ("kube-system", "dns-12", False),
        ("topolet-systems", "any", False),
    ):
        created = container(pod(uid, namespace=namespace))
        assert (refusal(created, read(BASE), patterns) == "") == passes


def test_a_blocked_container_is_refused() -> None:
    blocked = Wanted(LinuxResources("0"), blocked="CPUs 4-7 are in use")
    decided = changed(pods={"own": PodWanted("ns/own", QoS.LSE, blocked)})
    assert refusal(container(pod("own"), "0"), decided) == "pod ns/own: CPUs 4-7 are in use"


class TestStaticPolicies:
    def test_an_unknown_pod_that_may_own_waits(self) -> None:
        for decided in (changed(kubelet_static=True), changed(cpu_policy="static")):
            may_own = container(pod("new", kube="guaranteed"), "0-1", shares=2048)
            assert "may own CPUs by the node's policy" in refusal(may_own, decided)
            for other in (
                container(pod("new", kube="guaranteed"), "0-1", shares=1500),
                container(pod("new", "LS", "guaranteed"), "0-1", shares=2048),
                container(pod("new"), "0-1", shares=2048),
            ):
                assert refusal(other, decided) == ""

    def test_a_container_of_a_known_pod_waits_for_the_agents_policy(self) -> None:
        new = container(pod("ls", kube="guaranteed"), "0-1", "second", shares=2048)
        assert "not decided about container second" in refusal(new, changed(cpu_policy="static"))
        assert refusal(new, read(BASE)) == ""

    def test_cpus_that_the_kubelet_assigned_stay_once_the_agent_has_read_them(self) -> None:
        assigned = Wanted(LinuxResources("2-3"), exclusive=True, kubelet=True)
        pods = {**BASE.pods, "ls": PodWanted("ns/ls", QoS.LS, assigned)}
        known = changed(kubelet_static=True, pods=pods)
        created = container(pod("ls", kube="guaranteed"), "2-3", shares=2048)
        assert refusal(created, known) == ""
        unread = container(pod("ls", kube="guaranteed"), "0-1", shares=2048)
        assert "not read that the kubelet assigned CPUs 0-1" in refusal(unread, known)
        assert "not read" in refusal(created, changed(kubelet_static=True))
        taken = container(pod("ls", kube="guaranteed"), "2-4", shares=3072)
        assert "pod ns/own owns CPUs 4" in refusal(taken, known)

    def test_a_pod_that_the_kubelet_places_keeps_its_request(self) -> None:
        known = changed(pods={"ls": PodWanted("ns/ls", QoS.LS, Wanted())}, kubelet_static=True)
        assert refusal(container(pod("ls"), "0-7"), known) == ""


class TestDevices:
    GPU = VisibleGpu("GPU-1", "3", (DeviceNode("/dev/nvidia3", 195, 3),))
    VISIBLE = Visibility((GPU,), {"rdma": (DeviceNode("/dev/infiniband/uverbs0"),)})
    DECIDED = changed(
        devices=NodeVisibility(),
        pods={"d": PodWanted("ns/d", QoS.LS, Wanted(LinuxResources("0"), visible=VISIBLE))},
    )

    @pytest.mark.parametrize(
        "names",
        [
            {"container": pb.Container(env=[b"NVIDIA_VISIBLE_DEVICES=GPU-1"])},
            {"container": pb.Container(env=[b"NVIDIA_VISIBLE_DEVICES=0,3"])},
            {"container": pb.Container(CDI_devices=[pb.CDIDevice(name="nvidia.com/gpu=3")])},
            {"container": pb.Container(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=GPU-1"})},
            {"adjust": pb.ContainerAdjustment(CDI_devices=[pb.CDIDevice(name="n.com/gpu=GPU-1")])},
            {"container": pb.Container(linux={"devices": [pb.LinuxDevice(path="/dev/nvidia3")]})},
        ],
    )
    def test_a_container_with_its_devices_passes(self, names: dict[str, pb.Container]) -> None:
        adjust = pb.ContainerAdjustment()
        adjust.linux.devices.add(path="/dev/infiniband/uverbs0")
        adjust.MergeFrom(names.pop("adjust", pb.ContainerAdjustment()))  # type: ignore[arg-type]
        created = container(pod("d"), "0", adjust=adjust, **names)
        assert refusal(created, self.DECIDED) == ""

    def test_a_container_without_one_is_refused(self) -> None:
        why = refusal(container(pod("d"), "0"), self.DECIDED)
        assert "was allocated GPU-1, /dev/infiniband/uverbs0, but its container main" in why
        others = pb.Container(env=[b"NVIDIA_VISIBLE_DEVICES=GPU-11,all"])
        assert "GPU-1" in refusal(container(pod("d"), "0", container=others), self.DECIDED)

    def test_devices_that_are_not_decided_or_refused(self) -> None:
        for uid in ("d", "ls", "new"):
            claiming = container(pod(uid, devices="{}"), "0")
            decided = changed(devices=NodeVisibility())
            assert "claims devices" in refusal(claiming, decided)
            assert refusal(claiming, read(BASE)) == ""
        refused = Wanted(LinuxResources("0"), visible=Visibility(refused="the card is gone"))
        decided = changed(devices=NodeVisibility(), pods={"d": PodWanted("ns/d", QoS.LS, refused)})
        assert refusal(container(pod("d"), "0"), decided) == "pod ns/d: the card is gone"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "ends before a value"),
        (b'{"version":1,"torn', "Unterminated string"),
        (b"\xff", "UnicodeDecodeError"),
        (b"[]", "TypeError"),
        (b"[" * 100_000, "RecursionError"),
        (b'{"version":2}', "it has the version 2, not 1"),
        (b'{"version":1,"boot_id":"b"}', "KeyError"),
        (b'{"version":1,"boot_id":"b","owners":[],"pods":[]}', "AttributeError"),
    ],
)
def test_other_texts_are_no_snapshot(text: bytes, reason: str) -> None:
    with pytest.raises(SnapshotFormError, match=reason):
        Decisions(text)


def test_names_and_bounds_are_those_of_the_agent() -> None:
    assert decisions.VERSION == snapshot.VERSION
    assert decisions.RESOURCE_STATUS == annotations.RESOURCE_STATUS
    assert decisions.DEVICE_ALLOCATED == annotations.DEVICE_ALLOCATED
    assert decisions.QOS_LABEL == qos.QOS_LABEL
    assert decisions.MOST_STATUS_BYTES == bounds.POD_TEXT_BYTES


PATTERN = st.text("ab*?", max_size=6)


@given(st.text("ab", max_size=6), PATTERN)
def test_patterns_fit_as_those_of_the_agent(name: str, pattern: str) -> None:
    assert decisions.fits(name, pattern) == fnmatchcase(name, pattern)
    assert decisions.fits(f"{name}a", f"{pattern}[ab]") == fnmatchcase(name, pattern)


@given(st.sets(st.integers(0, 200)))
def test_cpus_are_read_and_written_as_by_the_agent(cpus: set[int]) -> None:
    text = str(CpuSet(cpus))
    assert cpu_mask(text) == CpuSet(cpus).mask
    assert decisions._list(CpuSet(cpus).mask) == text


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-1", "0-99999", "0-15:2/4", "٣"])
def test_other_texts_are_no_cpus(text: str) -> None:
    assert cpu_mask(text) is None


@pytest.mark.parametrize("text", ["0000000001", "0-0000000001", "0000000001-2"])
def test_a_number_of_ten_digits_is_no_cpu_as_for_the_agent(text: str) -> None:
    """The first nine digits of the first number are 0."""
    assert cpu_mask(text) is None
    with pytest.raises(CpuSetError):
        CpuSet.parse(text)


@pytest.mark.parametrize(
    "group",
    [
        "/kubepods/podx",
        "/kubepods/burstable/podx",
        "/root/kubepods/besteffort/podx",
        "/kubepods.slice/kubepods-podx_y.slice",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx_y.slice",
        "kubepods-besteffort-podx_y.slice",
        "/system.slice/x.service",
        "",
    ],
)
def test_classes_are_those_of_the_agent(group: str) -> None:
    assert kube_class(group) == (qos.kube_class(group) or "")


CLASSES = st.sampled_from(["", "LSE", "LSR", "LS", "BE"])


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Snapshot, pb.PodSandbox, int, str]:
    """A consistent snapshot, and the request of a container: pod, shares and cpuset."""
    choice = random.Random(draw(st.integers(0, 1 << 30)))
    owners = tuple(
        Owner(f"o{number}", f"ns/o{number}", choice.choice((QoS.LSE, QoS.LSR)), str(number + 4))
        for number in range(choice.randrange(4))
    )
    lsr = [each.cpuset for each in owners if each.qos is QoS.LSR]
    free = [str(cpu) for cpu in range(8) if str(cpu) not in {each.cpuset for each in owners}]
    pools = {"ls": (Pool(0, 0, ",".join(free)),), "be": (Pool(0, 0, ",".join(free + lsr)),)}
    uid = choice.choice(["new", "known", "o0", "o1"])
    label, kube = draw(CLASSES), choice.choice(list(PARENTS))
    sandbox = pod(uid, label, kube)
    if choice.random() < 0.2:
        sandbox.annotations[RESOURCE_STATUS] = STATUS
    known = announced(messages.pod(sandbox), 0)
    pods = {}
    for each in owners:
        own = Wanted(LinuxResources(each.cpuset), exclusive=True)
        if choice.random() < 0.3:
            both = str(CpuSet.parse(each.cpuset) | CpuSet.parse(",".join(free)))
            own = Wanted(LinuxResources(both), exclusive=True, shared=",".join(free))
        pods[each.uid] = PodWanted(each.title, each.qos, own)
    pool = pools[pool_of(known).name][0].cpuset
    pods["known"] = PodWanted("ns/known", known.qos, Wanted(LinuxResources(pool)))
    made = Snapshot(1, 100, "b", choice.random() < 0.2, pools, owners, pods, {}, cpu_policy="none")
    if choice.random() < 0.2:
        made = msgspec.structs.replace(made, cpu_policy="static")
    shares = choice.choice([0, 2, 256, 1024, 2048])
    return made, sandbox, shares, choice.choice(["", "0", "0-1", "4", "0-7", "5-6"])


def described(
    sandbox: pb.PodSandbox, shares: int, requested: str, adjusted: str | None
) -> ValidatedContainer:
    request = pb.ValidateContainerAdjustmentRequest(pod=sandbox)
    request.container.name = "main"
    request.container.linux.resources.cpu.shares.value = shares
    request.container.linux.resources.cpu.cpus = requested
    request.adjust.linux.resources.cpu.cpus = adjusted or ""
    return ValidatedContainer(request.SerializeToString())


def test_a_node_local_policy_gives_nothing_to_a_pod_whose_cpus_a_scheduler_chose() -> None:
    sandbox = pod("known", "", "guaranteed")
    sandbox.annotations[RESOURCE_STATUS] = STATUS
    pools = {name: (Pool(0, 0, "0-3"),) for name in ("ls", "be")}
    pods = {"known": PodWanted("ns/known", QoS.LS, Wanted(LinuxResources("0-3")))}
    made = Snapshot(1, 100, "b", False, pools, (), pods, {}, cpu_policy="static")
    assert refusal(described(sandbox, 1024, "", "0-3"), read(made)) == ""


@given(nodes())
def test_what_the_plugin_decides_passes(drawn: tuple[Snapshot, pb.PodSandbox, int, str]) -> None:
    made, sandbox, shares, cpus = drawn
    values = LinuxResources(cpus or None, shares=shares or None)
    request = CreateContainer(messages.pod(sandbox), "main", values)
    answer = cpuset.create(request, made, ())
    if not isinstance(answer, Wait):
        adjusted = cpuset.changes(request, answer).resources.cpuset
        assert refusal(described(sandbox, shares, cpus, adjusted), read(made)) == ""


@given(nodes())
def test_what_passes_without_the_plugin_harms_nobody(
    drawn: tuple[Snapshot, pb.PodSandbox, int, str],
) -> None:
    made, sandbox, shares, cpus = drawn
    if refusal(described(sandbox, shares, cpus, None), read(made)):
        return
    wanted = made.pods.get(sandbox.uid)
    if wanted is not None and wanted.each.exclusive:
        assert wanted.each.own <= CpuSet.parse(cpus)
        assert cpus == wanted.each.cpuset or wanted.each.shared is not None
    known = announced(
        announced_pod(
            sandbox.uid,
            "ns",
            sandbox.name,
            sandbox.labels,
            sandbox.annotations,
            sandbox.linux.cgroup_parent,
        ),
        0,
    )
    excluded = pool_of(known).excluded
    for owner in made.owners:
        if owner.uid != sandbox.uid and owner.qos in excluded:
            assert cpus, f"any CPU, beside {owner}"
            assert not CpuSet.parse(cpus) & owner.cpus


def test_the_snapshot_of_a_large_node_is_read() -> None:
    pods = {f"u{number}": PodWanted(f"ns/p{number}", QoS.LS, SHARED) for number in range(4_000)}
    assert len(changed(pods=pods).pods) == 4_000
    assert json.loads(snapshot.encode(BASE))["owners"][0]["cpuset"] == "4-7"


@pytest.mark.parametrize(
    "of_claim",
    [
        pb.Container(env=[b"TOPOLET_CLAIM_U_CPUS=4-7"]),
        pb.Container(CDI_devices=[pb.CDIDevice(name="cpu.topolet.io/claim=u-cpus")]),
    ],
)
def test_a_container_with_cpus_of_a_claim_has_them_or_is_refused(of_claim: pb.Container) -> None:
    assert CPU_CLAIM_VARIABLE.decode() == names.VARIABLE
    assert f"{names.CDI_KIND}=" == CPU_CLAIM
    gives = changed(gives_claims=True)
    for published, uid, cpus, passes in (
        (gives, "new", "0-3", False),
        (gives, "ls", "0-3", False),
        (gives, "own", "4-7", True),
        (None, "new", "", False),
        (read(BASE), "new", "0-3", True),
    ):
        created = container(pod(uid), cpus, container=of_claim)
        assert (refusal(created, published) == "") == passes, (uid, cpus)
