"""The koordlet of this node, by the procfs, and the gates with which it writes values.

Any process may call itself koordlet. The node's runs as root in the PID namespace of the host
(`hostPID`), which Pod Security lets only privileged pods do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from agent.host import processes
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.kubelet.configuration import flags

PROGRAM: Final = "koordlet"
_ROOT_UIDS: Final = (0, 0, 0, 0)
_GATE_FLAGS: Final = ("feature-gates", "runtime-hooks")

OF_CPUS_AND_DEVICES: Final = {
    "NodeTopologyReport": True,
    "Accelerators": False,
    "RDMADevices": False,
    "BECPUManager": False,
    "CPUSetAllocator": True,
    "BatchResource": True,
    "GPUEnvInject": False,
    "RDMADeviceInject": False,
}
"""The gates for values that Topolet always writes (docs/kubelet.md), and their defaults
(pkg/features/koordlet_features.go, pkg/koordlet/runtimehooks/config.go). A gate that is on by
default is beta, any other is alpha."""
OF_COLOCATION: Final = {
    "BECPUSuppress": True,
    "BECPUManager": False,
    "BECPUEvict": False,
    "BEMemoryEvict": False,
    "CPUEvict": False,
    "MemoryEvict": False,
    "CPUAllocatableEvict": False,
    "MemoryAllocatableEvict": False,
    "CPUBurst": True,
    "RdtResctrl": True,
    "CgroupReconcile": False,
    "BlkIOReconcile": False,
    "GroupIdentity": True,
    "CoreSched": False,
    "CPUNormalization": False,
    "Resctrl": False,
    "OOMScoreAdj": False,
}
"""The gates for what Topolet does with colocation. With such a gate koordlet writes the values of
the kernel where the NodeSLO is off."""


class KoordletProcess(msgspec.Struct, frozen=True):
    """A koordlet."""

    pid: int
    argv: tuple[str, ...]


def find(proc: str) -> KoordletProcess | None:
    """The first koordlet of the node; None if none runs that this process may see."""
    try:
        pids = processes.pids(proc)
    except OSError:
        return None
    for pid in pids:
        try:
            with Process(proc, pid) as process:
                if process.name() != PROGRAM:
                    continue
                status = process.status()
                if status.uids != _ROOT_UIDS or len(status.pids) != 1:
                    continue
                # Last: a process can make the reader of its command line wait.
                argv = tuple(process.argv())
                if os.path.basename(argv[0]) == PROGRAM:
                    return KoordletProcess(pid, argv)
        except (ProcessGoneError, UnreadableError):
            continue
    return None


def gates(argv: Sequence[str], defaults: Mapping[str, bool]) -> tuple[str, ...]:
    """Those of some gates that a koordlet has on, sorted.

    `defaults`: their values without a flag."""
    given = flags(argv)
    pairs: dict[str, bool] = {}
    for flag in _GATE_FLAGS:
        for pair in given.get(flag, "").split(","):
            name, _, value = pair.strip().partition("=")
            pairs[name] = value.strip().lower() in ("true", "1", "t")
    of_stage = {True: pairs.get("AllBeta", True), False: pairs.get("AllAlpha", False)}
    return tuple(sorted(name for name, on in defaults.items() if pairs.get(name, of_stage[on])))
