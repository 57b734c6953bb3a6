"""Comparison of Topolet's decisions with vector files: cases with the answers of the systems that
Topolet replaces.

`files` reads the files and defines the verdict on a case; its function `judge` finds the kind of a
file, compares its cases one by one and counts the verdicts. `kubelet`, `merge_hints`, `nrt_match`
and the modules `koordinator_*` each compare one part of another system: they convert a case into
Topolet's values, call the code that the agent and the scheduler run, and write the answer in the
form of the case. If Topolet's answer differs on purpose, a declared difference has the reason; it
applies only to cases that satisfy its predicate. Those of Koordinator's devices and NUMA nodes are
in `device_differences` and `node_numa_differences`. `static_cpu_manager` simulates a kubelet with
the static policy, which only the comparison needs; `machines` builds the CPUs that a case
describes.
"""
