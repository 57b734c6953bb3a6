"""Contents of the kubelet's state files."""

from __future__ import annotations

from typing import Any

BY_POD = {"pod": {"container1": "4-6", "container2": "1-3"}}
KUBELETS_OWN: dict[str, tuple[int, dict[str, Any]]] = {
    "containers by id": (
        1,
        {
            "policyName": "static",
            "defaultCpuSet": "7-9",
            "entries": {"containerID1": "4-6", "containerID2": "1-3"},
            "checksum": 2026311253,
        },
    ),
    "containers by pod, of a kubelet with pod-level CPUs": (
        3,
        {
            "policyName": "static",
            "defaultCpuSet": "7-9",
            "entries": BY_POD,
            "checksum": 1942532442,
        },
    ),
    "whole pods": (
        3,
        {
            "policyName": "static",
            "defaultCpuSet": "1-2",
            "entries": {"pod1": {"container1": "5-6", "container2": "3-4"}},
            "podEntries": {"pod2": {"cpuSet": "7-9"}},
            "checksum": 2284712151,
        },
    ),
    "data under its first name": (
        4,
        {
            # A file of the kubelet's tests with a field name that differs from the kubelet's.
            "data": '{"policyName":"static","defaultCPUSet":"7-9",'
            '"entries":{"pod":{"container1":"4-6","container2":"1-3"}}}',
            "checksum": 1420829534,
        },
    ),
}
"""Contents and checksums from the kubelet's own tests (pkg/kubelet/cm/cpumanager/state)."""

ENTRY: dict[str, Any] = {
    "PodUID": "bf52b2cd-b611-4e79-86b1-280b283185c3",
    "ContainerName": "check",
    "ResourceName": "nvidia.com/gpu",
    "DeviceIDs": {"-1": ["tegra"]},
    "AllocResp": "Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh",
}
REAL: dict[str, Any] = {
    "Data": {"PodDeviceEntries": [ENTRY], "RegisteredDevices": {"nvidia.com/gpu": ["tegra"]}},
    "Checksum": 3660592824,
}

BLOCK = {"numaAffinity": [0], "type": "memory", "size": 512}
FILLED: dict[str, Any] = {
    "policyName": "static",
    "machineState": {
        "0": {
            "numberOfAssignments": 0,
            "memoryMap": {
                "memory": {
                    "total": 2048,
                    "systemReserved": 512,
                    "allocatable": 1536,
                    "reserved": 512,
                    "free": 1024,
                }
            },
            "cells": [],
        }
    },
    "entries": {"pod": {"container1": [BLOCK]}},
}
