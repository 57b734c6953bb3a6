"""koord-manager and koord-scheduler, as processes of an API server of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.kube.errors import NotFoundError
from tests.deploy.manifests import objects
from tests.fixtures.ports import free_port
from tests.integration.apiserver.commands import kubeconfig
from tests.integration.apiserver.definitions import DEFINITIONS
from tests.integration.apiserver.server import ENVIRONMENT, ApiServer
from tests.integration.harness import built_or_skip
from tests.waiting import eventually

SECONDS = 180.0
"""A deadline for what several processes do one after the other."""
NAMESPACE = "koordinator-system"
SCHEDULER = "koord-scheduler"
MANAGER = "koordinator-manager"
"""The field manager of koord-manager's updates."""

Object = dict[str, Any]


class KoordProcess:
    """A running program of Koordinator."""

    def __init__(self, program: Path, folder: Path, *flags: str) -> None:
        self._log = folder / f"{program.name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(program), "--v=4", *flags],
                stdout=log,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
            )

    def alive(self) -> bool:
        """True; fails with the log if the process has ended."""
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        return True

    def eventually(self, what: str, check: Callable[[], object]) -> None:
        """Waits while the process runs."""
        eventually(what, lambda: self.alive() and check(), SECONDS)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def install(api: ApiServer) -> None:
    """Applies what both programs read: their kinds and their namespace."""
    for definition in (*objects("crds"), *DEFINITIONS):
        api.apply(definition)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})


def configure(api: ApiServer, **sections: Mapping[str, object]) -> None:
    """Writes the configuration of koord-manager, by the names of its keys with underscores."""
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "slo-controller-config", "namespace": NAMESPACE},
            "data": {name.replace("_", "-"): json.dumps(value) for name, value in sections.items()},
        }
    )


@contextlib.contextmanager
def manager(api: ApiServer) -> Iterator[KoordProcess]:
    """Runs koord-manager with the controllers of nodes, and without its webhooks."""
    process = KoordProcess(
        built_or_skip("koordinator") / "koord-manager",
        api.folder,
        f"--kubeconfig={kubeconfig(api)}",
        "--controllers=nodemetric,noderesource,nodeslo",
        "--feature-gates=WebhookFramework=false",
        "--enable-leader-election=false",
        "--enable-pprof=false",
        "--metrics-addr=0",
        "--health-probe-addr=0",
        f"--config-namespace={NAMESPACE}",
    )
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def scheduler(api: ApiServer) -> Iterator[KoordProcess]:
    """Runs koord-scheduler with the plugins that read what a node's agent reports."""
    settings = api.folder / "koord-scheduler.json"
    settings.write_text(json.dumps(_profile(str(kubeconfig(api)))))
    process = KoordProcess(
        built_or_skip("koordinator") / "koord-scheduler",
        api.folder,
        f"--config={settings}",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
        "--port=0",
        f"--cert-dir={api.folder}",
    )
    try:
        yield process
    finally:
        process.stop()


def _profile(credentials: str) -> Object:
    """One profile. LoadAwareScheduling takes its thresholds from each Node's annotation;
    DeviceShare needs the plugin Reservation."""
    load_aware, cpus, devices = "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare"
    reservation = "Reservation"

    def enabled(*names: str, only: bool = False) -> Object:
        plugins = {"enabled": [{"name": name} for name in names]}
        return {**plugins, "disabled": [{"name": "*"}]} if only else plugins

    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": credentials},
        "profiles": [
            {
                "schedulerName": SCHEDULER,
                "plugins": {
                    "preFilter": enabled(reservation, cpus, devices),
                    "filter": enabled(load_aware, cpus, devices, reservation),
                    "postFilter": enabled(reservation, only=True),
                    "preScore": enabled(reservation),
                    "score": enabled(load_aware, cpus, devices, reservation),
                    "reserve": enabled(load_aware, cpus, devices),
                    "preBind": enabled(cpus, devices, reservation),
                    "bind": enabled(reservation, "DefaultBinder", only=True),
                },
            }
        ],
    }


def stored(api: ApiServer, path: str) -> Object:
    """The object at this path; empty if it does not exist."""
    try:
        body: Object = json.loads(api.admin.get(path))
    except NotFoundError:
        return {}
    return body
