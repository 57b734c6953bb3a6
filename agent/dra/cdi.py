"""What a container learns of its claims: a CDI file for each claim, whose devices set a variable
and mount a file of metadata (KEP-5304). The kubelet gives the runtime the names of these devices.

The runtime's folder of CDI files does not survive a reboot, and the kubelet prepares the claims of
its pods again after one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from agent.host import files
from agent.model import bounds
from agent.model.cpu.cpuset import CpuSet, union
from agent.model.dra.names import CDI_KIND, DRIVER, VARIABLE
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup
from agent.model.objects import ObjectIdentity

_CDI_VERSION: Final = "0.5.0"
_METADATA_VERSION: Final = "metadata.resource.k8s.io/v1alpha1"
_IN_CONTAINER: Final = "/var/run/kubernetes.io/dra-device-attributes"
_CPU_SET: Final = f"{DRIVER}/cpuset"
_PREFIX: Final = f"{DRIVER}-claim_"
_SUFFIX: Final = ".json"

_MAX_BYTES: Final = 1 << 20
"""A reader accepts no larger file of metadata."""

Attributes = Mapping[str, Mapping[str, Any]]
"""By device, its attributes as in a ResourceSlice."""


class _ToldDevice(msgspec.Struct, frozen=True):
    pool: str
    name: str
    attributes: dict[str, dict[str, Any]]

    @property
    def cpus(self) -> str:
        """Raises CpuSetError."""
        return str(CpuSet.parse(str(self.attributes.get(_CPU_SET, {}).get("string", ""))))


class _ToldRequest(msgspec.Struct, frozen=True):
    name: str
    devices: tuple[_ToldDevice, ...]


class _Told(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity
    requests: tuple[_ToldRequest, ...]


_told: Final = msgspec.json.Decoder(_Told)


class CdiFiles:
    """The files of prepared claims. A request with admin access has none, as it has no CPUs.

    `cdi_dir`: where the runtime finds CDI files.
    `plugin_dir`: the driver's own folder, as containers and the agent see it on the host."""

    def __init__(self, cdi_dir: str, plugin_dir: str) -> None:
        self._cdi_dir = cdi_dir
        self._metadata_dir = os.path.join(plugin_dir, "metadata")

    def write(self, claim: PreparedClaim, attributes: Attributes) -> None:
        """Replaces the files of the claim. The CDI file comes last, as it names the others. Raises
        OSError."""
        requests = with_cpus(claim)
        if not requests:
            # The runtime reports a file without devices as an error.
            return
        files.make_folders(self._cdi_dir)
        for request, groups in requests.items():
            path = self._metadata_path(claim, request)
            files.make_folders(os.path.dirname(path))
            text = msgspec.json.encode(metadata(claim, request, groups, attributes))
            files.replace(path, text + b"\n", durable=False)
        text = msgspec.json.encode(self._spec(claim))
        files.replace(self._cdi_path(claim.uid), text, durable=False)

    def has(self, uid: str) -> bool:
        """Whether the claim has its CDI file, which is written last."""
        return os.path.exists(self._cdi_path(uid))

    def uids(self) -> Collection[str]:
        """These claims have their CDI file."""
        return [uid for uid in {*self._uids()} if self.has(uid)]

    def read(self, uid: str) -> PreparedClaim:
        """The claim with the CPUs that its containers were told, and nothing else of its requests.
        Raises OSError, JsonError and CpuSetError."""
        folder = os.path.join(self._metadata_dir, uid)
        names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))
        if not names:
            raise FileNotFoundError(errno.ENOENT, "it has no metadata", folder)
        parts = [told(files.read(os.path.join(folder, name), _MAX_BYTES)) for name in names]
        groups = tuple(group for _, of_file in parts for group in of_file)
        identity, _ = parts[0]
        return PreparedClaim(uid, identity.namespace, identity.name, groups)

    def remove(self, uid: str) -> None:
        """Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._cdi_path(uid))
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(os.path.join(self._metadata_dir, uid))

    def remove_others(self, uids: Collection[str]) -> None:
        """Removes the files of all claims but these. Raises OSError."""
        for uid in {*self._uids()} - {*uids}:
            self.remove(uid)

    def _uids(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._cdi_dir):
                if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                    yield name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        with contextlib.suppress(FileNotFoundError):
            yield from os.listdir(self._metadata_dir)

    def _cdi_path(self, uid: str) -> str:
        return os.path.join(self._cdi_dir, f"{_PREFIX}{uid}{_SUFFIX}")

    def _metadata_path(self, claim: PreparedClaim, request: str) -> str:
        return os.path.join(self._metadata_dir, claim.uid, f"{request}.json")

    def _spec(self, claim: PreparedClaim) -> dict[str, Any]:
        return {
            "cdiVersion": _CDI_VERSION,
            "kind": CDI_KIND,
            "devices": [
                {
                    "name": _device_name(claim, request),
                    "containerEdits": {
                        "env": [f"{variable(claim, request)}={_cpus(groups)}"],
                        "mounts": [
                            {
                                "hostPath": self._metadata_path(claim, request),
                                "containerPath": container_path(claim, request),
                                "options": ["ro", "bind"],
                            }
                        ],
                    },
                }
                for request, groups in with_cpus(claim).items()
            ],
        }


def with_cpus(claim: PreparedClaim) -> Mapping[str, tuple[PreparedGroup, ...]]:
    """By request, those that have CPUs."""
    return {
        request: groups
        for request, groups in claim.requests.items()
        if any(group.cpus for group in groups)
    }


def cdi_name(claim: PreparedClaim, request: str) -> str:
    """The qualified name of the CDI device of a request."""
    return f"{CDI_KIND}={_device_name(claim, request)}"


def variable(claim: PreparedClaim, request: str) -> str:
    """The name of the variable with the CPUs of a request: VARIABLE, the claim's uid and the
    request, with underscores for all other characters."""
    return f"{VARIABLE}{claim.uid}_{request}".replace("-", "_").replace(".", "_")


def container_path(claim: PreparedClaim, request: str) -> str:
    """Where a container finds the metadata of a request (Kubernetes:
    k8s.io/dynamic-resource-allocation/api/metadata). A pod knows a claim from a template by its own
    name for it alone."""
    folder, name = "resourceclaims", claim.name
    if claim.pod_claim:
        folder, name = "resourceclaimtemplates", claim.pod_claim
    return f"{_IN_CONTAINER}/{folder}/{name}/{request}/{DRIVER}-metadata.json"


def metadata(
    claim: PreparedClaim,
    request: str,
    groups: Collection[PreparedGroup],
    attributes: Attributes,
) -> dict[str, Any]:
    """The metadata of a request: the attributes of its devices, and the CPUs that it has of each
    (`cpuset`; an attribute's 64 characters do not bound a file)."""
    body: dict[str, Any] = {
        "apiVersion": _METADATA_VERSION,
        "kind": "DeviceMetadata",
        "metadata": {
            "name": claim.name,
            "namespace": claim.namespace,
            "uid": claim.uid,
            "generation": 1,
        },
        "requests": [
            {
                "name": next((group.request for group in groups), request),
                "devices": [
                    {
                        "driver": DRIVER,
                        "pool": group.pool,
                        "name": group.device,
                        "attributes": {
                            **attributes.get(group.device, {}),
                            _CPU_SET: {"string": group.cpus},
                        },
                    }
                    for group in groups
                ],
            }
        ],
    }
    if claim.pod_claim:
        body["podClaimName"] = claim.pod_claim
    return body


def told(text: bytes) -> tuple[ObjectIdentity, tuple[PreparedGroup, ...]]:
    """The claim of such metadata, and the CPUs that its containers were told. Raises JsonError and
    CpuSetError."""
    of_request = bounds.decode(_told, text)
    return of_request.metadata, tuple(
        PreparedGroup(request.name, device.pool, device.name, device.cpus)
        for request in of_request.requests
        for device in request.devices
    )


def _device_name(claim: PreparedClaim, request: str) -> str:
    return f"{claim.uid}_{request}"


def _cpus(groups: Collection[PreparedGroup]) -> str:
    return str(union(group.cpu_set for group in groups))
