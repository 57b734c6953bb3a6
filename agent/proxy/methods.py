"""The methods of the CRI that the proxy looks into, in every version of it.

v1alpha2 has v1's messages under another name.
"""

from __future__ import annotations

from typing import Final

from agent.model.failurepolicy import CREATE, RUN, UPDATE, UPDATE_SANDBOX

REMOVE: Final = "RemoveContainer"
_ENDINGS: Final = ("StopContainer", REMOVE, "StopPodSandbox", "RemovePodSandbox")
_SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")

METHODS: Final = {
    f"/{service}/{method}".encode(): method
    for service in _SERVICES
    for method in (RUN, CREATE, UPDATE, UPDATE_SANDBOX, *_ENDINGS)
}
"""By path."""
