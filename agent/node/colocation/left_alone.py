"""Strategies that are not the agent's, each with the reason: a node whose strategy wants them is
told so."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.node_slo import System
from agent.model.pod.annotations import NETWORK_QOS
from agent.node.colocation.moment import Moment
from agent.node.features import WantedFiles
from agent.usage.pod_strategies import CLASS_FIELDS

_NETWORK: Final = (
    "bandwidth belongs to the network plugin, whose queues and programs on the same devices the "
    "agent's would replace"
)
_SYSTEM: Final = "settings of the whole host belong to its own configuration (sysctl.d)"


class LeftAloneNetwork:
    """The strategy `networkQOS`."""

    name = "network-qos"

    def wanted(self, moment: Moment) -> WantedFiles:
        qos = moment.strategies.slo.resource_qos_strategy
        of_classes = {getattr(qos, field).network_qos.enable for field in CLASS_FIELDS.values()}
        pods = [pod.title for pod in moment.pods if NETWORK_QOS in pod.strategies.own]
        if True not in of_classes and not pods:
            return WantedFiles()
        wanted_by = "" if True in of_classes else f" (pod {pods[0]})"
        return WantedFiles(problem=f"networkQOS{wanted_by} is left alone: {_NETWORK}")


class LeftAloneSystem:
    """The strategy `systemStrategy`, without the bandwidth, which only `networkQOS` needs."""

    name = "system"

    def wanted(self, moment: Moment) -> WantedFiles:
        system = moment.strategies.slo.system_strategy
        neutral = System(total_network_bandwidth=system.total_network_bandwidth)
        if system == neutral:
            return WantedFiles()
        names = zip(System.__struct_fields__, System.__struct_encode_fields__, strict=True)
        values = msgspec.structs.asdict(system)
        wanted = [name for field, name in names if values[field] != getattr(neutral, field)]
        return WantedFiles(problem=f"systemStrategy ({', '.join(wanted)}) is left alone: {_SYSTEM}")
