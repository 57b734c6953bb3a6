"""The ResourceClaims of the node that have CPUs: the ledger of the DRA driver.

The kubelet prepares a claim before it makes the sandbox of the pod. The claim is read from the API
server, gets its CPUs of those that the last pass left, and is kept in a file before the answer. The
next pass takes these CPUs from all others, and until then no frontend starts a container of the
claim. The file is the truth after a restart, since the kubelet does not repeat itself."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from agent.allocate.dra import slices
from agent.allocate.dra.groups import CpuGroup, GroupRules, groups
from agent.allocate.dra.holders import node_claims, with_containers
from agent.allocate.dra.preparation import (
    PreparationError,
    PreparationRules,
    counted,
    prepared,
)
from agent.allocate.dra.slices import Device
from agent.allocate.reserved_cpus import KubeletCpus
from agent.host import files
from agent.kube.auth import AccessError
from agent.kube.errors import KubeError, NotFoundError
from agent.model.bounds import JsonError
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.cpu.layout import Layout
from agent.model.dra import prepared_claim, resource_claim
from agent.model.dra.node_claims import NodeClaims
from agent.model.dra.prepared_claim import PreparedClaim
from agent.model.dra.resource_claim import CpuResourceClaim
from agent.model.objects import ObjectError
from agent.model.pod.apiobjects import ApiPod
from agent.node.reconcile import ClaimMoment

log = logging.getLogger(__name__)

FILE: Final = "claims.json"
"""In the state folder."""
DECISION_SECONDS: Final = 2.0
"""A preparation waits so long for a pass that decides. One that fails does not end its wait."""


class ClaimFiles(Protocol):
    """What the runtime tells containers of their claims."""

    def write(self, claim: PreparedClaim, attributes: Mapping[str, Mapping[str, object]]) -> None:
        """Replaces the files of a claim. Raises OSError."""

    def has(self, uid: str) -> bool:
        """Whether there are files of the claim."""

    def remove(self, uid: str) -> None:
        """Raises OSError."""

    def remove_others(self, uids: Collection[str]) -> None:
        """Removes the files of all claims but these. Raises OSError."""


class ResourceClaims:
    """Safe for threads.

    `read`: returns the ResourceClaim of a namespace and a name as JSON. Raises KubeError and
        AccessError.
    `path`: the file.
    `wake`: starts a pass."""

    def __init__(
        self,
        read: Callable[[str, str], bytes],
        node_name: str,
        path: str,
        claim_files: ClaimFiles,
        rules: GroupRules,
        wake: Callable[[], None],
    ) -> None:
        self._read = read
        self._node_name = node_name
        self._path = path
        self._files = claim_files
        self._rules = rules
        self._wake = wake
        self._lock = threading.Condition()
        self._deciding = False
        """A pass has read the claims, and has not told yet what it leaves to them."""
        self._claims = self._stored()
        self._moment: ClaimMoment | None = None
        self._layout: Layout | None = None
        self._pods: frozenset[str] | None = None
        """The uids of the pods that exist; None before the first pass."""
        self._node_claims: tuple[Mapping[str, PreparedClaim], NodeClaims] | None = None
        self.changed: Callable[[], None] = lambda: None
        """Called when the devices may have changed, on any thread."""
        self._cut_files()

    def now(self) -> Mapping[str, PreparedClaim]:
        """The prepared claims by uid."""
        return self._claims

    def cpus(self) -> CpuSet:
        """The CPUs of all of them."""
        return union(claim.cpus for claim in self._claims.values())

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
        return slices.devices(self.groups(), layout, whole_cores=moment.whole_cores, minor=minor)

    def with_claims(self, kubelet: KubeletCpus, pods: Collection[ApiPod]) -> KubeletCpus:
        """Adds the CPUs of claims, of the containers that these pods of the API server use them
        for."""
        with self._lock:
            self._deciding = True
            claims = with_containers(self._claims, pods)
            if claims is not self._claims:
                try:
                    self._keep(claims, "claims")
                except PreparationError as error:
                    log.warning("%s", error)
                    self._claims = claims
            if self._node_claims is None or self._node_claims[0] is not self._claims:
                self._node_claims = self._claims, node_claims(self._claims.values())
            return msgspec.structs.replace(kubelet, claims=self._node_claims[1])

    def groups(self) -> tuple[CpuGroup, ...]:
        """The devices of the node in order; none before the first pass."""
        moment, layout = self._moment, self._layout
        if moment is None or layout is None:
            return ()
        return groups(
            moment.topology,
            layout,
            moment.offered.cpus,
            self.cpus(),
            msgspec.structs.replace(self._rules, whole_cores=moment.whole_cores),
            moment.near,
            pool_left=moment.offered.pool_left,
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

    def prepare(self, namespace: str, name: str, uid: str) -> PreparedClaim:
        """Gives the claim its CPUs. A claim that has them keeps them. Raises PreparationError."""
        title = f"ResourceClaim {namespace}/{name}"
        # The passes wait for the lock, and must not wait for an API server.
        allocated = None if uid in self._claims else self._allocated(namespace, name, uid, title)
        with self._lock:
            # Otherwise an owner and the claim could get a CPU at the same moment.
            self._lock.wait_for(lambda: not self._deciding, DECISION_SECONDS)
            claim = self._claims.get(uid)
            if claim is None:
                if allocated is None:
                    raise PreparationError(f"{title}: it was unprepared meanwhile")
                claim = self._prepared(allocated, title)
                self._keep({**self._claims, uid: claim}, title)
            try:
                self._files.write(claim, self._attributes())
            except OSError as error:
                raise PreparationError(f"{title}: {files.reason(error)}") from None
        self._wake()
        self.changed()
        return claim

    def unprepare(self, uid: str) -> None:
        """The claim loses its CPUs; it may be unknown. Raises PreparationError."""
        with self._lock:
            claim = self._claims.get(uid)
            if claim is not None:
                others = {key: other for key, other in self._claims.items() if key != uid}
                self._keep(others, f"ResourceClaim {claim.title}")
            try:
                self._files.remove(uid)
            except OSError as error:
                # The next start removes it.
                log.warning("claim %s: %s", uid, files.reason(error))
        if claim is not None:
            self._wake()
            self.changed()

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

    def _allocated(self, namespace: str, name: str, uid: str, title: str) -> CpuResourceClaim:
        """The claim as the API server has it. Raises PreparationError."""
        try:
            claim = resource_claim.decode(self._read(namespace, name))
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

    def _prepared(self, claim: CpuResourceClaim, title: str) -> PreparedClaim:
        """Raises PreparationError."""
        moment, layout = self._moment, self._layout
        if moment is None or layout is None:
            raise PreparationError(f"{title}: the agent has not completed its first pass yet")
        if moment.offered.reason:
            raise PreparationError(f"{title}: {moment.offered.reason}")
        by_name = {group.name: group for group in self.groups()}
        counts = counted(self._claims)
        rules = PreparationRules(whole_cores=moment.whole_cores)
        return prepared(claim, self._node_name, by_name, layout, counts, rules)

    def _keep(self, claims: Mapping[str, PreparedClaim], title: str) -> None:
        """Writes the file, and then takes the claims. Raises PreparationError."""
        try:
            files.replace(self._path, prepared_claim.encode(claims.values()), durable=True)
        except OSError as error:
            text = f"{title}: the agent can't keep it: {files.reason(error)}"
            raise PreparationError(text) from None
        self._claims = claims

    def _stored(self) -> Mapping[str, PreparedClaim]:
        """Raises OSError."""
        try:
            claims, faults = prepared_claim.decode(files.read(self._path, prepared_claim.MAX_BYTES))
        except FileNotFoundError:
            return {}
        except JsonError as error:
            log.error("%s: %s: the CPUs of prepared claims are not known", self._path, error)
            return {}
        for fault in faults:
            log.error("%s: %s", self._path, fault)
        return {claim.uid: claim for claim in claims}

    def _cut_files(self) -> None:
        """Removes the files of claims that are gone, and writes those that a reboot removed."""
        try:
            self._files.remove_others(self._claims.keys())
            for claim in self._claims.values():
                if not self._files.has(claim.uid):
                    self._files.write(claim, {})
        except OSError as error:
            log.warning("files of claims: %s", files.reason(error))
