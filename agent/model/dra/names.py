"""The names by which processes of Topolet, the kubelet and the runtime speak of claims on CPUs. The
proxy uses this module too, so it imports nothing."""

from __future__ import annotations

from typing import Final

DRIVER: Final = "cpu.topolet.io"
PEER_DRIVER: Final = "dra.cpu"
"""dra-driver-cpu, whose parameters are read too."""
REGISTRY: Final = "plugins_registry"
PLUGIN_DIR: Final = f"plugins/{DRIVER}"
"""The folder of registration sockets, and the driver's own, in the kubelet's folder."""
CLAIMS_FILE: Final = "claims.json"
"""In the state folder, the prepared claims."""
SHOWN_FILE: Final = "dra.json"
"""In the state folder, what the driver tells people (`agent.view.dra`)."""
CDI_KIND: Final = f"{DRIVER}/claim"
"""The kind of the CDI devices that stand for the CPUs of a claim."""
VARIABLE: Final = "TOPOLET_CLAIM_"
"""The prefix of the variable that such a device sets."""
