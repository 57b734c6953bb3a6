"""Comparison of Topolet's decisions with vector files: cases with the answers of the systems that
it replaces.

`files` reads them and has the verdict on a case; `run` finds the kind of a file, judges its cases
one by one and counts. The other modules compare, one per part of the other system: each turns a
case into Topolet's values, calls the same code that the agent and the scheduler run, and writes the
answer in the form of the case. If Topolet's answer differs on purpose, a declared difference has
the reason; it applies only if its predicate over the case holds. `static_cpu_manager` simulates a
kubelet with the static policy, which only the comparison needs; `machines` builds the CPUs that a
case describes.
"""
