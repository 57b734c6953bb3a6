"""A real node for tests: a private containerd, Topolet's processes, real cgroups."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence

import pytest

from agent.cri.client import Cri
from agent.model.settings.options import proxy_socket
from agent.rpc.grpc import RpcError
from tests import tools
from tests.fixtures import constants, image
from tests.fixtures import containerd as private
from tests.fixtures.cgroups import remove_cgroups
from tests.fixtures.containerd import Containerd
from tests.fixtures.crio import Crio
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    remove_pod,
    run_sandbox,
    start_container,
)
from tests.fixtures.ports import free_port
from tests.integration import podnetwork
from tests.waiting import DEADLINE_SECONDS, eventually

NO_FULL_PASS = "--period-seconds=600"
"""Flag of an agent that has to detect changes by events."""


HOLD = "--hold-seconds=2"
"""Flag of a frontend that waits longer for the agent, which is slow on a busy machine."""


def kernel_cpus(pid: int) -> str:
    """The CPUs in the kernel's file of the process's cgroup: on v2 the effective ones."""
    folder = kernel_group(pid, "cpuset")
    effective = folder / "cpuset.cpus.effective"
    return (effective if effective.exists() else folder / "cpuset.cpus").read_text().strip()


def kernel_group(pid: int, controller: str) -> pathlib.Path:
    """The folder of the process's cgroup, in the controller's v1 hierarchy or on v2."""
    groups = {}
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), group)
    if controller in groups:
        return pathlib.Path(f"/sys/fs/cgroup/{controller}{groups[controller]}")
    return pathlib.Path(f"/sys/fs/cgroup{groups['']}")


_A_FIFTH_OF_A_CPU = """
import time
while True:
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    time.sleep(0.08)
"""


@contextlib.contextmanager
def busy(group: pathlib.Path) -> Iterator[None]:
    """Runs a process in this cgroup that uses at most a fifth of a CPU."""
    with subprocess.Popen([sys.executable, "-c", _A_FIFTH_OF_A_CPU]) as process:
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            yield
        finally:
            process.kill()


def page(port: int, path: str) -> tuple[int, str]:
    """Status and text of an HTTP page on this machine; status 0 if nothing responds."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def sum_of_series(text: str, name: str) -> float:
    """The sum of the series with that name in a page of metrics; labels may follow the name."""
    lines = text.splitlines()
    series = [each for each in lines if each.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(each.rpartition(" ")[2]) for each in series)


class TestNode:
    """Starts and ends the processes of one node; `proxied` and `direct` are CRI clients."""

    __test__ = False

    def __init__(self, folder: pathlib.Path, containerd: Containerd | Crio) -> None:
        self.folder = folder
        self.containerd = containerd
        self.state = folder / "state"
        self.cgroup_root = f"/topolet-test-{uuid.uuid4().hex[:8]}"
        self.cri_socket = proxy_socket(str(self.state))
        self.direct = Cri(containerd.socket, DEADLINE_SECONDS)
        self.proxied = Cri(self.cri_socket, DEADLINE_SECONDS)
        self.http_port = 0
        self.agent_launcher: tuple[str, ...] = ()
        """Arguments before the command of an agent."""
        self.constants: dict[str, Mapping[str, float | str]] = {}
        """By command: other values of constants (`tests.fixtures.constants`)."""
        self._agent: subprocess.Popen[bytes] | None = None
        self._proxy: subprocess.Popen[bytes] | None = None

    # processes
    def start_agent(
        self,
        *flags: str,
        environ: dict[str, str] | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        """Starts the agent without a cluster, or with the environment of a pod in a cluster
        (`environ`), and with additional variables. Returns when /readyz succeeds.

        Unless a flag sets the kubelet's folder, the agent reads a kubelet configuration of its own,
        and not that of another test's kubelet on this machine."""
        self.http_port = free_port()
        declared = self.folder / "kubelet-config.yaml"
        declared.write_text(
            "{kind: KubeletConfiguration, apiVersion: kubelet.config.k8s.io/v1beta1}\n"
        )
        has_kubelet_dir = any(each.startswith("--kubelet-dir=") for each in flags)
        self._agent = self.start_process(
            "agent",
            *(["--standalone"] if environ is None else []),
            f"--runtime-endpoint=unix://{self.containerd.socket}",
            f"--http=127.0.0.1:{self.http_port}",
            f"--kubelet-dir={self.folder / 'kubelet'}",
            "--node-name=node-a",
            *([] if has_kubelet_dir else [f"--kubelet-config={declared}"]),
            *flags,
            environ={**(environ or {}), **(variables or {})},
        )
        agent = self._agent
        eventually(
            "the agent is ready", lambda: agent.poll() is not None or self.get("/readyz")[0] == 200
        )
        assert agent.poll() is None, self.log("agent")

    def start_proxy(self, *flags: str) -> None:
        """Returns when the proxy accepts connections."""
        self._proxy = self.start_process(
            "proxy",
            f"--runtime-endpoint=unix://{self.containerd.socket}",
            "--http=",
            HOLD,
            *flags,
        )
        eventually("the proxy accepts connections", self._proxy_accepts)

    def kill_agent(self) -> None:
        """Sends SIGKILL."""
        _kill(self._agent)
        self._agent = None

    def kill_proxy(self) -> None:
        """Sends SIGKILL."""
        _kill(self._proxy)
        self._proxy = None
        self.proxied.close()

    def stop_agent(self) -> None:
        """Sends SIGTERM and expects exit code 0."""
        assert self._agent is not None
        self._agent.terminate()
        assert self._agent.wait(DEADLINE_SECONDS) == 0, self.log("agent")
        self._agent = None

    def agent_exit_code(self) -> int:
        """The exit code of an agent that ends by itself."""
        assert self._agent is not None
        return self._agent.wait(DEADLINE_SECONDS)

    @property
    def agent_pid(self) -> int:
        assert self._agent is not None
        return self._agent.pid

    @property
    def proxy_pid(self) -> int:
        assert self._proxy is not None
        return self._proxy.pid

    def log(self, name: str) -> str:
        """The standard error of a process until now."""
        return (self.folder / f"{name}.log").read_text()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the agent; see `page`."""
        return page(self.http_port, path)

    def metric(self, name: str) -> float:
        """The sum of the series with that name; labels may follow the name."""
        return sum_of_series(self.get("/metrics")[1], name)

    # pods
    def run_retrying(self, runtime: Cri, spec: PodSpec) -> tuple[str, str]:
        """Runs a pod; the ids of its sandbox and its container. Like a kubelet, repeats all steps
        after a failure."""
        ids: list[tuple[str, str]] = []

        def attempt() -> bool:
            sandbox = ""
            try:
                sandbox = run_sandbox(runtime, spec)
                container = create_container(runtime, create_request(spec, sandbox))
                start_container(runtime, container)
            except RpcError:
                if sandbox:
                    remove_pod(self.direct, sandbox)
                return False
            ids.append((sandbox, container))
            return True

        eventually(f"pod {spec.name} runs", attempt)
        return ids[0]

    def spec(self, name: str, qos: str = "", cpuset: str = "", **more: object) -> PodSpec:
        """A pod below this test's own cgroup."""
        return PodSpec(name, qos, cpuset, cgroup_root=self.cgroup_root, **more)  # type: ignore[arg-type]

    def cpus(self, container_id: str) -> str:
        """The cpuset in the kernel's files of a running container."""
        return kernel_cpus(self.direct.container_status(container_id).pid)

    def sandbox_cpus(self, sandbox_id: str) -> str:
        """The cpuset in the kernel's files of a running pause container."""
        return kernel_cpus(self.direct.sandbox_status(sandbox_id).pid)

    def kernel_value(self, container_id: str, controller: str, file: str) -> str:
        """The content of a file in the cgroup of a running container."""
        pid = self.direct.container_status(container_id).pid
        return (kernel_group(pid, controller) / file).read_text().strip()

    def run_cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs `topolet WORDS` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "agent", *words],
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_SECONDS,
            check=False,
            env=dict(os.environ),  # without the COLUMNS that readline adds below Python
        )

    def restore(self) -> subprocess.CompletedProcess[str]:
        """Runs `topolet restore` to its end."""
        endpoint = f"--runtime-endpoint=unix://{self.containerd.socket}"
        return self.run_cli("restore", f"--state-dir={self.state}", endpoint)

    def close(self) -> None:
        """Ends all processes and pods of this test."""
        _kill(self._agent)
        _kill(self._proxy)
        with contextlib.suppress(RpcError):
            for sandbox in self.direct.sandboxes():
                remove_pod(self.direct, sandbox.id)
        self.direct.close()
        self.proxied.close()
        remove_cgroups(self.cgroup_root)

    def start_process(
        self, command: str, *flags: str, environ: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts `topolet COMMAND` with the node's state folder; its log is COMMAND.log."""
        with (self.folder / f"{command}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(self.agent_launcher if command == "agent" else ()),
                    sys.executable,
                    "-m",
                    *constants.module(self.constants.get(command, {})),
                    command,
                    f"--state-dir={self.state}",
                    *flags,
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, **(environ or {})},
            )

    def _proxy_accepts(self) -> bool:
        assert self._proxy is not None
        assert self._proxy.poll() is None, self.log("proxy")
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.cri_socket) == 0


def built_or_skip(name: str) -> pathlib.Path:
    """The folder of a set of tests/tools. Skips the test if it is not available."""
    where = tools.built(name)
    if isinstance(where, str):
        pytest.skip(where)
    return where


def _root_and_two_cpus_or_skip() -> None:
    if os.geteuid():
        pytest.skip("needs root: containers and cgroups are real")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two CPUs")


@contextlib.contextmanager
def private_containerd(
    programs: pathlib.Path | None = None,
    pod_network: bool = False,
    required_plugins: Sequence[str] = (),
    nri_seconds: float = 5.0,
) -> Iterator[Containerd]:
    """A running containerd below a short path (the path of a socket has at most 107 characters).
    `programs`: the folder of its program, by default this machine's. Skips the test if containerd
    cannot run.

    `pod_network`: pods may have a network namespace, with a loopback device only.
    `required_plugins`, `nri_seconds`: as `Containerd` has them.
    """
    _root_and_two_cpus_or_skip()
    if lacking := private.missing(programs):
        pytest.skip(f"not on this machine: {', '.join(lacking)}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-"))
    if pod_network:
        podnetwork.install(folder / "cni")
    runtime = Containerd(
        folder,
        programs=programs,
        required_plugins=required_plugins,
        nri_seconds=nri_seconds,
    )
    try:
        runtime.start()
        yield runtime
    finally:
        runtime.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def private_crio(
    name: str = "cri-o",
    infra_cpus: str = "0",
    required_plugins: Sequence[str] = (),
    nri_seconds: float = 5.0,
) -> Iterator[Crio]:
    """A running CRI-O whose monitors run on CPU 0, as on a node that reserves this CPU. Skips the
    test if CRI-O cannot run.

    `name`: the set of its programs.
    `infra_cpus`, `required_plugins`, `nri_seconds`: as `Crio` has them."""
    _root_and_two_cpus_or_skip()
    programs = built_or_skip(name)
    conmon = tools.unpacked("conmon")
    if conmon is None:
        pytest.skip("no conmon here (tests/tools/prepare fetches it)")
    if shutil.which("runc", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        pytest.skip("not on this machine: runc")
    if image.busybox() is None:
        pytest.skip("not on this machine: busybox")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-"))
    runtime = Crio(folder, programs, conmon, infra_cpus, required_plugins, nri_seconds)
    try:
        runtime.start()
        yield runtime
    finally:
        runtime.stop()
        shutil.rmtree(folder, ignore_errors=True)


def write_runc(folder: pathlib.Path, script: str) -> None:
    """Writes a shell script as the program `runc` of a folder. `{folder}` and `{runc}` in it become
    the quoted paths of the folder and of the machine's runc."""
    runc = shutil.which("runc") or "runc"
    program = folder / "runc"
    program.write_text(script.format(folder=shlex.quote(str(folder)), runc=shlex.quote(runc)))
    program.chmod(0o755)


@contextlib.contextmanager
def fresh_node(containerd: Containerd | Crio) -> Iterator[TestNode]:
    """A node without running processes and without remains of earlier ones. A crash of the runtime
    fails the test during which it happened, and no other."""
    if isinstance(containerd, Containerd):
        containerd.start_after_crash()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="topolet-"))
    node = TestNode(folder, containerd)
    try:
        yield node
    finally:
        node.close()
        shutil.rmtree(folder, ignore_errors=True)


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.send_signal(signal.SIGKILL)
        process.wait()
