"""The opaque parameters of a claim on CPUs, in our schema and in that of dra-driver-cpu."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.model.cpu.policies import BindPolicy, ExclusivePolicy
from agent.model.dra.cpu_parameters import (
    API_VERSION,
    KIND,
    MAX_BYTES,
    ClaimMemoryPolicy,
    CpuParameters,
    CpuSpread,
    ParametersError,
    parsed,
)

OWN = {"apiVersion": API_VERSION, "kind": KIND}


@pytest.mark.parametrize(
    ("written", "parameters"),
    [
        (OWN, CpuParameters()),
        (
            {
                **OWN,
                "cpuBindPolicy": "SpreadByPCPUs",
                "cpuExclusivePolicy": "PCPULevel",
                "spread": "Evenly",
                "shared": True,
                "memoryPolicy": "Bind",
                "cpus": "4-7",
            },
            CpuParameters(
                BindPolicy.SPREAD_BY_PCPUS,
                ExclusivePolicy.PCPU_LEVEL,
                CpuSpread.EVENLY,
                True,
                ClaimMemoryPolicy.BIND,
                "4-7",
            ),
        ),
        (
            {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-5,8"}},
            CpuParameters(cpus="2-5,8"),
        ),
    ],
)
def test_both_schemas(written: dict[str, Any], parameters: CpuParameters) -> None:
    assert parsed(json.dumps(written).encode()) == parameters


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({**OWN, "cpuBindPolicy": "ConstrainedBurst"}, "cpuBindPolicy: ConstrainedBurst binds no"),
        ({**OWN, "cpuBindPolicy": "Full"}, "cpuBindPolicy"),
        ({**OWN, "cpus": "7-4"}, "cpus: "),
        ({**OWN, "cpuset": "7"}, "cpuset"),
        ({**OWN, "kind": "Pod"}, "kind: 'Pod' is not one of CpuParameters"),
        ({"apiVersion": "v2"}, "apiVersion: 'v2' is not one of cpu.topolet.io/v1alpha1, v1alpha1"),
        ({"apiVersion": "v1alpha1"}, "cpuConfig.cpuset: is empty"),
        ({"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "x"}}, "cpuConfig.cpuset: "),
        ([], "object"),
        ({**OWN, "cpus": "1," * MAX_BYTES}, f"has more than {MAX_BYTES} bytes"),
    ],
)
def test_faults_name_the_field(written: object, message: str) -> None:
    with pytest.raises(ParametersError, match=message.replace(".", r"\.")):
        parsed(json.dumps(written).encode())


def test_a_field_that_is_not_set_is_that_of_the_parameters_below() -> None:
    of_class = CpuParameters(BindPolicy.FULL_PCPUS, shared=True)
    of_claim = CpuParameters(spread=CpuSpread.PACKED, shared=False, cpus="1")
    both = CpuParameters(BindPolicy.FULL_PCPUS, spread=CpuSpread.PACKED, shared=False, cpus="1")
    assert of_claim.over(of_class) == both
