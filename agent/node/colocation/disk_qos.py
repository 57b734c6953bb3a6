"""Disk QoS: what pods may do on disks, and what the kernel shares disks by.

What NodeSLO says of BE is for all of them together: it is set on the kubelet's group of BestEffort
pods, which the kubelet gives no values for disks. On v1 the kernel counts only what the processes
of a group itself do, so there the limits are divided among the containers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from agent.allocate.colocation import disk_qos
from agent.cgroup import limits, lines
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone
from agent.discover.disks import DiskError, Disks
from agent.host import files
from agent.model.node_slo import BlkioQos, IoBlock, IoConfig
from agent.model.pod.annotations import BLKIO_QOS
from agent.model.pod.qos import kube_class
from agent.node.colocation.moment import Moment
from agent.node.features import Key, WantedFiles
from agent.usage.pod_strategies import CLASS_FIELDS
from agent.usage.sampler import kubepods, qos_groups

RESOLVE_SECONDS: Final = 5.0
"""Names of disks are looked up again so often."""
_MOST_PROBLEMS: Final = 5
_OF_SLO: Final = "resourceQOSStrategy."
_IGNORED: Final = {
    "lsr_class": "lsrClass",
    "ls_class": "lsClass",
    "system_class": "systemClass",
}


class DiskQos:
    """The strategy `blkioQOS`.

    `root`: where the host's /sys and /proc are."""

    name = "disk-qos"

    def __init__(
        self, controllers: Controllers, root: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._controllers = controllers
        self._disks = Disks(root)
        self._clock = clock
        self._made_of: Moment | None = None
        self._made_at = 0.0
        self._wanted = WantedFiles()

    def wanted(self, moment: Moment) -> WantedFiles:
        qos = moment.strategies.slo.resource_qos_strategy
        of_node = (qos.cgroup_root, *(getattr(qos, field) for field in CLASS_FIELDS.values()))
        if not any(_enabled(each.blkio_qos) for each in of_node) and not any(
            pod.strategies.blocks for pod in moment.pods
        ):
            self._made_of = None
            return WantedFiles()
        last, now = self._made_of, self._clock()
        if (
            last is None
            or last.pods is not moment.pods
            or last.strategies is not moment.strategies
            or now - self._made_at >= RESOLVE_SECONDS
        ):
            self._made_of, self._made_at = moment, now
            self._wanted = self._made(moment)
        return self._wanted

    def _made(self, moment: Moment) -> WantedFiles:
        if self._controllers.version("io") == 2:
            return _Look(self._controllers, self._disks, 2).wanted(moment)
        if self._controllers.version("blkio") == 1:
            return _Look(self._controllers, self._disks, 1).wanted(moment)
        return WantedFiles(problem="this machine has neither the controller io nor blkio")


class _Look:
    """One look at all names."""

    def __init__(self, controllers: Controllers, disks: Disks, version: Literal[1, 2]) -> None:
        self._controllers = controllers
        self._disks = disks
        self._version: Literal[1, 2] = version
        self._controller: Literal["io", "blkio"] = "io" if version == 2 else "blkio"
        self._volumes: dict[tuple[str, str], str] | None = None
        self._files: dict[Key, str] = {}
        self._problems: dict[str, None] = {}

    def wanted(self, moment: Moment) -> WantedFiles:
        qos = moment.strategies.slo.resource_qos_strategy
        for field, name in _IGNORED.items():
            if _enabled(getattr(qos, field).blkio_qos):
                self._say(
                    f"{_OF_SLO}{name}.blkioQOS",
                    ["it has no effect: only beClass, cgroupRoot and annotations of pods have one"],
                )
        for where, config, disk in self._named(
            f"{_OF_SLO}cgroupRoot.blkioQOS.blocks", _enabled(qos.cgroup_root.blkio_qos)
        ):
            self._say(where, disk_qos.faults(config, of_machine=True))
            texts = disk_qos.cost(config, disk, self._controller)
            self._files |= {("/", name): text for name, text in texts.items()}
        root = next((root for pod in moment.pods if (root := kubepods(pod.group))), None)
        if root is not None:
            self._limit(
                f"{_OF_SLO}beClass.blkioQOS.blocks",
                _enabled(qos.be_class.blkio_qos),
                f"{root}/{qos_groups(root)[1]}",
                [
                    container
                    for pod in moment.pods
                    if kube_class(pod.group) == "besteffort"
                    for container in pod.containers.values()
                ],
            )
        for pod in moment.pods:
            self._limit(
                f"pod {pod.title}: {BLKIO_QOS}: blocks",
                pod.strategies.blocks,
                pod.group,
                list(pod.containers.values()),
                pod.uid,
            )
        present = {key: text for key, text in self._files.items() if self._exists(*key)}
        return WantedFiles(present, "; ".join(list(self._problems)[:_MOST_PROBLEMS]))

    def _limit(
        self,
        where: str,
        blocks: Sequence[IoBlock],
        group: str,
        containers: Sequence[str],
        uid: str | None = None,
    ) -> None:
        limited = (group,) if self._version == 2 else containers
        for of_block, config, disk in self._named(where, blocks, uid):
            self._say(of_block, disk_qos.faults(config, of_machine=False))
            texts = disk_qos.limits(config, disk, self._version, len(limited))
            for key in ((each, name) for each in limited for name in texts):
                text = texts[key[1]]
                self._files[key] = disk_qos.stricter(text, self._files.get(key, text))
            if config.io_weight_percent is None:
                continue
            try:
                weights = list(self._weights(disk))
            except OSError as error:
                self._say(f"{of_block}.ioCfg", [files.reason(error)])
                continue
            if not weights:
                self._say(
                    f"{of_block}.ioCfg",
                    [
                        f"ioWeightPercent has no effect: disk {disk} has not the scheduler bfq, "
                        "and readLatency or writeLatency of cgroupRoot does not enable its cost"
                    ],
                )
            for file in weights:
                for name, text in disk_qos.weight(config, disk, file).items():
                    self._files[group, name] = text

    def _named(
        self, where: str, blocks: Sequence[IoBlock], uid: str | None = None
    ) -> Iterator[tuple[str, IoConfig, str]]:
        """The place, the values and each disk of the blocks whose name is that of a disk.

        `uid`: of the pod whose blocks these are."""
        for at, block in enumerate(blocks):
            try:
                for disk in self._numbers(block, uid):
                    yield f"{where}[{at}]", block.io_cfg, disk
            except DiskError as error:
                self._say(f"{where}[{at}].name", [str(error)])
            except OSError as error:
                self._say(f"{where}[{at}].name", [files.reason(error)])

    def _numbers(self, block: IoBlock, uid: str | None) -> tuple[str, ...]:
        """Raises DiskError, OSError."""
        if block.type == "device":
            return (self._disks.of_device(block.name),)
        if block.type == "volumegroup":
            return self._disks.of_volume_group(block.name)
        if block.type is None:
            raise DiskError(f"{block.name!r} has no type")
        if uid is None:
            raise DiskError("only the annotation of a pod has a podvolume")
        if self._volumes is None:
            self._volumes = self._disks.pod_volumes()
        number = self._volumes.get((uid, block.name))
        if number is None:
            raise DiskError(f"the pod has no mounted volume {block.name!r}")
        return (self._disks.of_number(number),)

    def _weights(self, disk: str) -> Iterator[str]:
        """The files with the weights that this disk is shared by. Raises OSError."""
        v2 = self._version == 2
        if self._disks.uses_bfq(disk):
            yield limits.IO_BFQ_WEIGHT if v2 else limits.BLKIO_BFQ_WEIGHT
        cost = f"{limits.IO_COST_QOS if v2 else limits.BLKIO_COST_QOS} {disk}"
        present = None
        with contextlib.suppress(CgroupError):
            present = self._controllers.read("/", cost)
        if ("/", cost) in self._files or "enable=1" in (present or "").split():
            yield limits.IO_WEIGHT if v2 else limits.BLKIO_WEIGHT

    def _exists(self, group: str, name: str) -> bool:
        file = lines.file_of(name)
        try:
            if self._controllers.read(group, file) is not None:
                return True
        except GroupGone:
            return False
        except CgroupError as error:
            self._say(group, [str(error)])
            return False
        reason = "this kernel does not have it"
        if self._version == 2 and group != "/":
            reason = "a group above does not have the controller io in its cgroup.subtree_control"
        self._say(group, [f"there is no {file}: {reason}"])
        return False

    def _say(self, where: str, sentences: Sequence[str]) -> None:
        self._problems |= dict.fromkeys(f"{where}: {sentence}" for sentence in sentences)


def _enabled(qos: BlkioQos) -> tuple[IoBlock, ...]:
    return qos.blocks if qos.enable else ()
