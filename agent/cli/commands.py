"""The subcommands of `topolet` with their short descriptions, and the module of each."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from agent.cli.processes import Daemon

COMMANDS: Final = {
    "topology": "draw the machine: sockets, NUMA nodes, caches, cores, memory, distances",
    "agent": "run the node agent, which keeps CPU pools and cgroups correct, and reports",
    "proxy": "run the CRI proxy in front of the container runtime",
    "nri": "run the NRI plugin in the container runtime, in the proxy's place",
    "nri-guard": "run the guard that refuses containers which the NRI plugin did not adjust",
    "webhook": "run the admission webhook that restricts who may bind pods with GPUs",
    "scheduler": "run the extender of kube-scheduler, which chooses nodes, CPUs and devices",
    "explain": "explain which nodes have room for a pod, and what to change if none has",
    "simulate": "place the pods of a trace with the scheduler, and show how much is allocated",
    "rebind": "move pods of a node to better CPUs, or show what that would improve",
    "devices": "list GPUs, network interfaces, FPGAs and accelerators, and the pods that have them",
    "page": "open the page of the node's agent, or of the scheduler, in a browser",
    "top": "show the node live: CPUs by owner and load, pools, devices, pods, and what happens",
    "doctor": "find what is wrong with the node, and containers with CPUs other than decided",
    "rollout": "replace the agents of a DaemonSet node by node, and stop at the first finding",
    "audit": "list what Topolet decided and changed on the node, with the reasons",
    "history": "show what happened to a pod on the node in the last day, and why",
    "kubelet-state": "show the kubelet's state files, or write a scheduler's CPUs into them",
    "preflight": "check that an agent with these options can run on this node",
    "install-proxy": "install the CRI proxy as a service of this host, for its kubelet",
    "restore": "restore every cgroup value that the agent changed",
    "uninstall-node": "undo everything that Topolet changed on this node",
    "uninstall-nodes": "undo what Topolet changed on all nodes, as helm uninstall does",
    "check-release": "check that the parts of a release are Ready, as helm test does",
    "config": "check a file of options, or the settings in values of the chart",
    "completion": "print the completion of all commands for bash or zsh",
}


_PROCESSES: Final = ("agent", "proxy", "nri", "nri-guard", "scheduler", "webhook")
"""The subcommands that run a process."""


def subcommand(name: str) -> ModuleType | Daemon[Any]:
    """The module of a subcommand, or the process that it runs."""
    if name in _PROCESSES:
        from agent.cli.processes import SUBCOMMANDS

        return SUBCOMMANDS[name]
    return importlib.import_module(f"agent.cli.{name.replace('-', '_')}")
