"""What a kubelet with the static CPU manager policy decides.

`static_policy` has its rules: which options exclude each other, how many exclusive CPUs a container
or a pod gets, and the reasons for which it refuses. `cpu_assignment` chooses the CPUs, packed or
distributed. Our node-local policies use both, and the simulator of a whole kubelet
(`conformance.static_cpu_manager`) too.
"""
