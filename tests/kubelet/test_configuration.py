from __future__ import annotations

import json
import os
from typing import Any

import pytest

from agent.kubelet.configuration import (
    ConfigurationError,
    KubeletConfiguration,
    flags,
    of_command_line,
    of_object,
    to_object,
)
from agent.model.cpu.cpuset import CpuSet

WRITTEN: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
    "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "16"},
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 1, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}}],
    "reservedSystemCPUs": "0-1",
    "kubeReserved": {"cpu": "500m", "memory": "1Gi"},
    "systemReserved": {"cpu": "1"},
    "cgroupDriver": "systemd",
    "featureGates": {"MemoryQoS": True, "Other": False},
    "singleProcessOOMKill": True,
}
READ = KubeletConfiguration(
    source="here",
    cpu_manager_policy="static",
    cpu_manager_options={"full-pcpus-only": "true"},
    topology_manager_policy="restricted",
    topology_manager_scope="pod",
    max_numa_nodes=16,
    memory_manager_policy="Static",
    reserved_memory_bytes={1: 1 << 30},
    reserved_cpus=CpuSet((0, 1)),
    reserved_milli=1500,
    cgroup_driver="systemd",
    protects_memory=True,
    kills_single_process=True,
)


def test_a_file_and_configz_are_read_alike() -> None:
    assert of_object(WRITTEN, "here") == of_object({"kubeletconfig": WRITTEN}, "here") == READ
    assert READ.static


@pytest.mark.parametrize(
    "content", [{}, {"cpuManagerPolicy": "", "kubeReserved": None, "cgroupRoot": None}]
)
def test_absent_fields_have_the_kubelets_defaults(content: dict[str, Any]) -> None:
    assert of_object(content, "here") == KubeletConfiguration("here")
    assert not of_object(content, "here").static


@pytest.mark.parametrize("configuration", [READ, KubeletConfiguration("here")])
def test_the_stored_configuration_reads_back(configuration: KubeletConfiguration) -> None:
    stored = json.loads(json.dumps(to_object(configuration)))
    assert of_object(stored, "here") == configuration


@pytest.mark.parametrize("name", ["cgroup-root", "cpu-manager-policy"])
def test_a_flag_that_is_not_utf8_is_an_error(name: str) -> None:
    """The agent stores the configuration as JSON."""
    arguments = ["kubelet", f"--{name}={os.fsdecode(b'/a/' + bytes([255]))}"]
    with pytest.raises(ConfigurationError, match=r"^here: a value is not UTF-8"):
        of_command_line(arguments, None, "here")
    with pytest.raises(ConfigurationError, match=r"^here: a value is not UTF-8"):
        of_object(json.loads('{"kubeletconfig":{"cgroupRoot":"\\udcff"}}'), "here")


def test_flags_override_the_file() -> None:
    arguments = [
        "/usr/bin/kubelet",
        "--cpu-manager-policy=none",
        "--topology-manager-policy",
        "single-numa-node",
        "--kube-reserved=cpu=2,memory=1Gi",
        "--reserved-cpus=",
        "--reserved-memory",
        "0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=5",
        "--topology-manager-policy-options=max-allowable-numa-nodes=9",
        "--feature-gates=Other=true, MemoryQoS=F",
        "--v=2",
    ]
    found = of_command_line(arguments, WRITTEN, "here")
    assert (found.cpu_manager_policy, found.topology_manager_policy) == ("none", "single-numa-node")
    assert (found.reserved_cpus, found.reserved_milli) == (CpuSet(), 3000)
    assert (found.cgroup_driver, found.protects_memory) == ("systemd", False)
    assert (found.reserved_memory_bytes, found.max_numa_nodes) == ({0: 1 << 30, 1: 5}, 9)


@pytest.mark.parametrize(
    ("content", "protects"),
    [
        ({"featureGates": {"AllAlpha": True}}, True),
        ({"featureGates": {"AllAlpha": True, "MemoryQoS": False}}, False),
        ({"featureGates": {"AllAlpha": False}, "memoryReservationPolicy": "None"}, False),
        ({"memoryReservationPolicy": "TieredReservation"}, True),  # 1.37, where the gate is on
        ({"memoryThrottlingFactor": 0.7}, True),
        ({"memoryThrottlingFactor": 0.9}, False),  # a default until 1.36, where the gate is off
        ({"featureGates": {"MemoryQoS": False}, "memoryThrottlingFactor": 0.7}, False),
    ],
)
def test_a_kubelet_that_protects_or_throttles_memory(
    content: dict[str, Any], protects: bool
) -> None:
    assert of_object(content, "here").protects_memory is protects


def test_gates_of_the_command_line_override_those_of_the_file_one_by_one() -> None:
    arguments = ["kubelet", "--feature-gates=Other=true"]
    assert of_command_line(arguments, WRITTEN, "here").protects_memory
    with pytest.raises(ConfigurationError, match="feature-gates: 'maybe' is not a boolean"):
        of_command_line(["kubelet", "--feature-gates=MemoryQoS=maybe"], None, "here")


def test_a_kubelet_without_a_configuration_file() -> None:
    arguments = [
        "kubelet",
        "--cpu-manager-policy=static",
        "--cpu-manager-policy-options=a=true,b=false",
    ]
    found = of_command_line(arguments, None, "here")
    assert found.static
    assert found.cpu_manager_options == {"a": "true", "b": "false"}


def test_flags_of_a_command_line() -> None:
    arguments = ["kubelet", "--a=1", "--b", "2", "--c", "--a", "3", "--d=x=y"]
    assert flags(arguments) == {"a": "3", "b": "2", "c": "", "d": "x=y"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "here: Expected `object`"),
        ({"cpuManagerPolicy": 1}, "`$.cpuManagerPolicy`"),
        ({"reservedSystemCPUs": "0-"}, "here: reservedSystemCPUs: CPU list '0-'"),
        (
            {"kubeReserved": {"cpu": "invalid"}},
            "here: kubeReserved.cpu: 'invalid' is not a quantity",
        ),
        ({"systemReserved": {"cpu": None}}, "`$.systemReserved"),
        ({"reservedMemory": [{"numaNode": "a"}]}, "`$.reservedMemory[0].numaNode`"),
        (
            {"reservedMemory": [{"numaNode": 0, "limits": {"memory": "invalid"}}]},
            "here: reservedMemory[0].limits.memory: 'invalid' is not a quantity",
        ),
        (
            {"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "-1"}},
            "topologyManagerPolicyOptions.max-allowable-numa-nodes: '-1' is not a count",
        ),
    ],
)
def test_an_error_names_source_and_field(content: object, reason: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        of_object(content, "here")
    assert reason in str(raised.value)


def test_a_flag_without_a_pair_is_named() -> None:
    with pytest.raises(ConfigurationError, match="kube_reserved: 'cpu' is not NAME=VALUE"):
        of_command_line(["kubelet", "--kube-reserved=cpu"], None, "here")


@pytest.mark.parametrize("text", ["memory=1Gi", "x:memory=1Gi", "1" * 49 + ":memory=1Gi"])
def test_reserved_memory_without_its_node_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"reserved-memory: '{text}' is not NODE:LIMITS"):
        of_command_line(["kubelet", f"--reserved-memory={text}"], None, "here")
