"""Claims heard one after the other: what each takes, or why it is refused."""

from __future__ import annotations

import msgspec

from agent.allocate.aside import PoolRules
from agent.allocate.claimants import Claimant
from agent.allocate.local import outcome as local_outcome
from agent.allocate.local.outcome import Demand, Outcome
from agent.allocate.shares import pool_class
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.pods import Pod
from agent.model.qos import QoS
from agent.model.snapshot import Owner
from agent.model.topology import Topology


class Hearing:
    """The pools while claims are heard one after the other."""

    def __init__(
        self, topology: Topology, kubelet_cpus: CpuSet, rules: PoolRules, claimed: CpuSet = EMPTY
    ) -> None:
        """`claimed`: what drivers of claims gave away."""
        self._online = topology.online
        self._offline = topology.offline
        unbound = topology.online - topology.isolated or topology.online
        given = kubelet_cpus | claimed
        self.ls = self.be = unbound - given - rules.kept
        self.system = rules.system & topology.online - given
        self.owners: list[Owner] = []
        self._given = (
            (kubelet_cpus, "were given away by the kubelet"),
            (claimed, "were given away with a claim"),
        )
        kubelet_reserved = EMPTY if rules.owners_on_reserved else rules.reserved
        self._reserved = (
            (kubelet_reserved, "are reserved by the kubelet"),
            (rules.node_reserved, "are reserved by the node"),
            (rules.system if rules.system_exclusive else EMPTY, "belong to SYSTEM pods"),
        )
        self._users: dict[QoS, str] = {}

    def joins_pool(self, pod: Pod) -> None:
        """The pod lives on a pool, which no claim may empty from now on."""
        of_class = pool_class(pod)
        if of_class is QoS.SYSTEM and not self.system:
            of_class = QoS.LS
        self._users.setdefault(of_class, pod.title)

    def claim(self, claim: Claimant) -> str:
        """Takes the CPUs that are online, or says why not."""
        pod, wish = claim.pod, claim.wish
        if missing := wish - self._online - self._offline:
            return f"CPUs {missing} do not exist"
        for owner in self.owners:
            if taken := wish & owner.claimed:
                return f"CPUs {taken} belong to pod {owner.title}"
        if not claim.keeps:
            for cpus, why in self._given:
                if taken := wish & cpus:
                    return f"CPUs {taken} {why}"
        if not claim.keeps_reserved:
            for cpus, why in self._reserved:
                if taken := wish & cpus:
                    return f"CPUs {taken} {why}"
        offline = wish - self._online
        wish &= self._online
        if not wish:
            return f"CPUs {offline} are offline"
        if not claim.keeps and (user := self._left_with_nothing(pod, wish)):
            return f"CPUs {wish} are all that pod {user} and others share"
        self.ls -= wish
        self.system -= wish
        if pod.qos is QoS.LSE:
            self.be -= wish
        self.owners.append(Owner(pod.uid, pod.title, pod.qos, str(wish), str(offline)))
        return ""

    def keep_offline(self, pod: Pod, owned: CpuSet) -> None:
        """What the pod owned and is offline stays its own, where nobody got it."""
        kept = owned & self._offline - union(owner.claimed for owner in self.owners)
        if kept:
            self.owners.append(Owner(pod.uid, pod.title, pod.qos, "", str(kept)))

    def give_local(self, demand: Demand) -> Outcome:
        """Takes what a node-local policy gives away."""
        owners = {owner.uid for owner in self.owners}
        others = msgspec.structs.replace(
            demand,
            claims=tuple(each for each in demand.claims if each.uid not in owners),
            sharing=frozenset(each for each in demand.sharing if each[0] not in owners),
        )
        outcome = local_outcome.decide(others, self.ls)
        gone = self.ls - outcome.pool
        self.ls -= gone
        self.be -= gone
        self.system -= gone
        return outcome

    def _left_with_nothing(self, pod: Pod, wish: CpuSet) -> str | None:
        """A pod that lives on a pool which the claim would empty."""
        on_system = self._users.get(QoS.SYSTEM)
        users = [
            (self.ls, self._users.get(QoS.LS) or (None if self.system else on_system)),
            (self.be, self._users.get(QoS.BE) if pod.qos is QoS.LSE else None),
            (self.system, on_system),
        ]
        return next((user for pool, user in users if user and pool and pool <= wish), None)
