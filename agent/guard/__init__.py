"""The guard of the NRI plugin: a second, small plugin in its own process, which only validates.

A runtime goes on without a plugin that times out or closes its connection while it is asked about
a container, and counts it as present. If a validator does so, the runtime refuses the container
(NRI: pkg/adaptation, createContainer and ValidateContainerAdjustment). So the guard compares the
final values of each new container with the agent's snapshot (`decisions`), and refuses a container
that would start without the CPUs or devices that its pod owns, or on CPUs of another pod. It asks
neither the agent nor the plugin.

`process` connects to the runtime and keeps the session, `frames` are the messages of ttrpc in it,
`wire` decodes them, and `request` has the container in a call. `records` are its log, its audit
records and its status for the agent.

The package imports nothing but a small part of the standard library, of which it uses some parts in
C directly: msgspec or protobuf alone would take more memory than all the rest.
"""

LOCK = "nri-guard.lock"
"""In the state folder: the guard locks it, and its content is the status (`records`)."""
