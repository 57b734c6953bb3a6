"""A plan that moves bound pods of one node to better CPUs, or the reasons why there is none.

The input is the pods that own CPUs, and those that share the CPUs of the NUMA nodes to which they
are bound. A plan never makes a measure of the node worse, and no moved pod gets more NUMA nodes or
more broken cores than it had. `arrangement` holds the pods' places while a plan is searched, and
checks what a moved pod may take. `planner` improves step by step: one pod moves, two pods change
their places, several pods make room for one that crosses NUMA nodes, and all pods of a NUMA node
leave it; with few pods, up to four of them are placed again in any order. Then moves that gain
nothing are undone. It orders the moves so that no CPU has two owners in between; it reads its input
from a node allocator.
"""
