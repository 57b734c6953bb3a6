"""The steps that put the proxy between a kubelet and its runtime, and the steps that undo them.

Their order ensures that the kubelet has a runtime at every moment, even if it restarts by itself:
the proxy serves before a file of the kubelet names its socket, and is stopped only after the
kubelet uses the runtime directly. A restart of the kubelet does not affect its containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from agent.install import endpoint
from agent.install.endpoint import PROXY_ENDPOINT, EndpointError, FileChange
from agent.install.observe import ObservedKubelet
from agent.install.tree import ABSENT, FileState
from agent.install.unitfiles import Unit, words
from agent.kubelet.configuration import flags

FOLDER: Final = "/opt/topolet"
CURRENT: Final = f"{FOLDER}/current"
"""The link to the folder of the installed version."""
SERVICE: Final = "topolet-proxy.service"
SOCKET: Final = "topolet-proxy.socket"
_UNITS: Final = "/etc/systemd/system"
SOCKET_FILE: Final = f"{_UNITS}/{SOCKET}"
SERVICE_FILE: Final = f"{_UNITS}/{SERVICE}"
SERVICE_DROP_IN: Final = f"{_UNITS}/{SERVICE}.d/10-install.conf"
CRICTL: Final = "/etc/crictl.yaml"
_WANTED: Final = {
    f"{_UNITS}/sockets.target.wants/{SOCKET}": SOCKET_FILE,
    f"{_UNITS}/multi-user.target.wants/{SERVICE}": SERVICE_FILE,
}
OWN_FILES: Final = (CURRENT, SOCKET_FILE, SERVICE_FILE, SERVICE_DROP_IN, *_WANTED, CRICTL)
"""The files of Topolet. All other files that an installation changes are the kubelet's."""


class CopyVersion(msgspec.Struct, frozen=True, tag=True):
    """Copies the interpreter and its libraries to FOLDER/VERSION, unless that folder exists."""

    version: str

    def __str__(self) -> str:
        return f"copy the interpreter and its libraries to {FOLDER}/{self.version}"


class Put(msgspec.Struct, frozen=True, tag=True):
    """Changes one file."""

    change: FileChange

    def __str__(self) -> str:
        path, after = self.change.path, self.change.after
        if after.absent:
            return f"remove {path}"
        if after.link is not None:
            return f"link {path} to {after.link}"
        return f"{'write' if self.change.before.absent else 'change'} {path}"


class Systemctl(msgspec.Struct, frozen=True, tag=True):
    """Runs `systemctl` with these arguments."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"systemctl {' '.join(self.words)}"


class AwaitProxy(msgspec.Struct, frozen=True, tag=True):
    """Waits until the runtime answers through the proxy."""

    def __str__(self) -> str:
        return f"wait until the runtime answers at {PROXY_ENDPOINT}"


class AwaitKubelet(msgspec.Struct, frozen=True, tag=True):
    """Waits until the kubelet runs, and checks that the containers which ran before still run."""

    unit: str
    through_proxy: bool

    def __str__(self) -> str:
        how = "uses the proxy" if self.through_proxy else "runs"
        return f"wait until {self.unit} {how}, and check that every container still runs"


Step = CopyVersion | Put | Systemctl | AwaitProxy | AwaitKubelet
_RELOAD: Final = Systemctl(("daemon-reload",))


class ObservedNode(msgspec.Struct, frozen=True):
    """What an installation depends on."""

    kubelet: ObservedKubelet
    own: Mapping[str, FileState] = {}
    """The state of the OWN_FILES."""
    proxy: Unit = Unit(SERVICE)
    """The unit of the proxy."""
    proxy_active: bool = False
    """Whether the proxy runs."""
    runtime: str = ""
    """The runtime endpoint in the journal of an earlier installation, "" without one."""


def runtime_endpoint(node: ObservedNode) -> str:
    """The endpoint of the runtime to which the proxy connects, or will connect. Raises
    EndpointError."""
    used = endpoint.configured(node.kubelet)
    if used != PROXY_ENDPOINT:
        return used
    if node.runtime:
        return node.runtime
    for command in node.proxy.values("ExecStart"):
        if found := flags(words(command)).get("runtime-endpoint"):
            return found
    raise EndpointError(
        f"{node.kubelet.unit.name}: the kubelet uses {PROXY_ENDPOINT}, and neither the journal nor "
        "the proxy's unit names the runtime: name it with --runtime-endpoint"
    )


def install(
    node: ObservedNode, version: str, runtime: str, units: Mapping[str, str]
) -> tuple[Step, ...]:
    """The steps of an installation, none if nothing has to change.

    `units`: the texts of SERVICE and SOCKET.

    Raises EndpointError."""
    if not runtime.startswith("unix:///"):
        raise EndpointError(f"the runtime's endpoint {runtime!r} is not a unix socket")
    own = [
        FileChange(path, before, after)
        for path, after in _own_files(version, runtime, units).items()
        if (before := node.own.get(path, ABSENT)) != after
        and not (path == CRICTL and not before.absent)
    ]
    # A file in which somebody has named the proxy by hand names the runtime after the removal.
    kubelet = [
        msgspec.structs.replace(change, before=_direct(change.before, runtime))
        for change in endpoint.changes(node.kubelet, PROXY_ENDPOINT)
    ]
    if not own and not kubelet and node.proxy_active:
        return ()
    steps: list[Step] = [CopyVersion(version), *map(Put, own)]
    if _of_systemd(own):
        steps.append(_RELOAD)
    if own or not node.proxy_active:
        steps += [Systemctl(("start", SOCKET)), Systemctl(("restart", SERVICE))]
    steps.append(AwaitProxy())
    if kubelet:
        steps += map(Put, kubelet)
        steps += _restarted(node.kubelet.unit.name, kubelet, through_proxy=True)
    else:
        steps.append(AwaitKubelet(node.kubelet.unit.name, True))
    return tuple(steps)


def undo(
    changes: Sequence[FileChange],
    present: Mapping[str, FileState],
    unit: str,
    runtime: str,
) -> tuple[Step, ...]:
    """The steps that undo these changes, whether or not each of them was made. In a file of the
    kubelet that others changed since, only the endpoint is changed; a file of Topolet gets its
    former state.

    `present`: the present state of the files."""
    reverse = []
    for change in reversed(changes):
        now = present.get(change.path, ABSENT)
        reverse.append(FileChange(change.path, now, former(change, now, runtime)))
    kubelet = [change for change in reverse if change.path not in OWN_FILES]
    own = [change for change in reverse if change.path in OWN_FILES]
    steps: list[Step] = [Put(change) for change in kubelet if change.before != change.after]
    if kubelet:
        steps += _restarted(unit, kubelet, through_proxy=False)
    removes_proxy = any(change.path == SOCKET_FILE and change.after.absent for change in own)
    if removes_proxy and not present.get(SOCKET_FILE, ABSENT).absent:
        steps.append(Systemctl(("stop", SOCKET, SERVICE)))
    steps += [Put(change) for change in own if change.before != change.after]
    if _of_systemd(own):
        steps.append(_RELOAD)
    if own and not removes_proxy and not present.get(SERVICE_FILE, ABSENT).absent:
        steps += [Systemctl(("restart", SERVICE)), AwaitProxy()]
    return tuple(steps)


def former(change: FileChange, now: FileState, runtime: str) -> FileState:
    """The state of a changed file after the change is undone; `now` is its present state."""
    if change.path == CRICTL and now not in (change.before, change.after):
        return now
    if now in (change.before, change.after) or change.before.absent or change.path in OWN_FILES:
        return change.before
    return _direct(now, runtime)


def _direct(state: FileState, runtime: str) -> FileState:
    """The state with the runtime in the place of the proxy."""
    if state.text is None:
        return state
    text = endpoint.reverted(state.text, PROXY_ENDPOINT, runtime)
    return msgspec.structs.replace(state, text=text)


def merged(earlier: Iterable[FileChange], later: Iterable[FileChange]) -> tuple[FileChange, ...]:
    """One change for each file, from the state before its first change to the state after its
    last."""
    found: dict[str, FileChange] = {}
    for each in (*earlier, *later):
        first = found.get(each.path, each)
        found[each.path] = FileChange(each.path, first.before, each.after)
    return tuple(each for each in found.values() if each.before != each.after)


def _restarted(unit: str, changes: Sequence[FileChange], *, through_proxy: bool) -> Iterator[Step]:
    if _of_systemd(changes):
        yield _RELOAD
    # systemd does not start a unit that failed too often.
    yield Systemctl(("reset-failed", unit))
    yield Systemctl(("restart", unit))
    yield AwaitKubelet(unit, through_proxy)


def _of_systemd(changes: Iterable[FileChange]) -> bool:
    return any(each.path.startswith(f"{_UNITS}/") for each in changes)


def _own_files(version: str, runtime: str, units: Mapping[str, str]) -> dict[str, FileState]:
    command = f"{CURRENT}/bin/topolet proxy --runtime-endpoint {runtime}"
    return {
        CURRENT: FileState(link=version),
        SOCKET_FILE: FileState(units[SOCKET]),
        SERVICE_FILE: FileState(units[SERVICE]),
        SERVICE_DROP_IN: FileState(f"[Service]\nExecStart=\nExecStart={command}\n"),
        **{path: FileState(link=target) for path, target in _WANTED.items()},
        # Without a file, crictl tries several sockets. The runtime's own works without the proxy.
        CRICTL: FileState(f"runtime-endpoint: {runtime}\nimage-endpoint: {runtime}\n"),
    }
