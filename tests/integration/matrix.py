"""A table of CRI calls, and the ways to make them: a caller must get the same from the same runtime
in any way, except for ids and times."""

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

_NEVER_THE_SAME = frozenset(
    {
        *("timestamp", "created_at", "started_at", "finished_at", "createdAt", "pid"),
        *("value", "available_bytes", "used_bytes", "inodes_used"),
    }
)
"""Fields with times, counters, process ids, or the use of the machine."""

_VARYING_TEXT = (
    (re.compile(r"(http://127\.0\.0\.1:\d+/\w+/)[^\s\"]+"), r"\1TOKEN"),
    (re.compile(r"(?<!sha256:)\b[0-9a-f]{64}\b"), "ID"),
    (re.compile(r"/proc/\d+/"), "/proc/PID/"),
)
_LONG_CHARACTERS = 4_000


class Step(msgspec.Struct, frozen=True):
    """One call. `$word` in its request is replaced by the id that an earlier step stored as `keep`.

    `served`: directly it succeeds on every containerd (True), from a major version on (a number),
    or it does not matter (False: mostly because an error is expected).
    """

    name: str
    method: str
    request: Mapping[str, Any] = {}
    served: bool | int = True
    keep: str = ""
    options: Mapping[str, Any] = {}


class Deed(msgspec.Struct, frozen=True):
    """Several calls; their result must be the same."""

    name: str
    do: Callable[[Side], object]


class Side:
    """One way to the runtime, and the values kept from its answers so far."""

    def __init__(self, cri: FullCri, logs: pathlib.Path, known: Mapping[str, str]) -> None:
        self.cri = cri
        self.logs = logs
        self.known = {**known, "logs": str(logs)}
        self.codes: dict[str, str] = {}
        self.events = Events(cri)

    def take(self, step: Step | Deed) -> object:
        """Its result, as plain values."""
        if isinstance(step, Deed):
            try:
                outcome = self.plain(msgspec.to_builtins(step.do(self)))
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
        """With `$word`s replaced."""
        if isinstance(value, str):
            return re.sub(r"\$(\w+)", lambda word: self.known.get(word[1], word[0]), value)
        if isinstance(value, Mapping):
            return {key: self.filled(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.filled(each) for each in value]
        return value

    def plain(self, value: Any, name: str = "") -> Any:
        """Without values that differ between runs."""
        if isinstance(value, Mapping):
            if name == "info":
                value = {key: _parsed(text) for key, text in value.items()}
            return {self._text(key): self.plain(each, key) for key, each in value.items()}
        if isinstance(value, list | tuple):
            # A runtime lists its objects in any order.
            ordered = [self.plain(each, name) for each in value]
            return sorted(ordered, key=repr) if value and isinstance(value[0], Mapping) else ordered
        if name in _NEVER_THE_SAME and not isinstance(value, bool):
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
    """GetContainerEvents, read by a thread."""

    def __init__(self, cri: FullCri) -> None:
        self._cri = cri
        self._heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._listen)

    def open(self) -> None:
        self._call = self._cri.start("GetContainerEvents", {}, timeout_seconds=300)
        self._thread.start()

    def close(self) -> str:
        """Its exit code when the test ends it."""
        assert self._call is not None
        self._call.cancel()
        self._thread.join()
        return str(self._call.code().name)

    def kinds(self, ids: tuple[str, ...], last: tuple[str, str]) -> dict[str, list[str]]:
        """The kinds of events of each of these, up to the `last` one or the stream's end."""
        kinds: dict[str, list[str]] = {each: [] for each in ids}
        while last[1] not in kinds[last[0]]:
            try:
                event = self._heard.get(timeout=DEADLINE_SECONDS if self._thread.is_alive() else 0)
            except queue.Empty:
                break
            kinds.get(event["container_id"], []).append(event["container_event_type"])
        return {each: sorted(found) for each, found in kinds.items()}

    def _listen(self) -> None:
        assert self._call is not None
        kind = self._cri.methods["GetContainerEvents"][1].output_type
        with contextlib.suppress(grpc.RpcError):
            for text in self._call:
                self._heard.put(self._cri.read(kind, text))


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
    "command": [*_SHELL, "echo said; echo wrong >&2; exec sleep 2147483647"],
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


def _log(side: Side) -> object:
    """The container's log, without the times at the start of its lines."""
    file = side.logs / "main.log"
    eventually(
        "both lines are logged",
        lambda: file.exists() and len(file.read_text().splitlines()) == 2,
    )
    return sorted(line.partition(" ")[2] for line in file.read_text().splitlines())


def _rotate(side: Side) -> object:
    """ReopenContainerLog after the file was moved away."""
    file = side.logs / "main.log"
    assert file.exists(), "there is a log"
    file.rename(side.logs / "main.log.1")
    answer = side.cri.call("ReopenContainerLog", side.filled({"container_id": "$container"}))
    return answer.code, file.exists()


def _cgroup(side: Side) -> object:
    """The limits that the container reads, on either version of cgroups."""
    script = (
        "cd /sys/fs/cgroup; cat cpu.max cpu/cpu.cfs_quota_us cpuset.cpus cpuset/cpuset.cpus "
        "memory.max memory/memory.limit_in_bytes 2>/dev/null"
    )
    return side.cri.call("ExecSync", side.filled(_shell(script))).messages


def _ended_by(side: Side, mark: str, end: Callable[[grpc.Call], object], seconds: float) -> str:
    """An ExecSync that its caller cancels after its process began: its code, once the process has
    ended too. "" if the call ended before."""
    script = f"echo $$ > /tmp/{mark}; exec sleep 1000"
    running = side.cri.start("ExecSync", side.filled(_shell(script, 0)), timeout_seconds=seconds)

    def holds(condition: str) -> bool:
        messages = side.cri.call("ExecSync", side.filled(_shell(condition))).messages
        return bool(messages) and messages[0]["exit_code"] == 0

    def began() -> bool:
        return holds(f"test -s /tmp/{mark}")

    eventually("the process runs", lambda: began() or not running.is_active())
    end(running)
    ended = side.cri.finish("ExecSync", running)
    if not began():
        return ""
    eventually("the process ends with its call", lambda: not holds(f"kill -0 $(cat /tmp/{mark})"))
    # The text depends on which end detects it first, and so does the code of containerd 1.
    late = ended.code == "UNKNOWN" and "deadline exceeded" in ended.text
    return "DEADLINE_EXCEEDED" if late else str(ended.code)


def _cancel(side: Side) -> object:
    return _ended_by(side, "cancelled", lambda call: call.cancel(), 30)


def _deadline(side: Side) -> object:
    """The runtime keeps the same deadline, so the message depends on the faster clock. A busy
    machine needs a long deadline for the process to start."""
    tried = (_ended_by(side, f"late-{each}", lambda call: None, each) for each in (2, 10, 25))
    code = next(filter(None, tried), "no process")
    return "ended in time" if code in ("DEADLINE_EXCEEDED", "CANCELLED") else code


def _raw(path: str, request: bytes = b"") -> Callable[[Side], object]:
    return lambda side: side.cri.finish("", side.cri.start_raw(path, request))


def _many(side: Side) -> object:
    """Forty calls at once on one connection, some with 2 MiB of output."""
    calls = []
    for number in range(40):
        if number % 10:
            method, request = "ContainerStatus", {"container_id": "$container", "verbose": True}
        else:
            command = f"dd if=/dev/zero bs=1048576 count=2; exit {number}"
            method, request = "ExecSync", _shell(command)
        calls.append((method, side.cri.start(method, side.filled(request))))
    return [side.cri.finish(*call) for call in calls]


def _events(side: Side) -> object:
    """The events of the first sandbox and container, and the end of the stream."""
    sandbox, container = side.filled(["$sandbox", "$container"])
    kinds = side.events.kinds((sandbox, container), (sandbox, "CONTAINER_DELETED_EVENT"))
    return kinds, side.events.close()


_SERVICE = "/runtime.v1.RuntimeService"


def _create_after_the_stop(side: Side) -> object:
    """containerd sets a stopped sandbox's state when it learns that the process has ended: until
    then it still creates containers (waitSandboxExit and CreateContainer in
    internal/cri/server)."""

    def not_ready() -> bool:
        answer = side.cri.call("PodSandboxStatus", side.filled({"pod_sandbox_id": "$sandbox"}))
        return bool(answer.messages[0]["status"]["state"] == "SANDBOX_NOTREADY")

    eventually("the sandbox is not ready", not_ready)
    return side.cri.call("CreateContainer", side.filled(_create("after")))


STEPS: tuple[Step | Deed, ...] = (
    Deed("events, opened", lambda side: side.events.open()),
    # the runtime
    Step("version", "Version"),
    Step("version of an old caller", "Version", {"version": "0.1.0"}),
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
    Step("status, verbose", "Status", {"verbose": True}),
    Step("runtime configuration", "RuntimeConfig", served=2),
    Step(
        "pod CIDR",
        "UpdateRuntimeConfig",
        {"runtime_config": {"network_config": {"pod_cidr": "192.0.2.0/24"}}},
    ),
    Deed("unknown method", _raw(f"{_SERVICE}/NoSuch", b"\x0a\x01a")),
    Deed("unknown service", _raw("/runtime.v9.RuntimeService/Version")),
    Deed("old service", _raw("/runtime.v1alpha2.RuntimeService/NoSuch")),
    Deed("request that is no message", _raw(f"{_SERVICE}/Status", b"\xff\xff\xff")),
    Deed("hooked request that is no message", _raw(f"{_SERVICE}/CreateContainer", b"\xff\xff")),
    Deed("empty hooked request", _raw(f"{_SERVICE}/UpdateContainerResources")),
    # images
    Step("images", "ListImages"),
    Step("images of a name", "ListImages", {"filter": {"image": {"image": "$image"}}}),
    Step("images of no name", "ListImages", {"filter": {"image": {"image": "example.com/no:1"}}}),
    Step("images, streamed", "StreamImages", served=False),
    Step("image status", "ImageStatus", {"image": {"image": "$image"}}),
    Step("image status, verbose", "ImageStatus", {"image": {"image": "$image"}, "verbose": True}),
    Step("image status of no image", "ImageStatus", {"image": {"image": "example.com/no:1"}}),
    Step("file system of images", "ImageFsInfo"),
    Step("pull", "PullImage", {"image": {"image": "$pulled"}, "sandbox_config": _SANDBOX}),
    Step("pull again", "PullImage", {"image": {"image": "$pulled"}}),
    Step(
        "pull of what is not there",
        "PullImage",
        {"image": {"image": "$registry/no:1"}},
        served=False,
    ),
    Step("pull from nobody", "PullImage", {"image": {"image": "127.0.0.1:1/no:1"}}, served=False),
    Step("pull of no name", "PullImage", {"image": {"image": "NO NAME"}}, served=False),
    Step("pulled image", "ImageStatus", {"image": {"image": "$pulled"}}),
    Step("images after the pull", "ListImages"),
    Step("image removed", "RemoveImage", {"image": {"image": "$pulled"}}),
    Step("image removed again", "RemoveImage", {"image": {"image": "$pulled"}}),
    Step("removed image", "ImageStatus", {"image": {"image": "$pulled"}}),
    # sandboxes
    Step("sandbox", "RunPodSandbox", {"config": _SANDBOX}, keep="sandbox"),
    Step("sandbox of the same name", "RunPodSandbox", {"config": _SANDBOX}, served=False),
    Step("other sandbox", "RunPodSandbox", {"config": _OTHER_SANDBOX}, keep="other"),
    Step("sandbox of nothing", "RunPodSandbox", served=False),
    Step(
        "sandbox of no known handler",
        "RunPodSandbox",
        {
            "config": {**_SANDBOX, "metadata": {"name": "h", "uid": "h", "namespace": "h"}},
            "runtime_handler": "no",
        },
        served=False,
    ),
    Step("sandbox status", "PodSandboxStatus", {"pod_sandbox_id": "$sandbox"}),
    Step(
        "sandbox status, verbose",
        "PodSandboxStatus",
        {"pod_sandbox_id": "$sandbox", "verbose": True},
    ),
    Step(
        "sandbox status of nobody", "PodSandboxStatus", {"pod_sandbox_id": _UNKNOWN}, served=False
    ),
    Step("sandboxes", "ListPodSandbox"),
    Step("sandboxes of an id", "ListPodSandbox", {"filter": {"id": "$sandbox"}}),
    Step("sandboxes of a label", "ListPodSandbox", {"filter": {"label_selector": {"tier": "two"}}}),
    Step(
        "sandboxes of a state",
        "ListPodSandbox",
        {"filter": {"state": {"state": "SANDBOX_NOTREADY"}}},
    ),
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
        "container of no image",
        "CreateContainer",
        _create("none", image={"image": "example.com/no:1"}),
        served=False,
    ),
    Step(
        "container of no sandbox",
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
    Step(
        "container of no command",
        "CreateContainer",
        _create("lost", command=["/no/such"]),
        keep="lost",
    ),
    Step("container status before its start", "ContainerStatus", {"container_id": "$container"}),
    Step("exec before the start", "ExecSync", _exec("true"), served=False),
    Step("start", "StartContainer", {"container_id": "$container"}),
    Step("start again", "StartContainer", {"container_id": "$container"}, served=False),
    Step("start of no command", "StartContainer", {"container_id": "$lost"}, served=False),
    Step("start of nobody", "StartContainer", {"container_id": _UNKNOWN}, served=False),
    Deed("log", _log),
    Step("container status", "ContainerStatus", {"container_id": "$container"}),
    Step(
        "container status, verbose",
        "ContainerStatus",
        {"container_id": "$container", "verbose": True},
    ),
    Step("container status of nobody", "ContainerStatus", {"container_id": _UNKNOWN}, served=False),
    Step("containers", "ListContainers"),
    Step("containers of an id", "ListContainers", {"filter": {"id": "$container"}}),
    Step("containers of a sandbox", "ListContainers", {"filter": {"pod_sandbox_id": "$other"}}),
    Step(
        "containers of a state",
        "ListContainers",
        {"filter": {"state": {"state": "CONTAINER_RUNNING"}}},
    ),
    Step(
        "containers of a label", "ListContainers", {"filter": {"label_selector": {"tier": "one"}}}
    ),
    Step("containers, streamed", "StreamContainers", served=False),
    # inside
    Step("exec", "ExecSync", _shell("echo out; echo err >&2; echo $A")),
    Step("exec with an exit code", "ExecSync", _shell("exit 3")),
    Step("exec of no command", "ExecSync", _exec("/no/such"), served=False),
    Step("exec that takes too long", "ExecSync", _shell("exec sleep 100", 1), served=False),
    Step("exec without a command", "ExecSync", _exec(), served=False),
    Step(
        "exec of 12 MiB",
        "ExecSync",
        _exec(image.BUSYBOX, "dd", "if=/dev/zero", "bs=1048576", "count=12"),
    ),
    Step(
        "exec beyond what a reply may hold",
        "ExecSync",
        _exec(image.BUSYBOX, "dd", "if=/dev/zero", "bs=1048576", "count=17"),
        served=False,
    ),
    Deed("forty at once", _many),
    Deed("exec, cancelled", _cancel),
    Deed("exec, deadline", _deadline),
    Step(
        "exec in a stream", "Exec", {"container_id": "$container", "cmd": ["true"], "stdout": True}
    ),
    Step(
        "exec in a stream of nobody",
        "Exec",
        {"container_id": _UNKNOWN, "cmd": ["true"], "stdout": True},
        served=False,
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
    Deed("limits after the update", _cgroup),
    Step(
        "update, compressed",
        "UpdateContainerResources",
        {"container_id": "$container", "linux": {"cpu_shares": 300}},
        options={"compression": grpc.Compression.Gzip},
        served=2,
    ),
    Step(
        "update of nobody",
        "UpdateContainerResources",
        {"container_id": _UNKNOWN, "linux": {"cpu_shares": 300}},
        served=False,
    ),
    Step(
        "update to no such memory",
        "UpdateContainerResources",
        {"container_id": "$container", "linux": {"cpuset_mems": "77"}},
        served=False,
    ),
    Step("container status after the update", "ContainerStatus", {"container_id": "$container"}),
    # statistics
    Step("container statistics", "ContainerStats", {"container_id": "$container"}),
    Step(
        "container statistics of nobody", "ContainerStats", {"container_id": _UNKNOWN}, served=False
    ),
    Step("statistics", "ListContainerStats"),
    Step("statistics of an id", "ListContainerStats", {"filter": {"id": "$container"}}),
    Step("statistics, streamed", "StreamContainerStats", served=False),
    Step("sandbox statistics", "PodSandboxStats", {"pod_sandbox_id": "$sandbox"}),
    Step(
        "sandbox statistics of nobody",
        "PodSandboxStats",
        {"pod_sandbox_id": _UNKNOWN},
        served=False,
    ),
    Step("statistics of sandboxes", "ListPodSandboxStats", {"filter": {"id": "$sandbox"}}),
    Step("statistics of sandboxes, streamed", "StreamPodSandboxStats", served=False),
    Step("metrics that there are", "ListMetricDescriptors", served=False),
    Step("metrics", "ListPodSandboxMetrics", served=False),
    Step("metrics, streamed", "StreamPodSandboxMetrics", served=False),
    Step(
        "checkpoint",
        "CheckpointContainer",
        {"container_id": "$container", "location": "$logs/checkpoint"},
        served=False,
    ),
    Deed("log reopened", _rotate),
    Step(
        "log of a created container reopened",
        "ReopenContainerLog",
        {"container_id": "$packed"},
        served=False,
    ),
    # the end
    Step("remove a running container", "RemoveContainer", {"container_id": "$newer"}),
    Step("stop", "StopContainer", {"container_id": "$container", "timeout": 0}),
    Step("stop again", "StopContainer", {"container_id": "$container"}),
    Step("stop of nobody", "StopContainer", {"container_id": _UNKNOWN}, served=False),
    Step("container status after the stop", "ContainerStatus", {"container_id": "$container"}),
    Step("exec after the stop", "ExecSync", _exec("true"), served=False),
    Step(
        "update after the stop",
        "UpdateContainerResources",
        {"container_id": "$container", "linux": {"cpu_shares": 300}},
        served=False,
    ),
    Step("remove", "RemoveContainer", {"container_id": "$container"}),
    Step("remove again", "RemoveContainer", {"container_id": "$container"}),
    Step("stop the sandbox", "StopPodSandbox", {"pod_sandbox_id": "$sandbox"}),
    Step("stop the sandbox again", "StopPodSandbox", {"pod_sandbox_id": "$sandbox"}),
    Deed("create in a stopped sandbox", _create_after_the_stop),
    Step("sandbox status after the stop", "PodSandboxStatus", {"pod_sandbox_id": "$sandbox"}),
    Step(
        "sandboxes that are not ready",
        "ListPodSandbox",
        {"filter": {"state": {"state": "SANDBOX_NOTREADY"}}},
    ),
    Step("remove the sandbox", "RemovePodSandbox", {"pod_sandbox_id": "$sandbox"}),
    Step("remove the sandbox again", "RemovePodSandbox", {"pod_sandbox_id": "$sandbox"}),
    Step("remove a ready sandbox", "RemovePodSandbox", {"pod_sandbox_id": "$other"}),
    Step("nothing is left", "ListPodSandbox"),
    Step("no container is left", "ListContainers"),
    Deed("events", _events),
)
