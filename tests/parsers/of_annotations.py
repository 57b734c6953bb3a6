"""The parsers of annotations, labels and whole objects: what the authors of pods, and others who
may write to the API server, control."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import urllib3

from agent.allocate import batch
from agent.allocate.colocation.eviction_pod import (
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    SUB_PRIORITY,
    eviction_pod,
)
from agent.allocate.device_holders import reported_devices
from agent.allocate.devices import partitions
from agent.allocate.node_allocator.answer import spec_text
from agent.cgroup import names
from agent.http.requests import BadRequestError
from agent.kube import cluster, errors, transport, wire
from agent.kube import objects as kinds
from agent.kube.errors import MalformedError, TooManyRequestsError
from agent.kube.transport import Query, ResponseLimits, Transport
from agent.model import quantities, rebind_resource
from agent.model.bounds import JsonError
from agent.model.cpu import policies
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.devices import (
    device_allocation,
    device_object,
    gpus,
    holding,
    interconnect,
    pci,
    resource_slice,
)
from agent.model.dra import claim_devices, cpu_parameters, prepared_claim, resource_claim
from agent.model.dra import names as claim_names
from agent.model.dra.cpu_parameters import ParametersError
from agent.model.node_slo import NodeSlo, node_slo
from agent.model.nrt import node_annotations, node_status, resource_topology
from agent.model.objects import ObjectError, decoded
from agent.model.pod import annotations, apiobjects, qos, quiet
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.apiobjects import ApiNode, ApiPod, GroupError
from agent.model.quantities import QuantityError
from agent.node import device_listing as listing
from agent.node import gpu_health as gpu_actions
from agent.node import gpus as gpu_devices
from agent.node.batch_resources import STRATEGY, THIRD_PARTY, strategy, third_party
from agent.node.resource_slices import node_slice
from agent.scheduler import page, webhook
from agent.scheduler.explain import endpoint
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.extender import extender
from agent.scheduler.leader import election
from agent.scheduler.preemption import disruption_budgets
from agent.scheduler.state import koordinator_reservations, pods_seen, records
from agent.scheduler.state.cluster import SchedulerCache
from agent.usage import slo_config, strategies
from agent.usage.node_metric import collect_policy
from agent.usage.pod_strategies import of_pod
from agent.usage.slo_config import SloConfig
from agent.view import explanation as words
from tests.parsers import mutations
from tests.parsers.target import Target, json_target, outcome_of

Read = Callable[[Mapping[str, str]], object]

_STATUS: Final = json.dumps(
    {
        "cpuset": "0-3,8",
        "numaNodeResources": [
            {"node": 0, "resources": {"cpu": "1500m", "memory": "1Gi", "hugepages-2Mi": "4Mi"}},
            {"node": 1, "resources": {"kubernetes.io/batch-cpu": 1500}},
        ],
        "cpuSharedPools": [{"socket": 0, "node": 1}],
        "unknown": [{"a": 1.5}],
    }
)
_ALLOCATED: Final = json.dumps(
    {
        "gpu": [
            {"minor": 0, "id": "GPU-1", "resources": {"koordinator.sh/gpu-core": "50"}},
            {"minor": 1, "extension": {"vfs": [{"busID": "0000:00:1f.1"}]}},
        ],
        "rdma": None,
    }
)
_CHECKPOINTS: Final = json.dumps(
    [
        {
            "podUID": "uid",
            "containerName": "c",
            "resourceName": "nvidia.com/gpu",
            "deviceIDs": ["GPU-1", "GPU-2::1"],
            "allocResp": "CgwKAUESB05WSURJQV8=",
        }
    ]
)
_TOPOLOGY_DETAIL: Final = json.dumps(
    {
        "detail": [
            {"id": 0, "core": 0, "socket": 0, "node": 0},
            {"id": 1, "core": 1, "socket": 0, "node": 0},
        ]
    }
)


def _status(texts: Mapping[str, str]) -> object:
    status = annotations.resource_status(texts)
    found = (
        status.cpus(),
        status.shared_numa_nodes(),
        status.pool_shares(3_000),
        status.amounts(),
    )
    text = texts[annotations.RESOURCE_STATUS]
    annotations.with_cpus(text, CpuSet((1, 2)), {1: 0, 2: 1})
    annotations.with_allocation(text, CpuSet((1, 2)), {0: {"cpu": 2_000}})
    return found


def _batch(texts: Mapping[str, str]) -> object:
    found = batch.batch_resources(texts)
    return found, batch.batch_limits(qos.QoS.BE, found), batch.cpu_request_milli(found)


def _allocated(texts: Mapping[str, str]) -> object:
    found = device_allocation.allocated_devices(texts)
    return found, device_allocation.amounts(found), device_allocation.virtual_functions(texts)


def _reservation(texts: Mapping[str, str]) -> object:
    found = node_annotations.node_reservation(texts)
    return found.cpus(), found.cpu_milli()


def _manager(texts: Mapping[str, str]) -> object:
    return node_annotations.cpu_manager(texts).reserved()


def _reported_cpus(texts: Mapping[str, str]) -> object:
    topology = resource_topology.NodeTopology("n", (), annotations=dict(texts))
    return node_annotations.reported_cpus(topology)


_TEXTS: Final[list[tuple[str, Read, tuple[str, ...]]]] = [
    (annotations.RESOURCE_STATUS, _status, (_STATUS, "{}")),
    (
        annotations.EXTENDED_RESOURCE_SPEC,
        _batch,
        (
            json.dumps(
                {
                    "containers": {
                        "a": {
                            "requests": {"kubernetes.io/batch-cpu": "1500"},
                            "limits": {
                                "kubernetes.io/batch-cpu": 2000,
                                "kubernetes.io/batch-memory": "1Gi",
                            },
                        },
                        "b": None,
                    }
                }
            ),
        ),
    ),
    (
        annotations.RESERVATION_ALLOCATED,
        annotations.reservation_uid,
        ('{"uid": "a", "name": "b"}',),
    ),
    (annotations.DEVICE_ALLOCATED, _allocated, (_ALLOCATED,)),
    (
        annotations.RESOURCE_SPEC,
        lambda texts: (
            annotations.resource_spec(texts),
            spec_text(texts[annotations.RESOURCE_SPEC], policies.BindPolicy.DEFAULT, forced=True),
        ),
        ('{"preferredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "None"}',),
    ),
    (
        annotations.NUMA_TOPOLOGY_SPEC,
        annotations.numa_spec,
        ('{"numaTopologyPolicy": "Restricted", "singleNUMANodeExclusive": "Required"}',),
    ),
    (
        device_allocation.DEVICE_ALLOCATE_HINT,
        device_allocation.device_preferences,
        (
            '{"gpu": {"selector": {"matchLabels": {"a": "b"}}, "vfSelector": null}}',
            '{"rdma": {"allocateStrategy": "ApplyForAll", "exclusivePolicy": "DeviceLevel"}}',
        ),
    ),
    (
        device_allocation.DEVICE_JOINT_ALLOCATE,
        device_allocation.device_preferences,
        ('{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}',),
    ),
    (
        device_allocation.GPU_PARTITION_SPEC,
        device_allocation.device_preferences,
        ('{"allocatePolicy": "Restricted", "ringBusBandwidth": "10Gi"}',),
    ),
    (
        node_annotations.SYSTEM_QOS,
        lambda texts: node_annotations.system_qos(texts).cpus(),
        ('{"cpuset": "0-1", "cpusetExclusive": false}',),
    ),
    (
        node_annotations.RESERVATION,
        _reservation,
        ('{"resources": {"cpu": "2"}, "reservedCPUs": "0-3", "applyPolicy": "Default"}',),
    ),
    (
        node_annotations.AMPLIFICATION_RATIO,
        node_annotations.amplification_ratios,
        ('{"cpu": 1.5, "memory": 2}',),
    ),
    (node_annotations.CPU_TOPOLOGY, _reported_cpus, (_TOPOLOGY_DETAIL,)),
    (
        node_annotations.CPU_MANAGER_POLICY,
        _manager,
        ('{"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0,1"}',),
    ),
    (
        node_annotations.AGENT_SETTINGS,
        node_annotations.reported_settings,
        ('{"ownersOnReserved": true, "memoryManagerPolicy": "Static", "deviceLocality": "off"}',),
    ),
    (
        node_annotations.NEAR_DEVICES,
        node_annotations.near_requests,
        ('[{"numaNodes": "0,2-3", "cpuMilli": 12000}]',),
    ),
    (
        node_annotations.POD_CPU_ALLOCS,
        lambda texts: (
            node_annotations.only_kubelet_allocated(texts[node_annotations.POD_CPU_ALLOCS]),
            node_annotations.kubelet_allocated(texts),
        ),
        ('[{"namespace": "a", "name": "b", "uid": "u", "cpuset": "1", "managedByKubelet": true}]',),
    ),
    (
        node_annotations.REFUSED_CLAIMS,
        node_annotations.refused_claims,
        ('[{"namespace": "a", "name": "b", "uid": "u", "cpuset": "1-2", "reason": "r"}]',),
    ),
    (
        node_annotations.CPU_SHARED_POOLS,
        lambda texts: node_annotations.shared_pools(texts, node_annotations.CPU_SHARED_POOLS),
        ('[{"socket": 0, "node": 0, "cpuset": "0-3"}]',),
    ),
    (listing.GONE_MINORS, listing.decode_gone, ('{"gpu": {"GPU-1": 3}}',)),
    (
        interconnect.GPU_LINKS,
        interconnect.decode_links,
        ('[{"pairs": [[0, 1], [2, 3]], "ancestor": "switch", "nvlinks": 4, "mbPerSecond": 1000}]',),
    ),
    (holding.DEVICES_CHECKPOINTS, reported_devices.of_device_object, (_CHECKPOINTS,)),
    (
        device_object.GPU_PARTITIONS,
        lambda texts: partitions.partitions({}, texts, {}),
        ('{"2": [{"minors": [0, 1], "gpuLinkType": "NVLink", "ringBusBandwidth": "400G"}]}',),
    ),
]
"""Annotations that are JSON: key, reader and examples."""


def _annotations() -> Iterator[Target]:
    for key, read, seeds in _TEXTS:

        def of_text(text: str, key: str = key, read: Read = read) -> object:
            return read({key: text})

        yield Target(
            f"annotation {key}",
            of_text,
            mutations.of_json,
            seeds,
            raises={AnnotationError: f"annotation {key}: "},
        )


def _plain_annotations() -> Iterator[Target]:
    for names_key, read_names in (
        (annotations.SHARED_CONTAINERS, annotations.shared_containers),
        (annotations.MIXED_CONTAINERS, annotations.mixed_containers),
    ):
        yield Target(
            f"annotation {names_key}",
            lambda text, key=names_key, read=read_names: read({key: text}),
            mutations.of_text,
            ("a, b,c", "istio-proxy"),
            raises={AnnotationError: names_key},
        )
    ratio = node_annotations.CPU_NORMALIZATION_RATIO
    yield Target(
        f"annotation {ratio}",
        lambda text: node_annotations.cpu_normalization_ratio({ratio: text}),
        mutations.of_text,
        ("1.5", "100"),
        raises={AnnotationError: ratio},
    )
    group = apiobjects.GROUP_ANNOTATION
    pod = apiobjects.from_object(_POD)
    yield Target(
        f"annotation {group}",
        lambda text: apiobjects.group_of(msgspec.structs.replace(pod, annotations={group: text})),
        mutations.of_text,
        ("train/4", "a-b.c/64"),
        raises={GroupError: f"pod ns/p: annotation {group}"},
    )
    yield Target(
        f"annotation {gpu_devices.CORDONED_GPUS}",
        lambda text: gpu_devices.unknown_cordons({gpu_devices.CORDONED_GPUS: text}, _GPUS),
        mutations.of_text,
        ("GPU-1,00000000:3B:00.0", "0000:3b:00.0"),
    )
    yield Target(
        "annotations of a pod for quiet CPUs",
        lambda text: quiet.quiet_wishes(dict.fromkeys(quiet.QUIET_BYTES, text), frozenset()),
        mutations.of_text,
        ("max_latency:10", "disable", "interrupts,c-states"),
    )
    yield Target(
        "labels of a pod",
        lambda text: (
            qos.qos_of({qos.QOS_LABEL: text}, None),
            qos.label_faults({qos.QOS_LABEL: text}, None),
        ),
        mutations.of_text,
        ("LSE", "BE"),
    )
    yield Target(
        "labels of a Node",
        lambda text: node_annotations.label_faults(dict.fromkeys(_NODE_LABELS, text)),
        mutations.of_text,
        ("FullPCPUsOnly", "SingleNUMANode"),
    )


_POD: Final = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "labels": {"koordinator.sh/qosClass": "LSR"},
        "annotations": {
            annotations.RESOURCE_STATUS: _STATUS,
            annotations.DEVICE_ALLOCATED: _ALLOCATED,
            annotations.RESERVATION_ALLOCATED: '{"uid": "r"}',
            apiobjects.GROUP_ANNOTATION: "train/4",
            apiobjects.CONFIG_MIRROR: "hash",
        },
    },
    "spec": {
        "nodeName": "n",
        "schedulerName": "s",
        "priority": 5,
        "preemptionPolicy": "Never",
        "overhead": {"cpu": "100m"},
        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}},
        "containers": [
            {
                "name": "c",
                "resources": {
                    "requests": {"cpu": "1500m", "memory": "1.5Gi"},
                    "limits": {"cpu": 2},
                },
                "ports": [{"hostPort": 80}],
            }
        ],
        "initContainers": [{"name": "i", "restartPolicy": "Always"}],
        "volumes": [{"configMap": {}}],
    },
    "status": {
        "phase": "Running",
        "qosClass": "Guaranteed",
        "startTime": "2026-01-02T03:04:06Z",
        "nominatedNodeName": "m",
        "conditions": [
            {"type": "PodResizePending", "status": "True", "reason": "Infeasible"},
            {"type": records.CLAIM_REFUSED, "status": "True"},
        ],
        "containerStatuses": [
            {
                "name": "c",
                "allocatedResources": {"cpu": "1"},
                "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}},
            }
        ],
        "allocatable": {"cpu": "64", "memory": "100Gi"},
        "loadBalancer": {},
    },
}
_NODE: Final = {
    "metadata": {"name": "n", "uid": "u", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "status": {"allocatable": {"cpu": "64", "memory": "100Gi", "nvidia.com/gpu": 8}},
}
_TOPOLOGY: Final = {
    "metadata": {
        "name": "n",
        "annotations": {node_annotations.POD_CPU_ALLOCS: "[]"},
        "ownerReferences": [{"kind": "Node", "name": "n", "uid": "u"}],
        "managedFields": [
            {
                "manager": "topolet",
                "operation": "Apply",
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "fieldsV1": {"f:zones": {'k:{"name":"node-0"}': {"f:name": {}}}},
            }
        ],
        "resourceVersion": "5",
    },
    "topologyPolicies": ["SingleNUMANodeContainerLevel"],
    "attributes": [
        {"name": "topologyManagerPolicy", "value": "restricted"},
        {"name": "topologyManagerScope", "value": "pod"},
        {"name": resource_topology.MAX_NUMA_NODES, "value": "8"},
        {"name": resource_topology.FINGERPRINT_METHOD, "value": "all"},
    ],
    "zones": [
        {
            "name": "node-0",
            "type": "Node",
            "costs": [{"name": "node-1", "value": 21}],
            "attributes": [{"name": resource_topology.L3_CPUS, "value": "0-3;4-7"}],
            "resources": [
                {"name": "cpu", "capacity": "8", "allocatable": 8, "available": "7500m"},
            ],
        },
        {"name": "other", "type": "Board"},
    ],
}
_DEVICE: Final = {
    "metadata": {
        "name": "n",
        "labels": {"a": "b"},
        "annotations": {holding.DEVICES_CHECKPOINTS: _CHECKPOINTS},
    },
    "spec": {
        "devices": [
            {
                "type": "gpu",
                "id": "GPU-1",
                "minor": 0,
                "health": True,
                "moduleID": 1,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "80Gi",
                },
                "topology": {"socketID": 0, "nodeID": 0, "pcieID": "1", "busID": "0000:3b:00.0"},
                "conditions": [
                    {
                        "type": "XID79",
                        "status": "True",
                        "reason": "r",
                        "message": "m",
                        "lastTransitionTime": "2026-01-02T03:04:05Z",
                    }
                ],
                "vfGroups": [
                    {"labels": {"a": "b"}, "vfs": [{"minor": 1, "busID": "0000:3b:00.1"}]}
                ],
            }
        ]
    },
}
_GPUS: Final = (gpus.Gpu("GPU-1", 0, "0000:3b:00.0"), gpus.Gpu("GPU-2", 1, "0000:5e:00.0"))


def _device(text: bytes) -> object:
    read = device_object.read(
        records.decoded(text, device_object.KIND, msgspec.json.Decoder(object))
    )
    return read, gpu_devices.restored(read.devices, gpu_actions.parse_actions(""))


_NODE_LABELS: Final = (
    policies.NUMA_LABEL,
    policies.NUMA_LABEL_OF_PROPOSAL,
    policies.BIND_LABEL,
    policies.STRATEGY_LABEL,
    policies.PARTITION_LABEL,
)


_anything = msgspec.json.Decoder(object)


def _objects() -> Iterator[Target]:
    of_agents = records.pods(records.AgentSelector("ns", {"koordinator.sh/qosClass": "LSR"}))
    yield json_target(
        "Pod",
        lambda text: (apiobjects.decode(text), of_agents(text)),
        _POD,
        raises={ObjectError: "Pod "},
    )
    yield json_target(
        "Node",
        lambda text: (apiobjects.decode_node(text), records.node(text)),
        _NODE,
        raises={ObjectError: "Node "},
    )
    yield json_target(
        "Namespace",
        records.namespace,
        {"metadata": {"name": "n", "labels": {"topolet.io/device-locality": "prefer"}}},
        raises={ObjectError: "Namespace "},
    )
    yield json_target(
        "strategy of a Node",
        lambda text: strategy(ApiNode(annotations={STRATEGY: text.decode("utf-8", "replace")})),
        {"cpuReclaimThresholdPercent": 60, "midReclaimMode": "static", "midCPUThresholdPercent": 1},
        raises={AnnotationError: f"annotation {STRATEGY}: "},
    )
    yarn = {"name": "hadoop-yarn", "priority": "koord-batch"}
    yield json_target(
        "third-party allocations of a Node",
        lambda text: third_party({THIRD_PARTY: text.decode("utf-8", "replace")}),
        {"allocations": [{**yarn, "resources": {"kubernetes.io/batch-memory": "10Gi"}}]},
        raises={AnnotationError: f"annotation {THIRD_PARTY}: "},
    )
    yield json_target(
        "NodeMetric",
        lambda text: collect_policy(decoded(text, "NodeMetric", _anything)),
        {
            "metadata": {"name": "n"},
            "spec": {
                "metricCollectPolicy": {
                    "aggregateDurationSeconds": 300,
                    "reportIntervalSeconds": 60,
                    "nodeAggregatePolicy": {"durations": ["5m0s", "1h"]},
                    "nodeMemoryCollectPolicy": "usageWithPageCache",
                }
            },
        },
        raises={ObjectError: "NodeMetric "},
    )
    yield json_target(
        "strategies of a NodeSLO",
        strategies.of_object,
        {"metadata": {"name": "n"}, "spec": {"cpuBurstStrategy": {"policy": "auto"}}},
        raises={ObjectError: "NodeSLO "},
    )
    yield json_target(
        "strategies of a pod",
        lambda text: of_pod(
            NodeSlo(),
            ApiPod(
                *("u", "ns", "p", "n", apiobjects.Phase.RUNNING, {}),
                dict.fromkeys(annotations.STRATEGY_BYTES, text.decode("utf-8", "replace")),
                *("burstable", 0),
            ),
        ),
        {
            "policy": "auto",
            "cpuBurstPercent": 50,
            "lowLimitPercent": 50,
            "enable": True,
            "ingressLimit": "5M",
            "blocks": [{"name": "a", "ioCfg": {"readIOPS": 9}}],
            "llc": {
                "schemata": {"range": [0, 30]},
                "schemataPerCache": [{"cacheID": 1, "range": [5, 9]}],
            },
            "mb": {"schemata": {"percent": 20}},
        },
    )
    yield json_target(
        "evictions of a pod",
        lambda text: eviction_pod(
            ApiPod(
                *("u", "ns", "p", "n", apiobjects.Phase.RUNNING),
                {SUB_PRIORITY: text.decode("utf-8", "replace")},
                dict.fromkeys(
                    (EVICTION_POLICY, EVICTION_PRIORITY), text.decode("utf-8", "replace")
                ),
                *("burstable", 0),
            ),
            qos.PriorityClass.BATCH,
            *(None, None),
        ),
        ["MemoryEvict"],
    )
    yield json_target(
        "slo-config",
        lambda text: slo_config.spec(
            slo_config.parsed(dict.fromkeys(slo_config.KEYS, text), SloConfig())[0],
            {"pool": "a"},
            {slo_config.BANDWIDTH_ANNOTATION: text.decode("utf-8", "replace")},
        ),
        {
            "clusterStrategy": {"enable": True, "policy": "auto", "totalNetworkBandwidth": "1G"},
            "nodeStrategies": [
                {
                    "name": "a",
                    "nodeSelector": {
                        "matchLabels": {"pool": "a"},
                        "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
                    },
                    "lsClass": {"cpuQOS": {"enable": True}},
                }
            ],
            "applications": [{"name": "a", "qos": "LS"}],
            "nodeConfigs": [{"nodeSelector": {}, "applications": [{"name": "b"}]}],
        },
    )
    yield json_target(
        "NodeSLO",
        lambda text: node_slo(decoded(text, "NodeSLO", _anything)),
        {
            "metadata": {"name": "n"},
            "spec": {
                "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"},
                "resourceQOSStrategy": {
                    "beClass": {
                        "cpuQOS": {"enable": True, "groupIdentity": -1},
                        "networkQOS": {"ingressLimit": "50M"},
                        "blkioQOS": {"blocks": [{"name": "vg0", "ioCfg": {"readIOPS": 9}}]},
                    }
                },
                "systemStrategy": {"schedFeatures": {"a": True}, "totalNetworkBandwidth": "1G"},
                "hostApplications": [
                    {"name": "a", "qos": "LS", "cgroupPath": {"base": "Kubepods"}}
                ],
            },
        },
        raises={ObjectError: "NodeSLO "},
    )
    yield json_target("NodeResourceTopology", records.topology, _TOPOLOGY)
    yield json_target(
        "Device",
        lambda text: (records.devices(text), _device(text)),
        _DEVICE,
        raises={ObjectError: "Device "},
    )
    yield Target(
        "objects as values",
        lambda value: (
            outcome_of(lambda: apiobjects.from_object(value), ObjectError),
            outcome_of(lambda: resource_topology.decode(value), ObjectError),
            outcome_of(lambda: device_object.decode(value), ObjectError),
        ),
        mutations.of_values,
        (_POD, _NODE, _TOPOLOGY, _DEVICE),
    )
    yield json_target(
        "Reservation",
        koordinator_reservations.reservation,
        {
            "metadata": {"name": "r", "uid": "u", "annotations": {"a": "b"}},
            "spec": {
                "template": {"metadata": {"annotations": {annotations.RESOURCE_STATUS: _STATUS}}}
            },
            "status": {"phase": "Available", "nodeName": "n"},
        },
        raises={ObjectError: "Reservation "},
    )
    yield json_target(
        "ConfigMap of the pods seen",
        pods_seen.content,
        {"data": {pods_seen.KEY: '[[4000,1024,1,500,["T4"],7],[1,2,0,0,[],1]]'}},
        raises={ObjectError: "ConfigMap"},
    )
    yield json_target(
        "PodDisruptionBudget",
        lambda text: disruption_budgets.read(text).covers("p", {"a": "b"}),
        {
            "metadata": {"name": "b", "namespace": "ns"},
            "spec": {
                "selector": {
                    "matchLabels": {"a": "b"},
                    "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
                }
            },
            "status": {
                "disruptionsAllowed": 1,
                "disruptedPods": {"q": "2026-01-02T03:04:05Z"},
            },
        },
        raises={ObjectError: "PodDisruptionBudget "},
    )
    yield json_target(
        "RebindResource",
        rebind_resource.decode,
        {
            "metadata": {"name": "r", "uid": "u", "resourceVersion": "1"},
            "spec": {"nodeName": "n", "deadlineInSeconds": 60, "maxPods": 3},
            "status": {"phase": "Pending", "updateTimestamp": "2026-01-02T03:04:05Z"},
        },
        raises={ObjectError: "RebindResource "},
    )
    yield json_target(
        "ResourceSlice",
        resource_slice.decode,
        {
            "metadata": {"name": "s"},
            "spec": {
                "driver": "d",
                "pool": {"name": "n"},
                "devices": [
                    {
                        "name": "g",
                        "attributes": {
                            resource_slice.NUMA_NODE: {"int": 1},
                            resource_slice.PCI_BUS_ID: {"string": "0000:01:00.0"},
                        },
                    }
                ],
            },
        },
        raises={ObjectError: "ResourceSlice "},
    )
    yield json_target(
        "ResourceSlice of the node",
        node_slice,
        {
            "metadata": {"name": "s", "resourceVersion": "1", "ownerReferences": [{"uid": "u"}]},
            "spec": {
                "driver": claim_names.DRIVER,
                "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "numa-node-0"}],
            },
        },
        {"metadata": {"name": "s"}, "spec": {"driver": "d"}},
        raises={ObjectError: "ResourceSlice "},
    )
    yield json_target(
        "status of a ResourceClaim",
        claim_devices.decode,
        {
            "metadata": {"name": "c", "namespace": "ns", "uid": "u"},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [
                            {
                                "driver": claim_names.DRIVER,
                                "pool": "n",
                                "device": "numa-node-0",
                                "shareID": "s",
                                "adminAccess": False,
                            }
                        ]
                    }
                },
                "devices": [
                    {
                        "driver": claim_names.DRIVER,
                        "pool": "n",
                        "device": "numa-node-0",
                        "shareID": "s",
                        "conditions": [
                            {"type": "Ready", "status": "False", "lastTransitionTime": "t"}
                        ],
                        "data": {"cpus": "0-3"},
                    }
                ],
            },
        },
        raises={ObjectError: "ResourceClaim "},
    )
    yield json_target(
        "ResourceClaim",
        resource_claim.decode,
        {
            "metadata": {"name": "c", "namespace": "ns", "uid": "u"},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [
                            {
                                "request": "a",
                                "driver": claim_names.DRIVER,
                                "pool": "n",
                                "device": "numa-node-0",
                                "adminAccess": False,
                                "shareID": "s",
                                "consumedCapacity": {"cpu": "2", "memory": "1Gi"},
                            }
                        ],
                        "config": [
                            {
                                "source": "FromClaim",
                                "requests": ["a"],
                                "opaque": {
                                    "driver": claim_names.DRIVER,
                                    "parameters": {
                                        "apiVersion": cpu_parameters.API_VERSION,
                                        "kind": cpu_parameters.KIND,
                                        "cpuBindPolicy": "FullPCPUs",
                                        "cpuExclusivePolicy": "PCPULevel",
                                        "spread": "Evenly",
                                        "shared": True,
                                        "memoryPolicy": "Bind",
                                        "cpus": "0-1",
                                    },
                                },
                            }
                        ],
                    }
                },
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            },
        },
        raises={ObjectError: "ResourceClaim "},
    )
    yield json_target(
        "CpuParameters",
        cpu_parameters.parsed,
        {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "0-1"}},
        raises={ParametersError: ""},
    )
    yield json_target(
        "prepared claims",
        prepared_claim.decode,
        {
            "claims": [
                {
                    "uid": "u",
                    "namespace": "ns",
                    "name": "c",
                    "groups": [
                        {
                            "request": "a",
                            "pool": "n",
                            "device": "numa-node-0",
                            "cpus": "0-1",
                            "share": "s",
                            "exclusive": "PCPULevel",
                            "amounts": {"memory": 1},
                        }
                    ],
                }
            ]
        },
        raises={JsonError: ""},
    )
    yield json_target(
        "Lease",
        lambda text: election.read_holder(_Answers(text), "ns", "l"),
        {
            "metadata": {"name": "l", "resourceVersion": "1"},
            "spec": {
                "holderIdentity": "h",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-01-02T03:04:05.000000Z",
                "leaseTransitions": 3,
            },
        },
        raises={MalformedError: "Lease "},
    )


def _responses() -> Iterator[Target]:
    yield json_target(
        "page of a list",
        lambda body: (wire.page("list of p", body), errors.status_of(body)),
        {"metadata": {"resourceVersion": "5", "continue": "t"}, "items": [{}]},
        raises={MalformedError: "list of p: "},
    )
    yield json_target(
        "event of a watch",
        _event,
        {
            "type": "BOOKMARK",
            "object": {
                "metadata": {
                    "name": "p",
                    "resourceVersion": "5",
                    "annotations": {"k8s.io/initial-events-end": "true"},
                }
            },
        },
        raises={MalformedError: "watch of p: "},
    )
    yield json_target(
        "Status",
        lambda body: str(errors.refusal("GET /p", errors.status_of(body))),
        {
            "code": 409,
            "reason": "Conflict",
            "message": 'User "u" cannot get resource "pods" in API group ""',
            "details": {"causes": [{"field": ".a"}], "retryAfterSeconds": 5},
        },
    )
    yield Target(
        "Retry-After", _retry_after, mutations.of_text, ("5", "Wed, 21 Oct 2026 07:28:00 GMT")
    )
    yield json_target(
        "APIResourceList",
        lambda body: kinds.Discovery(_Answers(body)).version(kinds.TOPOLOGY),
        {"resources": [{"name": "noderesourcetopologies"}]},
        raises={MalformedError: "GET /apis/"},
    )
    yield json_target(
        "version of the API server",
        lambda body: kinds.Discovery(_Answers(body)).minor(),
        {"major": "1", "minor": "36+"},
        raises={MalformedError: "GET /version: "},
    )
    yield json_target(
        "stored object", _stored, _TOPOLOGY, _POD, _DEVICE, raises={MalformedError: "/path: "}
    )


class _Answers(Transport):
    """Answers every request with the same body."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def get(self, path: str, query: Query | None = None) -> bytes:
        return self._body


def _event(body: bytes) -> object:
    event = wire.event("watch of p", body)
    metadata = wire.metadata("watch of p", event.object)
    return wire.ends_initial(metadata), wire.not_newer(metadata.resource_version, "7")


_WANTED: Final = {
    "apiVersion": "topology.node.k8s.io/v1alpha2",
    "kind": "NodeResourceTopology",
    "metadata": {"name": "n", "ownerReferences": [{"uid": "u", "name": "n"}]},
    "zones": [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": "8"}]}],
}


def _retry_after(text: str) -> object:
    response = urllib3.HTTPResponse(
        io.BytesIO(b"{}"), {"Retry-After": text}, 429, preload_content=False
    )
    try:
        return transport.read_response("GET /", response, ResponseLimits())
    except TooManyRequestsError as error:
        return error.retry_after_seconds


def _stored(body: bytes) -> object:
    seen = cluster.decoded_object("/path", body)
    wanted_status = node_status.status("n", {"cpu": 64})
    wanted_devices: dict[str, Any] = {"metadata": {"name": "n"}, "spec": {"devices": []}}
    return (
        cluster.patch(_WANTED, seen, "topolet", resource_topology.is_own_entry),
        cluster.same_version(seen, "topology.node.k8s.io/v1alpha2"),
        node_status.with_stored_amounts(wanted_status, seen),
        device_object.with_others(wanted_devices, seen),
    )


def _requests() -> Iterator[Target]:
    args = {"Pod": _POD, "NodeNames": ["a", "b"]}
    whole = {"Pod": _POD, "Nodes": {"items": [{"metadata": {"name": "a"}}]}}
    yield json_target(
        "ExtenderArgs",
        extender.extender_args,
        args,
        whole,
        raises={BadRequestError: "ExtenderArgs: "},
    )
    meta = {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}
    victims = {"n": {"Pods": [{"metadata": {"name": "p", "uid": "u"}}]}}
    yield json_target(
        "ExtenderPreemptionArgs",
        extender.preemption_args,
        {"Pod": _POD, "NodeNameToMetaVictims": meta},
        {"Pod": _POD, "NodeNameToVictims": victims},
        raises={BadRequestError: "ExtenderPreemptionArgs: "},
    )
    binding = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n"}
    yield json_target(
        "ExtenderBindingArgs",
        extender.binding_args,
        binding,
        raises={BadRequestError: "ExtenderBindingArgs: "},
    )
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "r",
            "operation": "CREATE",
            "resource": {"group": "", "resource": "pods"},
            "subResource": "binding",
            "userInfo": {"username": "u"},
            "namespace": "ns",
            "name": "p",
            "object": {
                "metadata": {"name": "p"},
                "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            },
        },
    }
    yield json_target(
        "AdmissionReview",
        lambda body: webhook.scheduler_verdict(webhook.decode(body), "s"),
        review,
        raises={webhook.ReviewError: "AdmissionReview: "},
    )
    yield json_target(
        "request for explanations",
        lambda body: _EXPLAINER.explain_all(*endpoint.decode_request(body)[:2]),
        {"pods": [_POD], "drained": ["n"], "leaseHolder": "h"},
        raises={BadRequestError: "explain: "},
    )
    yield json_target(
        "query of the page of the cluster",
        page.decode_state_query,
        {"lease_holder": "h", "search": "n", "range": {"column": "gpus", "low": 1}},
        raises={BadRequestError: "page: "},
    )
    yield json_target(
        "query about a node, a pod or a decision",
        page.decode_detail_query,
        {"lease_holder": "h", "pod": "n/p", "explain": True},
        raises={BadRequestError: "page: "},
    )
    yield json_target(
        "explanations",
        lambda text: words.draw(endpoint.named(endpoint.decode_answer(text), {})[0]),
        _EXPLANATIONS,
        raises={JsonError: "", IndexError: ""},
    )
    yield json_target(
        "list of objects for their names",
        endpoint.decode_titles,
        {"items": [{"metadata": {"name": "n", "namespace": "ns", "uid": "u"}}]},
        raises={JsonError: ""},
    )


_EXPLAINER: Final = Explainer(SchedulerCache(), "s")
_EXPLANATIONS: Final = {
    "schemaVersion": 1,
    "salt": "a0",
    "explanations": [
        {
            "pod": "ns/p",
            "causes": [
                {
                    "code": "c",
                    "message": "m",
                    "objects": [{"kind": "Node", "name": "n", "field": "f"}],
                }
            ],
            "winner": "n",
            "nodes": [
                {"node": "n", "offer": {"score": 5, "amounts": {"0": {"cpu": 1}}, "merged": [0]}}
            ],
        }
    ],
}


def _values() -> Iterator[Target]:
    yield Target(
        "quantity",
        lambda text: (quantities.milli(text), quantities.whole(text)),
        mutations.of_text,
        ("1500m", "1.5Gi", "2e3", "+.5"),
        raises={QuantityError: "is not a quantity"},
    )
    yield Target(
        "list of CPUs",
        lambda text: list(CpuSet.parse(text)),
        mutations.of_text,
        ("0-3,8", "0-15:2/4"),
        raises={CpuSetError: "CPU list"},
    )
    yield Target(
        "mask of CPUs",
        lambda text: list(CpuSet.parse_mask(text)),
        mutations.of_text,
        ("ff,ffffffff", "0x0f"),
        raises={CpuSetError: "CPU mask"},
    )
    yield Target(
        "cgroup parent",
        _parent,
        mutations.of_name,
        (
            "/kubepods/burstable/pod1234",
            "kubepods-besteffort-pod12_34.slice",
            "/a.slice/a-kubepods.slice/a-kubepods-pod1234.slice",
            "kubepods.slice:cri-containerd:abc",
        ),
    )
    yield Target(
        "PCI address",
        lambda text: (pci.address_key(text), pci.is_address(text), gpus.pci_address(text)),
        mutations.of_name,
        ("0000:3b:00.0", "00000000:3B:00.0\0"),
    )


def _parent(text: str) -> object:
    return (
        qos.kube_class(text),
        qos.is_qos_root(text),
        names.of_pods(text),
        names.slice_group(text),
        names.pod_group(text, "12-34"),
        names.container_groups(text, "abc"),
        names.from_cgroups_path(text),
        names.absolute(text, "/own"),
    )


def targets() -> Iterator[Target]:
    yield from _annotations()
    yield from _plain_annotations()
    yield from _objects()
    yield from _responses()
    yield from _requests()
    yield from _values()
