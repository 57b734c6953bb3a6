"""A table of CRI calls. A caller must get the same results from a runtime directly and through the
proxy, except for ids and times."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import pathlib
import queue
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import msgspec

from tests.fixtures import image
from tests.integration.fullcri import FullCri
from tests.waiting import DEADLINE_SECONDS, eventually

_VARYING_FIELDS = frozenset(
    {
        *("timestamp", "created_at", "started_at", "finished_at", "createdAt", "pid"),
        *("value", "available_bytes", "used_bytes", "inodes_used"),
    }
)
"""Fields with times, counters, process ids, or the resource usage of the machine."""

_VARYING_TEXT = (
    (re.compile(r"(http://127\.0\.0\.1:\d+/\w+/)[^\s\"]+"), r"\1TOKEN"),
    (re.compile(r"(?<!sha256:)\b[0-9a-f]{64}\b"), "ID"),
    (re.compile(r"/proc/\d+/"), "/proc/PID/"),
)
_LONG_CHARACTERS = 4_000


class Step(msgspec.Struct, frozen=True):
    """One call. `$word` in its request is replaced by the id that an earlier step stored as `keep`.

    `served`: whether the direct call succeeds: on every containerd (True), from a major version on
    (a number), or not necessarily (False, for example because an error is expected).
    """

    name: str
    method: str
    request: Mapping[str, Any] = {}
    served: bool | int = True
    keep: str = ""
    options: Mapping[str, Any] = {}


class Calls(msgspec.Struct, frozen=True):
    """A function that makes several calls; its result is compared."""

    name: str
    call: Callable[[Route], object]


class Route:
    """One socket of the CRI, and the values that earlier steps have stored."""

    def __init__(self, cri: FullCri, logs: pathlib.Path, known: Mapping[str, str]) -> None:
        self.cri = cri
        self.logs = logs
        self.known = {**known, "logs": str(logs)}
        self.codes: dict[str, str] = {}
        self.events = Events(cri)

    def run(self, step: Step | Calls) -> object:
        """Runs the step; the result as plain values."""
        if isinstance(step, Calls):
            try:
                outcome = self.plain(msgspec.to_builtins(step.call(self)))
                self.codes[step.name] = "OK"
            except AssertionError as error:
                outcome = self.codes[step.name] = str(error)
            return outcome
        answer = self.cri.call(step.method, self.filled(step.request), **step.options)
        self.codes[step.name] = answer.code
        if step.keep and answer.messages:
            self.known[step.keep] = next(iter(answer.messages[0].values()))
        return self.plain(msgspec.structs.asdict(answer))

    def filled(self, value: Any) -> Any:
        """The value with each `$word` replaced."""
        if isinstance(value, str):
            return re.sub(r"\$(\w+)", lambda word: self.known.get(word[1], word[0]), value)
        if isinstance(value, Mapping):
            return {key: self.filled(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.filled(each) for each in value]
        return value

    def plain(self, value: Any, name: str = "") -> Any:
        """The value without parts that differ between runs."""
        if isinstance(value, Mapping):
            if name == "info":
                value = {key: _parsed(text) for key, text in value.items()}
            return {self._text(key): self.plain(each, key) for key, each in value.items()}
        if isinstance(value, list | tuple):
            # A runtime lists its objects in any order.
            ordered = [self.plain(each, name) for each in value if not _of_disks(each)]
            return sorted(ordered, key=repr) if value and isinstance(value[0], Mapping) else ordered
        if name in _VARYING_FIELDS and not isinstance(value, bool):
            return "varies"
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
            return self._text(value) if len(value) < _LONG_CHARACTERS else _digest(value)
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        if len(text) > _LONG_CHARACTERS:
            return _digest(text)
        for name, known in self.known.items():
            text = text.replace(known, f"${name}")
        for pattern, instead in _VARYING_TEXT:
            text = pattern.sub(instead, text)
        return text


class Events:
    """The stream of GetContainerEvents, which a thread reads."""

    def __init__(self, cri: FullCri) -> None:
        self._cri = cri
        self._received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._listen)

    def open(self) -> None:
        self._call = self._cri.start("GetContainerEvents", {}, timeout_seconds=300)
        self._thread.start()

    def close(self) -> str:
        """Cancels the call; its status code."""
        assert self._call is not None
        self._call.cancel()
        self._thread.join()
        return str(self._call.code().name)

    def kinds(self, ids: tuple[str, ...], last: tuple[str, str]) -> dict[str, list[str]]:
        """The types of the events of these objects, up to the `last` one or the stream's end."""
        kinds: dict[str, list[str]] = {each: [] for each in ids}
        while last[1] not in kinds[last[0]]:
            try:
                event = self._received.get(
                    timeout=DEADLINE_SECONDS if self._thread.is_alive() else 0
                )
            except queue.Empty:
                break
            kinds.get(event["container_id"], []).append(event["container_event_type"])
        return {each: sorted(found) for each, found in kinds.items()}

    def _listen(self) -> None:
        assert self._call is not None
        kind = self._cri.methods["GetContainerEvents"][1].output_type
        with contextlib.suppress(grpc.RpcError):
            for text in self._call:
                self._received.put(self._cri.read(kind, text))


def _of_disks(value: Any) -> bool:
    """Whether it is a metric that a container has once it has read a disk: if others leave it no
    memory."""
    name = value.get("name") if isinstance(value, Mapping) else None
    return isinstance(name, str) and name.startswith("container_blkio_")


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _digest(text: str) -> str:
    return f"{len(text)} characters, sha256:{hashlib.sha256(text.encode()).hexdigest()}"


_NETWORK = {"network": "NODE", "pid": "CONTAINER"}
_SHELL = [image.BUSYBOX, "sh", "-c"]
_SANDBOX = {
    "metadata": {"name": "matrix", "uid": "matrix-uid", "namespace": "tests", "attempt": 1},
    "hostname": "",
    "log_directory": "$logs",
    "labels": {"io.kubernetes.pod.name": "matrix", "tier": "one"},
    "annotations": {"example.com/note": "näher"},
    "linux": {"cgroup_parent": "$cgroup", "security_context": {"namespace_options": _NETWORK}},
}
_OTHER_SANDBOX = {
    **_SANDBOX,
    "metadata": {"name": "other", "uid": "other-uid", "namespace": "tests"},
    "labels": {"tier": "two"},
}
_CONTAINER = {
    "metadata": {"name": "main", "attempt": 2},
    "image": {"image": "$image"},
    "command": [*_SHELL, "echo out; echo err >&2; exec sleep 2147483647"],
    "labels": {"io.kubernetes.container.name": "main", "tier": "one"},
    "annotations": {"io.kubernetes.container.hash": "1f"},
    "envs": [{"key": "A", "value": "b"}],
    "log_path": "main.log",
    "linux": {
        "resources": {
            "cpu_period": 100_000,
            "cpu_quota": 50_000,
            "cpu_shares": 256,
            "cpuset_cpus": "$cpus",  # the values that the agent sets for a pod without owned CPUs
            "memory_limit_in_bytes": 256 << 20,
        },
        "security_context": {"namespace_options": _NETWORK},
    },
}
_CREATE = {"pod_sandbox_id": "$sandbox", "config": _CONTAINER, "sandbox_config": _SANDBOX}
_UNKNOWN = "0123456789abcdef" * 4


def _create(name: str, **changes: Any) -> dict[str, Any]:
    config = {**_CONTAINER, "metadata": {"name": name}, "log_path": f"{name}.log", **changes}
    return {**_CREATE, "config": config}


def _exec(*command: str, container: str = "$container", seconds: int = 20) -> dict[str, Any]:
    return {"container_id": container, "cmd": list(command), "timeout": seconds}


def _shell(script: str, seconds: int = 20) -> dict[str, Any]:
    return _exec(*_SHELL, script, seconds=seconds)


# An unknown field (number 9999, a string) after the request's own.
_UNKNOWN_FIELD = bytes((0x9A, 0xF1, 0x04, 3)) + b"new"


def _log(route: Route) -> object:
    """The lines of the container's log without their timestamps."""
    file = route.logs / "main.log"
    eventually(
        "both lines are logged",
        lambda: file.exists() and len(file.read_text().splitlines()) == 2,
    )
    return sorted(line.partition(" ")[2] for line in file.read_text().splitlines())


def _rotate(route: Route) -> object:
    """ReopenContainerLog after the file was renamed."""
    file = route.logs / "main.log"
    assert file.exists(), "no log"
    file.rename(route.logs / "main.log.1")
    answer = route.cri.call("ReopenContainerLog", route.filled({"container_id": "$container"}))
    return answer.code, file.exists()


def _cgroup(route: Route) -> object:
    """The limits that the container reads, on either version of cgroups."""
    script = (
        "cd /sys/fs/cgroup; cat cpu.max cpu/cpu.cfs_quota_us cpuset.cpus cpuset/cpuset.cpus "
        "memory.max memory/memory.limit_in_bytes 2>/dev/null"
    )
    return route.cri.call("ExecSync", route.filled(_shell(script))).messages


def _ended_by(route: Route, mark: str, end: Callable[[grpc.Call], object], seconds: float) -> str:
    """Cancels an ExecSync after its process has started. Returns the status code once the process
    has ended too; "" if the call ended before."""
    script = f"echo $$ > /tmp/{mark}; exec sleep 1000"
    running = route.cri.start("ExecSync", route.filled(_shell(script, 0)), timeout_seconds=seconds)

    def succeeds(condition: str) -> bool:
        messages = route.cri.call("ExecSync", route.filled(_shell(condition))).messages
        return bool(messages) and messages[0]["exit_code"] == 0

    def process_started() -> bool:
        return succeeds(f"test -s /tmp/{mark}")

    eventually("the process runs", lambda: process_started() or not running.is_active())
    end(running)
    ended = route.cri.finish("ExecSync", running)
    if not process_started():
        return ""
    eventually(
        "the process ends with its call", lambda: not succeeds(f"kill -0 $(cat /tmp/{mark})")
    )
    # The text depends on which end detects it first, and so does the code of containerd 1.
    late = ended.code == "UNKNOWN" and "deadline exceeded" in ended.text
    return "DEADLINE_EXCEEDED" if late else str(ended.code)


def _cancel(route: Route) -> object:
    return _ended_by(route, "cancelled", lambda call: call.cancel(), 30)


def _deadline(route: Route) -> object:
    """The runtime keeps the same deadline, so the message depends on the faster clock. A busy
    machine needs a long deadline for the process to start."""
    tried = (_ended_by(route, f"late-{each}", lambda call: None, each) for each in (2, 10, 25))
    code = next(filter(None, tried), "no process")
    return "ended in time" if code in ("DEADLINE_EXCEEDED", "CANCELLED") else code


def _raw(path: str, request: bytes = b"") -> Callable[[Route], object]:
    return lambda route: route.cri.finish("", route.cri.start_raw(path, request))


def _many(route: Route) -> object:
    """Forty concurrent calls on one connection, some with 2 MiB of output."""
    calls = []
    for number in range(40):
        if number % 10:
            method, request = "ContainerStatus", {"container_id": "$container", "verbose": True}
        else:
            command = f"dd if=/dev/zero bs=1048576 count=2; exit {number}"
            method, request = "ExecSync", _shell(command)
        calls.append((method, route.cri.start(method, route.filled(request))))
    return [route.cri.finish(*call) for call in calls]


def _events(route: Route) -> object:
    """The events of the first sandbox and container, and the end of the stream."""
    sandbox, container = route.filled(["$sandbox", "$container"])
    kinds = route.events.kinds((sandbox, container), (sandbox, "CONTAINER_DELETED_EVENT"))
    return kinds, route.events.close()


_SERVICE = "/runtime.v1.RuntimeService"


def _create_after_the_stop(route: Route) -> object:
    """containerd sets a stopped sandbox's state when it learns that the process has ended: until
    then it still creates containers (waitSandboxExit and CreateContainer in
    internal/cri/server)."""

    def not_ready() -> bool:
        answer = route.cri.call("PodSandboxStatus", route.filled({"pod_sandbox_id": "$sandbox"}))
        return bool(answer.messages[0]["status"]["state"] == "SANDBOX_NOTREADY")

    eventually("the sandbox is not ready", not_ready)
    return route.cri.call("CreateContainer", route.filled(_create("after")))


STEPS: tuple[Step | Calls, ...] = (
    Calls("events, opened", lambda route: route.events.open()),
    # the runtime
    Step("version", "Version"),
    Step(
        "version with metadata",
        "Version",
        options={"metadata": (("x-one", "1"), ("x-b-bin", b"\0\xff"))},
    ),
    Step(
        "version, compressed", "Version", options={"compression": grpc.Compression.Gzip}, served=2
    ),
    Step("version with an unknown field", "Version", options={"raw": _UNKNOWN_FIELD}),
    Step("status", "Status"),
    Step("runtime configuration", "RuntimeConfig", served=2),
    Step(
        "pod CIDR",
        "UpdateRuntimeConfig",
        {"runtime_config": {"network_config": {"pod_cidr": "192.0.2.0/24"}}},
    ),
    Calls("unknown method", _raw(f"{_SERVICE}/NoSuch", b"\x0a\x01a")),
    Calls("unknown service", _raw("/runtime.v9.RuntimeService/Version")),
    Calls("invalid request", _raw(f"{_SERVICE}/Status", b"\xff\xff\xff")),
    Calls("invalid hooked request", _raw(f"{_SERVICE}/CreateContainer", b"\xff\xff")),
    Calls("empty hooked request", _raw(f"{_SERVICE}/UpdateContainerResources")),
    # images
    Step("images", "ListImages"),
    Step("images, streamed", "StreamImages", served=False),
    Step("image status", "ImageStatus", {"image": {"image": "$image"}}),
    Step("file system of images", "ImageFsInfo"),
    Step("pull", "PullImage", {"image": {"image": "$pulled"}, "sandbox_config": _SANDBOX}),
    Step(
        "pull of an unknown image",
        "PullImage",
        {"image": {"image": "$registry/no:1"}},
        served=False,
    ),
    Step("image removed", "RemoveImage", {"image": {"image": "$pulled"}}),
    # sandboxes
    Step("sandbox", "RunPodSandbox", {"config": _SANDBOX}, keep="sandbox"),
    Step("sandbox of the same name", "RunPodSandbox", {"config": _SANDBOX}, served=False),
    Step("other sandbox", "RunPodSandbox", {"config": _OTHER_SANDBOX}, keep="other"),
    Step("sandbox without a configuration", "RunPodSandbox", served=False),
    Step("sandbox status", "PodSandboxStatus", {"pod_sandbox_id": "$sandbox"}),
    Step("sandboxes", "ListPodSandbox"),
    Step("sandboxes, streamed", "StreamPodSandboxes", served=False),
    Step(
        "sandbox resources",
        "UpdatePodSandboxResources",
        {"pod_sandbox_id": "$sandbox", "resources": {"cpu_shares": 300}},
        served=False,
    ),
    Step("port forward", "PortForward", {"pod_sandbox_id": "$sandbox", "port": [80]}),
    # containers
    Step("container", "CreateContainer", _CREATE, keep="container"),
    Step("container of the same name", "CreateContainer", _CREATE, served=False),
    Step(
        "container, compressed",
        "CreateContainer",
        _create("packed"),
        keep="packed",
        options={"compression": grpc.Compression.Gzip},
        served=2,
    ),
    Step(
        "container with an unknown field",
        "CreateContainer",
        _create("newer"),
        keep="newer",
        options={"raw": _UNKNOWN_FIELD},
    ),
    Step(
        "container with 2 MiB of annotations",
        "CreateContainer",
        _create("large", annotations={"a": "x" * (2 << 20)}),
        keep="large",
    ),
    Step(
        "container in an unknown sandbox",
        "CreateContainer",
        {**_CREATE, "pod_sandbox_id": _UNKNOWN},
        served=False,
    ),
    Step(
        "container without a configuration",
        "CreateContainer",
        {"pod_sandbox_id": "$sandbox"},
        served=False,
    ),
    Step("start", "StartContainer", {"container_id": "$container"}),
    Step("start again", "StartContainer", {"container_id": "$container"}, served=False),
    Calls("log", _log),
    Step("container status", "ContainerStatus", {"container_id": "$container"}),
    Step(
        "container status, verbose",
        "ContainerStatus",
        {"container_id": "$container", "verbose": True},
    ),
    Step(
        "container status of an unknown container",
        "ContainerStatus",
        {"container_id": _UNKNOWN},
        served=False,
    ),
    Step("containers", "ListContainers"),
    Step("containers, streamed", "StreamContainers", served=False),
    # in the container
    Step("exec", "ExecSync", _shell("echo out; echo err >&2; echo $A")),
    Step("exec with an exit code", "ExecSync", _shell("exit 3")),
    Step("exec that takes too long", "ExecSync", _shell("exec sleep 100", 1), served=False),
    Step(
        "exec of 12 MiB",
        "ExecSync",
        _exec(image.BUSYBOX, "dd", "if=/dev/zero", "bs=1048576", "count=12"),
    ),
    Step(
        "exec beyond the message limit",
        "ExecSync",
        _exec(image.BUSYBOX, "dd", "if=/dev/zero", "bs=1048576", "count=17"),
        served=False,
    ),
    Calls("forty concurrent calls", _many),
    Calls("exec, cancelled", _cancel),
    Calls("exec, deadline", _deadline),
    Step(
        "exec in a stream", "Exec", {"container_id": "$container", "cmd": ["true"], "stdout": True}
    ),
    Step("attach", "Attach", {"container_id": "$container", "stdout": True}),
    # resources
    Step(
        "update",
        "UpdateContainerResources",
        {
            "container_id": "$container",
            "linux": {
                "cpu_quota": 60_000,
                "cpu_period": 100_000,
                "memory_limit_in_bytes": 280 << 20,
            },
        },
    ),
    Calls("limits after the update", _cgroup),
    Step(
        "update, compressed",
        "UpdateContainerResources",
        {"container_id": "$container", "linux": {"cpu_shares": 300}},
        options={"compression": grpc.Compression.Gzip},
        served=2,
    ),
    Step(
        "update of an unknown container",
        "UpdateContainerResources",
        {"container_id": _UNKNOWN, "linux": {"cpu_shares": 300}},
        served=False,
    ),
    Step("container status after the update", "ContainerStatus", {"container_id": "$container"}),
    # statistics
    Step("container statistics", "ContainerStats", {"container_id": "$container"}),
    Step("statistics", "ListContainerStats"),
    Step("statistics, streamed", "StreamContainerStats", served=False),
    Step("sandbox statistics", "PodSandboxStats", {"pod_sandbox_id": "$sandbox"}),
    Step("statistics of sandboxes", "ListPodSandboxStats", {"filter": {"id": "$sandbox"}}),
    Step("statistics of sandboxes, streamed", "StreamPodSandboxStats", served=False),
    Step("metric descriptors", "ListMetricDescriptors", served=False),
    Step("metrics", "ListPodSandboxMetrics", served=False),
    Step("metrics, streamed", "StreamPodSandboxMetrics", served=False),
    Step(
        "checkpoint",
        "CheckpointContainer",
        {"container_id": "$container", "location": "$logs/checkpoint"},
        served=False,
    ),
    Calls("log reopened", _rotate),
    Step(
        "log of an unknown container reopened",
        "ReopenContainerLog",
        {"container_id": _UNKNOWN},
        served=False,
    ),
    # the end
    Step("stop", "StopContainer", {"container_id": "$container", "timeout": 0}),
    Step("remove", "RemoveContainer", {"container_id": "$container"}),
    Step("stop the sandbox", "StopPodSandbox", {"pod_sandbox_id": "$sandbox"}),
    Calls("create in a stopped sandbox", _create_after_the_stop),
    Step("remove the sandbox", "RemovePodSandbox", {"pod_sandbox_id": "$sandbox"}),
    Step("remove a ready sandbox", "RemovePodSandbox", {"pod_sandbox_id": "$other"}),
    Step("nothing is left", "ListPodSandbox"),
    Step("no container is left", "ListContainers"),
    Calls("events", _events),
)
