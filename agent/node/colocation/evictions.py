"""Evictions: pods leave while the node has too little for those that stay, one at a time, by the
Eviction API."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from agent.allocate.colocation.be_suppress import Suppression
from agent.allocate.colocation.eviction import (
    BatchCpu,
    EvictionFeature,
    EvictionMoment,
    EvictionSettings,
    EvictionState,
    EvictionVictim,
    NodeAmounts,
    PressureLimit,
    decide,
    may_take,
    tasks,
)
from agent.allocate.colocation.eviction_levels import level
from agent.allocate.colocation.eviction_pod import (
    BATCH_CPU,
    USED_CPU,
    USED_MEMORY,
    EvictionPod,
    eviction_pod,
)
from agent.host import files
from agent.host.log_once import Problem, about
from agent.kube.auth import AccessError
from agent.kube.errors import KubeError, TooManyRequestsError
from agent.kube.events import Regarding
from agent.kube.eviction import EVICTED, EvictionResult
from agent.model.bounds import JsonError
from agent.model.node_slo import ResourceThreshold
from agent.model.pod.apiobjects import OFFERED_RESOURCES, ApiPod
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.node.colocation.moment import ColocatedPod, Moment
from agent.node.features import WantedFiles
from agent.usage.node_metric import priority_class_of_pod
from agent.usage.pod_pressure import PodPressure
from agent.usage.sampler import POD_SECONDS, Counted
from agent.view import evictions as evictions_view
from agent.view.evictions import ShownEvictionFeature, ShownEvictions

log = logging.getLogger(__name__)

EVICTION_REFUSED: Final = "EvictionRefused"
REFUSED_SECONDS: Final = 60.0
"""A pod that the API server did not evict is passed over for so long."""
ASKED_SECONDS: Final = 120.0
"""A pod that the agent has evicted, and that does not leave, may be evicted again after this."""
_MOST_REFUSED: Final = 256
_MOST_SHOWN: Final = 1024
_MOST_TEXT: Final = 500
TOLD_SECONDS: Final = 5.0
_DEFAULT_WINDOW_SECONDS: Final = 60.0
_PRESSURES: Final = {
    EvictionFeature.CPU_PRESSURE: "cpu",
    EvictionFeature.MEMORY_PRESSURE: "memory",
}


class EvictionRules(msgspec.Struct, frozen=True):
    """What the agent's settings say."""

    features: frozenset[EvictionFeature] = frozenset()
    settings: EvictionSettings = EvictionSettings()
    pressures: Mapping[EvictionFeature, tuple[int, int]] = {}
    """By feature, the threshold and the lower threshold in percent."""
    kills: bool = False
    """Pods are deleted, whatever their budgets say."""


def rules(settings: AgentSettings) -> EvictionRules:
    """Raises SettingsError."""
    names = [name.strip() for name in settings.evictions.split(",") if name.strip()]
    possible = [feature.value for feature in EvictionFeature]
    for name in names:
        if name not in possible:
            raise SettingsError(f"evictions: {name[:40]!r} is not one of {', '.join(possible)}")
    pressures = {
        EvictionFeature.CPU_PRESSURE: (
            settings.evict_cpu_pressure_percent,
            settings.evict_cpu_pressure_lower_percent,
        ),
        EvictionFeature.MEMORY_PRESSURE: (
            settings.evict_memory_pressure_percent,
            settings.evict_memory_pressure_lower_percent,
        ),
    }
    for feature, (threshold, lower) in pressures.items():
        if lower >= threshold:
            name = f"evict-{_PRESSURES[feature]}-pressure"
            raise SettingsError(f"{name}-lower-percent {lower} is not below {name}-percent")
    return EvictionRules(
        frozenset(map(EvictionFeature, names)),
        EvictionSettings(settings.eviction_rounds, settings.eviction_cooling_seconds),
        pressures,
        settings.evict_by == "deletion",
    )


class NodeView(Protocol):
    """What the node has and uses."""

    def eviction_amounts(self, window_seconds: float) -> NodeAmounts | None:
        """None while the node is not known, or if nothing has been sampled lately."""

    def used_by_pods(self, window_seconds: float) -> Mapping[str, tuple[int | None, int | None]]:
        """By uid, milli-CPU on average of the window, and bytes of memory."""

    def counted(self) -> Counted:
        """The newest counters of the kernel."""


class _AnswerKind(enum.Enum):
    """The pod leaves, it is gone, a budget forbids it, the server has too much to do, or it is not
    known whether the pod leaves."""

    LEAVES = enum.auto()
    GONE = enum.auto()
    REFUSED = enum.auto()
    BUSY = enum.auto()
    FAILED = enum.auto()


class _Answer(msgspec.Struct, frozen=True):
    victim: EvictionVictim
    pod: Regarding
    kind: _AnswerKind
    text: str = ""


class EvictionRequests:
    """Asks the API server, one request at a time, on a thread that exists meanwhile.

    `evict`: raises KubeError and AccessError."""

    def __init__(self, evict: Callable[[Regarding], EvictionResult]) -> None:
        self._evict = evict
        self._lock = threading.Lock()
        self._busy = False
        self._answer: _Answer | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is in progress, or its answer has not been taken."""
        with self._lock:
            return self._busy

    def ask(self, victim: EvictionVictim, pod: Regarding) -> None:
        """Sends a request. Only if it is not busy."""
        with self._lock:
            self._busy = True
        thread = threading.Thread(
            target=self._run, args=(victim, pod), name="eviction", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the agent may have no more threads
            self._end(_Answer(victim, pod, _AnswerKind.FAILED, str(error)))

    def answer(self) -> _Answer | None:
        """Takes the answer; None while there is none."""
        with self._lock:
            answer, self._answer = self._answer, None
            if answer is not None:
                self._busy = False
            return answer

    def _run(self, victim: EvictionVictim, pod: Regarding) -> None:
        kind, text = _AnswerKind.FAILED, "the request has ended without an answer"
        try:
            gone = self._evict(pod) is EvictionResult.DELETED
            kind, text = _AnswerKind.GONE if gone else _AnswerKind.LEAVES, ""
        except TooManyRequestsError as error:
            text = error.disruption_budget or str(error)
            kind = _AnswerKind.REFUSED if error.disruption_budget else _AnswerKind.BUSY
        except (KubeError, AccessError) as error:
            text = str(error)
        finally:
            self._end(_Answer(victim, pod, kind, text[:_MOST_TEXT]))

    def _end(self, answer: _Answer) -> None:
        with self._lock:
            self._answer = answer


class Evictions:
    """The strategy `resourceUsedThresholdWithBE`, as far as pods leave by it. It writes no files of
    cgroups.

    `offers`: returns the batch and mid resources that this agent offers, by name.
    `suppression`: returns what suppression leaves to BE pods.
    `requests`: None if there is no API server.
    `record`: records an Event.
    `path`: the file for people and for the next start, at most every TOLD_SECONDS, and before each
        request.
    `clock`: monotonic seconds of this boot, also of an earlier agent.
    `acts`: False computes and reports, and evicts nobody."""

    name = "evictions"

    def __init__(
        self,
        rules: EvictionRules,
        view: NodeView,
        offers: Callable[[], Mapping[str, int]],
        suppression: Callable[[], Suppression],
        requests: EvictionRequests | None,
        record: Callable[[Regarding, str, str], None],
        path: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        acts: bool,
    ) -> None:
        self._rules = rules
        self._view = view
        self._offers = offers
        self._suppression = suppression
        self._requests = requests
        self._record = record
        self._path = path
        self._clock = clock
        self._acts = acts
        self._boot = files.boot_id()
        self._state = EvictionState()
        self._asked: dict[str, float] = {}
        self._refused: dict[str, tuple[float, str, str]] = {}
        """By uid, until when, the title and why."""
        self._logged: deque[tuple[str, str]] = deque(maxlen=_MOST_REFUSED)
        self._pressure = PodPressure()
        self._batch: deque[tuple[float, BatchCpu]] = deque(maxlen=round(POD_SECONDS))
        self._pods: dict[str, tuple[ApiPod, EvictionPod]] = {}
        self._observed = ""
        self._failure = Problem(log, "eviction: ")
        self._unwritten = Problem(log, f"{path}: ")
        self._told: ShownEvictions | None = None
        self._told_at = -TOLD_SECONDS
        self.evicted: Counter[str] = Counter()
        """How many pods have been evicted, by feature."""
        self.refused: Counter[str] = Counter()
        """How many evictions budgets have refused, by feature."""
        self.candidates: Mapping[str, int] = {}
        """By feature that wants something now, how many pods it may take."""
        self._continue()

    def wanted(self, moment: Moment) -> WantedFiles:
        """Looks at the node, and evicts a pod if one has to leave."""
        now = self._clock()
        self._take_answer(now)
        self._forget(now)
        threshold = moment.strategies.slo.resource_used_threshold_with_be
        if not (self._rules.features and threshold.enable):
            self._state = EvictionState(cooling_until=self._state.cooling_until)
            self.candidates = {}
            self._failure.clear()
            self._batch.clear()
            self._tell(ShownEvictions(self._acts, self._rules.kills, problem=_OFF))
            return WantedFiles()
        self._pressure.add(self._view.counted())
        window = min(
            threshold.cpu_evict_time_window_seconds or _DEFAULT_WINDOW_SECONDS, POD_SECONDS
        )
        amounts = self._view.eviction_amounts(window)
        if amounts is None:
            self._state = EvictionState(cooling_until=self._state.cooling_until)
            self.candidates = {}
            self._tell(ShownEvictions(self._acts, self._rules.kills, problem=_UNKNOWN))
            return WantedFiles()
        pods = self._eviction_pods(moment.pods)
        node = self._node(moment, threshold, amounts, pods, window, now)
        features = self._rules.features
        if tasks(node, features, self._state.relieving):
            used = self._view.used_by_pods(window)
            with_use = (
                _with_use(pod, used.get(colocated.uid, (None, None)))
                for pod, colocated in zip(pods, moment.pods, strict=True)
            )
            node = msgspec.structs.replace(node, pods=tuple(with_use))
        wanting = tasks(node, features, self._state.relieving)
        self.candidates = {task.feature.value: len(task.candidates) for task in wanting}
        if not wanting:
            self._failure.clear()
        self._state, victim = decide(
            self._state, node, features, self._rules.settings, now, self._refused.keys()
        )
        if victim is not None:
            self._leave(victim, moment.pods, now)
        problem = self._problem()
        self._tell(self._shown(node, victim, problem))
        return WantedFiles(problem=problem)

    def _problem(self) -> str:
        """Why no pod can be evicted."""
        if self._acts and self._requests is None:
            return "pods can't be evicted without an API server"
        if self._unwritten.text is not None:
            return f"no pod is evicted: {self._unwritten.text}"
        return self._failure.text or ""

    def measured(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """For metrics, by feature: the pods that it may take while it wants some to leave, those
        that have been evicted, and refused evictions."""
        return dict(self.candidates), dict(self.evicted), dict(self.refused)

    def _leave(self, victim: EvictionVictim, pods: Iterable[ColocatedPod], now: float) -> None:
        if not self._acts:
            if self._observed != victim.uid:
                self._observed = victim.uid
                log.info(
                    "pod %s would be evicted by %s: %s",
                    victim.title,
                    victim.feature,
                    victim.reason,
                    extra=about(victim.title),
                )
            return
        if self._requests is None or self._requests.busy:
            return
        api_pod = next(pod.api_pod for pod in pods if pod.api_pod.uid == victim.uid)
        # An agent that ends now has asked, as far as its successor knows.
        self._asked[victim.uid] = now
        self._state = self._state.evicted(self._rules.settings, now)
        if self._keep(self._shown_memory()):
            self._requests.ask(victim, Regarding(api_pod.namespace, api_pod.name, api_pod.uid))
        else:
            del self._asked[victim.uid]

    def _take_answer(self, now: float) -> None:
        answer = None if self._requests is None else self._requests.answer()
        if answer is None:
            return
        victim, feature = answer.victim, answer.victim.feature.value
        self._state = self._state.evicted(self._rules.settings, now)
        if answer.kind is _AnswerKind.GONE:
            self._failure.clear()
            return
        if answer.kind is _AnswerKind.LEAVES:
            self._failure.clear()
            self.evicted[feature] += 1
            log.warning(
                "pod %s is evicted by %s: %s",
                *(victim.title, feature, victim.reason),
                extra=about(victim.title),
            )
            self._record(answer.pod, EVICTED, f"{feature}: {victim.reason}")
            return
        self._asked.pop(victim.uid, None)
        if answer.kind is not _AnswerKind.BUSY:
            self._pass_over(victim, answer.text, now)
        if answer.kind is not _AnswerKind.REFUSED:
            self._failure.report(answer.text)
            return
        self._failure.clear()
        # The next pod is asked at once, but many that refuse are not asked each second.
        most = self._rules.settings.cooling_seconds
        until = now + min(len(self._refused) - 1, most)
        self._state = msgspec.structs.replace(self._state, cooling_until=until)
        self.refused[feature] += 1
        if (victim.uid, answer.text) not in self._logged:
            self._logged.append((victim.uid, answer.text))
            log.warning(
                "pod %s is not evicted by %s, and the next one is asked: %s",
                *(victim.title, feature, answer.text),
                extra=about(victim.title),
            )
        self._record(answer.pod, EVICTION_REFUSED, f"{feature}: {victim.reason} {answer.text}")

    def _pass_over(self, victim: EvictionVictim, text: str, now: float) -> None:
        if len(self._refused) >= _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[victim.uid] = now + REFUSED_SECONDS, victim.title, text

    def _forget(self, now: float) -> None:
        self._asked = {uid: at for uid, at in self._asked.items() if at <= now < at + ASKED_SECONDS}
        self._refused = {uid: kept for uid, kept in self._refused.items() if now < kept[0]}

    def _eviction_pods(self, pods: Iterable[ColocatedPod]) -> tuple[EvictionPod, ...]:
        """Without what they use. They are made again only when their objects have changed."""
        last, self._pods = self._pods, {}
        evictions = []
        for pod in pods:
            api_pod = pod.api_pod
            before = last.get(api_pod.uid)
            if before is not None and before[0] is api_pod:
                eviction = before[1]
            else:
                eviction = eviction_pod(api_pod, priority_class_of_pod(api_pod), None, None)
            self._pods[api_pod.uid] = api_pod, eviction
            if api_pod.uid in self._asked:
                eviction = msgspec.structs.replace(eviction, asked=True)
            evictions.append(eviction)
        return tuple(evictions)

    def _node(
        self,
        moment: Moment,
        threshold: ResourceThreshold,
        amounts: NodeAmounts,
        pods: tuple[EvictionPod, ...],
        window: float,
        now: float,
    ) -> EvictionMoment:
        own, allocatable = self._offers(), dict(amounts.allocatable)
        for name, offered in own.items():  # which the Node may not have yet
            allocatable[name] = max(offered, allocatable.get(name, 0))
        withdrawn = frozenset(
            name for name in OFFERED_RESOURCES if not allocatable.get(name) and name not in own
        )
        return EvictionMoment(
            threshold,
            pods,
            amounts.capacity,
            allocatable,
            amounts.used_cpu_milli,
            amounts.used_memory_bytes,
            self._batch_cpu(moment, amounts, pods, window, now),
            self._pressures(moment, pods, now),
            withdrawn,
        )

    def _batch_cpu(
        self,
        moment: Moment,
        amounts: NodeAmounts,
        pods: tuple[EvictionPod, ...],
        window: float,
        now: float,
    ) -> tuple[BatchCpu, ...]:
        """The average of the window and the last value; empty while less than a third of it is
        known."""
        limit = self._limit_milli(moment)
        if limit is None:
            self._batch.clear()
            return ()
        requested = used = 0.0
        for pod, colocated in zip(pods, moment.pods, strict=True):
            if pod.batch and pod.running:
                requested += pod.frees.get(BATCH_CPU, 0)
                used += 1000 * amounts.pods_cores.get(colocated.uid, 0.0)
        self._batch.append((now, BatchCpu(requested, limit, used)))
        recent = [batch for at, batch in self._batch if at > now - window]
        if len(recent) < window / 3:
            return ()
        average = BatchCpu(
            sum(batch.request_milli for batch in recent) / len(recent),
            sum(batch.limit_milli for batch in recent) / len(recent),
            sum(batch.used_milli for batch in recent) / len(recent),
        )
        return average, recent[-1]

    def _limit_milli(self, moment: Moment) -> int | None:
        """What BE pods may use; None before the first pass."""
        if moment.decision is None:
            return None
        suppression = self._suppression()
        cpus = moment.decision.be_pool if suppression.cpus is None else suppression.cpus
        limits = [1000 * len(cpus)]
        if (quota := suppression.quota) is not None and quota.microseconds >= 0:
            limits.append(1000 * quota.microseconds // quota.period_microseconds)
        return min(limits)

    def _pressures(
        self, moment: Moment, pods: tuple[EvictionPod, ...], now: float
    ) -> dict[EvictionFeature, PressureLimit]:
        both = zip(pods, moment.pods, strict=True)
        others = [colocated.uid for pod, colocated in both if not pod.batch]
        limits = {}
        for feature, (threshold, lower) in self._rules.pressures.items():
            if feature not in self._rules.features:
                continue
            percent = self._pressure.percent(_PRESSURES[feature], others, now)
            if percent is not None:
                limits[feature] = PressureLimit(percent, threshold, lower)
        return limits

    def _shown_memory(self) -> ShownEvictions:
        """What the last look has told, with what the next start has to know."""
        told = self._told or ShownEvictions(self._acts, self._rules.kills)
        return msgspec.structs.replace(
            told,
            boot=self._boot,
            cooling_until=self._state.cooling_until,
            asked=dict(self._asked),
            refused={title: text for _, title, text in self._refused.values()},
        )

    def _shown(
        self, node: EvictionMoment, victim: EvictionVictim | None, problem: str
    ) -> ShownEvictions:
        threshold, chosen = node.threshold, sorted(self._rules.features, key=_ORDER.index)
        return ShownEvictions(
            self._acts,
            self._rules.kills,
            problem,
            tuple(
                ShownEvictionFeature(
                    feature.value,
                    level(feature, node),
                    self.candidates.get(feature.value, 0),
                    feature.value in self.candidates,
                )
                for feature in chosen
            ),
            "" if victim is None else victim.title,
            "" if victim is None else victim.reason,
            {
                pod.title: about_pod(pod, chosen, threshold)
                for pod in sorted(node.pods, key=lambda pod: pod.title)[:_MOST_SHOWN]
            },
        )

    def _tell(self, shown: ShownEvictions) -> None:
        now = self._clock()
        if now - self._told_at < TOLD_SECONDS:
            return
        before = self._told
        self._told = shown
        self._told = self._shown_memory()
        if self._told != before:
            self._keep(self._told)
        self._told_at = now

    def _keep(self, shown: ShownEvictions) -> bool:
        """Whether the file could be written."""
        try:
            files.replace(self._path, msgspec.json.encode(shown), durable=False)
        except OSError as error:
            self._unwritten.report(files.reason(error))
            return False
        self._unwritten.clear()
        return True

    def _continue(self) -> None:
        """Goes on where the last agent of this boot has ended."""
        now = self._clock()
        try:
            last = evictions_view.read(self._path)
        except FileNotFoundError:
            return
        except (OSError, JsonError) as error:
            log.warning("%s: what was evicted is not known: %s", self._path, error)
            # Nothing worse than a pause.
            self._state = self._state.evicted(self._rules.settings, now)
            return
        if last.boot == self._boot:
            most = now + self._rules.settings.cooling_seconds
            self._state = EvictionState(cooling_until=min(last.cooling_until, most))
            self._asked = dict(last.asked)
            self._forget(now)


_OFF: Final = "no strategy with enable: true, or no feature in the setting evictions, wants any"
_UNKNOWN: Final = "the use of the node is not known"
_ORDER: Final = tuple(EvictionFeature)


def about_pod(
    pod: EvictionPod, features: Iterable[EvictionFeature], threshold: ResourceThreshold
) -> str:
    """A sentence about whether one of these features may evict the pod."""
    if pod.spared:
        return f"It is never evicted: {pod.spared}."
    takers = [feature.value for feature in features if may_take(feature, pod, threshold)]
    if pod.leaving or pod.asked:
        return "It is leaving."
    if takers:
        return f"It may be evicted by {', '.join(takers)}; its priority is {pod.priority}."
    if pod.allowed is not None:
        return "It is not evicted: its annotation koordinator.sh/eviction-policy forbids it."
    if pod.agreed:
        return f"It is not evicted: its priority {pod.priority} is above that of the strategy."
    return (
        "It is not evicted: it is not BE, or no feature for BE pods is on, and its label "
        'koordinator.sh/eviction-enabled is not "true".'
    )


def _with_use(pod: EvictionPod, used: tuple[int | None, int | None]) -> EvictionPod:
    frees = dict(pod.frees)
    for name, value in zip((USED_CPU, USED_MEMORY), used, strict=True):
        if value is not None:
            frees[name] = value
    return msgspec.structs.replace(pod, frees=frees)
