"""A candidate of the leader election as a process that a test can kill. It prints `leads` when it
becomes the leader. Arguments: the URL of the API server, its CA, the client's certificate and key,
the namespace, name and identity, and the three times of the Lease."""

from __future__ import annotations

import sys
import threading

from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.scheduler.leader import election
from agent.scheduler.leader.election import Leader, LeaseTimes


def main() -> None:
    url, ca, certificate, key, namespace, name, identity, *times = sys.argv[1:]
    lease_seconds, renew_seconds, retry_seconds = times
    limits = LeaseTimes(int(lease_seconds), float(renew_seconds), float(retry_seconds))
    access = FileAccess(url, ca=ca, certificate=certificate, key=key)
    transport = Transport(access, limits=election.limits(limits))
    candidate = Leader(
        transport,
        namespace,
        name,
        identity,
        times=limits,
        acquired=lambda: print("leads", flush=True),
    )
    candidate.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
