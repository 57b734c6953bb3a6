"""The last hour of load and pressure, as the node's agent answers it to commands on its machine."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.node import own_processes
from agent.usage.past import PastHour


class _Usage(msgspec.Struct, frozen=True):
    """The reply of the agent's `/page/usage`."""

    hour: PastHour | None


_usage: Final = msgspec.json.Decoder(_Usage)


def read(root: str, state_dir: str) -> PastHour | None:
    """The last hour by the agent with this state folder, on the machine whose files are below
    `root`; None if no agent answers, or it samples no use of CPU and memory."""
    proc = os.path.join(root, "proc")
    running = tuple(own_processes.running(proc))
    address = own_processes.address_of("agent", running, proc, state_dir)
    reply = own_processes.answer(address, "/page/usage") if address else None
    return None if reply is None else decoded(reply.encode())


def decoded(reply: bytes) -> PastHour | None:
    """The hour in a reply; None if it has none."""
    try:
        return bounds.decode(_usage, reply).hour
    except JsonError:
        return None
