from __future__ import annotations

import msgspec
import pytest

from agent.allocate import policies_in_force
from agent.allocate.policies_in_force import PROFILES, Bind, NodePolicies, PolicySource
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.policies import (
    BindPolicy,
    ExclusivePolicy,
    NumaExclusive,
    NumaPolicy,
    Strategy,
)
from agent.model.pod.annotations import NumaSpec, ResourceSpec
from agent.model.pod.qos import QoS

KOORDINATOR = PROFILES["koordinator"]
PROPOSAL = PROFILES["proposal"]
LABEL_FIRST = msgspec.structs.replace(KOORDINATOR, label_first=True)
NONE, BEST, RESTRICTED, SINGLE = NumaPolicy
DEFAULT, FULL, SPREAD, BURST = BindPolicy
NUMA_LABEL = "node.koordinator.sh/numa-topology-policy"


@pytest.mark.parametrize(
    ("pod", "label", "kubelet", "profile", "policy", "source"),
    [
        (None, None, None, KOORDINATOR, NONE, PolicySource.DEFAULT),
        (None, None, NONE, PROPOSAL, BEST, PolicySource.DEFAULT),
        (None, NONE, None, PROPOSAL, NONE, PolicySource.NODE_LABEL),
        (None, BEST, NONE, KOORDINATOR, BEST, PolicySource.NODE_LABEL),
        (None, BEST, RESTRICTED, KOORDINATOR, RESTRICTED, PolicySource.KUBELET),
        (None, BEST, RESTRICTED, LABEL_FIRST, BEST, PolicySource.NODE_LABEL),
        (None, None, RESTRICTED, LABEL_FIRST, RESTRICTED, PolicySource.KUBELET),
        (SINGLE, None, None, KOORDINATOR, SINGLE, PolicySource.POD),
        (SINGLE, NONE, NONE, PROPOSAL, SINGLE, PolicySource.POD),
        (SINGLE, SINGLE, None, KOORDINATOR, SINGLE, PolicySource.NODE_LABEL),
        (NONE, BEST, None, KOORDINATOR, BEST, PolicySource.NODE_LABEL),
    ],
)
def test_numa_policy_in_force(pod, label, kubelet, profile, policy, source) -> None:
    node = NodePolicies(numa_label=label, numa_kubelet=kubelet)
    assert policies_in_force.numa_policy(NumaSpec(pod), node, profile) == (policy, source)


def test_different_numa_policies_of_pod_and_node_conflict() -> None:
    node = NodePolicies(numa_label=BEST, numa_kubelet=SINGLE)
    got = policies_in_force.numa_policy(NumaSpec(BEST), node, KOORDINATOR)
    detail = "pod: BestEffort, kubelet: SingleNUMANode"
    assert got == Refusal(Reason.NUMA_POLICY_CONFLICT, detail=detail)


@pytest.mark.parametrize(
    ("spec", "exclusive"),
    [
        (NumaSpec(), None),
        (NumaSpec(SINGLE), NumaExclusive.REQUIRED),
        (NumaSpec(NONE), None),
        (NumaSpec(SINGLE, NumaExclusive.PREFERRED), NumaExclusive.PREFERRED),
        (NumaSpec(None, NumaExclusive.REQUIRED), NumaExclusive.REQUIRED),
    ],
)
def test_numa_exclusive(spec: NumaSpec, exclusive: NumaExclusive | None) -> None:
    assert policies_in_force.numa_exclusive(spec) is exclusive


PLAIN = NodePolicies()
FULL_ONLY = NodePolicies(bind_label=FULL)
SPREAD_ONLY = NodePolicies(bind_label=SPREAD)
KUBELET_FULL = NodePolicies(bind_label=SPREAD, full_pcpus_only=True)


@pytest.mark.parametrize(
    ("spec", "qos", "owner", "node", "bind", "source"),
    [
        (ResourceSpec(), QoS.LSR, True, PLAIN, Bind(FULL, False), PolicySource.DEFAULT),
        (ResourceSpec(SPREAD), QoS.LSE, True, PLAIN, Bind(SPREAD, False), PolicySource.POD),
        (
            ResourceSpec(SPREAD, DEFAULT),
            QoS.LSE,
            True,
            PLAIN,
            Bind(FULL, True),
            PolicySource.DEFAULT,
        ),
        (ResourceSpec(FULL, SPREAD), QoS.LSE, True, PLAIN, Bind(SPREAD, True), PolicySource.POD),
        (ResourceSpec(FULL), QoS.LS, False, PLAIN, None, PolicySource.POD),
        (ResourceSpec(BURST), QoS.LSR, True, PLAIN, None, PolicySource.POD),
        (ResourceSpec(), QoS.LS, False, FULL_ONLY, Bind(FULL, True), PolicySource.NODE_LABEL),
        (ResourceSpec(SPREAD), QoS.LSR, True, FULL_ONLY, Bind(FULL, True), PolicySource.NODE_LABEL),
        (ResourceSpec(), QoS.LS, False, KUBELET_FULL, Bind(FULL, True), PolicySource.KUBELET),
        (
            ResourceSpec(DEFAULT, FULL),
            QoS.LS,
            False,
            SPREAD_ONLY,
            Bind(SPREAD, True),
            PolicySource.NODE_LABEL,
        ),
    ],
)
def test_bind_policy_in_force(spec, qos, owner, node, bind, source) -> None:
    assert policies_in_force.bind(spec, qos, node, KOORDINATOR, owner=owner) == (bind, source)


@pytest.mark.parametrize("policy", [FULL, SPREAD, BURST])
def test_the_configured_bind_policy_binds_cpus_of_owners(policy: BindPolicy) -> None:
    """ConstrainedBurst binds none."""
    profile = msgspec.structs.replace(KOORDINATOR, bind=policy)
    for node in (PLAIN, NodePolicies(arm=True)):
        found = policies_in_force.bind(ResourceSpec(), QoS.LSR, node, profile, owner=True)
        binds = FULL if policy is BURST or node.arm else policy
        assert found == (Bind(binds, False), PolicySource.DEFAULT)


def test_be_pod_owns_no_cpus_under_any_bind_policy_of_the_node() -> None:
    got = policies_in_force.bind(ResourceSpec(), QoS.BE, FULL_ONLY, KOORDINATOR, owner=False)
    assert got == (None, PolicySource.DEFAULT)


def test_a_required_bind_policy_conflicts_with_the_nodes() -> None:
    got = policies_in_force.bind(
        ResourceSpec(FULL, SPREAD), QoS.LSR, KUBELET_FULL, KOORDINATOR, owner=True
    )
    detail = "pod: SpreadByPCPUs, kubelet: FullPCPUs"
    assert got == Refusal(Reason.BIND_POLICY_CONFLICT, detail=detail)


@pytest.mark.parametrize("node", [FULL_ONLY, KUBELET_FULL])
@pytest.mark.parametrize(
    ("spec", "qos", "owner", "guaranteed", "avoided"),
    [
        (ResourceSpec(), QoS.LS, False, False, None),
        (ResourceSpec(SPREAD), QoS.LS, False, False, None),
        (ResourceSpec(BURST), QoS.LS, False, False, None),
        (ResourceSpec(), QoS.LS, False, True, False),
        (ResourceSpec(SPREAD), QoS.LS, False, True, False),
        (ResourceSpec(), QoS.LSR, True, True, False),
        (ResourceSpec(), QoS.LSR, False, False, None),
        (ResourceSpec(SPREAD), QoS.LSR, True, True, True),
        (ResourceSpec(SPREAD, FULL), QoS.LSE, True, True, False),
    ],
)
def test_the_proposals_rules_for_nodes_with_full_pcpus_only(
    node: NodePolicies,
    spec: ResourceSpec,
    qos: QoS,
    owner: bool,
    guaranteed: bool,
    avoided: bool | None,
) -> None:
    """`avoided` None: declined. Koordinator binds whole cores to all of these pods."""
    source = PolicySource.KUBELET if node.full_pcpus_only else PolicySource.NODE_LABEL
    got = policies_in_force.bind(spec, qos, node, PROPOSAL, owner=owner, guaranteed=guaranteed)
    if avoided is None:
        detail = f"pod: {qos}, {source}: FullPCPUs"
        assert got == Refusal(Reason.NOT_GUARANTEED, detail=detail)
    else:
        assert got == (Bind(FULL, True, avoided=avoided), source)
    got = policies_in_force.bind(spec, qos, node, KOORDINATOR, owner=owner, guaranteed=guaranteed)
    assert got == (Bind(FULL, True), source)


@pytest.mark.parametrize("node", [PLAIN, SPREAD_ONLY])
def test_the_proposals_rules_for_whole_cores_apply_to_no_other_node(node: NodePolicies) -> None:
    for profile in (KOORDINATOR, PROPOSAL):
        got = policies_in_force.bind(ResourceSpec(), QoS.LS, node, profile, owner=False)
        assert not isinstance(got, Refusal)


@pytest.mark.parametrize(
    ("node", "strategy"),
    [
        (NodePolicies(), (Strategy.MOST_ALLOCATED, PolicySource.DEFAULT)),
        (
            NodePolicies(distribute_across_numa=True),
            (Strategy.DISTRIBUTE_EVENLY, PolicySource.KUBELET),
        ),
        (
            NodePolicies(strategy_label=Strategy.LEAST_ALLOCATED, distribute_across_numa=True),
            (Strategy.LEAST_ALLOCATED, PolicySource.NODE_LABEL),
        ),
    ],
)
def test_numa_strategy(node: NodePolicies, strategy: tuple[Strategy, PolicySource]) -> None:
    assert policies_in_force.numa_strategy(node, PROPOSAL) == strategy


@pytest.mark.parametrize(
    ("policy", "strategy"),
    [
        (NumaPolicy.NONE, Strategy.MOST_ALLOCATED),
        (NumaPolicy.BEST_EFFORT, Strategy.LEAST_ALLOCATED),
    ],
)
def test_numa_strategy_of_the_configuration(policy: NumaPolicy, strategy: Strategy) -> None:
    profile = msgspec.structs.replace(PROPOSAL, scoring=Strategy.LEAST_ALLOCATED)
    got = policies_in_force.numa_strategy(PLAIN, profile, policy)
    assert got == (strategy, PolicySource.DEFAULT)


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        (ResourceSpec(), None),
        (ResourceSpec(FULL, FULL, ExclusivePolicy.NUMA_NODE_LEVEL), None),
        (ResourceSpec(SPREAD), "bind policy SpreadByPCPUs"),
        (ResourceSpec(FULL, SPREAD), "bind policy SpreadByPCPUs"),
        (ResourceSpec(exclusive=ExclusivePolicy.PCPU_LEVEL), "exclusive policy PCPULevel"),
    ],
)
def test_arm_has_full_pcpus_and_numa_node_level_only(
    spec: ResourceSpec, refused: str | None
) -> None:
    assert policies_in_force.architecture(spec, NodePolicies()) is None
    got = policies_in_force.architecture(spec, NodePolicies(arm=True))
    assert got == (Refusal(Reason.ARCHITECTURE, detail=refused) if refused else None)


def test_policies_are_read_from_labels_and_kubelet() -> None:
    labels = {
        "node.koordinator.sh/numa-topology-policy": "BestEffort",
        "node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly",
        "node.koordinator.sh/numa-allocate-strategy": "DistributeEvenly",
        "kubernetes.io/arch": "arm64",
    }
    options = {"full-pcpus-only": "true", "distribute-cpus-across-numa": "false"}
    got, faults = policies_in_force.node_policies(labels, "SingleNUMANodeContainerLevel", options)
    assert got == NodePolicies(
        BEST, SINGLE, FULL, Strategy.DISTRIBUTE_EVENLY, full_pcpus_only=True, arm=True
    )
    assert not faults


@pytest.mark.parametrize(
    ("value", "policy"),
    [("FullPCPUsOnly", FULL), ("PCPUOnly", FULL), ("None", None), ("", None)],
)
def test_spellings_of_the_label_for_the_bind_policy(value: str, policy: BindPolicy | None) -> None:
    got, faults = policies_in_force.node_policies({"node.koordinator.sh/cpu-bind-policy": value})
    assert (got, faults) == (NodePolicies(bind_label=policy), ())


@pytest.mark.parametrize(
    ("current", "policy", "faults"),
    [
        ({}, RESTRICTED, 0),
        ({NUMA_LABEL: "strict"}, RESTRICTED, 1),
        ({NUMA_LABEL: "BestEffort"}, BEST, 0),
    ],
)
def test_the_current_label_if_known_has_precedence_over_the_proposals_label(
    current: dict[str, str], policy: NumaPolicy, faults: int
) -> None:
    proposal = {"node.koordinator.sh/numa-topology-alignment-policy": "Restricted"}
    got, found = policies_in_force.node_policies({**proposal, **current})
    assert (got.numa_label, len(found)) == (policy, faults)


def test_unknown_values_are_named_and_ignored() -> None:
    labels = {
        "node.koordinator.sh/cpu-bind-policy": "FullPCPUs",
        "node.koordinator.sh/numa-topology-policy": "",
    }
    got, faults = policies_in_force.node_policies(labels, "strict")
    assert got == NodePolicies()
    assert [fault.partition(" is ")[0] for fault in faults] == [
        "topology manager policy 'strict'",
        "label node.koordinator.sh/cpu-bind-policy: 'FullPCPUs'",
    ]
