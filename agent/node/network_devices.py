"""Network devices of the machine in the network namespaces of pods.

A CNI plugin or a DRA driver moves an interface, such as one of a virtual function, into the network
namespace of a pod. It is then missing in the host's sysfs, which still has its PCI function. The
interfaces in a namespace name their PCI functions, so that the pod is known that has the device.

A namespace is read only while a function misses its interface and the namespace was not searched
for it. That needs CAP_SYS_PTRACE and CAP_SYS_ADMIN.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import Final

from agent.discover import sysfs_devices
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.model.devices.pci import Function
from agent.model.pod.pods import Pod

log = logging.getLogger(__name__)

ReadNamespace = Callable[[str, int], Collection[str]]
"""The bus addresses of the interfaces in the network namespace of a process, by the id of its
sandbox or container and its number. Raises ProcessGoneError, UnreadableError."""

_NOTHING: Final[frozenset[str]] = frozenset()


class NetworkDevices:
    """Finds the pods that have network devices of the machine.

    `root`: where the host's /sys and /proc are.
    `process_of`: the id of a pod's sandbox or container, and its process, 0 for none.
    `read`: how to read a namespace, if not by the processes of `root`."""

    def __init__(
        self,
        root: str,
        process_of: Callable[[Pod], tuple[str, int]],
        read: ReadNamespace | None = None,
    ) -> None:
        self._root = root
        self._process_of = process_of
        self._read = read or self._read_namespace
        self._functions: Mapping[str, Function] = {}
        self._candidates: tuple[str, ...] = ()
        self._missing = _NOTHING
        self._sandboxes: frozenset[str] | None = None
        self._pod_of: dict[str, str] = {}
        """By address, the uid of the pod that has the device."""
        self._searched: dict[str, frozenset[str]] = {}
        """By sandbox id, the addresses for which its namespace was searched."""
        self._unreadable = False

    def observe(
        self, functions: Mapping[str, Function], pods: Collection[Pod]
    ) -> dict[str, tuple[str, ...]]:
        """By pod uid, the addresses of the PCI functions whose interfaces are in its network
        namespace. Raises RpcError when the runtime does not answer.

        `functions`: all PCI functions; the same object until they are listed again."""
        if functions is not self._functions:
            self._functions = functions
            self._candidates = sysfs_devices.with_network_driver(functions)
            self._sandboxes = None
        if not self._candidates:
            return {}
        by_sandbox = {each.id: pod for pod in pods for each in pod.sandboxes}
        if self._sandboxes != by_sandbox.keys():
            self._sandboxes = frozenset(by_sandbox)
            shown = sysfs_devices.interfaces(self._root, self._candidates)
            self._missing = frozenset(address for address, names in shown.items() if not names)
        uids = {pod.uid for pod in by_sandbox.values()}
        self._pod_of = {
            address: uid
            for address, uid in self._pod_of.items()
            if address in self._missing and uid in uids
        }
        self._searched = {
            sandbox: addresses & self._missing
            for sandbox, addresses in self._searched.items()
            if sandbox in by_sandbox
        }
        self._search(by_sandbox)
        of_pods: dict[str, list[str]] = {}
        for address, uid in sorted(self._pod_of.items()):
            of_pods.setdefault(uid, []).append(address)
        return {uid: tuple(addresses) for uid, addresses in of_pods.items()}

    def _search(self, by_sandbox: Mapping[str, Pod]) -> None:
        """Searches the devices that no pod is known to have, in the namespaces of newer pods first:
        most probably one of them has just got it."""
        wanted = self._missing - self._pod_of.keys()
        newest_first = sorted(by_sandbox.items(), key=lambda each: -each[1].created_at)
        for sandbox, pod in newest_first if wanted else ():
            if wanted <= self._searched.get(sandbox, _NOTHING):
                continue
            object_id, pid = self._process_of(pod)
            if not pid:
                continue
            try:
                present = self._read(object_id, pid)
            except ProcessGoneError:
                continue
            except UnreadableError as error:
                self._note_unreadable(pod, error)
                present = _NOTHING
            self._searched[sandbox] = self._missing
            self._pod_of.update(dict.fromkeys(wanted.intersection(present), pod.uid))
            wanted -= self._pod_of.keys()
            if not wanted:
                return

    def _note_unreadable(self, pod: Pod, error: UnreadableError) -> None:
        if not self._unreadable:
            self._unreadable = True
            log.warning(
                "pod %s: its network namespace can't be read, so network devices there are not"
                " known: %s (this needs CAP_SYS_PTRACE and CAP_SYS_ADMIN)",
                pod.title,
                error,
            )

    def _read_namespace(self, object_id: str, pid: int) -> Collection[str]:
        from agent.host import network_namespace  # few nodes need it

        with Process(os.path.join(self._root, "proc"), pid) as process:
            # The pid may belong to another process by now.
            if not any(object_id in group for group in process.groups().values()):
                raise ProcessGoneError(f"process {pid} is not of {object_id}")
            namespace = process.open_namespace("net")
        try:
            return network_namespace.buses(namespace).values()
        except OSError as error:
            raise UnreadableError(f"process {pid}: ns/net: {error.strerror}") from None
        finally:
            os.close(namespace)


def of_containers(
    moved: Mapping[str, tuple[str, ...]], pods: Collection[Pod]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """The addresses by uid and container: each container of a pod has the devices in its network
    namespace."""
    return {
        (pod.uid, name): addresses
        for pod in pods
        if (addresses := moved.get(pod.uid))
        for name in pod.named or [each.name for each in pod.containers]
    }
