"""Starts pods one after the other and times their stages. Runs on a machine of `tests.cluster`,
with the standard library only.

usage: podstarts.py KUBECONFIG (in JSON), a JSON list of pods on standard input. The container of
each must print a line as its first action. Prints a JSON list of objects, milliseconds from the
POST: `created` (it is answered), `scheduled` (a watch reports the node), `started` (the container
prints; the time is the runtime's, from the container's log), `running` (a watch reports it).
"""

from __future__ import annotations

import datetime
import http.client
import json
import ssl
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

PODS = "/api/v1/namespaces/default/pods"
LOGS = Path("/var/log/pods")
DEADLINE_SECONDS = 60.0


class Server:
    """An API server, as the user of a kubeconfig."""

    def __init__(self, config: dict[str, Any]) -> None:
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        url = urllib.parse.urlsplit(cluster["server"])
        self._address = (str(url.hostname), url.port or 443)
        self._connection = self.connection()

    def connection(self) -> http.client.HTTPSConnection:
        host, port = self._address
        return http.client.HTTPSConnection(host, port, timeout=DEADLINE_SECONDS, context=self._tls)

    def request(self, method: str, path: str, body: object = None) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status}: {content[:500]!r}")
        return json.loads(content)


def start_pod(server: Server, pod: dict[str, Any]) -> dict[str, float]:
    name = pod["metadata"]["name"]
    version = server.request("GET", f"{PODS}?limit=1")["metadata"]["resourceVersion"]
    watch = server.connection()
    selector = urllib.parse.quote(f"metadata.name={name}")
    watch.request("GET", f"{PODS}?watch=1&fieldSelector={selector}&resourceVersion={version}")
    events = watch.getresponse()
    stages = {}
    began = time.time()

    def elapsed_ms() -> float:
        return (time.time() - began) * 1e3

    uid = server.request("POST", PODS, pod)["metadata"]["uid"]
    stages["created"] = elapsed_ms()
    while "running" not in stages:
        seen = json.loads(events.readline())["object"]
        if seen["spec"].get("nodeName"):
            stages.setdefault("scheduled", elapsed_ms())
        statuses = seen["status"].get("containerStatuses", ())
        if statuses and all("running" in each["state"] for each in statuses):
            stages["running"] = elapsed_ms()
    stages["started"] = (first_line(name, uid) - began) * 1e3
    server.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=1")
    while json.loads(events.readline())["type"] != "DELETED":
        pass
    watch.close()
    return stages


def first_line(name: str, uid: str) -> float:
    """Seconds since the epoch."""
    log = LOGS / f"default_{name}_{uid}" / "main" / "0.log"
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (log.exists() and log.stat().st_size):
        if time.monotonic() > deadline:
            raise SystemExit(f"{name} printed nothing")
        time.sleep(0.01)
    stamp, fraction = log.read_text().split(None, 1)[0].split(".")
    # The runtime's nanoseconds with an offset or Z; datetime reads microseconds.
    return datetime.datetime.fromisoformat(f"{stamp}+00:00").timestamp() + float(
        f"0.{fraction.rstrip('Z').partition('+')[0]}"
    )


if __name__ == "__main__":
    server = Server(json.loads(Path(sys.argv[1]).read_text()))
    print(json.dumps([start_pod(server, each) for each in json.load(sys.stdin)]))
