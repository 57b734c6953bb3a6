"""What a kubelet with the static CPU manager policy decides.

`static_policy` has its rules: which options exclude each other, how many exclusive CPUs a container
or a pod gets, and the reasons of refusals. `cpu_assignment` chooses the CPUs, packed or
distributed. The node-local policies use both, and so does the simulator of a whole kubelet
(`conformance.static_cpu_manager`).
"""
