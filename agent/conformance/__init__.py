"""Comparison of Topolet's decisions with vector files: cases with the answers of the systems that
Topolet replaces.

`files` reads the files and defines the verdict on a case; `run` finds the kind of a file, judges
its cases one by one and counts. Each other module compares one part of another system: it converts
a case into Topolet's values, calls the code that the agent and the scheduler run, and writes the
answer in the form of the case. If Topolet's answer differs on purpose, a declared difference has
the reason; it applies only to cases that satisfy its predicate. `static_cpu_manager` simulates a
kubelet with the static policy, which only the comparison needs; `machines` builds the CPUs that a
case describes.
"""
