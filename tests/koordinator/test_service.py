"""The service with hooks that fail, calls that are held, and clients that cancel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hooks.requests import UNCHANGED, Changes, CreateContainer, UpdateContainer, Verdict
from agent.koordinator import server
from agent.koordinator import service as messages
from agent.koordinator.service import (
    SETTLE_SECONDS,
    ContainerRef,
    HookService,
    KoordinatorHooks,
    RuntimeHookCall,
)
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.notifications import PodAnnounced, PodFailed, Resized
from agent.model.settings.frontends import SANDBOX_SECONDS, Deadlines
from agent.model.snapshot import Wanted
from agent.model.verdict import Code, Refuse, Wait
from agent.proto import koordinator_hooks_pb2 as pb
from tests.hooks.admission_harness import AdmissionHarness, container, pod
from tests.hooks.snapshots import EMPTY, OWNED
from tests.koordinator.merging import merged
from tests.waiting import DEADLINE_SECONDS, eventually


class Caller:
    """The context of a gRPC call."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.active = True

    def is_active(self) -> bool:
        return self.active

    def time_remaining(self) -> float | None:
        return self.seconds


class Hooks(KoordinatorHooks):
    """Answers creations with `create`, and runs `then` for everything else. `calls`: those that a
    client cancelled or a hook failed to answer."""

    def __init__(
        self,
        create: Callable[[RuntimeHookCall], Verdict] = lambda call: Changes(LinuxResources("1")),
        then: Callable[[], None] = lambda: None,
        unhooked: Callable[[str], Refuse | None] = lambda reason: None,
    ) -> None:
        self._create = create
        self._then = then
        self._unhooked = unhooked
        self.calls: list[object] = []

    def pod_announced(self, call: RuntimeHookCall, pod: PodAnnounced) -> Verdict:
        self._then()
        return Changes()

    def create(self, call: RuntimeHookCall, request: CreateContainer) -> Verdict:
        return self._create(call)

    def update(self, call: RuntimeHookCall, request: UpdateContainer) -> Verdict:
        self._then()
        return Changes()

    def exists(self, container: ContainerRef) -> None:
        self._then()

    def stopped(self, container: ContainerRef) -> None:
        self._then()

    def pod_stopped(self, uid: str) -> None:
        self._then()

    def abandoned(self, call: RuntimeHookCall) -> None:
        self.calls.append(call)

    def unhooked(self, hook: str, call: RuntimeHookCall, reason: str, detail: str) -> Refuse | None:
        self.calls.append((hook, reason, detail))
        return self._unhooked(reason)


def cpuset(answer: bytes | Refuse) -> str:
    assert isinstance(answer, bytes)
    return pb.ContainerResourceHookResponse.FromString(answer).container_resources.cpuset_cpus


def fail() -> None:
    raise RuntimeError("hook failed")


def failing(call: RuntimeHookCall) -> Verdict:
    raise RuntimeError("hook failed")


def test_every_hook_that_can_be_registered_is_answered() -> None:
    service = HookService(Hooks())
    assert set(service.hooks) == set(server.HOOKS)
    for hook in service.hooks:
        assert isinstance(service.answer(hook, b"", Caller()), bytes)
    assert service.calls == dict.fromkeys(server.HOOKS, 1)


@pytest.mark.parametrize("hook", server.HOOKS)
def test_an_exception_of_a_hook_is_counted_and_answered_by_the_policy(hook: str) -> None:
    hooks = Hooks(failing, fail)
    service = HookService(hooks)
    assert service.answer(hook, b"", Caller()) == b""
    assert hooks.calls == [(hook, "internal_error", "RuntimeError('hook failed')")]
    assert service.errors == {hook: 1}
    refusing = HookService(Hooks(failing, fail, lambda reason: Refuse(Code.INTERNAL, reason)))
    assert refusing.answer(hook, b"", Caller()) == Refuse(Code.INTERNAL, "internal_error")


def test_a_call_is_refused_if_its_hook_and_its_failure_policy_raise() -> None:
    def broken(reason: str) -> Refuse | None:
        raise RuntimeError("policy failed")

    service = HookService(Hooks(failing, unhooked=broken))
    text = "the hook can't decide, and its failure policy raised RuntimeError('policy failed')"
    assert service.answer("PreCreateContainer", b"", Caller()) == Refuse(Code.INTERNAL, text)


@pytest.mark.parametrize(
    ("remaining", "least", "most"), [(10.0, 5.0, 9.9), (0.1, 0.0, 0.0), (-1.0, 0.0, 0.0)]
)
def test_a_call_is_held_for_less_than_its_callers_timeout(
    remaining: float, least: float, most: float
) -> None:
    budgets: list[float | None] = []

    def record(call: RuntimeHookCall) -> Verdict:
        budgets.append(call.budget_seconds)
        return Changes()

    HookService(Hooks(record)).answer("PreCreateContainer", b"", Caller(remaining))
    HookService(Hooks(record)).answer("PreCreateContainer", b"", Caller(None))
    assert budgets[0] is not None
    assert least <= budgets[0] <= most
    assert budgets[1] is None


def test_a_held_call_does_not_delay_other_calls() -> None:
    decided = threading.Event()
    hooks = Hooks(lambda call: Changes(LinuxResources("1")) if decided.is_set() else Wait())
    service = HookService(hooks)
    answers: list[bytes | Refuse] = []
    held = threading.Thread(
        target=lambda: answers.append(service.answer("PreCreateContainer", b"", Caller()))
    )
    held.start()
    eventually("it is held", lambda: len(service.held) == 1)
    assert service.answer("PreRunPodSandbox", b"", Caller()) == b""
    decided.set()
    held.join(DEADLINE_SECONDS)
    assert cpuset(answers[0]) == "1"
    assert not service.held


def test_a_cancelled_call_is_abandoned() -> None:
    hooks = Hooks(lambda call: Wait())
    caller = Caller()
    caller.active = False
    answer = HookService(hooks).answer("PreCreateContainer", b"", caller)
    assert isinstance(answer, Refuse)
    assert answer.code == Code.CANCELLED
    assert [type(each) for each in hooks.calls] == [RuntimeHookCall]


def test_hooks_are_called_one_at_a_time() -> None:
    running = threading.Lock()

    def exclusive(call: RuntimeHookCall) -> Verdict:
        assert running.acquire(blocking=False)
        time.sleep(0.001)
        running.release()
        return Changes(LinuxResources("1"))

    service = HookService(Hooks(exclusive))
    answers: list[bytes | Refuse] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(service.answer("PreCreateContainer", b"", Caller()))
        )
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert [cpuset(each) for each in answers] == ["1"] * 16


SHARER = container("any", "LS")


class HooksHarness(AdmissionHarness):
    """`hooks`: those of the server, which hold a call for 9 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.hooks = KoordinatorHooks(self.admission, Deadlines(9.0))

    def call(self, budget_seconds: float | None = None) -> RuntimeHookCall:
        return RuntimeHookCall(time.monotonic(), budget_seconds)

    def in_progress(self) -> int:
        return sum(each.answered_at is None for each in self.assumed.all(None))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> HooksHarness:
    it = HooksHarness(monkeypatch)
    it.publish(OWNED)
    return it


@pytest.mark.parametrize("budget_seconds", [None, 3.0])
def test_a_call_waits_until_the_deadline_of_its_hook_or_of_its_caller(
    harness: HooksHarness, budget_seconds: float | None
) -> None:
    hooks = harness.hooks

    def waits(decide: Callable[[RuntimeHookCall], Verdict], seconds: float) -> None:
        call = harness.call(budget_seconds)
        seconds = min(seconds, budget_seconds or seconds)
        for step in (0.0, seconds - 0.01):
            harness.wait(step)
            assert decide(call) == Wait()
        harness.wait(0.02)
        assert decide(call) != Wait()

    waits(lambda call: hooks.pod_announced(call, pod("p")), SANDBOX_SECONDS)
    waits(lambda call: hooks.create(call, container("new", "LSE", "2")), 9.0)
    unknown = UpdateContainer("unknown", LinuxResources("0-1"))
    waits(lambda call: hooks.update(call, unknown), 9.0)


def test_what_a_caller_gives_up_is_withdrawn(harness: HooksHarness) -> None:
    call = harness.call()
    assert harness.hooks.pod_announced(call, pod("p")) == Wait()
    harness.notifications()
    harness.hooks.abandoned(call)
    assert harness.notifications() == [PodFailed("p")]


def end_by_time(harness: HooksHarness) -> None:
    harness.wait(SETTLE_SECONDS)
    harness.hooks.create(harness.call(), container("own", "LSE", "1"))


def end_by_a_held_creation(harness: HooksHarness) -> None:
    again = container("any", "LS", "2")
    assert harness.hooks.create(harness.call(), again) == Wait()


def end_by_the_pod(harness: HooksHarness) -> None:
    harness.hooks.pod_stopped("any")


@pytest.mark.parametrize(
    "end", [end_by_time, end_by_a_held_creation, end_by_the_pod], ids=lambda each: each.__name__
)
def test_a_creation_whose_failure_is_not_reported_ends(
    harness: HooksHarness, end: Callable[[HooksHarness], None]
) -> None:
    """Until then an owner waits for it."""
    harness.publish(EMPTY)
    harness.hooks.create(harness.call(), SHARER)
    harness.publish(OWNED)
    harness.wait(SETTLE_SECONDS - 5)
    owner = container("own", "LSE", "1")
    assert harness.hooks.create(harness.call(), owner) == Wait()
    assert harness.in_progress() == 1
    end(harness)
    assert harness.in_progress() == 0
    harness.publish(OWNED)
    assert harness.hooks.create(harness.call(), owner) != Wait()


def test_a_stopped_container_has_no_cpus(harness: HooksHarness) -> None:
    harness.hooks.create(harness.call(), SHARER)
    ref = ContainerRef("any", "main", "c1")
    harness.hooks.exists(ref)
    assert harness.assumed.of("c1") is not None
    harness.hooks.stopped(ref)
    assert harness.assumed.of("c1") is None


def test_a_creation_that_could_not_be_read_counts_as_ended(harness: HooksHarness) -> None:
    """The protocol does not say which container it made."""
    harness.publish(EMPTY)
    assert harness.hooks.unhooked("PreCreateContainer", harness.call(), "malformed", "why") is None
    assert harness.in_progress() == 0


def test_a_failed_hook_is_answered_by_the_policy_of_its_pod(harness: HooksHarness) -> None:
    harness.publish(EMPTY)
    call = harness.call()
    assert harness.hooks.create(call, container("new", "LSE", "2")) == Wait()
    answer = harness.hooks.unhooked("PreCreateContainer", call, "internal_error", "broken")
    assert answer == Refuse(Code.INTERNAL, "CreateContainer: pod ns/new: broken")


@pytest.mark.parametrize("shares", [None, 512])
def test_a_resize_is_reported_unless_it_repeats_the_agents_values(
    harness: HooksHarness, shares: int | None
) -> None:
    """koord-runtime-proxy repeats in every update the container's values, including the agent's
    shares."""
    wanted = Wanted(LinuxResources("1", shares=shares))
    harness.publish(msgspec.structs.replace(OWNED, cpu_policy="static", containers={"c": wanted}))
    requested = LinuxResources("1", shares=512)
    harness.hooks.update(harness.call(), UpdateContainer("c", requested))
    assert harness.notifications() == ([] if shares else [Resized("c", requested)])


def request(**resources: object) -> pb.ContainerResourceHookRequest:
    it = pb.ContainerResourceHookRequest(
        pod_meta=pb.PodSandboxMetadata(name="p", uid="u", namespace="ns"),
        container_meta=pb.ContainerMetadata(name="main", id="c1"),
        pod_cgroup_parent="/kubepods/podu",
    )
    it.container_envs.update({"A": "1", "B": "2"})
    it.container_resources.CopyFrom(pb.LinuxContainerResources(**resources))  # type: ignore[arg-type]
    return it


def test_no_change_sets_nothing() -> None:
    assert messages.response_with(request(cpuset_cpus="0-3"), UNCHANGED).ByteSize() == 0


def test_a_quota_is_lifted() -> None:
    requested = request(cpu_quota=20_000, cpu_period=10_000)
    result = merged(
        requested, messages.response_with(requested, Changes(LinuxResources(quota=NO_QUOTA)))
    )
    assert result.container_resources.cpu_quota == -1
    assert result.container_resources.cpu_period == 10_000


def test_a_memory_limit_can_not_be_lifted() -> None:
    requested = request(memory_limit_in_bytes=1 << 30)
    assert (
        messages.response_with(requested, Changes(LinuxResources(memory_limit_bytes=-1))).ByteSize()
        == 0
    )


def test_a_variable_is_added_to_the_others() -> None:
    requested = request()
    result = merged(
        requested, messages.response_with(requested, Changes(environment=(("B", "3"), ("C", "4"))))
    )
    assert dict(result.container_envs) == {"A": "1", "B": "3", "C": "4"}


_CPUS = st.sampled_from(["", "0", "0-3", "1,3"])
_LARGE = st.integers(0, 1 << 40)
_RESOURCES = st.fixed_dictionaries(
    {
        "cpuset_cpus": _CPUS,
        "cpuset_mems": _CPUS,
        "cpu_shares": _LARGE,
        "memory_limit_in_bytes": _LARGE,
        "oom_score_adj": st.integers(-1000, 1000),
        "cpu_period": st.sampled_from([0, 10_000, 100_000]),
        "cpu_quota": st.sampled_from([-1, 0, 10_000, 250_000]),
    }
)
_CHANGED = st.builds(
    LinuxResources,
    cpuset=st.none() | st.sampled_from(["0", "0-3"]),
    mems=st.none() | st.sampled_from(["0", "0-1"]),
    shares=st.none() | st.integers(2, 262_144),
    quota=st.none() | st.sampled_from([NO_QUOTA, CpuQuota(50_000)]),
    memory_limit_bytes=st.none() | st.integers(1, 1 << 40),
)


@given(_RESOURCES, _CHANGED)
def test_a_merged_response_gives_the_request_with_the_changes(
    resources: dict[str, object], changed: LinuxResources
) -> None:
    requested = request(**resources)
    result = merged(requested, messages.response_with(requested, Changes(changed)))
    assert messages.creation_of(result).requested == changed.over(
        messages.creation_of(requested).requested
    )
    for kept in (requested, result):
        for name in ("cpu_quota", "cpu_period", "cpu_shares", "memory_limit_in_bytes"):
            kept.container_resources.ClearField(name)
        kept.container_resources.cpuset_cpus = kept.container_resources.cpuset_mems = ""
    assert result == requested


def test_fields_of_a_create_request() -> None:
    it = request(cpu_shares=512, cpuset_cpus="0-1", cpu_quota=10_000, cpu_period=50_000)
    it.pod_labels["koordinator.sh/qosClass"] = "LSE"
    it.pod_labels["app"] = "x"
    parsed = messages.creation_of(it)
    assert (parsed.pod.uid, parsed.pod.namespace, parsed.pod.name) == ("u", "ns", "p")
    assert parsed.pod.labels == {"koordinator.sh/qosClass": "LSE"}
    assert parsed.pod.cgroup_parent == "/kubepods/podu"
    assert parsed.container_name == "main"
    assert parsed.requested == LinuxResources("0-1", shares=512, quota=CpuQuota(10_000, 50_000))


@pytest.mark.parametrize("uid", ["u", ""])
def test_a_sandbox_and_its_containers_have_the_same_pod(uid: str) -> None:
    sandbox = pb.PodSandboxHookRequest(
        pod_meta=pb.PodSandboxMetadata(name="p", uid=uid, namespace="ns")
    )
    of_container = request()
    of_container.pod_meta.uid = uid
    container_ref = messages.container_ref(of_container)
    assert (
        container_ref.pod_uid
        == messages.sandbox_of(sandbox).uid
        == messages.creation_of(of_container).pod.uid
    )
    assert msgspec.structs.astuple(container_ref)[1:] == ("main", "c1")
