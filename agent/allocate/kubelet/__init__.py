"""What a kubelet with the static CPU manager policy decides.

`static_policy` has its options, which of them exclude each other, and the reasons of refusals; how
many exclusive CPUs a container gets follows from the pod alone (`model.pod_request`).
`cpu_assignment` chooses the CPUs, packed or distributed. The node-local policies use both, and so
does the simulator of a whole kubelet (`conformance/static_cpu_manager.py`).
"""
