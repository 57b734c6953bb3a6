"""The ResourceClaims of the node that have CPUs: the ledger of the DRA driver.

The kubelet prepares a claim before it makes the sandbox of the pod. The claim is read from the API
server, gets its CPUs of those that the last pass left, and is kept in a file before the answer. The
next pass takes these CPUs from all others, and until then no frontend starts a container of the
claim. The file is the truth after a restart, since the kubelet does not repeat itself. No pass
waits for the disk: a claim has its CPUs before it is in the file, and loses them after it has left
the file. Passes decide about a container of a claim once the file names it: a restarted agent knows
all that have started, before it knows the pods of the API server."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from agent.allocate.dra import slices
from agent.allocate.dra.groups import CpuGroup, GroupRules, groups
from agent.allocate.dra.holders import node_claims, with_containers
from agent.allocate.dra.preparation import (
    PreparationError,
    PreparationRules,
    RefusalKind,
    counted,
    prepared,
    restored,
)
from agent.allocate.dra.refusals import FORGOTTEN_SECONDS, UnpreparedClaim
from agent.allocate.dra.slices import Device
from agent.allocate.reserved_cpus import KubeletCpus
from agent.host import files
from agent.host.daemon import Periodic
from agent.host.log_once import Problem
from agent.kube.auth import AccessError
from agent.kube.errors import UNAVAILABLE, KubeError, NotFoundError
from agent.model.audit import AuditEvent, Record
from agent.model.bounds import JsonError
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.layout import Layout
from agent.model.cpu.topology import Topology
from agent.model.devices.pci import Function
from agent.model.dra import prepared_claim, resource_claim
from agent.model.dra.node_claims import NodeClaims
from agent.model.dra.prepared_claim import PreparedClaim
from agent.model.dra.resource_claim import CpuResourceClaim
from agent.model.objects import ObjectError
from agent.model.pod.apiobjects import ApiPod
from agent.node.reconcile import ClaimMoment
from agent.telemetry.dra_metrics import PREPARATION_SECONDS
from agent.telemetry.exposition import Histogram

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 10.0
"""How long a file that could not be written waits for the next try."""
DECISION_SECONDS: Final = 2.0
"""A preparation waits at least so long for a pass that decides, of which one that fails is followed
by another."""
WAIT_SECONDS: Final = 20.0
"""How long a call waits for the API server, the first pass, or CPUs of its claims. A kubelet gives
it 45 seconds, and asks again only after more than a minute; a pod that was deleted by force has its
CPUs for seconds more."""
LAST_READ_SECONDS: Final = 30.0
"""A call that has waited so long for other claims reads no further one: each read of an API server
that hangs takes 15 seconds."""
READ_SECONDS: Final = 1.0
"""The time between two reads of a claim while the API server is not available."""
MOST_WAITING: Final = 4
"""The most calls that wait at a time: others need threads of the server too."""
_WAITED_FOR: Final = (RefusalKind.NOT_READY, RefusalKind.TAKEN, RefusalKind.NO_DEVICE)
_MOST_REFUSED: Final = 1024
_UNPREPARED: Final = "it was unprepared meanwhile"
_LOST: Final = "the agent has lost its file, and not read yet which CPUs other claims have"
_UNDECIDED: Final = "the agent has not decided yet which CPUs others have"


class ClaimFiles(Protocol):
    """What the runtime tells containers of their claims."""

    def write(self, claim: PreparedClaim, attributes: Mapping[str, Mapping[str, object]]) -> None:
        """Replaces the files of a claim. Raises OSError."""

    def has(self, uid: str) -> bool:
        """Whether there are files of the claim."""

    def uids(self) -> Collection[str]:
        """These claims have files."""

    def read(self, uid: str) -> PreparedClaim:
        """The claim with the CPUs that its containers were told, and nothing else of its requests.
        Raises OSError, JsonError and CpuSetError."""

    def remove(self, uid: str) -> None:
        """Raises OSError."""

    def remove_others(self, uids: Collection[str]) -> None:
        """Removes the files of all claims but these. Raises OSError."""


class ResourceClaims:
    """Safe for threads.

    `read`: returns the ResourceClaim of a namespace and a name as JSON. Raises KubeError and
        AccessError.
    `path`: the file.
    `wake`: starts a pass.
    `append`: takes records for the audit trail.
    `functions`: returns the PCI functions whose roots are published; none for an API server without
        lists."""

    def __init__(
        self,
        read: Callable[[str, str], bytes],
        node_name: str,
        path: str,
        claim_files: ClaimFiles,
        rules: GroupRules,
        wake: Callable[[], None],
        append: Callable[[Sequence[Record]], None] = lambda records: None,
        functions: Callable[[], Iterable[Function]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._read = read
        self._node_name = node_name
        self._path = path
        self._files = claim_files
        self._rules = rules
        self._wake = wake
        self._append = append
        self._functions = functions
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._writing = threading.Lock()
        """Who writes or removes files of claims has it, and takes it before `_lock`."""
        self._lock = threading.Condition()
        self._deciding = False
        """A pass has read the claims, and has not told yet what it leaves to them."""
        self._calls: dict[object, str] = {}
        """The unfinished preparations of claims that were not unprepared since, with the claim's
        uid. Pods that share a claim may have one each."""
        self._waiting = 0
        self._closed = False
        self._claims, is_whole = self._stored()
        self._lost = frozenset(() if is_whole else {*claim_files.uids()} - self._claims.keys())
        """The uids of claims that the file lacks, and that containers may have CPUs of. No claim
        gets CPUs before the API server has said whose they are."""
        self._recovered: frozenset[str] = frozenset()
        """The uids of those that have their CPUs again. Their containers ran before the file names
        them."""
        self._unread = Problem(log, f"{path} lacks claims that have been prepared: ")
        self._in_file = self._claims
        self._unkept = Problem(log, "")
        self._moment: ClaimMoment | None = None
        self._layout: Layout | None = None
        self._pods: frozenset[str] | None = None
        """The uids of the pods that exist; None before the first pass."""
        self._node_claims = NodeClaims()
        self._decided: tuple[Mapping[str, PreparedClaim], Mapping[str, PreparedClaim]] | None = None
        """The claims and the file that `_node_claims` are of."""
        self._keeper = Periodic("claims", PERIOD_SECONDS, self.keep)
        self._refused: dict[str, UnpreparedClaim] = {}
        self.registration = "the kubelet has not registered the driver yet"
        """Why the kubelet asks for no claims, "" if it does."""
        self.pods: tuple[ApiPod, ...] = ()
        """The pods of the API server that use claims."""
        self.seconds = Histogram(PREPARATION_SECONDS)
        """Those of the preparations of claims that had no CPUs before."""
        self.refusals: Counter[str] = Counter()
        """How many preparations were refused, by kind."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the devices may have changed, on any thread."""
        self._cut_files()

    def start(self) -> None:
        """Starts the thread that writes what passes learn. Claims that the file has lost have their
        CPUs before the first pass, if the API server is available."""
        if self._lost:
            self.keep()
        self._keeper.start()

    def close(self) -> None:
        """Ends the preparations that wait, and the thread. Calls that come or go on later write no
        file: it may be that of the next agent."""
        self._keeper.stop()
        with self._writing, self._lock:
            self._closed = True
            self._lock.notify_all()

    def now(self) -> Mapping[str, PreparedClaim]:
        """The prepared claims by uid."""
        return self._claims

    def cpus(self) -> CpuSet:
        """The CPUs of all of them."""
        return union(claim.cpus for claim in self._claims.values())

    def registered(self, problem: str) -> None:
        """The kubelet has registered the driver, or refused it for this reason."""
        refusal = f"the kubelet does not register the driver: {problem}"
        self.registration = refusal if problem else ""
        self.changed()

    def refused(self) -> tuple[UnpreparedClaim, ...]:
        """The claims that the kubelet asks for and that are not prepared."""
        with self._lock:
            until = self._clock() - FORGOTTEN_SECONDS
            for uid in [uid for uid, claim in self._refused.items() if claim.last < until]:
                del self._refused[uid]
            return tuple(self._refused.values())

    @property
    def topology(self) -> Topology | None:
        """None before the first pass."""
        return self._moment.topology if self._moment is not None else None

    def node_claims(self) -> NodeClaims:
        """What decisions read, as of the last pass."""
        return self._node_claims

    def follow(self, moment: ClaimMoment) -> None:
        """Takes what a pass has left."""
        with self._lock:
            self._deciding = False
            self._lock.notify_all()
            self._follow(moment)

    def _follow(self, moment: ClaimMoment) -> None:
        self._pods = moment.pods
        before, moment = self._moment, msgspec.structs.replace(moment, pods=frozenset())
        if moment == before:
            return
        if before is None or before.topology != moment.topology:
            self._layout = layouts.of_topology(moment.topology)
        self._moment = moment
        self.changed()

    def problem(self) -> str:
        """Why claims can have no CPUs, "" if they can."""
        moment = self._moment
        return moment.offered.reason if moment is not None else ""

    def slices(self, generation: int, minor: int) -> list[dict[str, Any]] | None:
        """The ResourceSlices of the node; None before the first pass with the whole state of the
        cluster.

        `generation`: that of the pool.
        `minor`: the minor version of Kubernetes that the API server has, 0 if it is unknown."""
        moment = self._moment
        if moment is None or not moment.complete:
            return None
        devices = [] if moment.offered.reason else self.slice_devices(minor)
        return slices.slices(self._node_name, moment.node_uid, devices, generation)

    def slice_devices(self, minor: int = 0) -> list[Device]:
        """The devices as a ResourceSlice has them; none before the first pass."""
        moment, layout = self._moment, self._layout
        if moment is None or layout is None:
            return []
        return slices.devices(
            self.groups(),
            layout,
            whole_cores=moment.whole_cores,
            minor=minor,
            counted=moment.counts_claims,
            roots=slices.pcie_roots(self._functions()),
        )

    def with_claims(self, kubelet: KubeletCpus, pods: Collection[ApiPod]) -> KubeletCpus:
        """Adds the CPUs of claims, of the containers that these pods of the API server use them
        for, once the file names these."""
        self.pods = tuple(pod for pod in pods if pod.claims)
        with self._lock:
            self._deciding = True
            claims = with_containers(self._claims, self.pods, self._pods)
            if claims is not self._claims:
                self._claims = claims
                self._keeper.hurry()
            before, kept = self._decided, self._in_file
            if before is None or before[0] is not claims or before[1] is not kept:
                self._decided = claims, kept
                self._node_claims = node_claims(
                    self._decidable(claim, kept.get(uid)) for uid, claim in claims.items()
                )
                self.changed()
            return msgspec.structs.replace(kubelet, claims=self._node_claims)

    def _decidable(self, claim: PreparedClaim, kept: PreparedClaim | None) -> PreparedClaim:
        """The claim with the containers about which passes decide.

        `kept`: as the file has it."""
        if claim.uid in self._recovered and (kept is None or not kept.containers):
            return claim
        return kept or msgspec.structs.replace(claim, containers=())

    def groups(self) -> tuple[CpuGroup, ...]:
        """The devices of the node in order; none before the first pass."""
        moment, layout = self._moment, self._layout
        if moment is None or layout is None:
            return ()
        of_node = groups(
            moment.topology,
            layout,
            moment.offered.cpus,
            self.cpus(),
            msgspec.structs.replace(self._rules, whole_cores=moment.whole_cores),
            moment.near,
            pool_left=moment.offered.pool_left,
        )
        lost = Counter[str]()
        for claim in self._claims.values():
            for part in claim.groups:
                lost[part.device] += len(part.cpu_set & moment.topology.offline)
        return tuple(
            msgspec.structs.replace(group, lost=lost[group.name]) if lost[group.name] else group
            for group in of_node
        )

    def devices(self) -> Iterable[tuple[str, str, str]]:
        """The pool, the name and, if it is not healthy, the trouble of each device."""
        moment = self._moment
        if moment is None:
            return
        offline = moment.topology.offline
        devices = {(self._node_name, device.name): "" for device in self.groups()}
        for claim in self._claims.values():
            for group in claim.groups:
                if lost := group.cpu_set & offline:
                    devices[group.pool, group.device] = f"CPUs {lost} are offline"
        yield from ((*device, trouble) for device, trouble in devices.items())

    def prepare(
        self, namespace: str, name: str, uid: str, waited_seconds: float = 0.0
    ) -> PreparedClaim:
        """Gives the claim its CPUs. A claim that has them keeps them. Raises PreparationError.

        `waited_seconds`: how long the call has waited for other claims."""
        began = self._clock()
        new = uid not in self._claims
        try:
            claim = self._kept(namespace, name, uid, waited_seconds)
        except PreparationError as error:
            self._refuse(
                UnpreparedClaim(uid, namespace, name, error.kind, str(error), began, began)
            )
            raise
        if new:
            self.seconds.observe(self._clock() - began)
            message = "".join(
                f", request {group.request} of device {group.device}" for group in claim.groups
            )
            self._record(claim.namespace, claim.name, AuditEvent.CLAIM_PREPARED, message, claim)
        self._wake()
        self.changed()
        return claim

    def unprepare(self, uid: str) -> None:
        """The claim loses its CPUs; it may be unknown. Raises PreparationError."""
        with self._lock:
            self._refused.pop(uid, None)
            self._lost -= {uid}
            self._calls = {call: other for call, other in self._calls.items() if other != uid}
            self._lock.notify_all()
        with self._writing:
            self._check_open(f"claim {uid}")
            claim = self._claims.get(uid)
            if claim is not None:
                self._keep(_without(self._claims, uid), f"ResourceClaim {claim.title}")
                self._remove(uid)
            try:
                self._files.remove(uid)
            except OSError as error:
                # The next start removes it.
                log.warning("claim %s: %s", uid, files.reason(error))
        if claim is not None:
            self._record(claim.namespace, claim.name, AuditEvent.CLAIM_UNPREPARED, "", claim)
            self._wake()
            self.changed()

    def _kept(self, namespace: str, name: str, uid: str, waited_seconds: float) -> PreparedClaim:
        """Raises PreparationError."""
        title = f"ResourceClaim {namespace}/{name}"
        deadline = time.monotonic() + self._wait_seconds - waited_seconds
        call = object()
        with self._lock:
            self._calls[call] = uid
        try:
            # The passes wait for the lock, and must not wait for an API server.
            stored = None
            if uid not in self._claims:
                if waited_seconds > LAST_READ_SECONDS:
                    text = f"{title}: other claims of the pod took {waited_seconds:.0f} s"
                    raise PreparationError(text, RefusalKind.NOT_READY)
                stored = self._allocated(namespace, name, uid, call, title, deadline)
            with self._lock:
                if uid not in self._claims:
                    self._give(stored, uid, call, title, deadline)
            with self._writing:
                claim = self._written(uid, title)
            with self._lock:
                self._refused.pop(uid, None)
            return claim
        finally:
            with self._lock:
                self._calls.pop(call, None)

    def _check_open(self, title: str) -> None:
        """Raises PreparationError."""
        if self._closed:
            raise PreparationError(f"{title}: the agent has ended", RefusalKind.NOT_READY)

    def _written(self, uid: str, title: str) -> PreparedClaim:
        """The claim, of which both a restarted agent and its containers know. Raises
        PreparationError."""
        self._check_open(title)
        claim = self._claims.get(uid)
        if claim is None:
            raise PreparationError(f"{title}: {_UNPREPARED}", RefusalKind.NOT_READY)
        if uid not in self._in_file:
            try:
                self._keep(self._claims, title)
            except PreparationError:
                self._remove(uid)
                self._wake()
                raise
        try:
            self._files.write(claim, self._attributes())
        except OSError as error:
            text = f"{title}: {files.reason(error)}"
            raise PreparationError(text, RefusalKind.NOT_KEPT) from None
        return claim

    def _refuse(self, refused: UnpreparedClaim) -> None:
        with self._lock:
            self.refusals[refused.kind] += 1
            before = self._refused.pop(refused.uid, None)
            if before is not None:
                now = refused.last
                self._refused[refused.uid] = before.repeated(refused.kind, refused.reason, now)
            else:
                if len(self._refused) >= _MOST_REFUSED:
                    del self._refused[next(iter(self._refused))]
                self._refused[refused.uid] = refused
        if before is None or before.reason != refused.reason:
            event = AuditEvent.CLAIM_NOT_PREPARED
            self._record(refused.namespace, refused.name, event, refused.reason, kind=refused.kind)

    def _record(
        self,
        namespace: str,
        name: str,
        event: str,
        message: str,
        claim: PreparedClaim | None = None,
        kind: str = "",
    ) -> None:
        """Appends a record about each pod that uses the claim, or about none if no pod is known."""
        uses = [
            pod
            for pod in self.pods
            if pod.namespace == namespace and any(use.claim == name for use in pod.claims)
        ]
        cpus = str(claim.cpus) if claim is not None else None
        prepared = event == AuditEvent.CLAIM_PREPARED
        record = Record(
            event=event,
            namespace=namespace,
            field="cpus",
            before=None if prepared else cpus,
            after=cpus if prepared else None,
            reason=kind,
            message=message if claim is None else f"ResourceClaim {claim.title}{message}",
        )
        self._append(
            [msgspec.structs.replace(record, pod=pod.name, uid=pod.runtime_uid) for pod in uses]
            or [record]
        )

    def _attributes(self) -> Mapping[str, Mapping[str, object]]:
        return {device["name"]: device["attributes"] for device in self.slice_devices()}

    def sweep(self) -> None:
        """Unprepares claims that the API server does not have any more, as one that was deleted
        while a kubelet lost its state, unless a pod still uses them. Raises KubeError and
        AccessError."""
        for uid, claim in self._claims.items():
            if self._pods is None or not self._pods.isdisjoint(
                container.pod_uid for container in claim.containers
            ):
                continue
            try:
                stored = resource_claim.decode(self._read(claim.namespace, claim.name))
            except NotFoundError:
                stored = None
            except ObjectError as error:
                log.warning("%s", error)
                continue
            if stored is None or stored.uid != uid or not stored.allocated:
                log.info("ResourceClaim %s is gone, and loses CPUs %s", claim.title, claim.cpus)
                with contextlib.suppress(PreparationError):
                    self.unprepare(uid)

    def _allocated(
        self, namespace: str, name: str, uid: str, call: object, title: str, deadline: float
    ) -> CpuResourceClaim:
        """The claim as the API server has it. Raises PreparationError."""
        try:
            claim = resource_claim.decode(self._claim_as_json(namespace, name, call, deadline))
        except (KubeError, AccessError) as error:
            raise PreparationError(f"{title}: {error}") from None
        except ObjectError as error:
            raise PreparationError(str(error)) from None
        if claim.uid != uid:
            raise PreparationError(f"{title}: its uid is {claim.uid}, and not {uid}")
        if not claim.allocated or not claim.consumers:
            # Of a kubelet that asks again after it has unprepared the claim of an ended pod.
            raise PreparationError(f"{title}: it is not allocated, or reserved for no pod")
        return claim

    def _claim_as_json(self, namespace: str, name: str, call: object, deadline: float) -> bytes:
        """The claim as JSON, as soon as the API server is available. Raises KubeError and
        AccessError."""
        while True:
            try:
                return self._read(namespace, name)
            except UNAVAILABLE:
                with self._lock, self._waits() as may_wait:
                    seconds = min(READ_SECONDS, deadline - time.monotonic())
                    if not may_wait or seconds <= 0:
                        raise
                    if self._lock.wait_for(lambda: self._is_over(call), seconds):
                        raise

    def _is_over(self, call: object) -> bool:
        """Whether nobody waits for the preparation any more."""
        return self._closed or call not in self._calls

    @contextlib.contextmanager
    def _waits(self) -> Iterator[bool]:
        """Counts a call that waits under the lock. Yields whether it may."""
        self._waiting += 1
        try:
            yield self._waiting <= MOST_WAITING
        finally:
            self._waiting -= 1

    def _give(
        self,
        stored: CpuResourceClaim | None,
        uid: str,
        call: object,
        title: str,
        deadline: float,
    ) -> None:
        """Gives the claim its CPUs, as soon as these are free. Raises PreparationError."""
        refusal = PreparationError(f"{title}: {_UNDECIDED}", RefusalKind.NOT_READY)
        with self._waits() as may_wait:
            while True:
                # Otherwise an owner and the claim could get a CPU at the same moment.
                seconds = deadline - time.monotonic() if may_wait else 0.0
                self._lock.wait_for(
                    lambda: not self._deciding or self._is_over(call),
                    max(seconds, DECISION_SECONDS),
                )
                if uid in self._claims:
                    return
                if stored is None or call not in self._calls:
                    raise PreparationError(f"{title}: {_UNPREPARED}", RefusalKind.NOT_READY)
                if self._deciding:
                    raise refusal
                try:
                    claim = self._prepared(stored, title)
                except PreparationError as error:
                    refusal = error
                    seconds = deadline - time.monotonic()
                    waits = may_wait and error.kind in _WAITED_FOR
                    if not waits or self._closed or seconds <= 0:
                        raise
                    self._lock.wait(seconds)
                else:
                    self._claims = {**self._claims, **with_containers({uid: claim}, self.pods)}
                    return

    def _prepared(self, claim: CpuResourceClaim, title: str) -> PreparedClaim:
        """Raises PreparationError."""
        if self._lost:
            raise PreparationError(f"{title}: {_LOST}", RefusalKind.NOT_READY)
        moment, layout = self._moment, self._layout
        if moment is None or layout is None:
            text = f"{title}: the agent has not completed its first pass yet"
            raise PreparationError(text, RefusalKind.NOT_READY)
        if moment.offered.reason:
            text = f"{title}: {moment.offered.reason}"
            raise PreparationError(text, RefusalKind.NOT_OFFERED)
        by_name = {group.name: group for group in self.groups()}
        counts = counted(self._claims)
        rules = PreparationRules(whole_cores=moment.whole_cores)
        given = prepared(claim, self._node_name, by_name, layout, counts, rules)
        return msgspec.structs.replace(given, prepared_at=round(time.time()))

    def keep(self) -> None:
        """Writes the file, if it lacks claims, or containers that a pass has learned of."""
        if self._lost:
            self._recover()
        with self._writing:
            before = self._in_file
            try:
                self._keep(self._claims, "the containers of claims")
            except PreparationError as error:
                self._unkept.report(str(error))
            else:
                self._unkept.clear()
            wrote = self._in_file is not before
        if wrote:
            self._wake()

    def _keep(self, claims: Mapping[str, PreparedClaim], title: str) -> None:
        """Writes the file, if it differs. Raises PreparationError."""
        if claims == self._in_file:
            return
        try:
            files.replace(self._path, prepared_claim.encode(claims.values()), durable=True)
        except OSError as error:
            text = f"{title}: the agent can't keep it: {files.reason(error)}"
            raise PreparationError(text, RefusalKind.NOT_KEPT) from None
        self._in_file = claims

    def _remove(self, uid: str) -> None:
        """Others may have the CPUs of the claim from now on."""
        with self._lock:
            self._claims = _without(self._claims, uid)
            self._lock.notify_all()

    def _stored(self) -> tuple[Mapping[str, PreparedClaim], bool]:
        """The claims, and whether all of the file could be read. Raises OSError."""
        try:
            claims, faults = prepared_claim.decode(files.read(self._path, prepared_claim.MAX_BYTES))
        except FileNotFoundError:
            return {}, False
        except JsonError as error:
            log.error("%s: %s: the CPUs of prepared claims are not known", self._path, error)
            return {}, False
        for fault in faults:
            log.error("%s: %s", self._path, fault)
        return {claim.uid: claim for claim in claims}, not faults

    def _cut_files(self) -> None:
        """Removes the files of claims that are gone, and writes those that a reboot removed. While
        a claim is lost, a container of it needs its files to start again."""
        try:
            self._files.remove_others(self._claims.keys() | self._lost)
            for claim in self._claims.values():
                if not self._files.has(claim.uid):
                    self._files.write(claim, {})
        except OSError as error:
            log.warning("files of claims: %s", files.reason(error))

    def _recover(self) -> None:
        """Takes the lost claims that the API server vouches for, with the CPUs that their
        containers were told, and removes the files of those that no pod has."""
        for uid in sorted(self._lost):
            claim, is_gone = None, False
            try:
                claim = self._vouched(uid)
                is_gone = claim is None
            except (KubeError, AccessError) as error:
                self._unread.report(str(error))
                return
            except (ValueError, OSError) as error:
                log.error("claim %s: its CPUs are not known: %s", uid, error)
            with self._writing:
                with self._lock:
                    if self._closed or uid not in self._lost:
                        continue
                    if claim is not None and (both := claim.cpus & self.cpus()):
                        log.error("ResourceClaim %s: others have its CPUs %s", claim.title, both)
                    elif claim is not None:
                        log.warning(
                            "ResourceClaim %s has CPUs %s by its CDI files, since %s lacks it",
                            claim.title,
                            claim.cpus,
                            self._path,
                        )
                        self._claims = {**self._claims, uid: claim}
                        self._recovered |= {uid}
                    self._lost -= {uid}
                    self._lock.notify_all()
                if is_gone:
                    log.info("claim %s is of no pod, and its files are removed", uid)
                    with contextlib.suppress(OSError):
                        self._files.remove(uid)
        self._unread.clear()
        self.changed()

    def _vouched(self, uid: str) -> PreparedClaim | None:
        """The claim by its files and the API server; None if no pod on this node has it. Raises
        KubeError, AccessError, OSError, and ValueError for what can't be understood."""
        told = self._files.read(uid)
        try:
            claim = resource_claim.decode(self._read(told.namespace, told.name))
        except NotFoundError:
            return None
        if claim.uid != uid or not claim.allocated or not claim.consumers:
            return None
        return restored(claim, told, self._node_name)


def _without(claims: Mapping[str, PreparedClaim], uid: str) -> Mapping[str, PreparedClaim]:
    return {key: claim for key, claim in claims.items() if key != uid}
