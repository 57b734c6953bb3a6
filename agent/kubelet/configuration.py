"""The configuration of a kubelet for CPUs, NUMA nodes and memory.

A running kubelet answers GET /configz on its port with `{"kubeletconfig": {...}}`. The same object
is in the file that `--config` names; flags of the command line override the file
(KubeletConfiguration v1beta1).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agent.host import files
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError
from agent.model.quantities import Quantity, QuantityError, milli, whole

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPResponse


class ConfigurationError(ValueError):
    """An invalid configuration; the message names source and field."""


class KubeletConfiguration(msgspec.Struct, frozen=True):
    """The kubelet's options that matter here. Policies have the kubelet's names."""

    source: str
    """Where it was read, for messages."""
    cpu_manager_policy: str = "none"
    cpu_manager_options: dict[str, str] = {}
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    max_numa_nodes: int | None = None
    """None for the kubelet's default."""
    memory_manager_policy: str = "None"
    reserved_memory_bytes: dict[int, int] = {}
    """The memory that the static memory manager reserves on each NUMA node."""
    reserved_cpus: CpuSet = EMPTY
    """The kubelet's reservedSystemCPUs."""
    reserved_milli: int = 0
    """The CPUs of kubeReserved and systemReserved together, which count without
    reservedSystemCPUs."""
    cgroup_driver: str = "cgroupfs"
    cgroup_root: str = ""
    runtime_endpoint: str = ""
    """The container runtime's, "" for the kubelet's default."""
    protects_memory: bool = False
    """It writes `memory.min`, `memory.low` or `memory.high` (its feature gate MemoryQoS)."""
    kills_single_process: bool = False
    """Its singleProcessOOMKill: it does not set `memory.oom.group` on containers."""

    @property
    def static(self) -> bool:
        """Whether the kubelet assigns exclusive CPUs."""
        return self.cpu_manager_policy == "static"

    def differing(self, cpu_state: str, memory_state: str) -> tuple[str, ...]:
        """How the policies in the kubelet's state files differ from this configuration: the kubelet
        does not start then.

        `cpu_state`, `memory_state`: the policies there, "" without a file."""
        return tuple(
            f"its {name} is {policy}, and its state file has the policy {state}"
            for name, policy, state in (
                ("cpuManagerPolicy", self.cpu_manager_policy, cpu_state),
                ("memoryManagerPolicy", self.memory_manager_policy, memory_state),
            )
            if state and state != policy
        )


class _ReservedMemory(msgspec.Struct, frozen=True, rename="camel"):
    numa_node: int
    limits: dict[str, Quantity] = {}


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a KubeletConfiguration that are read; null and "" mean that a field is not
    set."""

    cpu_manager_policy: str | None = None
    cpu_manager_policy_options: dict[str, str] | None = None
    topology_manager_policy: str | None = None
    topology_manager_scope: str | None = None
    topology_manager_policy_options: dict[str, str] | None = None
    memory_manager_policy: str | None = None
    reserved_memory: list[_ReservedMemory] | None = None
    reserved_system_cpus: str | None = msgspec.field(default=None, name="reservedSystemCPUs")
    kube_reserved: dict[str, Quantity] | None = None
    system_reserved: dict[str, Quantity] | None = None
    cgroup_driver: str | None = None
    cgroup_root: str | None = None
    container_runtime_endpoint: str | None = None
    feature_gates: dict[str, bool] | None = None
    memory_reservation_policy: str | None = None
    memory_throttling_factor: float | None = None
    single_process_oom_kill: bool | None = msgspec.field(default=None, name="singleProcessOOMKill")


_NODE_DIGITS: Final = 9
_MAX_NUMA_NODES: Final = "max-allowable-numa-nodes"
_MAPS: Final = (
    "cpu_manager_policy_options",
    "topology_manager_policy_options",
    "kube_reserved",
    "system_reserved",
    "feature_gates",
)
_FLAGS: Final = {
    "cpu-manager-policy": "cpu_manager_policy",
    "cpu-manager-policy-options": "cpu_manager_policy_options",
    "topology-manager-policy": "topology_manager_policy",
    "topology-manager-scope": "topology_manager_scope",
    "topology-manager-policy-options": "topology_manager_policy_options",
    "memory-manager-policy": "memory_manager_policy",
    "reserved-memory": "reserved_memory",
    "reserved-cpus": "reserved_system_cpus",
    "kube-reserved": "kube_reserved",
    "system-reserved": "system_reserved",
    "cgroup-driver": "cgroup_driver",
    "cgroup-root": "cgroup_root",
    "container-runtime-endpoint": "container_runtime_endpoint",
    "feature-gates": "feature_gates",
}
_MEMORY_QOS: Final = "MemoryQoS"
_OLD_THROTTLING_FACTORS: Final = (0.8, 0.9)
"""The defaults of memoryThrottlingFactor until Kubernetes 1.36, also where nothing is throttled."""
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def of_object(content: object, source: str) -> KubeletConfiguration:
    """From a decoded KubeletConfiguration, or from the answer of `/configz`. Raises
    ConfigurationError."""
    if isinstance(content, Mapping) and "kubeletconfig" in content:
        content = content["kubeletconfig"]
    return _values(_decoded(content, source), source)


def to_object(configuration: KubeletConfiguration) -> dict[str, Any]:
    """The reverse of `of_object`, without the source."""
    it = configuration
    options = {} if it.max_numa_nodes is None else {_MAX_NUMA_NODES: str(it.max_numa_nodes)}
    fields = {
        "cpuManagerPolicy": it.cpu_manager_policy,
        "cpuManagerPolicyOptions": it.cpu_manager_options,
        "topologyManagerPolicy": it.topology_manager_policy,
        "topologyManagerScope": it.topology_manager_scope,
        "topologyManagerPolicyOptions": options,
        "memoryManagerPolicy": it.memory_manager_policy,
        "reservedMemory": [
            {"numaNode": node, "limits": {"memory": str(amount)}}
            for node, amount in sorted(it.reserved_memory_bytes.items())
        ],
        "reservedSystemCPUs": str(it.reserved_cpus),
        "kubeReserved": {"cpu": f"{it.reserved_milli}m"},
        "cgroupDriver": it.cgroup_driver,
        "cgroupRoot": it.cgroup_root,
        "containerRuntimeEndpoint": it.runtime_endpoint,
        "featureGates": {_MEMORY_QOS: True} if it.protects_memory else {},
        "singleProcessOOMKill": it.kills_single_process,
    }
    return {name: value for name, value in fields.items() if value}


def of_command_line(
    argv: Sequence[str], content: object | None, source: str
) -> KubeletConfiguration:
    """From a kubelet's command line and the object in the file that it names (None: no file).
    Raises ConfigurationError."""
    written = _decoded(content or {}, source)
    given = {_FLAGS[name]: value for name, value in flags(argv).items() if name in _FLAGS}
    changed: dict[str, Any] = {
        name: _pairs(name, value, source) if name in _MAPS else value
        for name, value in given.items()
    }
    if "reserved_memory" in changed:
        changed["reserved_memory"] = _reserved_memory(changed["reserved_memory"], source)
    if "feature_gates" in changed:
        gates = _gates(changed["feature_gates"], source)
        changed["feature_gates"] = (written.feature_gates or {}) | gates
    return _values(msgspec.structs.replace(written, **changed), source)


def flags(argv: Sequence[str]) -> dict[str, str]:
    """The flags of a command line, `--name=value` and `--name value`; the last one counts."""
    found: dict[str, str] = {}
    waiting = ""
    for word in argv[1:]:
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value
            waiting = "" if equals else name
        elif waiting:
            found[waiting] = word
            waiting = ""
    return found


def _decoded(content: object, source: str) -> _Object:
    try:
        return msgspec.convert(content, _Object)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{source}: {error}") from None


def _pairs(name: str, text: str, source: str) -> dict[str, str]:
    pairs = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"{source}: {name}: {pair[:60]!r} is not NAME=VALUE")
        pairs[key] = value
    return pairs


def _gates(pairs: Mapping[str, str], source: str) -> dict[str, bool]:
    """Feature gates of the command line, each of which overrides that of the file."""
    gates = {}
    for name, text in pairs.items():
        if (on := _BOOLEANS.get(text.strip())) is None:
            raise ConfigurationError(f"{source}: feature-gates: {text[:40]!r} is not a boolean")
        gates[name.strip()] = on
    return gates


def _reserved_memory(text: str, source: str) -> list[_ReservedMemory]:
    """Reads `0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi`."""
    reserved = []
    for part in filter(None, text.split(";")):
        node, colon, limits = part.partition(":")
        if not colon or not node.strip().isdecimal() or len(node) > _NODE_DIGITS:
            raise ConfigurationError(f"{source}: reserved-memory: {part[:60]!r} is not NODE:LIMITS")
        pairs = _pairs("reserved-memory", limits, source)
        reserved.append(_ReservedMemory(int(node), dict(pairs)))
    return reserved


def _values(written: _Object, source: str) -> KubeletConfiguration:
    try:
        msgspec.json.encode(written)
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{source}: a value is not UTF-8: {error.object[:60]!r}") from None
    try:
        reserved = CpuSet.parse(written.reserved_system_cpus or "")
    except CpuSetError as error:
        raise ConfigurationError(f"{source}: reservedSystemCPUs: {error}") from None
    default = KubeletConfiguration(source)
    return KubeletConfiguration(
        source=source,
        cpu_manager_policy=written.cpu_manager_policy or default.cpu_manager_policy,
        cpu_manager_options=written.cpu_manager_policy_options or {},
        topology_manager_policy=written.topology_manager_policy or default.topology_manager_policy,
        topology_manager_scope=written.topology_manager_scope or default.topology_manager_scope,
        max_numa_nodes=_max_numa_nodes(written.topology_manager_policy_options or {}, source),
        memory_manager_policy=written.memory_manager_policy or default.memory_manager_policy,
        reserved_memory_bytes=_memory_bytes(written.reserved_memory or [], source),
        reserved_cpus=reserved,
        reserved_milli=_cpu(written.kube_reserved, "kubeReserved", source)
        + _cpu(written.system_reserved, "systemReserved", source),
        cgroup_driver=written.cgroup_driver or default.cgroup_driver,
        cgroup_root=written.cgroup_root or default.cgroup_root,
        runtime_endpoint=written.container_runtime_endpoint or default.runtime_endpoint,
        protects_memory=_protects_memory(written),
        kills_single_process=bool(written.single_process_oom_kill),
    )


def _protects_memory(written: _Object) -> bool:
    """Until Kubernetes 1.36 the feature gate, which is off by default, protects or throttles. Since
    1.37 it is on by default, and the two fields decide. A factor that was a default once does not
    count: it is in `/configz` of older kubelets whose gate is off."""
    gates = written.feature_gates or {}
    gate = gates.get(_MEMORY_QOS, gates.get("AllAlpha") or None)
    if gate is not None:
        return gate
    throttles = written.memory_throttling_factor not in (None, *_OLD_THROTTLING_FACTORS)
    return throttles or (written.memory_reservation_policy or "None") != "None"


def _cpu(reserved: Mapping[str, Quantity] | None, field: str, source: str) -> int:
    try:
        return milli((reserved or {}).get("cpu", 0))
    except QuantityError as error:
        raise ConfigurationError(f"{source}: {field}.cpu: {error}") from None


def _max_numa_nodes(options: Mapping[str, str], source: str) -> int | None:
    text = options.get(_MAX_NUMA_NODES)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 4:
        where = f"topologyManagerPolicyOptions.{_MAX_NUMA_NODES}"
        raise ConfigurationError(f"{source}: {where}: {text[:40]!r} is not a count")
    return int(text)


def _memory_bytes(reserved: list[_ReservedMemory], source: str) -> dict[int, int]:
    bytes_: dict[int, int] = {}
    for place, each in enumerate(reserved):
        try:
            amount = whole(each.limits.get("memory", 0))
        except QuantityError as error:
            where = f"reservedMemory[{place}].limits.memory"
            raise ConfigurationError(f"{source}: {where}: {error}") from None
        bytes_[each.numa_node] = bytes_.get(each.numa_node, 0) + amount
    return bytes_


CONFIGZ_SECONDS: Final = 5.0
CONFIGZ_BYTES: Final = 4 << 20


_CERTIFICATE_FILES: Final = ("kubelet-server-current.pem", "kubelet.crt")
"""In the kubelet's folder `pki`: the certificate that an API server signed, and the one that the
kubelet made itself (kubelet: cmd/kubelet/app/server.go, initTLS)."""
_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which ssl does not name."""


def read_configz(
    url: str, token_file: str, ca_file: str, kubelet_dir: str
) -> KubeletConfiguration | None:
    """Reads the answer of `/configz`. Returns None if nothing listens: the kubelet does not run.

    `url`: `https://NODE:10250/configz`, or a `file:` with such an answer.
    `token_file`: a token, which is sent only to a verified server.
    `ca_file`: verifies the server; without it the server must have the certificate in the kubelet's
        folder, as most kubelets sign their own.

    Raises ConfigurationError."""
    import urllib.error  # with ssl 7 MB, which most configurations do not need
    import urllib.request as http
    from http.client import HTTPException

    try:
        request = http.Request(url)
        if token_file:
            if request.type != "https":
                raise ConfigurationError(f"{url}: the token of {token_file} is sent by https only")
            with open(token_file, encoding="utf-8") as file:
                request.add_header("Authorization", f"Bearer {file.read().strip()}")
        # Without the handlers of proxies and redirections, which would get the token.
        opener = http.OpenerDirector()
        for handler in (
            http.FileHandler(),
            http.HTTPHandler(),
            http.HTTPErrorProcessor(),
            http.HTTPDefaultErrorHandler(),
        ):
            opener.add_handler(handler)
        if request.type == "https":
            opener.add_handler(http.HTTPSHandler(context=_tls_context(ca_file, kubelet_dir)))
        answer = opener.open(request, timeout=CONFIGZ_SECONDS)
        if answer is None:
            raise ConfigurationError(f"{url}: the scheme must be https, http or file")
        with answer:
            raw = _body(answer)
        content = json.loads(raw)
    except (urllib.error.HTTPError, HTTPException, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{url}: {error}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            return None
        raise ConfigurationError(f"{url}: {error.reason}") from error
    except OSError as error:
        raise ConfigurationError(f"{url}: {error}") from error
    return of_object(content, url)


def _tls_context(ca_file: str, kubelet_dir: str) -> ssl.SSLContext:
    """The context that verifies the kubelet. Raises OSError, and ValueError if nothing can verify
    it."""
    import ssl

    if ca_file:
        return ssl.create_default_context(cafile=ca_file)
    own, problems = _own_certificates(os.path.join(kubelet_dir, "pki"))
    if not own:
        raise ValueError(
            "the kubelet can't be verified, and no token is sent: no kubelet-ca-file is named, and "
            + "; ".join(problems)
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only this certificate is accepted, so its names and dates need no check.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    context.load_verify_locations(cadata="\n".join(own))
    return context


def _own_certificates(folder: str) -> tuple[list[str], list[str]]:
    """The kubelet's certificates, without those of their signers; and, for each file without one,
    why."""
    found, problems = [], []
    for name in _CERTIFICATE_FILES:
        path = os.path.join(folder, name)
        try:
            if os.path.islink(path):  # to a path of the host, in the same folder
                path = os.path.join(folder, os.path.basename(os.readlink(path)))
            first = _CERTIFICATE.search(files.read(path, CONFIGZ_BYTES))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
            continue
        if first:
            found.append(first[0].decode("ascii", "replace"))
        else:
            problems.append(f"{path}: has no certificate")
    return found, problems


def _body(answer: HTTPResponse) -> bytes:
    """The body of an answer, cut at CONFIGZ_BYTES. Raises TimeoutError after CONFIGZ_SECONDS in
    all, even if each read is in time."""
    end = time.monotonic() + CONFIGZ_SECONDS
    raw = b""
    while len(raw) < CONFIGZ_BYTES and (more := answer.read1(CONFIGZ_BYTES - len(raw))):
        raw += more
        if time.monotonic() > end:
            raise TimeoutError(f"the answer takes longer than {CONFIGZ_SECONDS} s")
    return raw
