"""The kubelet's interfaces on its node: its configuration, its PodResources API, and its state
files.

`configuration` reads what a kubelet is configured to do, from `/configz` or from its command line
and files. `podresources` asks a running kubelet which CPUs, memory and devices its pods have.
`cpu_manager_state`, `memory_manager_state` and `device_checkpoint` read the files in which it keeps
this across restarts, and `state_folder` all of them, also damaged ones. `statefile` has their
common form, a JSON object with a checksum inside. A file whose checksum is wrong raises an error;
entries that can't be read become problems, and the others are used.
"""
